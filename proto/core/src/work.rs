//! What a coordinator asks of a worker and what a worker tells it. The same types travel
//! through a channel inside one process and, converted by `aqueduct-proto`, over gRPC.

mod decode;
mod report;

use crate::ask::{Answer, Ask};
use crate::snapshot::{Keep, Restore, SnapshotNews};
use crate::{
    ChunkKey, ChunkSpan, Directory, Epoch, KvDtype, MemoryPolicy, ModelShape, RequestId, TokenId,
    TraceParent, WireDtype,
};
pub use decode::{Begun, DecodeSpec, HandedOver, Seen, SeenHead};
pub use report::{ChunkReport, MergeAudit, RetainedMass, Traffic};

/// Where a worker can be reached by other workers: `http://host:port`,
/// `https://host:port`, or `local://name` for workers of one process.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer(pub String);

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Bytes of the pages in which a worker remembers keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolUse {
    /// Of all pages.
    pub bytes: u64,
    /// Of those that somebody holds.
    pub used_bytes: u64,
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
    /// What it computes with, in words: workers of which these differ give the same answers but
    /// for their last bits. Empty if it has not said.
    pub device: String,
    /// Most tokens whose keys it keeps in shards, over all requests; `u64::MAX` if memory alone
    /// bounds them.
    pub pool_tokens: u64,
    /// Whether it says what snapshots it has as soon as it has said this, and keeps more.
    pub keeps_snapshots: bool,
    /// Version of the merge and hand-off convention that it speaks.
    pub convention: u32,
}

/// Version of the merge and hand-off convention; peers of another one are refused.
pub const CONVENTION: u32 = 2;

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
    /// The newest memory sets that the worker of the next chunk has given itself; `None` if it
    /// has given none.
    pub base: Option<Base>,
}

/// Memory sets that a worker has given and keeps until they are confirmed. What a later set of
/// the request remembers of the tokens before `end`, these remember too, with the same keys and
/// values: so those need not travel there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Base {
    /// The chunk that gave them.
    pub chunk_idx: u32,
    /// The epoch of its assignment.
    pub epoch: Epoch,
    /// Tokens processed before they were made.
    pub end: u32,
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
    /// Tokens of each but the last, at least 1.
    pub chunk_tokens: u32,
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
    /// What f32 keys and values are rounded to before they are given to the next chunk, whoever
    /// does it: so the answer does not depend on the cluster.
    pub wire: WireDtype,
    /// How long the chunk may wait for its predecessor's memory.
    pub deadline_ms: u64,
    /// The request's span.
    pub trace: Option<TraceParent>,
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
    /// What a chunk gave becomes a snapshot. If the chunk is not there any more, nothing does.
    Keep(Box<Keep>),
    /// A snapshot takes the place of a chunk and of those before it.
    Restore(Box<Restore>),
    /// Start decoding.
    Decode(Box<DecodeSpec>),
    /// Each completion of the request draws one more token and, if that does not end it, goes to
    /// another worker: its memory sets do, under the names of [`HandedOver::key`]. Answered by
    /// [`Event::HandedOver`], or [`Event::DecodeFailed`].
    HandOver {
        /// The request, whose memory is in sets.
        request: RequestId,
        /// Where to.
        next: NextHop,
    },
    /// One completion is to end now; its memory may go.
    StopChoice {
        /// The request.
        request: RequestId,
        /// Which completion.
        choice: u32,
    },
    /// A question of those who look after the cluster; answered once, by [`Event::Answered`].
    Ask(Box<Ask>),
    /// Forget the request: running, waiting or finished. Never an error.
    Cancel {
        /// The request.
        request: RequestId,
    },
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
    /// What of the worker's pool is in use, whenever that has changed: at most a few times a
    /// second, and once more when the worker has nothing to do.
    Pool(PoolUse),
    /// Snapshots came or went. Said at the beginning of a session by every worker that keeps any.
    Snapshots(Box<SnapshotNews>),
    /// What there is in a memory, and what is looked at; lost where there is no room for it.
    Seen(Box<Seen>),
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
    /// Everything that completions go on from has arrived where it was to go.
    HandedOver {
        /// The request.
        request: RequestId,
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
    /// To [`Command::Ask`].
    Answered(Box<Answer>),
    /// It is going to stop: it does what it has, and should be given nothing new.
    Draining,
}
