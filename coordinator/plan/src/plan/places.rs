//! Where chunks go: workers that have room for them.

use std::collections::BTreeMap;

use aqueduct_core::WorkerId;

use super::Plan;
use crate::request::Request;
use crate::room::{Need, Room};
use crate::words::{Failure, Job};

impl Plan {
    /// A worker for every chunk of a new request: in rotation, with shards where there is room,
    /// and best where they are.
    pub(super) fn places(&self, job: &Job, room: &Room) -> Option<Vec<WorkerId>> {
        if job.sharded.is_some() {
            let chunks = 0..job.grid.chunk_count() as usize - 1;
            let wishes: Vec<_> = chunks.map(|idx| self.holder_of_shard(job, idx)).collect();
            let need = Need::of(job, self.limits.page_tokens);
            return room.place(need, self.rotation, &wishes);
        }
        let roomy = room.with(self.set_tokens(job));
        self.rotated(job.grid.chunk_count() as usize, &roomy)
    }

    /// A worker for each of the chunks `moved` of a running request: another than `avoid`, and
    /// than the one that has what the last chunk was given, where there is any other.
    pub(super) fn places_again(
        &self,
        pos: usize,
        moved: &[usize],
        avoid: WorkerId,
        why: &str,
    ) -> Result<Vec<WorkerId>, Failure> {
        let request = &self.running[pos];
        let all = self.up();
        if all.is_empty() {
            return Err(Failure::no_worker());
        }
        let reached: Vec<_> = all.iter().copied().filter(|it| !request.left.contains(it)).collect();
        if reached.is_empty() && !request.is_sharded() {
            let why = format!("no other worker can take over: {why}");
            return Err(Failure::Unavailable(why));
        }
        let mut best = reached.clone();
        let giver = request.giver().map(|idx| request.worker(idx));
        for avoid in giver.into_iter().chain([avoid]) {
            if best.iter().any(|worker| *worker != avoid) {
                best.retain(|worker| *worker != avoid);
            }
        }
        // No memory is sent to where keys are in shards before the plan has it asked for, so
        // nothing of it could be wiped out by the cancellation if the request returns.
        let left = || request.is_sharded().then(|| self.new_places(pos, moved, &all)).flatten();
        let chosen = self.new_places(pos, moved, &best).or_else(|| self.stay(pos, moved));
        chosen.or_else(|| self.new_places(pos, moved, &reached)).or_else(left).ok_or_else(|| {
            Failure::Unavailable(format!("the other workers have no room for the keys: {why}"))
        })
    }

    /// Whether workers that the request at `pos` reaches would have room for it if others gave
    /// theirs back, and some of these will: they lack nothing.
    pub(super) fn would_have_room(&self, pos: usize) -> bool {
        let request = &self.running[pos];
        let mut reached = self.up();
        reached.retain(|worker| !request.left.contains(worker));
        let room = self.room_less(&BTreeMap::new()).of(&reached);
        let has_room = match request.is_sharded() {
            true => self.fits(&request.job, &room),
            false => !room.with(request.sets.all).is_empty(),
        };
        let mut others = self.running.iter().enumerate().filter(|(other, _)| *other != pos);
        has_room && others.any(|(_, other)| other.stranded.is_empty())
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
            let roomy = self.room().of(workers).with(request.sets.all);
            if !roomy.is_empty() {
                return self.rotated(moved.len(), &roomy);
            }
            let has_a_place = |worker: &&WorkerId| request.takes_room_of(**worker);
            let own: Vec<_> = workers.iter().filter(has_a_place).copied().collect();
            return self.rotated(moved.len(), &self.not_overfull(own));
        }
        let home = request.chunk_count() - 1;
        let full = moved.iter().filter(|idx| **idx != home);
        let wishes: Vec<_> = full.map(|idx| self.holder_of_shard(&request.job, *idx)).collect();
        let mut need = Need::of(&request.job, self.limits.page_tokens);
        need.full_chunks = wishes.len() as u64;
        need.home = need.home.filter(|_| moved.contains(&home));
        self.room_without(pos, moved).of(workers).place(need, self.rotation, &wishes)
    }

    /// Where the chunks `moved` are, if all of them may stay there.
    fn stay(&self, pos: usize, moved: &[usize]) -> Option<Vec<WorkerId>> {
        let request = &self.running[pos];
        let places: Vec<_> = moved.iter().map(|idx| request.worker(*idx)).collect();
        let roomy = self.room().with(request.sets.all);
        let has_room = |worker: &WorkerId| {
            request.is_sharded() || request.takes_room_of(*worker) || roomy.contains(worker)
        };
        let may = |worker: &WorkerId| {
            self.is_up(*worker) && !request.left.contains(worker) && has_room(worker)
        };
        let may_all = places.iter().all(may);
        (may_all && self.not_overfull(places.clone()).len() == places.len()).then_some(places)
    }

    /// Those of `workers` whose pools hold what running requests take of them: one that has come
    /// again may have less than it had.
    pub(super) fn not_overfull(&self, mut workers: Vec<WorkerId>) -> Vec<WorkerId> {
        let taken = self.taken(self.running.iter());
        let pool = |worker: &WorkerId| self.workers[worker].pool_tokens;
        workers.retain(|worker| taken.get(worker).copied().unwrap_or(0) <= pool(worker));
        workers
    }

    fn rotated(&self, count: usize, workers: &[WorkerId]) -> Option<Vec<WorkerId>> {
        let at = |idx: usize| workers[self.rotation.wrapping_add(idx) % workers.len()];
        (!workers.is_empty()).then(|| (0..count).map(at).collect())
    }

    /// What running requests leave free of the pools.
    pub(super) fn room(&self) -> Room {
        self.room_less(&self.taken(self.running.iter()))
    }

    /// The same, if the chunks `moved` of the request at `pos`, whose keys are in shards, had no
    /// place.
    fn room_without(&self, pos: usize, moved: &[usize]) -> Room {
        let others = self.running.iter().enumerate().filter(|(idx, _)| *idx != pos);
        let mut taken = self.taken(others.map(|(_, request)| request));
        for (worker, tokens) in self.running[pos].reserved_but(moved, self.limits.page_tokens) {
            *taken.entry(worker).or_default() += tokens;
        }
        self.room_less(&taken)
    }

    /// What these requests take of the pools.
    pub(super) fn taken<'a>(
        &self,
        requests: impl Iterator<Item = &'a Request>,
    ) -> BTreeMap<WorkerId, u64> {
        let mut taken: BTreeMap<WorkerId, u64> = BTreeMap::new();
        for (worker, tokens) in requests.flat_map(|it| it.reserved(self.limits.page_tokens)) {
            *taken.entry(worker).or_default() += tokens;
        }
        taken
    }

    /// Reserves room at `home` for the shards of other workers, if they are to come there and it
    /// has any.
    pub(super) fn gather(&mut self, pos: usize, home: WorkerId) -> bool {
        let request = &self.running[pos];
        let tokens = request.elsewhere(self.limits.page_tokens);
        let wanted = request.job.sharded.is_some_and(|sharded| sharded.gathers);
        let gathers = wanted && self.room().of(&[home]).with(tokens) == [home];
        self.running[pos].gathered_tokens = if gathers { tokens } else { 0 };
        gathers
    }

    pub(super) fn room_less(&self, taken: &BTreeMap<WorkerId, u64>) -> Room {
        Room::new(self.takers().map(|(id, worker)| {
            (id, worker.pool_tokens.saturating_sub(taken.get(&id).copied().unwrap_or(0)))
        }))
    }
}
