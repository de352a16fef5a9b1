//! What a coordinator asks of a worker and what a worker tells it. The same types travel
//! through a channel inside one process and, converted by `aqueduct-proto`, over gRPC.

use crate::{
    ChunkKey, ChunkSpan, Directory, Epoch, KvDtype, MemoryPolicy, ModelShape, RequestId, Sampling,
    Steering, TokenId,
};

/// Where a worker can be reached by other workers: `http://host:port`, or `local://name` for
/// workers of one process.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer(pub String);

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a worker is, said once when a coordinator connects.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerInfo {
    /// Where other workers reach it.
    pub peer: Peer,
    /// Hash of model weights and configuration, KV dtype and weight dtype: workers whose
    /// fingerprints differ would not give the same answer and do not share a cluster.
    pub fingerprint: String,
    /// Shape of the model it has loaded.
    pub shape: ModelShape,
    /// How it stores keys and values.
    pub kv: KvDtype,
    /// Compute threads it may use.
    pub threads: u32,
    /// Most tokens whose keys it keeps in shards, over all requests; `u64::MAX` if memory alone
    /// bounds them.
    pub pool_tokens: u64,
    /// Version of the merge and hand-off convention that it speaks.
    pub convention: u32,
}

/// Version of the merge and hand-off convention; peers of another one are refused.
pub const CONVENTION: u32 = 1;

/// What to compute from the logits of a chunk's tokens, beyond the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Outputs {
    /// Nothing; the last chunk alone makes the logits of the next token.
    #[default]
    None,
    /// The logits of every token.
    Logits,
    /// The log probability of every prompt token given those before it, and this many
    /// alternatives.
    Logprobs(u32),
}

/// Where the memory sets of a chunk go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextHop {
    /// The worker of the next chunk.
    pub peer: Peer,
    /// The epoch of the next chunk's assignment, which its frames carry.
    pub epoch: Epoch,
}

/// One chunk to be prefilled.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    /// Request, chunk and epoch.
    pub key: ChunkKey,
    /// The positions.
    pub span: ChunkSpan,
    /// Chunks in the whole prompt.
    pub chunk_count: u32,
    /// The policy, already clamped to the chunk size.
    pub policy: MemoryPolicy,
    /// The chunk's tokens.
    pub tokens: Vec<TokenId>,
    /// With `Outputs::Logprobs`: the first token of the next chunk, if there is one.
    pub next_token: Option<TokenId>,
    /// What to compute besides.
    pub outputs: Outputs,
    /// Where the memory goes; `None` for the last chunk, whose worker becomes the home, and
    /// wherever keys stay in shards.
    pub next: Option<NextHop>,
    /// Where the keys of the chunks before are, if keys stay in shards: then nothing is handed
    /// off, and this chunk's keys stay with its worker.
    pub shards: Option<Box<Directory>>,
    /// How long the chunk may wait for its predecessor's memory.
    pub deadline_ms: u64,
}

/// Decoding of one request at its home, after its last chunk.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodeSpec {
    /// The request, whose final memory the worker holds.
    pub request: RequestId,
    /// Sampling of choice i uses `sampling.seed + i`.
    pub sampling: Sampling,
    /// What bends the logits before that.
    pub steering: Steering,
    /// The prompt's tokens, ascending, each once, where its repetition is penalised; otherwise
    /// empty.
    pub prompt_vocabulary: Vec<TokenId>,
    /// How many completions.
    pub choices: u32,
    /// Most tokens of each.
    pub max_tokens: u32,
    /// Tokens that end a completion (and are reported as its last).
    pub eos: Vec<TokenId>,
}

/// From coordinator to worker; kept in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Prefill a chunk. A newer epoch of a chunk that the worker already has, waiting or
    /// running, replaces it: the older one is dropped at the next layer and says nothing more.
    /// Layers that arrive for a chunk a second time, in its epoch, are the same bits: the first
    /// copy is used.
    Assign(Box<Assignment>),
    /// The next chunk moved: send it what was given and what is still to come. Ignored when
    /// the worker's own chunk is not there any more.
    Redirect {
        /// The request.
        request: RequestId,
        /// The chunk that receives (the one after the worker's own).
        chunk_idx: u32,
        /// Where it is now.
        next: NextHop,
    },
    /// The chunk after `chunk_idx` is done: what was given to it need not be kept.
    Confirm {
        /// The request.
        request: RequestId,
        /// The worker's own chunk.
        chunk_idx: u32,
    },
    /// One chunk whose keys stay with the worker is to be done again, there or elsewhere:
    /// whatever there is of it, waiting, running or done, goes. Queries that wait for a newer
    /// epoch of it go on waiting. Never an error.
    Drop {
        /// The request.
        request: RequestId,
        /// The chunk.
        chunk_idx: u32,
    },
    /// Start decoding.
    Decode(Box<DecodeSpec>),
    /// One completion is to end now; its memory may go.
    StopChoice {
        /// The request.
        request: RequestId,
        /// Which completion.
        choice: u32,
    },
    /// Forget the request: running, waiting or finished. Never an error.
    Cancel {
        /// The request.
        request: RequestId,
    },
}

/// How much of the attention mass the memory kept.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RetainedMass {
    /// Score of the keys that selection kept, summed over blocks and KV heads.
    pub kept: f64,
    /// Score of all the keys that it chose from.
    pub total: f64,
}

impl RetainedMass {
    /// kept / total; 1 where nothing was chosen from.
    pub fn share(&self) -> f64 {
        if self.total > 0.0 { self.kept / self.total } else { 1.0 }
    }

    /// Adds what another block kept.
    pub fn add(&mut self, other: Self) {
        self.kept += other.kept;
        self.total += other.total;
    }
}

impl std::iter::Sum for RetainedMass {
    fn sum<I: Iterator<Item = Self>>(masses: I) -> Self {
        masses.fold(Self::default(), |mut sum, mass| {
            sum.add(mass);
            sum
        })
    }
}

/// How far merged states were from what f64 makes of the keys that they are of, in one layer.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MergeAudit {
    /// Layer.
    pub layer: u32,
    /// Rows, of one head each, that were computed again.
    pub rows: u64,
    /// Of the outputs: the largest difference, relative to the row's largest element.
    pub error: f64,
    /// Of the log-sum-exps: the largest difference.
    pub lse_error: f64,
}

impl MergeAudit {
    /// Adds what other rows of the layer showed. What is no number stays.
    pub fn add(&mut self, other: Self) {
        let worse = |a: f64, b: f64| if a.is_nan() || a > b { a } else { b };
        self.rows = self.rows.saturating_add(other.rows);
        self.error = worse(self.error, other.error);
        self.lse_error = worse(self.lse_error, other.lse_error);
    }

    /// Adds each of `more` to that of its layer in `audits`, ascending by layer.
    pub fn gather(audits: &mut Vec<Self>, more: &[Self]) {
        for &audit in more {
            match audits.binary_search_by_key(&audit.layer, |known| known.layer) {
                Ok(at) => audits[at].add(audit),
                Err(at) => audits.insert(at, audit),
            }
        }
    }

    /// Whether both errors are numbers of at most `bound`.
    pub fn is_within(&self, bound: f64) -> bool {
        self.error <= bound && self.lse_error <= bound
    }
}

/// What a finished chunk reports.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ChunkReport {
    /// Per layer.
    pub retained: Vec<RetainedMass>,
    /// Bytes of the memory sets it gave, over all layers.
    pub memory_bytes: u64,
    /// Keys per KV head in its last layer's memory set.
    pub memory_tokens: u32,
    /// Time computing.
    pub busy_us: u64,
    /// Time waiting for memory.
    pub wait_us: u64,
    /// What the exchange with other workers' shards came to.
    pub traffic: Traffic,
    /// Of the layers that were audited.
    pub audits: Vec<MergeAudit>,
}

/// Bytes between workers for the shards of one chunk, headers not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Queries, log-sum-exps and decisions that went out.
    pub sent_bytes: u64,
    /// States, candidates and keys that came back.
    pub received_bytes: u64,
    /// How often, per layer and holder, queries went out.
    pub asked: u32,
    /// How often, per layer and holder, keys came instead.
    pub fetched: u32,
}

impl Traffic {
    /// Bytes in both directions.
    pub fn bytes(&self) -> u64 {
        self.sent_bytes.saturating_add(self.received_bytes)
    }

    /// Adds that of another chunk.
    pub fn add(&mut self, other: Self) {
        self.sent_bytes = self.sent_bytes.saturating_add(other.sent_bytes);
        self.received_bytes = self.received_bytes.saturating_add(other.received_bytes);
        self.asked = self.asked.saturating_add(other.asked);
        self.fetched = self.fetched.saturating_add(other.fetched);
    }
}

impl Assignment {
    /// Whether the chunk ends the prompt; its worker becomes the home.
    pub fn is_last(&self) -> bool {
        self.key.chunk_idx + 1 == self.chunk_count
    }
}

/// A token and its log probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: TokenId,
    /// Natural logarithm of its probability under the unmodified logits.
    pub logprob: f32,
}

/// A generated token.
#[derive(Debug, Clone, PartialEq)]
pub struct Emitted {
    /// The request.
    pub request: RequestId,
    /// Which completion.
    pub choice: u32,
    /// Index in the completion, from 0.
    pub token_idx: u32,
    /// The token.
    pub token: TokenId,
    /// Its log probability.
    pub logprob: f32,
    /// The most likely tokens, best first, if asked for.
    pub top: Vec<TokenLogprob>,
}

/// Why a worker could not do what it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The request itself is wrong.
    Invalid,
    /// No room; try later.
    Exhausted,
    /// A deadline passed, for instance waiting for memory.
    Deadline,
    /// A peer could not be reached or its frames could not be used.
    Peer,
    /// A defect or a broken device.
    Internal,
}

/// From worker to coordinator; kept in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// First of all events.
    Hello(Box<WorkerInfo>),
    /// A chunk passed a layer.
    Progress {
        /// The chunk.
        key: ChunkKey,
        /// Layers done.
        layers_done: u32,
    },
    /// Logits of `rows` tokens from position `start` on, `[rows, vocab]`.
    Logits {
        /// The chunk.
        key: ChunkKey,
        /// Position of the first row.
        start: u32,
        /// Number of rows.
        rows: u32,
        /// `[rows, vocab]` f32.
        logits: Vec<f32>,
    },
    /// Log probabilities of prompt tokens: entry i is about position `start + i`.
    PromptLogprobs {
        /// The chunk.
        key: ChunkKey,
        /// Position of the first entry.
        start: u32,
        /// The token that stands there and its alternatives.
        entries: Vec<(TokenLogprob, Vec<TokenLogprob>)>,
    },
    /// A chunk is prefilled and its memory given.
    ChunkDone {
        /// The chunk.
        key: ChunkKey,
        /// Figures.
        report: Box<ChunkReport>,
    },
    /// A chunk could not be done. Told by its own worker or, with [`FailureKind::Peer`], by the
    /// worker of the chunk before it, whose memory could not be handed off; that worker keeps
    /// the memory for a redirect.
    ChunkFailed {
        /// The chunk.
        key: ChunkKey,
        /// Kind.
        kind: FailureKind,
        /// For a person.
        message: String,
    },
    /// A token was generated.
    Token(Box<Emitted>),
    /// A completion ended by itself: an end token, or the length.
    ChoiceDone {
        /// The request.
        request: RequestId,
        /// Which completion.
        choice: u32,
        /// Whether an end token ended it.
        eos: bool,
    },
    /// Decoding could not go on.
    DecodeFailed {
        /// The request.
        request: RequestId,
        /// Kind.
        kind: FailureKind,
        /// For a person.
        message: String,
    },
}
