//! A chunk that takes long is done a second time elsewhere; whoever is first has done it.

use aqueduct_core::{ChunkKey, Epoch, WorkerId};

use super::{Request, State};

/// The second try of a chunk that is under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Second {
    idx: usize,
    pub(super) worker: WorkerId,
    epoch: Epoch,
}

impl Request {
    /// The chunk that all later ones wait for, and since when it could have been done, if a
    /// second worker could do it as well: it is computed, needs a memory that is held, and can be
    /// compared with others.
    pub(crate) fn awaited(&self) -> Option<(usize, u64)> {
        let idx = self.frontier;
        let chunk = self.chunks.get(idx)?;
        let is_fit = self.is_even() && self.snapshot(idx).is_none() && !chunk.raced;
        let has_past = idx == 0 || self.chunks[idx - 1].state == State::Held;
        let is_awaited = chunk.state == State::Running && is_fit && has_past;
        is_awaited.then(|| (idx, chunk.since_ms.max(self.frontier_since_ms)))
    }

    /// Has `worker` do chunk `idx` as well; its key there.
    pub(crate) fn race(&mut self, idx: usize, worker: WorkerId) -> ChunkKey {
        self.epoch = self.epoch.next();
        self.chunks[idx].raced = true;
        self.touched.insert(worker);
        let second = Second { idx, worker, epoch: self.epoch };
        self.second = Some(second);
        self.key_of(second)
    }

    fn key_of(&self, Second { idx, epoch, .. }: Second) -> ChunkKey {
        ChunkKey { request: self.id, chunk_idx: idx as u32, epoch }
    }

    /// The chunk that two are at.
    pub(crate) fn raced(&self) -> Option<usize> {
        self.second.map(|second| second.idx)
    }

    /// Who is at it as the second.
    pub(crate) fn second(&self) -> Option<WorkerId> {
        self.second.map(|second| second.worker)
    }

    /// Whether `key` is what `worker` is at as the second.
    pub(crate) fn is_second(&self, worker: WorkerId, key: ChunkKey) -> bool {
        let of = |second: Second| second.worker == worker && self.key_of(second) == key;
        self.second.is_some_and(of)
    }

    /// Whether `key` is what `worker` is at, and somebody else as the second.
    pub(crate) fn is_first(&self, worker: WorkerId, key: ChunkKey) -> bool {
        self.raced() == Some(key.chunk_idx as usize) && self.is_current(worker, key)
    }

    /// Whether `worker` is at `key`, be it as the second.
    pub(crate) fn awaits(&self, worker: WorkerId, key: ChunkKey) -> bool {
        let is_running = |idx: usize| self.chunks[idx].state == State::Running;
        let is_own = self.is_current(worker, key) && is_running(key.chunk_idx as usize);
        is_own || self.is_second(worker, key)
    }

    /// The second has the chunk to itself; who was at it first, and the chunk.
    pub(crate) fn second_takes_over(&mut self) -> Option<(WorkerId, usize)> {
        let Second { idx, worker, epoch } = self.second.take()?;
        let chunk = &mut self.chunks[idx];
        chunk.epoch = epoch;
        Some((std::mem::replace(&mut chunk.worker, worker), idx))
    }

    /// The first has the chunk to itself; who was at it second, and the chunk.
    pub(crate) fn end_race(&mut self) -> Option<(WorkerId, usize)> {
        self.second.take().map(|second| (second.worker, second.idx))
    }

    /// How many of its chunks are at `worker`, if all of those wait for a chunk elsewhere, and come
    /// after `ticket` in the total order.
    pub(crate) fn only_waiting(&self, worker: WorkerId, ticket: u64) -> Option<usize> {
        let is_there = |idx: &usize| {
            let chunk = &self.chunks[*idx];
            chunk.state == State::Running && chunk.worker == worker
        };
        let waits = |idx: usize| {
            let is_later = self.chunks[idx].ticket.is_some_and(|own| own > ticket);
            is_later && idx != self.frontier && !self.is_sharded()
        };
        let mut there = (self.frontier..self.chunks.len()).filter(is_there);
        let count = there.try_fold(0, |count, idx| waits(idx).then_some(count + 1))?;
        (self.second() != Some(worker)).then_some(count)
    }

    /// Tokens that chunk `idx` computes: none where a snapshot stands for it, or where it is not
    /// to be compared with others.
    pub(crate) fn computed_tokens(&self, idx: usize) -> u64 {
        if self.is_even() && self.restored != Some(idx) { self.tokens(idx) } else { 0 }
    }

    /// Whether its chunks take about as long for each token: not where their past only grows, nor
    /// where they ask others for it.
    fn is_even(&self) -> bool {
        !self.is_sharded() && !self.job.keeps_all
    }

    /// Whether room is taken for it of the pool of `worker`.
    pub(crate) fn takes_room_of(&self, worker: WorkerId) -> bool {
        self.computing().contains(&worker)
    }
}
