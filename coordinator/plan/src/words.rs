//! What the plan hears and what it says.

mod job;

use aqueduct_core::work::{FailureKind, NextHop, Peer};
use aqueduct_core::{ChunkKey, ChunkSpan, Epoch, Refusal, RequestId, SnapshotKey, WorkerId};

pub use self::job::{Job, Sharded, Windowed};

/// How much the plan takes on at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Tokens of one request in flight at once, and of all requests together for each worker
    /// that is up; at least one chunk is.
    pub batch_tokens: u32,
    /// Chunks of all requests in flight at once, of one three quarters at most.
    pub batch_chunks: usize,
    /// Requests that wait for their turn before new ones are refused.
    pub queued_requests: usize,
    /// Tokens of the prompts that wait, if more than one does, before new ones are refused.
    pub queued_tokens: u64,
    /// Requests that are prefilled or decoded at once.
    pub running_requests: usize,
    /// Pools give room for so many tokens at once: keys of one chunk, or of one memory set, take
    /// a multiple of it. At least 1.
    pub page_tokens: u64,
    /// Failures that one request survives by having chunks done again, until it comes further than
    /// it was.
    pub retries: u32,
    /// How long after the loss of a worker what the others cannot take over waits for one to
    /// come, before it fails; not longer than until all that were lost are back.
    pub grace_ms: u64,
    /// A chunk that its request waits for is done a second time elsewhere when it takes several
    /// times as long as chunks do, and so long at least; `None`: never.
    pub hedge_after_ms: Option<u64>,
}

impl Limits {
    /// No step has more commands than that for one worker, whatever happened: of each chunk in
    /// flight it is told to drop it, who comes next, and to do it, and of each request to forget
    /// it, to keep nothing of it for others, and where its last chunks are.
    pub const fn commands_most(&self) -> usize {
        3 * self.batch_chunks + 4 * self.running_requests
    }
}

/// Where the keys of the chunks before one are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shards {
    /// Workers that hold any.
    pub holders: Vec<Peer>,
    /// Per chunk, from chunk 0: index into `holders`, and the epoch of its assignment.
    pub chunks: Vec<(u32, Epoch)>,
}

/// What happened. Events that are out of date (an older epoch, an ended request, a worker
/// that is gone) are legal and change nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A worker may be given work; it remembers nothing but snapshots.
    WorkerUp {
        /// The worker.
        worker: WorkerId,
        /// Where other workers reach it.
        peer: Peer,
        /// Most tokens whose keys it keeps in shards; `u64::MAX` is no bound.
        pool_tokens: u64,
        /// Whether it is to be left, and is given work only if there is no other.
        draining: bool,
        /// Snapshots that it has.
        kept: Vec<SnapshotKey>,
    },
    /// A worker and all it remembered are gone, since the last [`Event::Tick`].
    WorkerDown {
        /// The worker.
        worker: WorkerId,
    },
    /// Snapshots of a worker came and went.
    Snapshots {
        /// The worker.
        worker: WorkerId,
        /// These it has, or will have before it reads any later command.
        kept: Vec<SnapshotKey>,
        /// These it has not.
        dropped: Vec<SnapshotKey>,
    },
    /// A request arrived; its id was never used before.
    Submit {
        /// Its id.
        request: RequestId,
        /// What it is.
        job: Job,
    },
    /// What a running request remembers is not good enough: it is given up, and begins anew, as
    /// another, in front of all that wait.
    Again {
        /// The request.
        request: RequestId,
        /// What it is called from now on; never used before, so that nothing that is under way
        /// for the earlier one can be taken for it.
        anew: RequestId,
        /// What it is now.
        job: Job,
    },
    /// A request that was accepted before there was this plan goes on; its id was never used
    /// before. It waits for its turn however many wait, and as after a loss for workers to come
    /// while none that is there can serve it.
    Resume {
        /// Its id.
        request: RequestId,
        /// What it is.
        job: Job,
    },
    /// Nobody wants the answer any more.
    Cancel {
        /// The request.
        request: RequestId,
    },
    /// A chunk is prefilled and its memory given.
    ChunkDone {
        /// Who did it.
        worker: WorkerId,
        /// The chunk.
        key: ChunkKey,
        /// How long its own computation took, without what it waited for.
        busy_us: u64,
    },
    /// A chunk could not be done, or what it gave is lost; or, from the worker of the chunk
    /// before it, it cannot be given its memory.
    ChunkFailed {
        /// Who says so.
        worker: WorkerId,
        /// The chunk.
        key: ChunkKey,
        /// Kind.
        kind: FailureKind,
        /// For a person.
        message: String,
    },
    /// A completion ended by itself.
    ChoiceDone {
        /// Who decodes it.
        worker: WorkerId,
        /// The request.
        request: RequestId,
        /// Which completion.
        choice: u32,
        /// Whether an end token ended it.
        eos: bool,
    },
    /// The caller has enough of one completion.
    StopChoice {
        /// The request.
        request: RequestId,
        /// Which completion.
        choice: u32,
    },
    /// What a request's completions go on from has arrived where it was to go.
    HandedOver {
        /// Who has decoded it.
        worker: WorkerId,
        /// The request.
        request: RequestId,
    },
    /// A request's completions have come too far for another home to be told how far, or not any
    /// more: they end where they are decoded.
    Stays {
        /// The request.
        request: RequestId,
        /// Whether they have.
        stays: bool,
    },
    /// A request's completions have come further than they were when their home began.
    CameFurther {
        /// The request.
        request: RequestId,
    },
    /// Decoding could not go on.
    DecodeFailed {
        /// Who failed.
        worker: WorkerId,
        /// The request.
        request: RequestId,
        /// Kind.
        kind: FailureKind,
        /// For a person.
        message: String,
    },
    /// A worker is to be left, or not any more: it gets nothing new, what it decodes from memory
    /// sets goes elsewhere, and the rest of what it has comes to its end.
    Drain {
        /// Which.
        worker: WorkerId,
        /// Whether it is.
        draining: bool,
    },
    /// Time went on.
    Tick {
        /// Milliseconds since any fixed moment; never falls.
        now_ms: u64,
    },
}

/// What is to be done, in this order. The first group goes to a worker, the second to the
/// caller of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Prefill a chunk. A newer epoch replaces what the worker has of the same chunk.
    Assign {
        /// To whom.
        worker: WorkerId,
        /// Request, chunk and epoch.
        key: ChunkKey,
        /// The positions.
        span: ChunkSpan,
        /// Where its memory goes; `None` for the last chunk, and where keys stay in shards.
        next: Option<NextHop>,
        /// Where the keys of the chunks before it are, if keys stay in shards.
        shards: Option<Shards>,
        /// Whether another worker is at it, and whoever is first has done it.
        is_hedge: bool,
    },
    /// What `key` and the chunks before it would give is a snapshot: hand that off instead. Where
    /// keys stay in shards it is that chunk's alone. The worker reports as if it had done it.
    Restore {
        /// To whom: a worker that has it.
        worker: WorkerId,
        /// Request, chunk and epoch.
        key: ChunkKey,
        /// Which snapshot.
        snapshot: SnapshotKey,
        /// Where its memory goes; `None` where keys stay in shards.
        next: Option<NextHop>,
    },
    /// Send what was given for `chunk_idx`, and what is still to come, to a new place.
    Redirect {
        /// To whom: the worker of the chunk before.
        worker: WorkerId,
        /// The request.
        request: RequestId,
        /// The chunk that receives.
        chunk_idx: u32,
        /// Where it is now.
        next: NextHop,
    },
    /// What `chunk_idx` gave need not be kept.
    Confirm {
        /// To whom: the worker of the chunk.
        worker: WorkerId,
        /// The request.
        request: RequestId,
        /// The chunk that gave.
        chunk_idx: u32,
    },
    /// Forget `chunk_idx`: its keys stay with the worker and it is done again, there or
    /// elsewhere, or another worker has done it first. If it is the last, the worker decodes no
    /// longer.
    Drop {
        /// To whom.
        worker: WorkerId,
        /// The request.
        request: RequestId,
        /// The chunk.
        chunk_idx: u32,
    },
    /// Decode the request's completions that have not ended; what they have they had from
    /// another home, or from an earlier try of this one.
    Decode {
        /// To whom: the home.
        worker: WorkerId,
        /// The request.
        request: RequestId,
        /// Present: what they go on from has come from their last home, in this epoch.
        handed_over: Option<Epoch>,
        /// Whether it has room for the shards of others, which may come to it.
        gathers: bool,
    },
    /// Have a request's completions go to another worker.
    HandOver {
        /// To whom: the home.
        worker: WorkerId,
        /// The request.
        request: RequestId,
        /// Where they are to go.
        next: NextHop,
    },
    /// End one completion.
    StopChoice {
        /// To whom: the home.
        worker: WorkerId,
        /// The request.
        request: RequestId,
        /// Which completion.
        choice: u32,
    },
    /// Forget the request.
    Cancel {
        /// To whom: each worker that had anything of it.
        worker: WorkerId,
        /// The request.
        request: RequestId,
    },

    /// Tell the caller that the whole prompt is in memory.
    Prefilled {
        /// The request.
        request: RequestId,
        /// Chunks that had to be done again.
        chunks_retried: u32,
    },
    /// Tell the caller that a completion ended.
    ChoiceEnded {
        /// The request.
        request: RequestId,
        /// Which completion.
        choice: u32,
        /// Whether an end token ended it.
        eos: bool,
    },
    /// Tell the caller how the request ended. The last command about it, and the only one of
    /// its kind.
    Ended {
        /// The request.
        request: RequestId,
        /// How.
        end: End,
    },
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// Everything asked for was done.
    Finished,
    /// Its caller went away.
    Cancelled,
    /// It could not be done.
    Failed(Failure),
}

/// Why a request could not be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No placement could hold its keys, however long it waited.
    #[error(transparent)]
    TooLong(Refusal),
    /// No room, in the queue or on a worker.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// Workers are missing, or failed too often.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// Nobody has the snapshot that it was to go on from.
    #[error("no worker has the memory of the session any more")]
    SessionLost,
    /// Its deadline passed.
    #[error("the deadline passed")]
    Deadline,
    /// A worker says that another try would not help.
    #[error("{message}")]
    Worker {
        /// Kind.
        kind: FailureKind,
        /// For a person.
        message: String,
    },
}

/// What there is no room for just now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Busy {
    /// Another request in the queue.
    #[error("{queued} requests are waiting, the most allowed")]
    Requests {
        /// Requests that wait.
        queued: usize,
    },
    /// So long a prompt in the queue.
    #[error(
        "prompts of {queued_tokens} tokens are waiting: with prompt_tokens = {prompt_tokens} they \
         must be at most {most}"
    )]
    Tokens {
        /// Tokens of the prompts that wait.
        queued_tokens: u64,
        /// Tokens of this one.
        prompt_tokens: u32,
        /// The most that may wait.
        most: u64,
    },
    /// Something that a worker wants to remember; in its words.
    #[error("{0}")]
    Memory(String),
}

impl Failure {
    pub(crate) fn no_worker() -> Self {
        Self::Unavailable("no worker is up".into())
    }
}
