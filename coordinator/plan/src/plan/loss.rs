//! What follows from a loss: chunks are done again elsewhere, or wait for a worker to come.

use aqueduct_core::work::FailureKind;
use aqueduct_core::{ChunkKey, RequestId, WorkerId};

use super::{Plan, Worker};
use crate::request::Phase;
use crate::words::{Command, Failure, Job};

impl Plan {
    pub(super) fn worker_down(&mut self, worker: WorkerId) {
        let Some(known) = self.workers.get_mut(&worker).filter(|known| known.up) else { return };
        known.up = false;
        self.wait_for_workers();
        self.snapshots.forget(worker);
        let ids: Vec<RequestId> = self.running.iter().map(|request| request.id).collect();
        for id in ids {
            let Some(pos) = self.position(id) else { continue };
            let request = &self.running[pos];
            let (lost, before) = (request.on(worker), request.disruptions);
            let moved = self.lose(pos, &lost, worker);
            self.running[pos].count_loss(before, self.now_ms);
            self.place_again(pos, &moved, worker, "a worker was lost");
        }
        self.running.iter_mut().for_each(|request| request.is_gone_from(worker));
        self.fail_those_without_a_place();
    }

    /// Completions of `id` have come further than ever before.
    pub(super) fn came_further(&mut self, id: RequestId) {
        if let Some(pos) = self.position(id) {
            self.running[pos].came_further();
        }
    }

    /// Gives chunks that no other worker could take over when theirs was lost to those who can now.
    /// A try that comes to nothing costs the request nothing: the loss was counted when it came.
    pub(super) fn place_stranded(&mut self) {
        let mut running = usize::MAX;
        // Who is given up gives room back to those before it.
        while self.running.len() < running {
            running = self.running.len();
            self.place_stranded_once();
        }
    }

    fn place_stranded_once(&mut self) {
        let ids: Vec<RequestId> = self.running.iter().map(|request| request.id).collect();
        for id in ids {
            let Some(pos) = self.position(id) else { continue };
            let request = &self.running[pos];
            let stranded: Vec<usize> = request.stranded.iter().copied().collect();
            let Some(first) = stranded.first().filter(|_| !request.patience.pauses()) else {
                continue;
            };
            self.place_again(pos, &stranded, request.worker(*first), "a worker was lost");
        }
    }

    /// From now on, for as long as a worker may take to come.
    pub(super) fn wait_for_workers(&mut self) {
        let grace_ms = self.limits.grace_ms;
        self.grace_until_ms = (grace_ms > 0).then(|| self.now_ms.saturating_add(grace_ms));
    }

    /// Whether one may come who would change what has no place. When all that were lost are back,
    /// and none is to be left, nobody would, though room may be given back for as long as
    /// `grace_until_ms` says.
    pub(super) fn awaits_workers(&self) -> bool {
        let is_missing = |worker: &Worker| !worker.up || worker.draining;
        self.grace_until_ms.is_some()
            && (self.awaits_unknown || self.workers.values().any(is_missing))
    }

    /// What still has no place when nobody is waited for any longer ends.
    pub(super) fn end_grace(&mut self) {
        self.grace_until_ms = None;
        self.awaits_unknown = false;
        self.place_stranded();
        self.fail_those_without_a_place();
    }

    /// Ends the requests in the queue that the workers that are left cannot serve, unless one may
    /// still come.
    pub(super) fn fail_those_without_a_place(&mut self) {
        if self.awaits_workers() {
            return;
        }
        let failure = |job: &Job| match self.without_a_place(job)? {
            Failure::TooLong(refusal) => Some(Failure::Unavailable(refusal.to_string())),
            failure => Some(failure),
        };
        let failed = self.queue.iter().filter_map(|(id, job)| Some((id, failure(job)?)));
        for (id, failure) in failed.collect::<Vec<_>>() {
            self.fail(id, failure);
        }
    }

    pub(super) fn chunk_failed(
        &mut self,
        worker: WorkerId,
        key: ChunkKey,
        kind: FailureKind,
        why: String,
    ) {
        let Some(pos) = self.position(key.request) else { return };
        let request = &self.running[pos];
        let is_own = request.is_current(worker, key);
        // Who is lost is known to be, and may come back: then it is given what waits for a place.
        let unreached = request.unreached(worker, key).filter(|unreached| self.is_up(*unreached));
        if request.is_second(worker, key) {
            return self.do_again(pos, &[], worker, &why);
        }
        if request.phase != Phase::Prefill || !(is_own || unreached.is_some()) {
            return;
        }
        let snapshot = request.snapshot(key.chunk_idx as usize).filter(|_| is_own);
        let is_late = kind == FailureKind::Deadline && snapshot.is_some();
        if is_late && request.job.resumes {
            // It is there, and only there: whoever asks again may find that it is read. Were it
            // not known any more, they would hear that it is lost.
            return self.fail(key.request, Failure::Unavailable(why));
        }
        snapshot.iter().for_each(|snapshot| self.snapshots.dropped(worker, *snapshot));
        let is_shard_gone = snapshot.is_some() && request.is_sharded();
        match (kind, unreached) {
            (FailureKind::Peer | FailureKind::Deadline, None) if is_shard_gone => {
                self.do_again(pos, &[key.chunk_idx as usize], worker, &why);
            }
            (FailureKind::Peer | FailureKind::Deadline, Some(unreached)) => {
                self.leave(pos, unreached, &why);
            }
            (FailureKind::Peer | FailureKind::Deadline, None) => {
                self.cannot_reach(pos, key.chunk_idx as usize, worker, &why);
            }
            (kind, _) => self.fail_as(key.request, kind, why),
        }
    }

    /// What `worker` did of the chunks `lost` is gone: they, and what needs them, begin anew.
    pub(super) fn do_again(&mut self, pos: usize, lost: &[usize], worker: WorkerId, why: &str) {
        let moved = self.lose(pos, lost, worker);
        self.place_again(pos, &moved, worker, why);
    }

    /// The same without new places: which chunks need some.
    pub(super) fn lose(&mut self, pos: usize, lost: &[usize], worker: WorkerId) -> Vec<usize> {
        let lost = self.lost_in_race(pos, lost, worker);
        let lost = self.lost_under_way(pos, lost, worker);
        let loss = self.running[pos].lose(&lost);
        self.drop_chunks(self.running[pos].id, loss.dropped);
        loss.moved
    }

    pub(super) fn decode_failed(
        &mut self,
        worker: WorkerId,
        id: RequestId,
        kind: FailureKind,
        why: String,
    ) {
        let Some(pos) = self.position(id) else { return };
        let request = &self.running[pos];
        if request.phase != (Phase::Decode { home: worker }) {
            return;
        }
        match kind {
            FailureKind::Peer | FailureKind::Deadline => {
                let last = self.running[pos].chunk_count() - 1;
                self.cannot_reach(pos, last, worker, &why);
            }
            kind => self.fail_as(id, kind, why),
        }
    }

    /// Gives the chunks `moved` of a running request, which all wait, new workers and epochs,
    /// and tells the workers of the chunks before them. If no worker can take them, they wait
    /// for one that can, for as long as the plan waits for one to come.
    pub(super) fn place_again(&mut self, pos: usize, moved: &[usize], avoid: WorkerId, why: &str) {
        if moved.is_empty() {
            return;
        }
        let id = self.running[pos].id;
        if moved.len() == self.running[pos].chunk_count() {
            self.fit_anew(pos);
        }
        let chosen = self.places_again(pos, moved, avoid, why);
        self.running[pos].wants_room = chosen.is_err() && self.would_have_room(pos);
        let chosen = match chosen {
            Ok(chosen) => chosen,
            Err(_) if self.may_wait(pos) => return self.strand(pos, moved),
            Err(failure) => return self.fail(id, failure),
        };
        self.running[pos].patience.has_a_place();
        if self.running[pos].disruptions > self.limits.retries {
            let why =
                format!("given up after {} failures, the last: {why}", self.limits.retries + 1);
            return self.fail(id, Failure::Unavailable(why));
        }
        if !self.resume_again(pos, moved) {
            // Who has it may come back.
            if self.awaits_workers() {
                return self.strand(pos, moved);
            }
            return self.fail(id, Failure::SessionLost);
        }
        self.rotation = self.rotation.wrapping_add(moved.len());
        for (&idx, worker) in moved.iter().zip(chosen) {
            let request = &mut self.running[pos];
            let is_resumed = !request.is_sharded() && request.snapshot(idx).is_some();
            let worker = if is_resumed { request.worker(idx) } else { worker };
            request.move_to(idx, worker);
        }
        self.restore_shards(pos, moved.iter().copied());
        for &idx in moved {
            self.redirect_to(pos, idx);
        }
    }

    /// Has the chunks `moved` of a running request wait for a worker to come. Where memory is
    /// handed on, what is in flight and needs them must not hold up its workers for so long: they
    /// drop it.
    pub(super) fn strand(&mut self, pos: usize, moved: &[usize]) {
        self.running[pos].stranded.extend(moved);
        if !self.running[pos].is_sharded() {
            self.take_back(pos);
        }
    }

    /// Tells the chunk before `idx`, if it has or will have anything to send, where `idx` is.
    pub(super) fn redirect_to(&mut self, pos: usize, idx: usize) {
        let request = &self.running[pos];
        let Some(before) = idx.checked_sub(1).filter(|before| request.can_send(*before)) else {
            return;
        };
        let (id, chunk_idx, next) = (request.id, idx as u32, self.hop_to(request, idx));
        let second = request.second().filter(|_| request.raced() == Some(before));
        for worker in [request.worker(before)].into_iter().chain(second) {
            let next = next.clone();
            self.commands.push(Command::Redirect { worker, request: id, chunk_idx, next });
        }
    }
}
