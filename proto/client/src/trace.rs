//! The span of a call, a child of the one that its caller is in, and the parent of what the server
//! does for it; for callers whose subscriber has OpenTelemetry's layer.

use aqueduct_core::trace::TRACEPARENT;
use aqueduct_telemetry::trace_of;
use tonic::Request;
use tracing::field::{Empty, display};
use tracing::{Span, info_span};

use crate::error::ClientError;

/// Of a call, from its start to the end of its answer.
pub(crate) fn begin(request_id: Option<&str>) -> Span {
    let span = info_span!(
        "generate",
        otel.kind = "client",
        request_id = Empty,
        otel.status_code = Empty,
        otel.status_description = Empty,
    );
    if let Some(id) = request_id {
        span.record("request_id", id);
    }
    span
}

/// Says to the server whose child its own span is: of `span` or, where that is not wanted, of the
/// one that its caller is in.
pub(crate) fn tell<T>(request: &mut Request<T>, span: &Span) {
    let parent = trace_of(span).or_else(|| trace_of(&Span::current()));
    // What it is written as is always a value.
    let parent = parent.and_then(|parent| parent.to_string().parse().ok());
    parent.into_iter().for_each(|parent| drop(request.metadata_mut().insert(TRACEPARENT, parent)));
}

/// Says how the call ended.
pub(crate) fn failed(span: &Span, error: &ClientError) {
    span.record("otel.status_code", "ERROR");
    span.record("otel.status_description", display(error));
}
