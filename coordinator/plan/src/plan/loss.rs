//! What follows from a loss: chunks are done again elsewhere, or wait for a worker to come.

use aqueduct_core::work::FailureKind;
use aqueduct_core::{ChunkKey, RequestId, WorkerId};

use super::Plan;
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
            let lost = self.running[pos].on(worker);
            self.do_again(pos, &lost, worker, "a worker was lost");
        }
        self.running.iter_mut().for_each(|request| request.is_gone_from(worker));
        self.fail_those_without_a_place();
    }

    /// Gives chunks that no other worker could take over when theirs was lost to those who can now.
    /// A try that comes to nothing costs the request nothing: the loss was counted when it came.
    pub(super) fn place_stranded(&mut self) {
        let ids: Vec<RequestId> = self.running.iter().map(|request| request.id).collect();
        for id in ids {
            let Some(pos) = self.position(id) else { continue };
            let stranded: Vec<usize> = self.running[pos].stranded.iter().copied().collect();
            if let Some(first) = stranded.first() {
                let lost = self.running[pos].worker(*first);
                self.place_again(pos, &stranded, lost, "a worker was lost");
            }
        }
    }

    /// From now on, for as long as a worker may take to come.
    pub(super) fn wait_for_workers(&mut self) {
        let grace_ms = self.limits.grace_ms;
        self.grace_until_ms = (grace_ms > 0).then(|| self.now_ms.saturating_add(grace_ms));
    }

    /// What still has no place when nobody is waited for any longer ends.
    pub(super) fn end_grace(&mut self) {
        self.grace_until_ms = None;
        self.place_stranded();
        self.fail_those_without_a_place();
    }

    /// Ends the requests in the queue that the workers that are left cannot serve, unless one may
    /// still come.
    pub(super) fn fail_those_without_a_place(&mut self) {
        if self.grace_until_ms.is_some() {
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
        let unreached = request.unreached(worker, key);
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
            (FailureKind::Peer | FailureKind::Deadline, None)
                if self.is_to_be_left(pos, worker) =>
            {
                self.leave(pos, worker, &why);
            }
            (FailureKind::Peer | FailureKind::Deadline, None) => {
                self.do_again(pos, &[key.chunk_idx as usize], worker, &why);
            }
            (kind, _) => self.fail_as(key.request, kind, why),
        }
    }

    /// Whether `worker`, which could not reach what it needs of others, is to be left: it does not
    /// reach them again and again, though they are there, and others may.
    fn is_to_be_left(&mut self, pos: usize, worker: WorkerId) -> bool {
        let is_rule = self.running[pos].complain(worker);
        let request = &self.running[pos];
        let may = |other: WorkerId| other != worker && !request.left.contains(&other);
        is_rule && self.up().into_iter().any(may)
    }

    /// Takes a request away from a worker that is up but cannot be given its memory. Nothing
    /// of it may stay there: a chunk that waits in vain would block those behind it. And it
    /// never returns: the cancellation could overtake, and wipe out, a memory sent there later.
    pub(super) fn leave(&mut self, pos: usize, worker: WorkerId, why: &str) {
        let request = &mut self.running[pos];
        self.commands.push(Command::Cancel { worker, request: request.id });
        let disruptions = request.disruptions_left(worker);
        request.left.insert(worker);
        let lost = request.on(worker);
        let lost = self.lost_in_race(pos, &lost, worker);
        let lost = self.lost_under_way(pos, lost, worker);
        let request = &mut self.running[pos];
        let loss = request.lose(&lost);
        request.is_gone_from(worker);
        request.disruptions = disruptions;
        self.drop_chunks(self.running[pos].id, loss.dropped);
        self.place_again(pos, &loss.moved, worker, why);
    }

    /// What `worker` did of the chunks `lost` is gone: they, and what needs them, begin anew.
    pub(super) fn do_again(&mut self, pos: usize, lost: &[usize], worker: WorkerId, why: &str) {
        let lost = self.lost_in_race(pos, lost, worker);
        let lost = self.lost_under_way(pos, lost, worker);
        let loss = self.running[pos].lose(&lost);
        self.drop_chunks(self.running[pos].id, loss.dropped);
        self.place_again(pos, &loss.moved, worker, why);
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
            FailureKind::Peer | FailureKind::Deadline if self.is_to_be_left(pos, worker) => {
                self.leave(pos, worker, &why);
            }
            FailureKind::Peer | FailureKind::Deadline => {
                let last = self.running[pos].chunk_count() - 1;
                self.do_again(pos, &[last], worker, &why);
            }
            kind => self.fail_as(id, kind, why),
        }
    }

    /// Gives the chunks `moved` of a running request, which all wait, new workers and epochs,
    /// and tells the workers of the chunks before them. If no worker can take them, they wait
    /// for one to come, for as long as the plan does.
    pub(super) fn place_again(&mut self, pos: usize, moved: &[usize], avoid: WorkerId, why: &str) {
        if moved.is_empty() {
            return;
        }
        let id = self.running[pos].id;
        let chosen = match self.places_again(pos, moved, avoid, why) {
            Ok(chosen) => chosen,
            Err(_) if self.grace_until_ms.is_some() => {
                return self.running[pos].stranded.extend(moved);
            }
            Err(failure) => return self.fail(id, failure),
        };
        if self.running[pos].disruptions > self.limits.retries {
            let why =
                format!("given up after {} failures, the last: {why}", self.limits.retries + 1);
            return self.fail(id, Failure::Unavailable(why));
        }
        if !self.resume_again(pos, moved) {
            // Who has it may come back.
            if self.grace_until_ms.is_some() {
                return self.running[pos].stranded.extend(moved);
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

    /// A worker for each of the chunks `moved`: another than `avoid`, and than the one that has
    /// what the last chunk was given, where there is any other.
    pub(super) fn places_again(
        &self,
        pos: usize,
        moved: &[usize],
        avoid: WorkerId,
        why: &str,
    ) -> Result<Vec<WorkerId>, Failure> {
        let request = &self.running[pos];
        let mut places = self.up();
        if places.is_empty() {
            return Err(Failure::no_worker());
        }
        places.retain(|worker| !request.left.contains(worker));
        if places.is_empty() {
            let why = format!("no other worker can take over: {why}");
            return Err(Failure::Unavailable(why));
        }
        let giver = request.giver().map(|idx| request.worker(idx));
        for avoid in giver.into_iter().chain([avoid]) {
            if places.iter().any(|worker| *worker != avoid) {
                places.retain(|worker| *worker != avoid);
            }
        }
        self.new_places(pos, moved, &places).ok_or_else(|| {
            Failure::Unavailable(format!("the other workers have no room for the keys: {why}"))
        })
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
