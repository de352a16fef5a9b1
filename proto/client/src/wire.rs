//! From messages to what a caller reads; what cannot be read is an error, never a guess.

use std::time::Duration;

use aqueduct_core::{MemoryPolicy, RequestId, Session};
use aqueduct_proto::convert::exchange::exchange;
use aqueduct_proto::convert::shape::pool_tokens;
use aqueduct_proto::v1;

use crate::error::ClientError;
use crate::event::{
    Accepted, ChoiceDone, Description, Escalated, GenerateEvent, Progress, PromptLogprob,
    StopReason, Summary, Token, WorkerProgress, WorkerStatus,
};

impl TryFrom<v1::GenerateEvent> for GenerateEvent {
    type Error = ClientError;

    fn try_from(event: v1::GenerateEvent) -> Result<Self, ClientError> {
        use v1::generate_event::Kind;
        let kind = event.kind.ok_or_else(|| ClientError::unreadable("event without a kind"))?;
        Ok(match kind {
            Kind::Accepted(accepted) => Self::Accepted(accepted.into()),
            Kind::Progress(progress) => Self::Progress(progress.into()),
            Kind::Escalated(escalated) => Self::Escalated(Box::new(escalated.try_into()?)),
            Kind::Token(token) => Self::Token(token.try_into()?),
            Kind::ChoiceDone(done) => Self::ChoiceDone(done.into()),
            Kind::Summary(summary) => Self::Summary(Box::new(summary.try_into()?)),
            Kind::PromptLogprobs(part) => {
                Self::PromptLogprobs { start: part.start, entries: all(part.entries)? }
            }
        })
    }
}

impl From<v1::Accepted> for Accepted {
    fn from(accepted: v1::Accepted) -> Self {
        Self {
            request: RequestId(accepted.request),
            prompt_tokens: accepted.prompt_tokens,
            chunk_count: accepted.chunk_count,
            seed: accepted.seed,
            warnings: accepted.warnings,
        }
    }
}

impl From<v1::Progress> for Progress {
    fn from(progress: v1::Progress) -> Self {
        let worker = |worker: v1::WorkerProgress| WorkerProgress {
            worker: worker.worker,
            chunk_idx: worker.chunk_idx,
            layers_done: worker.layers_done,
            layers: worker.layers,
            chunks_done: worker.chunks_done,
        };
        Self {
            chunks_done: progress.chunks_done,
            chunk_count: progress.chunk_count,
            tokens_per_second: progress.tokens_per_second,
            seconds_left: progress.seconds_left,
            workers: progress.workers.into_iter().map(worker).collect(),
        }
    }
}

impl TryFrom<v1::Escalated> for Escalated {
    type Error = ClientError;

    fn try_from(wire: v1::Escalated) -> Result<Self, ClientError> {
        Ok(Self {
            lowest_retained_mass: wire.lowest_retained_mass,
            min_retained_mass: wire.min_retained_mass,
            policy: policy("escalated.policy", wire.policy)?,
            next: policy("escalated.next", wire.next)?,
        })
    }
}

/// A policy that a message must carry.
fn policy(field: &str, wire: Option<v1::MemoryPolicy>) -> Result<MemoryPolicy, ClientError> {
    let wire = wire.ok_or_else(|| ClientError::unreadable(field))?;
    wire.try_into().map_err(ClientError::unreadable)
}

impl TryFrom<v1::PromptLogprob> for PromptLogprob {
    type Error = ClientError;

    fn try_from(entry: v1::PromptLogprob) -> Result<Self, ClientError> {
        let token = entry.token.ok_or_else(|| ClientError::unreadable("entry without a token"))?;
        let token = token.try_into().map_err(ClientError::unreadable)?;
        Ok(Self { token, top: all(entry.top)? })
    }
}

impl TryFrom<v1::Token> for Token {
    type Error = ClientError;

    fn try_from(token: v1::Token) -> Result<Self, ClientError> {
        Ok(Self {
            choice: token.choice,
            token_idx: token.token_idx,
            id: token.id,
            text: token.text,
            reasoning: token.reasoning,
            logprob: token.logprob,
            top: all(token.top)?,
        })
    }
}

/// Every item converted, or the first one that cannot be.
fn all<Wire, T>(wire: Vec<Wire>) -> Result<Vec<T>, ClientError>
where
    T: TryFrom<Wire, Error: std::fmt::Display>,
{
    wire.into_iter().map(|item| item.try_into().map_err(ClientError::unreadable)).collect()
}

impl From<v1::ChoiceDone> for ChoiceDone {
    fn from(done: v1::ChoiceDone) -> Self {
        use v1::choice_done::Reason;
        let reason = match done.reason() {
            Reason::Stop => StopReason::Stop,
            Reason::Length => StopReason::Length,
            Reason::Unspecified => StopReason::Other,
        };
        let v1::ChoiceDone { choice, tokens, text, reasoning, .. } = done;
        Self { choice, reason, tokens, text, reasoning }
    }
}

impl TryFrom<v1::Summary> for Summary {
    type Error = ClientError;

    fn try_from(summary: v1::Summary) -> Result<Self, ClientError> {
        Ok(Self {
            prompt_tokens: summary.prompt_tokens,
            output_tokens: summary.output_tokens,
            prefill: seconds("prefill_seconds", summary.prefill_seconds)?,
            queued: seconds("queue_seconds", summary.queue_seconds)?,
            decode: seconds("decode_seconds", summary.decode_seconds)?,
            memory_bytes: summary.memory_bytes,
            dense_bytes: summary.dense_bytes,
            retained: all(summary.retained)?,
            lowest_retained_mass: summary.lowest_retained_mass,
            min_retained_mass: summary.min_retained_mass,
            escalations: summary.escalations,
            cached_tokens: summary.cached_tokens,
            policy: policy("summary.policy", summary.policy)?,
            chunk_tokens: summary.chunk_tokens,
            exchange: exchange(summary.exchange)
                .map_err(ClientError::unreadable)?
                .ok_or_else(|| ClientError::unreadable("summary.exchange"))?,
            traffic: summary.traffic.unwrap_or_default().into(),
            warnings: summary.warnings,
            session: session(&summary.session)?,
        })
    }
}

fn session(text: &str) -> Result<Option<Session>, ClientError> {
    let session = (!text.is_empty()).then(|| text.parse()).transpose();
    session.map_err(ClientError::unreadable)
}

fn seconds(field: &str, value: f64) -> Result<Duration, ClientError> {
    Duration::try_from_secs_f64(value)
        .map_err(|error| ClientError::unreadable(format!("{field} = {value}: {error}")))
}

impl From<v1::WorkerStatus> for WorkerStatus {
    fn from(wire: v1::WorkerStatus) -> Self {
        let v1::WorkerStatus { worker, address, up, threads, draining, requests, .. } = wire;
        // Of a server that is older than the word.
        let state_of_old = || if up { "up" } else { "down" }.to_owned();
        let state = Some(wire.state).filter(|state| !state.is_empty()).unwrap_or_else(state_of_old);
        let (pool_bytes, pool_used_bytes) = (wire.pool_bytes, wire.pool_used_bytes);
        let pool_tokens = pool_tokens(wire.pool_tokens);
        Self {
            worker,
            address,
            up,
            state,
            threads,
            pool_tokens,
            draining,
            requests,
            pool_bytes,
            pool_used_bytes,
        }
    }
}

impl TryFrom<v1::DescribeReply> for Description {
    type Error = ClientError;

    fn try_from(reply: v1::DescribeReply) -> Result<Self, ClientError> {
        let kv = Some(reply.kv()).filter(|kv| *kv != v1::KvDtype::Unspecified);
        let kv = kv.map(TryInto::try_into).transpose().map_err(ClientError::unreadable)?;
        let shape = reply.shape.map(TryInto::try_into).transpose();
        Ok(Self {
            model: reply.model,
            fingerprint: reply.fingerprint,
            shape: shape.map_err(ClientError::unreadable)?,
            kv,
            prompt_tokens_max: reply.prompt_tokens_max,
            workers: reply.workers.into_iter().map(Into::into).collect(),
        })
    }
}
