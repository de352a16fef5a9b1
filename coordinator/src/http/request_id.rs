//! Every call has an id, which its answer and what is logged meanwhile carry.

use std::time::Instant;

use aqueduct_core::trace::TRACEPARENT;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tracing::{Instrument, Span};

use crate::request_id::{REQUEST_ID, call_span, or_drawn};

/// The id of a call, for those who answer it, and when it came.
#[derive(Debug, Clone)]
pub(super) struct CallerId(pub(super) String, pub(super) Instant);

/// Gives a call its id, and its answer.
pub(super) async fn echo(mut request: Request, next: Next) -> Response {
    let id = or_drawn(header(&request, REQUEST_ID));
    // Probes and scrapers come too often for a trace each.
    let span = match request.uri().path().starts_with("/v1/") {
        true => call_span("http", &id, header(&request, TRACEPARENT)),
        false => Span::none(),
    };
    let value = HeaderValue::from_str(&id);
    request.extensions_mut().insert(CallerId(id, Instant::now()));
    let mut response = next.run(request).instrument(span).await;
    if let Ok(value) = value {
        response.headers_mut().insert(HeaderName::from_static(REQUEST_ID), value);
    }
    response
}

fn header<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    request.headers().get(name).and_then(|value| value.to_str().ok())
}
