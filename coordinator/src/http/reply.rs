//! The objects that answers are made of.

use aqueduct_core::{RequestId, Telling};
use serde_json::{Value, json};

use crate::generation::{Finish, Report};

/// Which of the two endpoints answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint {
    Completions,
    Chat,
}

impl Endpoint {
    /// Which one tells an answer so.
    pub(super) fn of(telling: &Telling) -> Self {
        if telling.continues { Self::Completions } else { Self::Chat }
    }
}

/// What all objects of one answer have in common.
#[derive(Debug, Clone)]
pub(super) struct Envelope {
    pub(super) endpoint: Endpoint,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
}

/// Token counts of one answer.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    reasoning_tokens: u64,
    cached_tokens: u64,
}

impl Envelope {
    pub(super) fn new(
        endpoint: Endpoint,
        request: RequestId,
        created_at_s: u64,
        model: &str,
    ) -> Self {
        let prefix = match endpoint {
            Endpoint::Completions => "cmpl",
            Endpoint::Chat => "chatcmpl",
        };
        Self {
            endpoint,
            id: format!("{prefix}-{request}"),
            created: created_at_s,
            model: model.to_owned(),
        }
    }

    /// A whole answer.
    pub(super) fn whole(&self, choices: Vec<Value>, reports: &[Report]) -> Value {
        let object = match self.endpoint {
            Endpoint::Completions => "text_completion",
            Endpoint::Chat => "chat.completion",
        };
        let mut whole = self.object(object, Value::from(choices));
        let mut usage = Usage::default();
        reports.iter().for_each(|report| usage.add(report));
        whole["usage"] = usage.object();
        // One prompt is what nearly everyone sends; a list for it would be in the way.
        whole["aqueduct"] = match reports {
            [one] => figures(one),
            several => several.iter().map(figures).collect(),
        };
        whole
    }

    /// A part of a streamed answer.
    pub(super) fn chunk(&self, choices: Value) -> Value {
        let object = match self.endpoint {
            Endpoint::Completions => "text_completion",
            Endpoint::Chat => "chat.completion.chunk",
        };
        self.object(object, choices)
    }

    fn object(&self, object: &str, choices: Value) -> Value {
        let Self { id, created, model, .. } = self;
        json!({
            "id": id, "object": object, "created": created, "model": model, "choices": choices,
        })
    }
}

impl Usage {
    pub(super) fn of(report: &Report) -> Self {
        let mut usage = Self::default();
        usage.add(report);
        usage
    }

    pub(super) fn add(&mut self, report: &Report) {
        self.prompt_tokens += u64::from(report.prompt_tokens);
        self.completion_tokens += u64::from(report.output_tokens);
        self.reasoning_tokens += u64::from(report.reasoning_tokens);
        self.cached_tokens += u64::from(report.prefill.cached_tokens);
    }

    pub(super) fn object(&self) -> Value {
        let Self { prompt_tokens, completion_tokens, reasoning_tokens, cached_tokens } = self;
        let mut usage = json!({
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": { "cached_tokens": cached_tokens },
        });
        if *reasoning_tokens > 0 {
            usage["completion_tokens_details"] = json!({ "reasoning_tokens": reasoning_tokens });
        }
        usage
    }
}

/// The same in the words of `/v1/responses`.
pub(super) fn response_usage(report: &Report) -> Value {
    let (input, output) = (report.prompt_tokens, report.output_tokens);
    json!({
        "input_tokens": input,
        "input_tokens_details": {
            "cached_tokens": report.prefill.cached_tokens, "cache_write_tokens": 0,
        },
        "output_tokens": output,
        "output_tokens_details": { "reasoning_tokens": report.reasoning_tokens },
        "total_tokens": u64::from(input) + u64::from(output),
    })
}

pub(super) fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}

/// A number of 32 bits as its caller wrote it: 0.7, and not the number of 64 bits that it is.
pub(super) fn as_written(number: f32) -> Value {
    number.to_string().parse().map_or(Value::Null, |number: f64| json!(number))
}

/// The `aqueduct` object of an answer.
pub(super) fn figures(report: &Report) -> Value {
    let Report { policy, prefill, .. } = report;
    let shares: Vec<f64> = prefill.retained.iter().map(|layer| layer.share()).collect();
    json!({
        "policy": policy.kind.as_str(),
        "sinks": policy.sinks,
        "local": policy.local,
        "heavy": policy.heavy,
        "decay": as_written(policy.scoring.decay),
        "window": policy.scoring.window,
        "age_normalised": policy.scoring.age_normalised,
        "chunk_tokens": report.chunk_tokens,
        "chunk_count": report.chunk_count,
        "chunks_retried": prefill.chunks_retried,
        "seed": report.seed,
        "retained_mass": report.retained_mass(),
        "retained_mass_per_layer": shares,
        "lowest_retained_mass": report.lowest_retained_mass(),
        "min_retained_mass": report.floor.map(|floor| floor.min_retained_mass),
        "escalations": report.escalations,
        "memory_bytes": prefill.memory_bytes,
        "memory_tokens": prefill.memory_tokens,
        "dense_bytes": report.dense_bytes,
        "exchange": prefill.exchange.as_str(),
        "wire": report.wire.as_str(),
        "sent_bytes": prefill.traffic.sent_bytes,
        "received_bytes": prefill.traffic.received_bytes,
        "asked": prefill.traffic.asked,
        "fetched": prefill.traffic.fetched,
        "queue_seconds": prefill.queued.as_secs_f64(),
        "spared_bytes": prefill.traffic.spared_bytes,
        "prefill_seconds": prefill.elapsed.as_secs_f64(),
        "decode_seconds": report.decode_elapsed.as_secs_f64(),
        "session": report.session.map(|session| session.to_string()),
        "warnings": report.warnings,
    })
}
