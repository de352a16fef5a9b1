//! What a request has to do with a worker that is to be left.

use aqueduct_core::WorkerId;

use super::{Chunk, Phase, Request, State};

impl Request {
    /// Chunks whose place is `worker` and that are not assigned.
    pub(crate) fn waiting_on(&self, worker: WorkerId) -> Vec<usize> {
        let waits = |idx: &usize| self.chunks[*idx].state == State::Waiting;
        self.on(worker).into_iter().filter(waits).collect()
    }

    /// Whether it would miss `worker`.
    pub(crate) fn needs(&self, worker: WorkerId) -> bool {
        let decodes = matches!(self.phase, Phase::Decode { home, .. } if home == worker);
        let holds = |chunk: &Chunk| match chunk.state {
            State::Waiting => false,
            State::Running => true,
            State::Held => self.is_sharded() || self.phase == Phase::Prefill,
            State::Released => self.is_sharded(),
        };
        decodes || self.chunks.iter().any(|chunk| chunk.worker == worker && holds(chunk))
    }
}
