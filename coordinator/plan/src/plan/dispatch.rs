//! Who does what, in which order: requests are admitted, chunks placed and assigned.

use std::collections::BTreeMap;

use aqueduct_core::work::NextHop;
use aqueduct_core::{Refusal, RequestId, WorkerId};

use super::Plan;
use crate::request::Request;
use crate::room::{Need, Room};
use crate::words::{Command, Job, Shards};

impl Plan {
    /// Assigns what may be assigned now, in the total order, and admits from the queue.
    pub(super) fn dispatch(&mut self) {
        let mut pos = 0;
        while pos < self.running.len() || self.admit() {
            self.dispatch_chunks(pos);
            if !self.running[pos].all_dispatched() {
                return;
            }
            pos += 1;
        }
    }

    /// Assigns the chunks of one request that may be assigned now.
    fn dispatch_chunks(&mut self, pos: usize) {
        let chunk_tokens = self.running[pos].job.grid.chunk_tokens();
        let window = (self.limits.batch_tokens / chunk_tokens).max(1) as usize;
        // Per worker, the first chunk that is done again there in front of later ones.
        let mut redone = BTreeMap::new();
        while let Some(idx) = self.running[pos].next_chunk(window) {
            let request = &self.running[pos];
            let first_try = request.is_first_try(idx);
            let has_begun = request.is_sharded() && request.in_flight > 0;
            if (first_try || has_begun) && self.is_full() {
                break; // What is in flight, or of this request, is earlier: so it ends.
            }
            let worker = request.worker(idx);
            if !first_try && !self.running_behind(pos, idx, worker).is_empty() {
                redone.entry(worker).or_insert(idx);
            }
            self.assign(pos, idx);
        }
        // Once for each worker, so that a loss costs commands in proportion to what is in
        // flight and not to its square.
        for (worker, idx) in redone {
            self.line_up_behind(pos, idx, worker);
        }
    }

    /// Whether `job` would begin at once.
    pub(super) fn may_admit(&self, job: &Job) -> bool {
        let free = self.queue.is_empty() && self.running.len() < self.limits.running_requests;
        free && self.running.iter().all(Request::all_dispatched) && self.places(job).is_some()
    }

    /// Requests begin in the order of their arrival: one that waits for room holds up those
    /// behind it.
    fn admit(&mut self) -> bool {
        if self.running.len() >= self.limits.running_requests {
            return false;
        }
        let Some(places) = self.queue.front().and_then(|(_, job)| self.places(job)) else {
            return false;
        };
        let Some((id, job)) = self.queue.pop_front() else { return false };
        self.rotation = self.rotation.wrapping_add(places.len());
        self.running.push(Request::new(id, job, places));
        true
    }

    /// A worker for every chunk of a new request: in rotation, with shards where there is room.
    fn places(&self, job: &Job) -> Option<Vec<WorkerId>> {
        if job.sharded.is_some() {
            return self.room().place(Need::of(job), self.rotation);
        }
        self.rotated(job.grid.chunk_count() as usize, &self.up())
    }

    /// A worker of `workers` for each of the chunks `moved` of a running request.
    pub(super) fn new_places(
        &self,
        pos: usize,
        moved: &[usize],
        workers: &[WorkerId],
    ) -> Option<Vec<WorkerId>> {
        let request = &self.running[pos];
        if !request.is_sharded() {
            return self.rotated(moved.len(), workers);
        }
        let home = request.chunk_count() - 1;
        let need = Need::of(&request.job);
        let need = Need {
            full_chunks: moved.iter().filter(|idx| **idx != home).count() as u64,
            home_tokens: need.home_tokens.filter(|_| moved.contains(&home)),
            ..need
        };
        let stay = || moved.iter().map(|idx| request.worker(*idx)).collect::<Vec<_>>();
        self.room().of(workers).place(need, self.rotation).or_else(|| {
            // What only failed keeps its place where no other has room.
            Some(stay()).filter(|places| places.iter().all(|worker| self.is_up(*worker)))
        })
    }

    fn rotated(&self, count: usize, workers: &[WorkerId]) -> Option<Vec<WorkerId>> {
        let at = |idx: usize| workers[self.rotation.wrapping_add(idx) % workers.len()];
        (!workers.is_empty()).then(|| (0..count).map(at).collect())
    }

    /// What running requests leave free of the pools.
    fn room(&self) -> Room {
        let mut taken: BTreeMap<WorkerId, u64> = BTreeMap::new();
        for (worker, tokens) in self.running.iter().flat_map(Request::reserved) {
            *taken.entry(worker).or_default() += tokens;
        }
        self.room_less(&taken)
    }

    fn room_less(&self, taken: &BTreeMap<WorkerId, u64>) -> Room {
        let up = self.workers.iter().filter(|(_, worker)| worker.up);
        Room::new(up.map(|(id, worker)| {
            (*id, worker.pool_tokens.saturating_sub(taken.get(id).copied().unwrap_or(0)))
        }))
    }

    /// Why the keys of `job` would have no place in an empty cluster.
    pub(super) fn too_long(&self, job: &Job) -> Option<Refusal> {
        let room = self.room_less(&BTreeMap::new());
        let fits = job.sharded.is_none() || room.place(Need::of(job), 0).is_some();
        (!fits).then(|| room.refusal(job))
    }

    fn is_full(&self) -> bool {
        let in_flight: usize = self.running.iter().map(|request| request.in_flight).sum();
        in_flight >= self.limits.batch_chunks
    }

    fn assign(&mut self, pos: usize, idx: usize) {
        self.running[pos].start(idx);
        let request = &self.running[pos];
        let Some(span) = request.job.grid.chunk(idx as u32) else { return };
        let ends_here = request.is_sharded() || idx + 1 == request.chunk_count();
        let next = (!ends_here).then(|| self.hop_to(request, idx + 1));
        let shards = request.is_sharded().then(|| self.shards_before(request, idx));
        let (worker, key) = (request.worker(idx), request.key(idx));
        self.commands.push(Command::Assign { worker, key, span, next, shards });
    }

    fn shards_before(&self, request: &Request, idx: usize) -> Shards {
        let (holders, chunks) = request.shards_before(idx);
        let peer = |worker: &WorkerId| self.workers[worker].peer.clone();
        Shards { holders: holders.iter().map(peer).collect(), chunks }
    }

    pub(super) fn hop_to(&self, request: &Request, idx: usize) -> NextHop {
        let peer = self.workers[&request.worker(idx)].peer.clone();
        NextHop { peer, epoch: request.key(idx).epoch }
    }

    /// What `worker` has of the chunks after chunk `idx` in the total order, in that order:
    /// requests by their place in `running`, and chunks. Of a request with shards only others
    /// than its own: what stands behind one of its chunks has begun anew with it.
    fn running_behind(&self, pos: usize, idx: usize, worker: WorkerId) -> Vec<(usize, usize)> {
        let of = |(later_pos, request): (usize, &Request)| {
            let first = match later_pos == pos {
                true if request.is_sharded() => request.chunk_count(),
                true => idx + 1,
                false => 0,
            };
            let chunks = request.running_on(worker, first);
            chunks.into_iter().map(move |later| (later_pos, later)).collect::<Vec<_>>()
        };
        self.running.iter().enumerate().skip(pos).flat_map(of).collect()
    }

    /// Has all of that stand behind chunk `idx`: assigns it again or, where other chunks need
    /// its shards, lets it and them begin anew when their turn comes.
    fn line_up_behind(&mut self, pos: usize, idx: usize, worker: WorkerId) {
        for (later_pos, later) in self.running_behind(pos, idx, worker) {
            let request = &mut self.running[later_pos];
            if request.is_sharded() {
                let (id, dropped) = (request.id, request.begin_again(later, &[]));
                self.drop_chunks(id, dropped);
                continue;
            }
            request.move_to(later, worker);
            self.redirect_to(later_pos, later);
            self.assign(later_pos, later);
        }
    }

    /// Tells the workers that are there to drop what they have of chunks.
    pub(super) fn drop_chunks(&mut self, request: RequestId, dropped: Vec<(WorkerId, usize)>) {
        for (worker, idx) in dropped {
            if self.is_up(worker) {
                let chunk_idx = idx as u32;
                self.commands.push(Command::Drop { worker, request, chunk_idx });
            }
        }
    }
}
