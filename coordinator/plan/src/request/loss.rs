//! What must be done again of a request when a part of it is lost.

use aqueduct_core::WorkerId;

use super::{Chunk, Phase, Request, State};

/// Less than it takes to lose a worker by what is done again at it.
const LOST_TOGETHER_MS: u64 = 100;

/// What follows from a loss: chunks that need a new place, ascending, and what is to be dropped
/// of them and others where it is now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) moved: Vec<usize>,
    pub(crate) dropped: Vec<(WorkerId, usize)>,
}

impl Request {
    /// Something of it is done that never was before, so what failed until now is not what keeps
    /// it from going on.
    pub(crate) fn came_further(&mut self) {
        (self.disruptions, self.lost_at_ms) = (0, None);
    }

    /// A worker was lost; there were so many failures `before` it. Workers that are lost together
    /// are heard of one after the other, and are one failure.
    pub(crate) fn count_loss(&mut self, before: u32, now_ms: u64) {
        let is_one = |at: u64| now_ms.saturating_sub(at) <= LOST_TOGETHER_MS;
        match self.lost_at_ms {
            _ if self.disruptions == before => {}
            Some(at) if is_one(at) => self.disruptions = before,
            _ => self.lost_at_ms = Some(now_ms),
        }
    }

    /// What was done of `lost` (ascending) is gone: marks these chunks, and whatever must be
    /// done again because of them, as waiting.
    pub(crate) fn lose(&mut self, lost: &[usize]) -> Loss {
        let loss = if self.is_sharded() {
            self.lose_shards(lost)
        } else {
            Loss { moved: self.lose_memory(lost), dropped: Vec::new() }
        };
        if !self.all_done() {
            self.phase = Phase::Prefill;
            self.gathered_tokens = 0;
        }
        loss
    }

    fn lose_shards(&mut self, lost: &[usize]) -> Loss {
        let mut gone = lost.iter().copied().filter(|idx| self.chunks[*idx].state != State::Waiting);
        // That a snapshot is gone before it was restored is no failure: nobody had promised it.
        let is_restored = |idx: usize| self.chunks[idx].kept && !self.chunks[idx].state.is_done();
        let is_failure = gone.clone().any(|idx| !is_restored(idx));
        let (first, retried) = (gone.next(), self.chunks_retried);
        let dropped = first.map(|first| self.begin_again(first, lost)).unwrap_or_default();
        if is_failure {
            self.disruptions += 1;
        } else {
            self.chunks_retried = retried;
        }
        Loss { moved: lost.to_vec(), dropped }
    }

    /// Keys are in shards, and chunk `first`, or that of any of `lost`, is not there any more.
    /// They are done again, and so is every later chunk that still needs them: what is running
    /// and, because decoding needs the shards too, the last one. Where chunks prune the shards
    /// of earlier ones, all are done again: some may be pruned for what is not done. All get
    /// new epochs, so that no answer for an earlier try is taken for one to this, and nothing
    /// in flight needs them, so they are last in the total order. Gives what is to be dropped at
    /// once: what runs, and the last chunk, from which its worker may decode. Other shards of
    /// earlier tries are replaced, or dropped if the chunk has gone elsewhere, when it is assigned
    /// again: there are as many of them as the request has chunks, and of what is assigned only as
    /// many as may be in flight.
    pub(crate) fn begin_again(&mut self, first: usize, lost: &[usize]) -> Vec<(WorkerId, usize)> {
        let pruned = self.job.sharded.is_some_and(|sharded| sharded.pruned);
        let last = self.chunks.len() - 1;
        let mut dropped = Vec::new();
        for idx in 0..self.chunks.len() {
            let Chunk { worker, state, .. } = self.chunks[idx];
            let is_later = idx >= first && (state == State::Running || idx == last);
            let is_needed = pruned || is_later || lost.binary_search(&idx).is_ok();
            if state == State::Waiting || !is_needed {
                continue;
            }
            if state == State::Running || idx == last {
                dropped.push((worker, idx));
            } else {
                self.chunks[idx].left_at = Some(worker);
            }
            self.redo(idx);
            self.move_to(idx, worker);
            self.chunks[idx].ticket = None;
        }
        dropped
    }

    /// Nothing of it is at `worker` any more.
    pub(crate) fn is_gone_from(&mut self, worker: WorkerId) {
        for chunk in &mut self.chunks {
            chunk.left_at.take_if(|left_at| *left_at == worker);
        }
    }

    /// Chunk `idx` is assigned again: who is to drop what an earlier try of it left elsewhere.
    pub(crate) fn take_left_elsewhere(&mut self, idx: usize) -> Option<WorkerId> {
        let elsewhere = self.chunks[idx].left_elsewhere();
        self.chunks[idx].left_at = None;
        elsewhere
    }

    /// Memory is handed from chunk to chunk. A done chunk is needed again only while the chunk
    /// after it is undone, so this goes back to the newest memory that is still held, in the
    /// limit to chunk 0. Gives the chunks that need a new place.
    fn lose_memory(&mut self, lost: &[usize]) -> Vec<usize> {
        let mut moved = self.lose_snapshot(lost);
        let mut disrupted = false;
        for &idx in lost {
            if self.is_needless(idx) {
                self.set(idx, State::Released);
                self.stranded.remove(&idx);
                moved.remove(&idx);
                continue;
            }
            match self.chunks[idx].state {
                State::Held => self.chunks[idx].state = State::Released,
                State::Released => {}
                State::Waiting => drop(moved.insert(idx)),
                State::Running => {
                    disrupted = true;
                    self.redo(idx);
                    moved.insert(idx);
                }
            }
        }
        for idx in (0..self.chunks.len()).rev() {
            // A snapshot that is there stands for all before it.
            let is_needed = self.restored.is_none_or(|restored| idx >= restored);
            let gone = is_needed && self.chunks[idx].state == State::Released;
            let next_done = self.chunks.get(idx + 1).is_some_and(|next| next.state.is_done());
            if gone && !next_done {
                disrupted = true;
                self.redo(idx);
                moved.insert(idx);
            }
        }
        self.pass_done();
        self.disruptions += u32::from(disrupted);
        self.forget_tickets();
        moved.into_iter().collect()
    }

    /// Whether an undone chunk was done before, and is done again for nothing but to have its
    /// memory twice: that of the next one is there.
    fn is_needless(&self, idx: usize) -> bool {
        let is_done = |idx: usize| self.chunks.get(idx).is_some_and(|it| it.state.is_done());
        let goes_on = !is_done(self.chunks.len() - 1);
        !is_done(idx) && self.chunks[idx].was_done && is_done(idx + 1) && goes_on
    }

    pub(super) fn redo(&mut self, idx: usize) {
        self.restored = self.restored.filter(|restored| *restored != idx);
        self.set(idx, State::Waiting);
        self.frontier = self.frontier.min(idx);
        self.confirmed = self.confirmed.min(idx);
        self.chunks_retried += 1;
    }
}
