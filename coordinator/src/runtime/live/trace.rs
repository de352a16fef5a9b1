//! The span of a request, from its submission to its end, under which those of its chunks and of
//! its completions stand, wherever they are done.

use aqueduct_core::{ChunkGrid, RequestId, TraceParent};
use aqueduct_telemetry::{number, trace_of};
use tracing::Span;
use tracing::field::{Empty, display};

use super::Live;
use crate::submit::{RequestError, Submission};

/// The request's span, and that of its wait for a worker.
#[derive(Debug)]
pub(crate) struct RequestTrace {
    request: Span,
    queue: Span,
}

impl RequestTrace {
    /// A child of the span that its caller is in. Attributes that OpenTelemetry has names for have
    /// those (`gen_ai`).
    pub(crate) fn begin(submission: &Submission, grid: ChunkGrid) -> Self {
        let request = tracing::info_span!(
            "request",
            request = Empty,
            caller_id = submission.caller_id,
            policy = %submission.policy,
            chunk_tokens = number(grid.chunk_tokens()),
            chunk_count = number(grid.chunk_count()),
            gen_ai.request.max_tokens = number(submission.max_tokens),
            gen_ai.request.choice.count = number(submission.choices),
            gen_ai.usage.input_tokens = number(grid.prompt_tokens()),
            gen_ai.usage.output_tokens = Empty,
            otel.status_code = Empty,
            otel.status_description = Empty,
        );
        let queue = tracing::info_span!(parent: &request, "queue");
        Self { request, queue }
    }

    pub(super) fn accepted(&self, request: RequestId) {
        self.request.record("request", display(request));
    }

    /// A worker was given a chunk of it.
    pub(super) fn began(&mut self) {
        self.queue = Span::none();
    }

    /// For the spans of those who work on it.
    pub(super) fn parent(&self) -> Option<TraceParent> {
        trace_of(&self.request)
    }
}

impl Live {
    /// Has its span say how it ended.
    pub(crate) fn traced_to_end(&self, error: Option<&RequestError>) {
        let span = &self.trace.request;
        let tokens: usize = self.choices.iter().map(|choice| choice.tokens.len()).sum();
        span.record("gen_ai.usage.output_tokens", number(tokens as u64));
        if let Some(error) = error {
            span.record("otel.status_code", "ERROR");
            span.record("otel.status_description", display(error));
        }
    }
}
