//! Chunks that take far longer than chunks do are given to an idle worker as well.

use aqueduct_core::work::NextHop;
use aqueduct_core::{ChunkKey, WorkerId};

use super::Plan;
use crate::request::Request;
use crate::words::Command;

/// A chunk has taken far longer than chunks do when it has taken so many times as long.
const FAR_LONGER: u64 = 3;

impl Plan {
    /// Has idle workers do what takes too long elsewhere; no chunk more than once.
    pub(super) fn hedge(&mut self) {
        for pos in 0..self.running.len() {
            let Some((idx, due_ms)) = self.straggler(&self.running[pos]) else { continue };
            if due_ms <= self.now_ms
                && let Some(worker) = self.idle_for(&self.running[pos], idx)
            {
                self.do_beside(pos, idx, worker);
            }
        }
    }

    /// When the next chunk will have taken too long.
    pub(super) fn next_hedge_ms(&self) -> Option<u64> {
        let due = self.running.iter().filter_map(|request| self.straggler(request));
        due.map(|(_, due_ms)| due_ms).filter(|due_ms| *due_ms > self.now_ms).min()
    }

    /// The chunk that `request` waits for, and when that will have taken too long.
    fn straggler(&self, request: &Request) -> Option<(usize, u64)> {
        let least_ms = self.limits.hedge_after_ms?;
        let (idx, since_ms) = request.awaited()?;
        let expected_ms = self.pace.expected_ms(request.computed_tokens(idx))?;
        let after_ms = expected_ms.saturating_mul(FAR_LONGER).max(least_ms);
        Some((idx, since_ms.saturating_add(after_ms)))
    }

    /// Who does nothing but wait for what comes after this chunk, if for anything, and has room for
    /// it; of those the one that does least.
    fn idle_for(&self, request: &Request, idx: usize) -> Option<WorkerId> {
        let ticket = request.ticket(idx)?;
        let room = self.room().with(request.sets.all);
        let up = self.not_overfull(self.up());
        let may = |worker: &WorkerId| {
            let has_room = request.takes_room_of(*worker) || room.contains(worker);
            has_room && *worker != request.worker(idx) && !request.left.contains(worker)
        };
        let waiting = |worker: WorkerId| {
            let mut all = self.running.iter().map(|other| other.only_waiting(worker, ticket));
            let count: usize = all.try_fold(0, |sum, count| Some(sum + count?))?;
            Some((count, self.decodes(worker), worker))
        };
        let idle = up.into_iter().filter(may).filter_map(waiting).min();
        idle.map(|(.., worker)| worker)
    }

    fn do_beside(&mut self, pos: usize, idx: usize, worker: WorkerId) {
        let Some(span) = self.running[pos].job.grid.chunk(idx as u32) else { return };
        let key = self.running[pos].race(idx, worker);
        self.hedges += 1;
        let request = &self.running[pos];
        if let Some(before) = idx.checked_sub(1) {
            let base = request.base_at(idx, worker);
            let peer = self.workers[&worker].peer.clone();
            let next = NextHop { peer, epoch: key.epoch, base };
            let (worker, request) = (request.worker(before), key.request);
            let chunk_idx = key.chunk_idx;
            self.commands.push(Command::Redirect { worker, request, chunk_idx, next });
        }
        // What the worker of the next chunk would have of this one, it may never have.
        let is_this = |chunk_idx: u32| chunk_idx == key.chunk_idx;
        let next = (idx + 1 < request.chunk_count()).then(|| self.hop_to(request, idx + 1));
        let next = next
            .map(|hop| NextHop { base: hop.base.filter(|base| !is_this(base.chunk_idx)), ..hop });
        let (shards, is_hedge) = (None, true);
        self.commands.push(Command::Assign { worker, key, span, next, shards, is_hedge });
        if let Some(ticket) = self.running[pos].ticket(idx) {
            self.line_up_behind(ticket, worker);
        }
    }

    /// `worker` says that it has done `key`: if somebody else is at that chunk, it stops.
    pub(super) fn settle_race(&mut self, pos: usize, worker: WorkerId, key: ChunkKey) {
        let request = &mut self.running[pos];
        if request.is_second(worker, key) {
            self.second_takes_over(pos);
        } else if request.is_first(worker, key) {
            self.end_race(pos);
        }
    }

    /// The chunk that two are at is the second's alone from now on.
    pub(super) fn second_takes_over(&mut self, pos: usize) {
        let request = &mut self.running[pos];
        if let Some((first, idx)) = request.second_takes_over() {
            self.drop_chunks(self.running[pos].id, vec![(first, idx)]);
        }
    }

    /// The chunk that two are at is the first's alone from now on.
    pub(super) fn end_race(&mut self, pos: usize) {
        if let Some(second) = self.running[pos].end_race() {
            self.drop_chunks(self.running[pos].id, vec![second]);
        }
    }

    /// Something is to stand in front of what `worker` is at as a second: it is the only one now.
    pub(super) fn seconds_take_over(&mut self, worker: WorkerId) {
        for pos in 0..self.running.len() {
            if self.running[pos].second() == Some(worker) {
                self.second_takes_over(pos);
            }
        }
    }

    /// What `worker` did of the chunks `lost` is gone. What is gone when one chunk is being done
    /// twice: nothing of it, if only the first is concerned; but all, if it is the second, for the
    /// memory that it needs went there.
    pub(super) fn lost_in_race(
        &mut self,
        pos: usize,
        lost: &[usize],
        worker: WorkerId,
    ) -> Vec<usize> {
        let mut lost = lost.to_vec();
        let request = &self.running[pos];
        let Some(idx) = request.raced() else { return lost };
        if request.second() == Some(worker) {
            let first = (request.worker(idx), idx);
            self.end_race(pos);
            self.drop_chunks(self.running[pos].id, vec![first]);
            if let Err(at) = lost.binary_search(&idx) {
                lost.insert(at, idx);
            }
        } else if let Ok(at) = lost.binary_search(&idx) {
            lost.remove(at);
            self.second_takes_over(pos);
        } else if idx.checked_sub(1).is_some_and(|before| lost.contains(&before)) {
            self.end_race(pos); // what is done again goes to the first
        }
        lost
    }
}
