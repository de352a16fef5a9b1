//! What a server answers, in types.

use std::time::Duration;

use aqueduct_core::work::{RetainedMass, TokenLogprob, Traffic};
use aqueduct_core::{Exchange, KvDtype, MemoryPolicy, ModelShape, RequestId, TokenId};
use aqueduct_proto::convert::exchange::exchange;
use aqueduct_proto::convert::shape::pool_tokens;
use aqueduct_proto::v1;

use crate::error::ClientError;

/// What happens to a request, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum GenerateEvent {
    /// Always first.
    Accepted(Accepted),
    /// The prefill went on.
    Progress(Progress),
    /// Log probabilities of prompt tokens from `start` on, if asked for; in any order.
    PromptLogprobs {
        /// Position of the first entry.
        start: u32,
        /// The tokens that stand there.
        entries: Vec<PromptLogprob>,
    },
    /// A token was generated.
    Token(Token),
    /// A completion ended.
    ChoiceDone(ChoiceDone),
    /// Last event of a stream that went well.
    Summary(Box<Summary>),
}

/// The request was understood and has begun.
#[derive(Debug, Clone, PartialEq)]
pub struct Accepted {
    /// Its id.
    pub request: RequestId,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Chunks that it was cut into.
    pub chunk_count: u32,
    /// Seed in use.
    pub seed: u64,
    /// Budgets that were lowered, for a person to read.
    pub warnings: Vec<String>,
}

/// Where the prefill stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Chunks whose memory has been given.
    pub chunks_done: u32,
    /// All chunks.
    pub chunk_count: u32,
    /// Speed so far.
    pub tokens_per_second: f64,
    /// Time to the end of the prefill at that speed, in seconds.
    pub seconds_left: f64,
    /// One entry for each worker with a part in it.
    pub workers: Vec<WorkerProgress>,
}

/// What one worker is at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerProgress {
    /// Its name.
    pub worker: String,
    /// The chunk it is at.
    pub chunk_idx: u32,
    /// Layers of that chunk that are done.
    pub layers_done: u32,
    /// Layers of the model.
    pub layers: u32,
    /// Chunks of the request that it has finished.
    pub chunks_done: u32,
}

/// A token of the prompt: what it was worth, and what else could have stood there.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptLogprob {
    /// The token.
    pub token: TokenLogprob,
    /// The most likely tokens, best first.
    pub top: Vec<TokenLogprob>,
}

/// A generated token.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// Which completion.
    pub choice: u32,
    /// Index in the completion, from 0.
    pub token_idx: u32,
    /// The token.
    pub id: TokenId,
    /// Text that became complete with it; may be empty.
    pub text: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// The most likely tokens, best first, if asked for.
    pub top: Vec<TokenLogprob>,
}

/// Why a completion ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// An end token or a stop string.
    Stop,
    /// `max_tokens`.
    Length,
}

/// The end of a completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChoiceDone {
    /// Which completion.
    pub choice: u32,
    /// Why it ended.
    pub reason: StopReason,
    /// Its tokens.
    pub tokens: u32,
    /// Text that was held back for a stop string that did not come.
    pub text: String,
}

/// Figures of a finished request.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated, over all completions.
    pub output_tokens: u32,
    /// From acceptance to the end of the prefill.
    pub prefill: Duration,
    /// From there to the end.
    pub decode: Duration,
    /// Bytes that the memory holds.
    pub memory_bytes: u64,
    /// Bytes that a full KV cache would hold.
    pub dense_bytes: u64,
    /// Attention mass kept, per layer.
    pub retained: Vec<RetainedMass>,
    /// The policy as used.
    pub policy: MemoryPolicy,
    /// Chunk size.
    pub chunk_tokens: u32,
    /// How the past reached the prompt's blocks: `Move` or `Stay`, the more frequent where both
    /// were used.
    pub exchange: Exchange,
    /// Bytes between workers, in the prefill, for keys that stayed where they were computed.
    pub traffic: Traffic,
    /// Budgets that were lowered.
    pub warnings: Vec<String>,
}

impl Summary {
    /// Attention mass kept, over all layers.
    pub fn retained_total(&self) -> RetainedMass {
        let mut total = RetainedMass::default();
        self.retained.iter().for_each(|&layer| total.add(layer));
        total
    }
}

/// Answer of [`Client::tokenize`](crate::Client::tokenize).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokenized {
    /// The token ids.
    pub ids: Vec<TokenId>,
    /// The text that they stand for.
    pub text: String,
}

/// What a server serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Name of the model.
    pub model: String,
    /// Hash over weights, configuration and dtypes.
    pub fingerprint: String,
    /// Shape of the model.
    pub shape: ModelShape,
    /// How keys and values are stored.
    pub kv: KvDtype,
    /// Longest prompt, in tokens.
    pub prompt_tokens_max: u32,
    /// The workers.
    pub workers: Vec<WorkerStatus>,
}

/// One worker of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerStatus {
    /// Its name.
    pub worker: String,
    /// Where it is reached.
    pub address: String,
    /// Whether it can take work.
    pub up: bool,
    /// Compute threads.
    pub threads: u32,
    /// Most tokens whose keys it keeps in shards; `u64::MAX` if memory alone bounds them.
    pub pool_tokens: u64,
}

impl TryFrom<v1::GenerateEvent> for GenerateEvent {
    type Error = ClientError;

    fn try_from(event: v1::GenerateEvent) -> Result<Self, ClientError> {
        use v1::generate_event::Kind;
        let kind = event.kind.ok_or_else(|| ClientError::unreadable("event without a kind"))?;
        Ok(match kind {
            Kind::Accepted(accepted) => Self::Accepted(accepted.into()),
            Kind::Progress(progress) => Self::Progress(progress.into()),
            Kind::Token(token) => Self::Token(token.try_into()?),
            Kind::ChoiceDone(done) => Self::ChoiceDone(done.try_into()?),
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

impl TryFrom<v1::ChoiceDone> for ChoiceDone {
    type Error = ClientError;

    fn try_from(done: v1::ChoiceDone) -> Result<Self, ClientError> {
        use v1::choice_done::Reason;
        let reason = match done.reason() {
            Reason::Stop => StopReason::Stop,
            Reason::Length => StopReason::Length,
            Reason::Unspecified => {
                return Err(ClientError::unreadable("a completion ended without a reason"));
            }
        };
        Ok(Self { choice: done.choice, reason, tokens: done.tokens, text: done.text })
    }
}

impl TryFrom<v1::Summary> for Summary {
    type Error = ClientError;

    fn try_from(summary: v1::Summary) -> Result<Self, ClientError> {
        let policy = summary.policy.ok_or_else(|| ClientError::unreadable("summary.policy"))?;
        Ok(Self {
            prompt_tokens: summary.prompt_tokens,
            output_tokens: summary.output_tokens,
            prefill: seconds("prefill_seconds", summary.prefill_seconds)?,
            decode: seconds("decode_seconds", summary.decode_seconds)?,
            memory_bytes: summary.memory_bytes,
            dense_bytes: summary.dense_bytes,
            retained: all(summary.retained)?,
            policy: policy.try_into().map_err(ClientError::unreadable)?,
            chunk_tokens: summary.chunk_tokens,
            exchange: exchange(summary.exchange)
                .map_err(ClientError::unreadable)?
                .ok_or_else(|| ClientError::unreadable("summary.exchange"))?,
            traffic: summary.traffic.unwrap_or_default().into(),
            warnings: summary.warnings,
        })
    }
}

fn seconds(field: &str, value: f64) -> Result<Duration, ClientError> {
    Duration::try_from_secs_f64(value)
        .map_err(|error| ClientError::unreadable(format!("{field} = {value}: {error}")))
}

impl TryFrom<v1::DescribeReply> for Description {
    type Error = ClientError;

    fn try_from(reply: v1::DescribeReply) -> Result<Self, ClientError> {
        let kv = reply.kv().try_into().map_err(ClientError::unreadable)?;
        let shape = reply.shape.ok_or_else(|| ClientError::unreadable("describe.shape"))?;
        let worker = |worker: v1::WorkerStatus| WorkerStatus {
            worker: worker.worker,
            address: worker.address,
            up: worker.up,
            threads: worker.threads,
            pool_tokens: pool_tokens(worker.pool_tokens),
        };
        Ok(Self {
            model: reply.model,
            fingerprint: reply.fingerprint,
            shape: shape.try_into().map_err(ClientError::unreadable)?,
            kv,
            prompt_tokens_max: reply.prompt_tokens_max,
            workers: reply.workers.into_iter().map(worker).collect(),
        })
    }
}
