//! What a server answers, in types.

use std::time::Duration;

use aqueduct_core::work::{RetainedMass, TokenLogprob, Traffic};
use aqueduct_core::{Exchange, KvDtype, MemoryPolicy, ModelShape, RequestId, Session, TokenId};

/// What happens to a request, in order.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum GenerateEvent {
    /// Always first.
    Accepted(Accepted),
    /// The prefill went on.
    Progress(Progress),
    /// The memory kept too little; the prefill begins again.
    Escalated(Box<Escalated>),
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

/// A prefill that kept too little.
#[derive(Debug, Clone, PartialEq)]
pub struct Escalated {
    /// Share of the attention mass in the layer that kept least.
    pub lowest_retained_mass: f64,
    /// The floor.
    pub min_retained_mass: f64,
    /// The policy that kept so little.
    pub policy: MemoryPolicy,
    /// The policy of the next try.
    pub next: MemoryPolicy,
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
    /// What the model thought, beside the text; may be empty. Of answers to chats alone.
    pub reasoning: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// The most likely tokens, best first, if asked for.
    pub top: Vec<TokenLogprob>,
}

/// Why a completion ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// An end token or a stop string.
    Stop,
    /// `max_tokens`.
    Length,
    /// One that a newer server knows.
    Other,
}

impl StopReason {
    /// The word that a person reads.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Other => "other",
        }
    }
}

impl std::fmt::Display for StopReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
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
    /// The same of what the model thought.
    pub reasoning: String,
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
    /// Of that, before the first chunk began.
    pub queued: Duration,
    /// From the end of the prefill to the end.
    pub decode: Duration,
    /// Bytes that the memory holds.
    pub memory_bytes: u64,
    /// Bytes that a full KV cache would hold.
    pub dense_bytes: u64,
    /// Attention mass kept, per layer.
    pub retained: Vec<RetainedMass>,
    /// Share of the layer that kept least.
    pub lowest_retained_mass: f64,
    /// The floor, as asked for.
    pub min_retained_mass: Option<f64>,
    /// How often the prompt was prefilled again because the memory kept less.
    pub escalations: u32,
    /// Tokens of the prompt that were not computed: their memory was kept from another request.
    pub cached_tokens: u32,
    /// The policy as used.
    pub policy: MemoryPolicy,
    /// Chunk size.
    pub chunk_tokens: u32,
    /// How the past reached the prompt's blocks: `Move` or `Stay`, the more frequent where both
    /// were used.
    pub exchange: Exchange,
    /// Bytes between workers, in the prefill, for keys that stayed where they were computed.
    pub traffic: Traffic,
    /// Budgets that were lowered or raised, and a memory below its floor.
    pub warnings: Vec<String>,
    /// To go on from; `None` where nothing was asked for, or kept.
    pub session: Option<Session>,
}

impl Summary {
    /// Attention mass kept, over all layers.
    pub fn retained_total(&self) -> RetainedMass {
        self.retained.iter().copied().sum()
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
    /// Hash over weights, configuration and dtypes; empty until a worker has come.
    pub fingerprint: String,
    /// Shape of the model; `None` until a worker has come.
    pub shape: Option<ModelShape>,
    /// How keys and values are stored; `None` until a worker has come.
    pub kv: Option<KvDtype>,
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
    /// How it stands: `connecting`, `up`, `draining`, `drained`, `down` or `refused`.
    pub state: String,
    /// Compute threads.
    pub threads: u32,
    /// Most tokens whose keys it keeps in shards; `u64::MAX` if memory alone bounds them.
    pub pool_tokens: u64,
    /// It is given nothing new.
    pub draining: bool,
    /// Of a draining worker: requests that still need it.
    pub requests: u32,
    /// Bytes of the pages in which it remembers keys and values; 0 if it has not said.
    pub pool_bytes: u64,
    /// Bytes of those that are in use.
    pub pool_used_bytes: u64,
}
