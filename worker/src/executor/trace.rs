//! Spans of what the device thread does. None of them is ever entered: while a chunk waits, the
//! thread does other requests' work.

use aqueduct_core::work::{Assignment, ChunkReport, DecodeSpec};
use aqueduct_telemetry::{follow, number};
use tracing::Span;
use tracing::field::Empty;

use super::chunk::ChunkError;

/// Layers that share a span: one for each layer would say little more for many times the cost.
const GROUP_LAYERS: u32 = 8;

/// A chunk under way, and the layers that it is at.
pub(super) struct ChunkTrace {
    chunk: Span,
    /// Ends when it is replaced.
    group: Span,
    layers: u32,
}

impl ChunkTrace {
    pub(super) fn begin(work: &Assignment, layers: u32) -> Self {
        let chunk = tracing::info_span!(
            "chunk",
            request = %work.key.request,
            chunk_idx = number(work.key.chunk_idx),
            chunk_count = number(work.chunk_count),
            epoch = number(work.key.epoch.0),
            start = number(work.span.start),
            tokens = number(work.span.tokens),
            wait_us = Empty,
            memory_bytes = Empty,
            received_bytes = Empty,
            otel.status_code = Empty,
            otel.status_description = Empty,
        );
        follow(&chunk, work.trace);
        let group = group(&chunk, 0, layers);
        Self { chunk, group, layers }
    }

    pub(super) fn layer_done(&mut self, layers_done: u32) {
        if layers_done == self.layers {
            self.group = Span::none();
        } else if layers_done.is_multiple_of(GROUP_LAYERS) {
            // The one before ends before this one begins.
            self.group = Span::none();
            self.group = group(&self.chunk, layers_done, self.layers);
        }
    }

    /// `None` where the chunk is not wanted any more.
    pub(super) fn end(self, result: Option<&Result<ChunkReport, ChunkError>>) {
        drop(self.group);
        match result {
            Some(Ok(report)) => {
                self.chunk.record("wait_us", number(report.wait_us));
                self.chunk.record("memory_bytes", number(report.memory_bytes));
                self.chunk.record("received_bytes", number(report.traffic.received_bytes));
            }
            Some(Err(error)) => failed(&self.chunk, error),
            None => failed(&self.chunk, &"cancelled"),
        }
    }
}

fn group(chunk: &Span, first: u32, layers: u32) -> Span {
    let end = (first + GROUP_LAYERS).min(layers);
    tracing::info_span!(parent: chunk, "layers", first = number(first), last = number(end - 1))
}

/// All completions of a request, at their home.
pub(super) fn decoding(spec: &DecodeSpec) -> Span {
    let span = tracing::info_span!(
        "decode",
        request = %spec.request,
        choices = number(spec.choices),
        max_tokens = number(spec.max_tokens),
        begun = number(spec.begun.len() as u64),
        otel.status_code = Empty,
        otel.status_description = Empty,
    );
    follow(&span, spec.trace);
    span
}

/// Has `span` say what went wrong.
pub(super) fn failed(span: &Span, error: &dyn std::fmt::Display) {
    span.record("otel.status_code", "ERROR");
    span.record("otel.status_description", tracing::field::display(error));
}
