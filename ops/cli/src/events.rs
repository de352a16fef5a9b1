//! The events of a request as JSON rows.

use std::time::Duration;

use aqueduct_client::{GenerateEvent, Summary};
use serde::Serialize;

/// One event; `event` says which.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Row<'a> {
    /// Always first.
    Accepted {
        request: String,
        prompt_tokens: u32,
        chunk_count: u32,
        seed: u64,
        warnings: &'a [String],
    },
    /// The prefill went on.
    Progress { chunks_done: u32, chunk_count: u32, tokens_per_second: f64, seconds_left: f64 },
    /// The memory kept too little; the prefill begins again.
    Escalated { lowest_retained_mass: f64, min_retained_mass: f64, policy: String, next: String },
    /// Log probabilities of prompt tokens.
    PromptLogprobs { start: u32, tokens: Vec<u32>, logprobs: Vec<f32> },
    /// A token was generated.
    Token { choice: u32, token_idx: u32, token: u32, text: &'a str, logprob: f32 },
    /// A completion ended.
    ChoiceDone { choice: u32, reason: &'static str, tokens: u32, text: &'a str },
    /// Last, if all went well.
    Summary {
        prompt_tokens: u32,
        output_tokens: u32,
        queue_seconds: f64,
        prefill_seconds: f64,
        decode_seconds: f64,
        tokens_per_second: f64,
        memory_bytes: u64,
        dense_bytes: u64,
        retained_mass: f64,
        retained_mass_per_layer: Vec<f64>,
        lowest_retained_mass: f64,
        min_retained_mass: Option<f64>,
        escalations: u32,
        policy: &'static str,
        sinks: u32,
        local: u32,
        heavy: u32,
        chunk_tokens: u32,
        exchange: &'static str,
        sent_bytes: u64,
        received_bytes: u64,
        asked: u32,
        fetched: u32,
        spared_bytes: u64,
        session: Option<String>,
        warnings: &'a [String],
    },
}

impl<'a> Row<'a> {
    /// What is told of an event, if anything.
    pub(crate) fn of(event: &'a GenerateEvent) -> Option<Self> {
        Some(match event {
            GenerateEvent::Accepted(accepted) => Self::Accepted {
                request: accepted.request.to_string(),
                prompt_tokens: accepted.prompt_tokens,
                chunk_count: accepted.chunk_count,
                seed: accepted.seed,
                warnings: &accepted.warnings,
            },
            GenerateEvent::Progress(at) => Self::Progress {
                chunks_done: at.chunks_done,
                chunk_count: at.chunk_count,
                tokens_per_second: at.tokens_per_second,
                seconds_left: at.seconds_left,
            },
            GenerateEvent::Escalated(escalated) => Self::Escalated {
                lowest_retained_mass: escalated.lowest_retained_mass,
                min_retained_mass: escalated.min_retained_mass,
                policy: escalated.policy.to_string(),
                next: escalated.next.to_string(),
            },
            GenerateEvent::PromptLogprobs { start, entries } => Self::PromptLogprobs {
                start: *start,
                tokens: entries.iter().map(|entry| entry.token.token).collect(),
                logprobs: entries.iter().map(|entry| entry.token.logprob).collect(),
            },
            GenerateEvent::Token(token) => Self::Token {
                choice: token.choice,
                token_idx: token.token_idx,
                token: token.id,
                text: &token.text,
                logprob: token.logprob,
            },
            GenerateEvent::ChoiceDone(done) => Self::ChoiceDone {
                choice: done.choice,
                reason: done.reason.as_str(),
                tokens: done.tokens,
                text: &done.text,
            },
            GenerateEvent::Summary(summary) => Self::summary(summary),
            _ => return None,
        })
    }

    fn summary(summary: &'a Summary) -> Self {
        Self::Summary {
            prompt_tokens: summary.prompt_tokens,
            output_tokens: summary.output_tokens,
            queue_seconds: summary.queued.as_secs_f64(),
            prefill_seconds: summary.prefill.as_secs_f64(),
            decode_seconds: summary.decode.as_secs_f64(),
            tokens_per_second: prefill_rate(summary),
            memory_bytes: summary.memory_bytes,
            dense_bytes: summary.dense_bytes,
            retained_mass: summary.retained_total().share(),
            retained_mass_per_layer: summary.retained.iter().map(|l| l.share()).collect(),
            lowest_retained_mass: summary.lowest_retained_mass,
            min_retained_mass: summary.min_retained_mass,
            escalations: summary.escalations,
            policy: summary.policy.kind.as_str(),
            sinks: summary.policy.sinks,
            local: summary.policy.local,
            heavy: summary.policy.heavy,
            chunk_tokens: summary.chunk_tokens,
            exchange: summary.exchange.as_str(),
            sent_bytes: summary.traffic.sent_bytes,
            received_bytes: summary.traffic.received_bytes,
            asked: summary.traffic.asked,
            fetched: summary.traffic.fetched,
            spared_bytes: summary.traffic.spared_bytes,
            session: summary.session.map(|session| session.to_string()),
            warnings: &summary.warnings,
        }
    }
}

/// Tokens of the prompt that were computed in a second: what was kept from another request took no
/// time.
pub(crate) fn prefill_rate(summary: &Summary) -> f64 {
    tokens_per_second(summary.prompt_tokens - summary.cached_tokens, summary.prefill)
}

/// Speed; 0 where no time passed.
pub(crate) fn tokens_per_second(tokens: u32, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { f64::from(tokens) / seconds } else { 0.0 }
}
