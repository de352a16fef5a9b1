//! A request that goes on from a snapshot, which stands for one chunk and for all before it, or
//! from several where keys stay in shards, each of which stands for one chunk.

use std::collections::BTreeSet;

use aqueduct_core::{SnapshotKey, WorkerId};

use super::{Request, State};

impl Request {
    /// Has a snapshot that `holder` has stand for chunk `idx`.
    pub(crate) fn resume(&mut self, idx: usize, holder: WorkerId) {
        (0..idx).for_each(|before| self.set(before, State::Released));
        (self.frontier, self.confirmed, self.restored) = (idx, idx, Some(idx));
        self.chunks[idx].worker = holder;
    }

    /// How many of its first chunks are to be done.
    pub(crate) fn waiting_first(&self) -> usize {
        self.chunks.iter().take_while(|chunk| chunk.state == State::Waiting).count()
    }

    /// Has the last chunk, and with it what is generated, stay at `worker`.
    pub(crate) fn end_at(&mut self, worker: WorkerId) {
        let last = self.chunks.len() - 1;
        self.chunks[last].worker = worker;
    }

    /// The snapshot that stands for chunk `idx`.
    pub(crate) fn snapshot(&self, idx: usize) -> Option<SnapshotKey> {
        let stands = self.restored == Some(idx) || self.chunks[idx].kept;
        self.job.prefix.get(idx).copied().filter(|_| stands)
    }

    /// Keys stay in shards: whether the worker of chunk `idx` has a snapshot of the chunk's.
    pub(crate) fn set_kept(&mut self, idx: usize, kept: bool) {
        self.chunks[idx].kept = kept;
    }

    /// Chunk `idx` goes to its worker, and its memory to the worker of the chunk after it. It
    /// has `ticket` from now on, unless it has an earlier one; where a snapshot stands for it,
    /// the chunks before it are before it, should they have to be done. Gives the next ticket.
    pub(crate) fn start(&mut self, idx: usize, ticket: u64, now_ms: u64) -> u64 {
        let first = if self.restored == Some(idx) { 0 } else { idx };
        for (chunk, ticket) in self.chunks[first..=idx].iter_mut().zip(ticket..) {
            chunk.ticket.get_or_insert(ticket);
        }
        self.set(idx, State::Running);
        self.chunks[idx].since_ms = now_ms;
        let own_and_next = if self.is_sharded() { 1 } else { 2 };
        let own_and_next = self.chunks[idx..].iter().take(own_and_next);
        self.touched.extend(own_and_next.map(|chunk| chunk.worker));
        ticket + (idx - first) as u64 + 1
    }

    /// Workers that a chunk is computed by: what a snapshot stands for takes none of a pool, nor
    /// does what waits for a place.
    pub(super) fn computing(&self) -> BTreeSet<WorkerId> {
        let chunks = self.chunks.iter().enumerate();
        let takes_room = |idx: &usize| self.restored != Some(*idx) && !self.stranded.contains(idx);
        let computed = chunks.filter(|(idx, _)| takes_room(idx));
        computed.map(|(_, chunk)| chunk.worker).chain(self.second()).collect()
    }

    /// What the dispatch of its first chunk costs that is to be computed.
    pub(crate) fn first_cost(&self) -> u64 {
        let mut rest = self.restored.map_or(0, |restored| restored + 1)..self.chunks.len();
        rest.find(|idx| self.snapshot(*idx).is_none()).map_or(0, |idx| self.cost(idx))
    }

    /// If a snapshot is lost that has not been restored yet, all that it stood for is to be
    /// computed. That is no failure: nobody had promised it. Gives these chunks.
    pub(super) fn lose_snapshot(&mut self, lost: &[usize]) -> BTreeSet<usize> {
        let is_lost = |idx: &usize| !self.chunks[*idx].state.is_done() && lost.contains(idx);
        let Some(restored) = self.restored.filter(is_lost) else { return BTreeSet::new() };
        (self.frontier, self.confirmed, self.restored) = (0, 0, None);
        (0..=restored).for_each(|idx| self.set(idx, State::Waiting));
        (0..=restored).collect()
    }
}
