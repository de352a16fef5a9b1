//! Who does what, in which order: requests are admitted, chunks placed and assigned.

use std::collections::{BTreeMap, BTreeSet};

use aqueduct_core::work::NextHop;
use aqueduct_core::{Refusal, RequestId, WorkerId};

use super::Plan;
use super::ahead::Ahead;
use crate::request::Request;
use crate::room::{Need, Room};
use crate::sets::{Sets, window_that_fits};
use crate::words::{Busy, Command, End, Failure, Job, Shards};

impl Plan {
    /// Admits from the queue and assigns what may be assigned now.
    pub(super) fn dispatch(&mut self) {
        while self.admit() {}
        self.dispatch_again();
        self.dispatch_first();
    }

    /// Assigns chunks for the first time, in turn, as long as there may be more in flight.
    fn dispatch_first(&mut self) {
        let mut ahead = self.ahead();
        while !self.is_full()
            && let Some((_, pos, idx)) = self.first_in_turn(&ahead)
        {
            let request = &self.running[pos];
            ahead.add(request.worker(idx), self.expected_us(request, idx));
            let request = &mut self.running[pos];
            request.turn = self.turns.take(request.turn, request.cost(idx));
            self.assign(pos, idx);
        }
        for pos in 0..self.running.len() {
            if self.next_first(&self.running[pos]).is_none() {
                let request = &mut self.running[pos];
                request.turn = self.turns.idle(request.turn);
            }
        }
    }

    /// Of what may be assigned for the first time, to workers that have not enough ahead, the chunk
    /// whose turn is over first.
    fn first_in_turn(&self, ahead: &Ahead) -> Option<(u64, usize, usize)> {
        let ready = |(pos, request): (usize, &Request)| {
            let idx = self.next_first(request)?;
            let over = request.turn.saturating_add(request.cost(idx));
            (!ahead.is_enough(request.worker(idx))).then_some((over, pos, idx))
        };
        self.running.iter().enumerate().filter_map(ready).min()
    }

    /// The chunk that `request` may have in flight next, for the first time.
    fn next_first(&self, request: &Request) -> Option<usize> {
        let next = request.next_chunk(self.window(request))?;
        let is_first = request.ticket(next).is_none() && !request.stranded.contains(&next);
        is_first.then_some(next)
    }

    /// Whether `job` would begin at once. While a place among the running is free, what waits
    /// waits for room, and holds up what is behind it.
    fn may_admit(&self, job: &Job) -> bool {
        if self.running.len() >= self.limits.running_requests || self.waits_for_a_worker(job) {
            return false;
        }
        let Some(places) = self.places(job, &self.room()) else { return false };
        let before = self.queue.before(job).filter(|first| !self.waits_for_a_worker(first));
        let first = self.begun_without_room().chain(before).next();
        first
            .is_none_or(|first| job.sharded.is_none() && self.would_fit_beside(first, job, &places))
    }

    /// Whether `job`, in the queue, waits for a worker to come.
    fn waits_for_a_worker(&self, job: &Job) -> bool {
        self.awaits_workers() && self.without_a_place(job).is_some()
    }

    /// Why `job` may not wait, if it would have to.
    pub(super) fn no_place_in_queue(&self, job: &Job) -> Option<Busy> {
        let (queued, queued_tokens) = (self.queued(), self.queued_tokens());
        let prompt_tokens = job.grid.prompt_tokens();
        let most = &self.limits;
        let busy = if queued >= most.queued_requests {
            Busy::Requests { queued }
        } else if queued > 0 && queued_tokens + u64::from(prompt_tokens) > most.queued_tokens {
            // One alone may wait however long it is, or it would have to come when all is idle.
            Busy::Tokens { queued_tokens, prompt_tokens, most: most.queued_tokens }
        } else {
            return None;
        };
        (!self.may_admit(job)).then_some(busy)
    }

    /// Requests begin in the order of the queue. One that waits for room holds up those behind
    /// it, or it might wait for ever; but where its keys would be in shards, those whose memory is
    /// handed on go past, as long as it would fit beside all of them. What waits for a worker to
    /// come holds up nobody.
    fn admit(&mut self) -> bool {
        if self.running.len() >= self.limits.running_requests {
            return false;
        }
        let Some((id, places)) = self.next_to_begin() else { return false };
        let Some(job) = self.queue.take(id) else { return false };
        self.rotation = self.rotation.wrapping_add(places.len());
        let resumed = self.resumed(&job);
        if job.resumes && resumed.is_none() {
            let end = End::Failed(Failure::SessionLost);
            self.commands.push(Command::Ended { request: id, end });
            return true;
        }
        let mut request = Request::new(id, job, places);
        if let Some((idx, holder)) = resumed {
            self.resume(&mut request, idx, holder);
        }
        let (pos, chunks) = (self.running.len(), 0..request.chunk_count());
        self.running.push(request);
        self.fit_anew(pos);
        self.restore_shards(pos, chunks);
        self.running[pos].turn = self.turns.first(self.running[pos].first_cost());
        true
    }

    /// The first in the queue that may begin, and where its chunks go.
    fn next_to_begin(&self) -> Option<(RequestId, Vec<WorkerId>)> {
        self.queue.iter().next()?; // room is looked for where somebody waits for it
        let room = self.room();
        let mut waits = self.begun_without_room().next();
        if waits.is_some_and(|first| first.sharded.is_none()) {
            return None;
        }
        for (id, job) in self.queue.iter().filter(|(_, job)| !self.waits_for_a_worker(job)) {
            let may_try = waits.is_none() || job.sharded.is_none();
            let places = may_try.then(|| self.places(job, &room)).flatten();
            let may_pass = |places: &Vec<WorkerId>| {
                waits.is_none_or(|first| self.would_fit_beside(first, job, places))
            };
            if let Some(places) = places.filter(may_pass) {
                return Some((id, places));
            }
            // Nothing goes past a first one whose memory is handed on, however many there are.
            let first = waits.get_or_insert(job);
            first.sharded?;
        }
        None
    }

    /// Requests that have begun and wait for others to give room back: before all that is new.
    fn begun_without_room(&self) -> impl Iterator<Item = &Job> {
        self.running.iter().filter(|request| request.wants_room).map(|request| &request.job)
    }

    /// Whether `first` would find room once every request with shards has ended, if `job` began
    /// at `places`.
    fn would_fit_beside(&self, first: &Job, job: &Job, places: &[WorkerId]) -> bool {
        let stay = self.running.iter().filter(|request| !request.is_sharded());
        let mut taken = self.taken(stay);
        let new: BTreeSet<WorkerId> = places.iter().copied().collect();
        for worker in new {
            *taken.entry(worker).or_default() += self.set_tokens(job);
        }
        first.sharded.is_some() && self.fits(first, &self.room_less(&taken))
    }

    /// Whether `room` is enough for `job`.
    pub(super) fn fits(&self, job: &Job, room: &Room) -> bool {
        match job.sharded {
            Some(_) => room.place(Need::of(job, self.limits.page_tokens), 0, &[]).is_some(),
            None => !room.with(self.set_tokens(job)).is_empty(),
        }
    }

    /// Of the request at `pos`, all of which begins anew: as many chunks in flight as the pools
    /// that there are now have room for.
    pub(super) fn fit_anew(&mut self, pos: usize) {
        let (sets, window) = self.sets(&self.running[pos].job);
        let request = &mut self.running[pos];
        (request.sets, request.window) = (sets, window);
    }

    /// What the memory sets of `job` take, and how many of its chunks may be in flight for that.
    fn sets(&self, job: &Job) -> (Sets, usize) {
        let (window, page_tokens) = (self.window_of(job), self.limits.page_tokens);
        let pools = || self.takers().map(|(_, worker)| worker.pool_tokens);
        let window = window_that_fits(job, (window, page_tokens), pools());
        (Sets::of(job, (window, page_tokens), pools()), window)
    }

    /// Tokens that the memory sets of `job` take of any worker that has a chunk of it.
    pub(super) fn set_tokens(&self, job: &Job) -> u64 {
        self.sets(job).0.all
    }

    /// Whether an empty cluster of the workers that there are could hold the keys of `job`.
    pub fn could_hold(&self, job: &Job) -> bool {
        self.too_long(job).is_none()
    }

    /// Why the keys of `job` would have no place in an empty cluster.
    pub(super) fn too_long(&self, job: &Job) -> Option<Refusal> {
        let room = self.room_less(&BTreeMap::new());
        let refusal = || match job.sharded {
            Some(_) => room.refusal(job, self.limits.page_tokens),
            None => room.too_small(self.set_tokens(job), job),
        };
        (!self.fits(job, &room)).then(refusal)
    }

    /// Whether all workers that there ever were could, also those that are gone or to be left.
    pub(super) fn all_could_hold(&self, job: &Job) -> bool {
        let all = self.workers.iter().map(|(id, worker)| (*id, worker.pool_tokens));
        self.fits(job, &Room::new(all))
    }

    pub(super) fn assign(&mut self, pos: usize, idx: usize) {
        self.start(pos, idx);
        self.tell(pos, idx);
    }

    /// The chunk is in flight, of which nobody has been told.
    pub(super) fn start(&mut self, pos: usize, idx: usize) {
        self.next_ticket = self.running[pos].start(idx, self.next_ticket, self.now_ms);
    }

    /// Tells its worker so.
    pub(super) fn tell(&mut self, pos: usize, idx: usize) {
        let left_elsewhere = self.running[pos].take_left_elsewhere(idx);
        self.drop_chunks(self.running[pos].id, left_elsewhere.map(|worker| (worker, idx)));
        let request = &self.running[pos];
        let Some(span) = request.job.grid.chunk(idx as u32) else { return };
        let ends_here = request.is_sharded() || idx + 1 == request.chunk_count();
        let next = (!ends_here).then(|| self.hop_to(request, idx + 1));
        let shards = request.is_sharded().then(|| self.shards_before(request, idx));
        let (worker, key) = (request.worker(idx), request.key(idx));
        self.commands.push(match request.snapshot(idx) {
            Some(snapshot) => Command::Restore { worker, key, snapshot, next },
            None => Command::Assign { worker, key, span, next, shards, is_hedge: false },
        });
    }

    fn shards_before(&self, request: &Request, idx: usize) -> Shards {
        let (holders, chunks) = request.shards_before(idx);
        let peer = |worker: &WorkerId| self.workers[worker].peer.clone();
        Shards { holders: holders.iter().map(peer).collect(), chunks }
    }

    pub(super) fn hop_to(&self, request: &Request, idx: usize) -> NextHop {
        let peer = self.workers[&request.worker(idx)].peer.clone();
        NextHop { peer, epoch: request.key(idx).epoch, base: request.base_of(idx) }
    }

    /// Tells the workers that are there to drop what they have of chunks.
    pub(super) fn drop_chunks(
        &mut self,
        request: RequestId,
        dropped: impl IntoIterator<Item = (WorkerId, usize)>,
    ) {
        for (worker, idx) in dropped {
            if self.is_up(worker) {
                let chunk_idx = idx as u32;
                self.commands.push(Command::Drop { worker, request, chunk_idx });
            }
        }
    }
}
