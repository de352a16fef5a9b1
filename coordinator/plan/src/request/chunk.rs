//! One chunk of a request: where it is, and how far.

use aqueduct_core::{Epoch, WorkerId};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// To be assigned.
    Waiting,
    /// Assigned, not done.
    Running,
    /// Done; its worker keeps what it gave.
    Held,
    /// Done; what it gave is gone.
    Released,
}

impl State {
    pub(super) fn is_done(self) -> bool {
        matches!(self, Self::Held | Self::Released)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Chunk {
    pub(super) worker: WorkerId,
    pub(super) epoch: Epoch,
    pub(super) state: State,
    /// Its place in the total order of chunks, from its first dispatch on.
    pub(super) ticket: Option<u64>,
    /// When it was assigned last.
    pub(super) since_ms: u64,
    /// Whether it was ever given to a second worker as well.
    pub(super) raced: bool,
    /// Who has the shard that an earlier try of it left, until it is assigned again.
    pub(super) left_at: Option<WorkerId>,
    /// Whether a snapshot at its worker stands for its shard.
    pub(super) kept: bool,
    /// Whether it was ever done, so that all that is told of it was.
    pub(super) was_done: bool,
    /// Tokens that are computed while it is in flight: none where a snapshot stands for it.
    pub(super) in_flight_tokens: u64,
}

impl Chunk {
    /// One that is to be done by `worker`.
    pub(super) fn waiting(worker: WorkerId) -> Self {
        Self {
            worker,
            epoch: Epoch::default(),
            state: State::Waiting,
            ticket: None,
            since_ms: 0,
            raced: false,
            left_at: None,
            kept: false,
            was_done: false,
            in_flight_tokens: 0,
        }
    }

    /// Another worker than its own that has a shard of an earlier try.
    pub(super) fn left_elsewhere(&self) -> Option<WorkerId> {
        self.left_at.filter(|worker| *worker != self.worker)
    }
}
