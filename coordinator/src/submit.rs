//! What the API layers (gRPC, HTTP, the embedded CLI) ask of the runtime, and what they get.
//! Token ids in, token ids out: text begins above this line.

use std::time::Duration;

use aqueduct_core::work::{ChunkReport, Emitted, FailureKind, Outputs, RetainedMass, TokenLogprob};
use aqueduct_core::{Clamp, MemoryPolicy, Refusal, RequestId, Sampling, TokenId, WorkerId};

/// A request, complete and in tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Submission {
    /// The prompt; at least one token.
    pub prompt: Vec<TokenId>,
    /// As the caller wants it, before clamping to the chunk size.
    pub policy: MemoryPolicy,
    /// C.
    pub chunk_tokens: u32,
    /// How tokens are drawn; choice i uses seed + i.
    pub sampling: Sampling,
    /// Completions of the one prompt.
    pub choices: u32,
    /// Most tokens of each completion; 0 prefills only.
    pub max_tokens: u32,
    /// Tokens that end a completion.
    pub eos: Vec<TokenId>,
    /// What else to compute for the prompt's own tokens.
    pub outputs: Outputs,
    /// After this long the request fails.
    pub deadline: Duration,
}

/// Where a prefill stands.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PrefillProgress {
    /// Chunks whose memory has been given.
    pub chunks_done: u32,
    /// All chunks.
    pub chunk_count: u32,
    /// Prompt tokens done.
    pub tokens_done: u32,
    /// Since the request was accepted.
    pub elapsed: Duration,
    /// One entry for each worker that has had a chunk of this request.
    pub workers: Vec<WorkerProgress>,
}

/// What one worker is at.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerProgress {
    /// The worker.
    pub worker: WorkerId,
    /// The chunk it is at, or was at last.
    pub chunk_idx: u32,
    /// Layers of it that are done.
    pub layers_done: u32,
    /// Chunks of this request that it has finished.
    pub chunks_done: u32,
}

/// A whole prompt's figures.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PrefillReport {
    /// Per layer, summed over chunks.
    pub retained: Vec<RetainedMass>,
    /// The last chunk's report: what is remembered at the end.
    pub last: ChunkReport,
    /// From acceptance to the end of the last chunk.
    pub elapsed: Duration,
    /// Chunks that had to be done again elsewhere.
    pub chunks_retried: u32,
}

/// What happens to a request, in order. The stream ends after every choice is done, after the
/// prefill when `max_tokens` is 0, or with an error.
#[derive(Debug, Clone, PartialEq)]
pub enum Update {
    /// Always first.
    Accepted {
        /// Its id.
        request: RequestId,
        /// Chunks of its grid.
        chunk_count: u32,
        /// The policy as used.
        policy: MemoryPolicy,
        /// Budgets that were lowered.
        clamps: Vec<Clamp>,
    },
    /// The prefill went on; at most about ten a second.
    Progress(PrefillProgress),
    /// Logits of `rows` prompt tokens from `start` on, `[rows, vocab]`; chunks in any order.
    Logits {
        /// Position of the first row.
        start: u32,
        /// Number of rows.
        rows: u32,
        /// `[rows, vocab]`.
        logits: Vec<f32>,
    },
    /// Log probabilities of prompt tokens from `start` on; chunks in any order.
    PromptLogprobs {
        /// Position of the first entry.
        start: u32,
        /// The token that stands there and its alternatives.
        entries: Vec<(TokenLogprob, Vec<TokenLogprob>)>,
    },
    /// The whole prompt is in memory.
    Prefilled(Box<PrefillReport>),
    /// A token was generated.
    Token(Box<Emitted>),
    /// A completion ended: an end token (`eos`), the length, or [`stop_choice`].
    ///
    /// [`stop_choice`]: the handle's method for stop strings
    ChoiceDone {
        /// Which completion.
        choice: u32,
        /// Whether an end token ended it.
        eos: bool,
    },
}

/// Why a request was not accepted or could not be finished.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// The request is wrong: HTTP 400, INVALID_ARGUMENT.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The queue is full: HTTP 429, RESOURCE_EXHAUSTED.
    #[error("{queued} requests are waiting, the most allowed; retry after {retry_after:?}")]
    Busy {
        /// Requests that wait.
        queued: usize,
        /// When to try again.
        retry_after: Duration,
    },
    /// No worker can serve it now: HTTP 503, UNAVAILABLE.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// Its deadline passed: HTTP 504, DEADLINE_EXCEEDED.
    #[error("not finished within {0:?}")]
    Deadline(Duration),
    /// A worker failed in a way that another try would not mend.
    #[error("{message}")]
    Failed {
        /// Kind.
        kind: FailureKind,
        /// For a person.
        message: String,
    },
}
