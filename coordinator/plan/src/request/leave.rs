//! What a request has to do with a worker that is to be left.

use aqueduct_core::{Epoch, WorkerId};

use super::{Chunk, Phase, Request, State};

/// A worker of whose shards so many failures were told is not asked again.
const COMPLAINTS: u32 = 2;

/// Completions on their way from their home to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Departure {
    pub(crate) to: WorkerId,
    pub(crate) epoch: Epoch,
}

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
        let is_at = self.second() == Some(worker);
        let goes_there = self.departure.is_some_and(|departure| departure.to == worker);
        let mut chunks = self.chunks.iter();
        is_at || decodes || goes_there || chunks.any(|it| it.worker == worker && holds(it))
    }

    /// While it decodes elsewhere, what its last chunk was given need not be kept at `worker`:
    /// only the loss of its home would miss that. Gives the chunk that gave it.
    pub(crate) fn let_go(&mut self, worker: WorkerId) -> Option<usize> {
        let Phase::Decode { .. } = self.phase else { return None };
        let giver = self.giver().filter(|idx| self.worker(*idx) == worker && !self.is_sharded())?;
        self.chunks[giver].state = State::Released;
        Some(giver)
    }

    /// Its completions are to go to `worker`.
    pub(crate) fn depart(&mut self, to: WorkerId) -> Departure {
        self.epoch = self.epoch.next();
        self.touched.insert(to);
        let departure = Departure { to, epoch: self.epoch };
        self.departure = Some(departure);
        departure
    }

    /// They have arrived there.
    pub(crate) fn arrive(&mut self, Departure { to, epoch }: Departure) {
        self.phase = Phase::Decode { home: to };
        if let Some(last) = self.chunks.last_mut() {
            (last.worker, last.epoch) = (to, epoch);
        }
    }

    /// `worker` has come, be it again: what was between it and this request is over, for it begins
    /// with nothing, and nothing that it was told before can reach it.
    pub(crate) fn begin_again_with(&mut self, worker: WorkerId) {
        self.left.remove(&worker);
        self.spared.remove(&worker);
        self.complaints.remove(&worker);
    }

    /// It leaves `worker`; what counts of its failures from then on. Of those that were this
    /// worker's where keys are in shards nothing does, once: there are as many workers as there
    /// are, and among few of them the way round all that cannot reach each other would be longer
    /// than what a request survives.
    pub(crate) fn leave(&mut self, worker: WorkerId) -> u32 {
        self.left.insert(worker);
        let of_worker = self.complaints.remove(&worker).unwrap_or(0).saturating_sub(1);
        match self.is_sharded() && self.spared.insert(worker) {
            true => self.disruptions.saturating_sub(of_worker),
            false => self.disruptions + 1,
        }
    }

    /// `worker` could not reach what it needs of others; whether that is to be taken for a rule.
    pub(crate) fn complain(&mut self, worker: WorkerId) -> bool {
        let complaints = self.complaints.entry(worker).or_default();
        *complaints += 1;
        let are_many = *complaints >= COMPLAINTS;
        are_many && self.is_sharded()
    }
}
