//! The state of the cluster as decisions need it, and one function that moves it on.

use std::collections::{BTreeMap, VecDeque};

use aqueduct_core::work::{FailureKind, NextHop, Peer};
use aqueduct_core::{ChunkKey, RequestId, WorkerId};

use crate::request::{Phase, Request};
use crate::words::{Command, End, Event, Failure, Job, Limits};

#[derive(Debug)]
struct Worker {
    peer: Peer,
    up: bool,
}

/// The plan of one cluster.
#[derive(Debug)]
pub struct Plan {
    limits: Limits,
    /// Every worker there ever was: chunks may name one that is gone.
    workers: BTreeMap<WorkerId, Worker>,
    queue: VecDeque<(RequestId, Job)>,
    /// In the order of admission, which is the first half of the total order of chunks.
    running: Vec<Request>,
    /// Where the next placement starts, so that short requests spread over the workers.
    rotation: usize,
    now_ms: u64,
    commands: Vec<Command>,
}

impl Plan {
    /// A plan without workers.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            workers: BTreeMap::new(),
            queue: VecDeque::new(),
            running: Vec::new(),
            rotation: 0,
            now_ms: 0,
            commands: Vec::new(),
        }
    }

    /// Takes in what happened and says what is to be done, in order.
    pub fn step(&mut self, event: Event) -> Vec<Command> {
        match event {
            Event::WorkerUp { worker, peer } => self.worker_up(worker, peer),
            Event::WorkerDown { worker } => self.worker_down(worker),
            Event::Submit { request, job } => self.submit(request, job),
            Event::Cancel { request } => self.end(request, End::Cancelled),
            Event::ChunkDone { worker, key } => self.chunk_done(worker, key),
            Event::ChunkFailed { worker, key, kind, message } => {
                self.chunk_failed(worker, key, kind, message);
            }
            Event::ChoiceDone { worker, request, choice, eos } => {
                self.choice_done(request, choice, eos, Some(worker));
            }
            Event::StopChoice { request, choice } => {
                self.choice_done(request, choice, false, None);
            }
            Event::DecodeFailed { worker, request, kind, message } => {
                self.decode_failed(worker, request, kind, message);
            }
            Event::Tick { now_ms } => self.tick(now_ms),
        }
        self.dispatch();
        std::mem::take(&mut self.commands)
    }

    /// Requests that wait for their turn.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Requests that are prefilled or decoded.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// When the next [`Event::Tick`] is needed, if nothing else happens.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let running = self.running.iter().map(|request| request.job.deadline_at_ms);
        running.chain(self.queue.iter().map(|(_, job)| job.deadline_at_ms)).min()
    }

    fn worker_up(&mut self, worker: WorkerId, peer: Peer) {
        if self.workers.get(&worker).is_some_and(|known| known.up) {
            self.worker_down(worker);
        }
        self.workers.insert(worker, Worker { peer, up: true });
    }

    fn worker_down(&mut self, worker: WorkerId) {
        let Some(known) = self.workers.get_mut(&worker).filter(|known| known.up) else { return };
        known.up = false;
        let ids: Vec<RequestId> = self.running.iter().map(|request| request.id).collect();
        for id in ids {
            let Some(pos) = self.position(id) else { continue };
            let request = &mut self.running[pos];
            match &request.phase {
                Phase::Prefill => {
                    let moved = request.lose_worker(worker);
                    self.place_again(pos, &moved, worker, "a worker was lost");
                }
                Phase::Decode { home, .. } if *home == worker => {
                    let why = format!("worker {worker}, which was decoding the request, was lost");
                    self.fail(id, Failure::Unavailable(why));
                }
                Phase::Decode { .. } => {}
            }
        }
        if self.up().is_empty() {
            for id in self.queue.iter().map(|(id, _)| *id).collect::<Vec<_>>() {
                self.fail(id, Failure::no_worker());
            }
        }
    }

    fn submit(&mut self, request: RequestId, job: Job) {
        let queued = self.queue.len();
        let failure = if self.up().is_empty() {
            Failure::no_worker()
        } else if queued >= self.limits.queued_requests && !self.may_admit() {
            Failure::Busy { queued }
        } else {
            self.queue.push_back((request, job));
            return;
        };
        self.commands.push(Command::Ended { request, end: End::Failed(failure) });
    }

    fn chunk_done(&mut self, worker: WorkerId, key: ChunkKey) {
        let Some(pos) = self.position(key.request) else { return };
        let request = &mut self.running[pos];
        if !request.finish(worker, key) {
            return;
        }
        for idx in request.confirm() {
            let (worker, chunk_idx) = (request.worker(idx), idx as u32);
            self.commands.push(Command::Confirm { worker, request: key.request, chunk_idx });
        }
        if request.all_done() {
            self.prefilled(pos);
        }
    }

    fn prefilled(&mut self, pos: usize) {
        let request = &mut self.running[pos];
        let (id, chunks_retried) = (request.id, request.chunks_retried);
        self.commands.push(Command::Prefilled { request: id, chunks_retried });
        if request.job.choices == 0 {
            return self.end(id, End::Finished);
        }
        let home = request.worker(request.chunk_count() - 1);
        request.phase = Phase::Decode { home, open: (0..request.job.choices).collect() };
        self.commands.push(Command::Decode { worker: home, request: id });
    }

    fn chunk_failed(&mut self, worker: WorkerId, key: ChunkKey, kind: FailureKind, why: String) {
        let Some(pos) = self.position(key.request) else { return };
        let request = &self.running[pos];
        let is_own = request.is_current(worker, key);
        let is_next = request.cannot_be_reached(worker, key);
        if request.phase != Phase::Prefill || !(is_own || is_next) {
            return;
        }
        match kind {
            FailureKind::Peer | FailureKind::Deadline if is_next => {
                self.leave(pos, request.worker(key.chunk_idx as usize), &why);
            }
            FailureKind::Peer | FailureKind::Deadline => {
                let moved = self.running[pos].lose_chunk(key.chunk_idx as usize);
                self.place_again(pos, &moved, worker, &why);
            }
            kind => self.fail_as(key.request, kind, why),
        }
    }

    /// Takes a request away from a worker that is up but cannot be given its memory. Nothing
    /// of it may stay there: a chunk that waits in vain would block those behind it. And it
    /// never returns: the cancellation could overtake, and wipe out, a memory sent there later.
    fn leave(&mut self, pos: usize, worker: WorkerId, why: &str) {
        let request = &mut self.running[pos];
        self.commands.push(Command::Cancel { worker, request: request.id });
        let disruptions = request.disruptions + 1;
        request.left.insert(worker);
        let moved = request.lose_worker(worker);
        request.disruptions = disruptions;
        self.place_again(pos, &moved, worker, why);
    }

    fn decode_failed(&mut self, worker: WorkerId, id: RequestId, kind: FailureKind, why: String) {
        let Some(pos) = self.position(id) else { return };
        if matches!(&self.running[pos].phase, Phase::Decode { home, .. } if *home == worker) {
            self.fail_as(id, kind, why);
        }
    }

    /// A choice ended at its home (`by`), or is ended by its caller.
    fn choice_done(&mut self, id: RequestId, choice: u32, eos: bool, by: Option<WorkerId>) {
        let Some(pos) = self.position(id) else { return };
        let Phase::Decode { home, open } = &mut self.running[pos].phase else { return };
        let home = *home;
        if by.is_some_and(|by| by != home) || !open.remove(&choice) {
            return;
        }
        let all = open.is_empty();
        if by.is_none() {
            self.commands.push(Command::StopChoice { worker: home, request: id, choice });
        }
        self.commands.push(Command::ChoiceEnded { request: id, choice, eos });
        if all {
            self.end(id, End::Finished);
        }
    }

    fn tick(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        let running = self.running.iter().map(|request| (request.id, &request.job));
        let all = running.chain(self.queue.iter().map(|(id, job)| (*id, job)));
        let overdue = all.filter(|(_, job)| job.deadline_at_ms <= self.now_ms);
        for id in overdue.map(|(id, _)| id).collect::<Vec<_>>() {
            self.fail(id, Failure::Deadline);
        }
    }

    /// Gives the chunks `moved` of a running request, which all wait, new workers and epochs,
    /// and tells the workers of the chunks before them.
    fn place_again(&mut self, pos: usize, moved: &[usize], avoid: WorkerId, why: &str) {
        let id = self.running[pos].id;
        let mut places = self.up();
        if places.is_empty() {
            return self.fail(id, Failure::no_worker());
        }
        places.retain(|worker| !self.running[pos].left.contains(worker));
        if places.is_empty() {
            let why = format!("no other worker can take over: {why}");
            return self.fail(id, Failure::Unavailable(why));
        }
        if self.running[pos].disruptions > self.limits.retries {
            let why =
                format!("given up after {} failures, the last: {why}", self.limits.retries + 1);
            return self.fail(id, Failure::Unavailable(why));
        }
        if places.len() > 1 {
            places.retain(|worker| *worker != avoid);
        }
        for &idx in moved {
            self.running[pos].move_to(idx, places[self.rotation % places.len()]);
            self.rotation = self.rotation.wrapping_add(1);
        }
        for &idx in moved {
            self.redirect_to(pos, idx);
        }
    }

    /// Tells the chunk before `idx`, if it has or will have anything to send, where `idx` is.
    fn redirect_to(&mut self, pos: usize, idx: usize) {
        let request = &self.running[pos];
        let Some(before) = idx.checked_sub(1).filter(|before| request.can_send(*before)) else {
            return;
        };
        self.commands.push(Command::Redirect {
            worker: request.worker(before),
            request: request.id,
            chunk_idx: idx as u32,
            next: self.hop_to(request, idx),
        });
    }

    fn hop_to(&self, request: &Request, idx: usize) -> NextHop {
        let peer = self.workers[&request.worker(idx)].peer.clone();
        NextHop { peer, epoch: request.key(idx).epoch }
    }

    /// Assigns what may be assigned now, in the total order, and admits from the queue.
    fn dispatch(&mut self) {
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
            let first_try = self.running[pos].is_first_try(idx);
            if first_try && self.is_full() {
                break; // What is in flight is earlier in the order, so it ends.
            }
            let worker = self.running[pos].worker(idx);
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

    fn may_admit(&self) -> bool {
        let free = self.running.len() < self.limits.running_requests;
        free && self.running.iter().all(Request::all_dispatched)
    }

    fn admit(&mut self) -> bool {
        let workers = self.up();
        if workers.is_empty() || self.running.len() >= self.limits.running_requests {
            return false;
        }
        let Some((id, job)) = self.queue.pop_front() else { return false };
        let request = Request::place(id, job, &workers, self.rotation);
        self.rotation = self.rotation.wrapping_add(request.chunk_count());
        self.running.push(request);
        true
    }

    fn is_full(&self) -> bool {
        let in_flight: usize = self.running.iter().map(|request| request.in_flight).sum();
        in_flight >= self.limits.batch_chunks
    }

    fn assign(&mut self, pos: usize, idx: usize) {
        self.running[pos].start(idx);
        let request = &self.running[pos];
        let Some(span) = request.job.grid.chunk(idx as u32) else { return };
        let is_last = idx + 1 == request.chunk_count();
        let next = (!is_last).then(|| self.hop_to(request, idx + 1));
        let (worker, key) = (request.worker(idx), request.key(idx));
        self.commands.push(Command::Assign { worker, key, span, next });
    }

    /// What `worker` has of the chunks after chunk `idx` in the total order, in that order:
    /// requests by their place in `running`, and chunks.
    fn running_behind(&self, pos: usize, idx: usize, worker: WorkerId) -> Vec<(usize, usize)> {
        let of = |(later_pos, request): (usize, &Request)| {
            let first = if later_pos == pos { idx + 1 } else { 0 };
            let chunks = request.running_on(worker, first);
            chunks.into_iter().map(move |later| (later_pos, later)).collect::<Vec<_>>()
        };
        self.running.iter().enumerate().skip(pos).flat_map(of).collect()
    }

    /// Assigns all of that again, so that it stands behind chunk `idx`.
    fn line_up_behind(&mut self, pos: usize, idx: usize, worker: WorkerId) {
        for (later_pos, later) in self.running_behind(pos, idx, worker) {
            self.running[later_pos].move_to(later, worker);
            self.redirect_to(later_pos, later);
            self.assign(later_pos, later);
        }
    }

    fn fail_as(&mut self, id: RequestId, kind: FailureKind, message: String) {
        let failure = match kind {
            FailureKind::Exhausted => Failure::Busy { queued: self.queue.len() },
            kind => Failure::Worker { kind, message },
        };
        self.fail(id, failure);
    }

    fn fail(&mut self, id: RequestId, failure: Failure) {
        self.end(id, End::Failed(failure));
    }

    /// Ends a request, wherever it is, and makes every worker forget it.
    fn end(&mut self, id: RequestId, end: End) {
        if let Some(pos) = self.position(id) {
            let request = self.running.remove(pos);
            let up = request.touched.iter().filter(|worker| self.workers[worker].up);
            let cancel = |worker: &WorkerId| Command::Cancel { worker: *worker, request: id };
            self.commands.extend(up.map(cancel));
        } else if let Some(pos) = self.queue.iter().position(|(queued, _)| *queued == id) {
            self.queue.remove(pos);
        } else {
            return;
        }
        self.commands.push(Command::Ended { request: id, end });
    }

    fn position(&self, id: RequestId) -> Option<usize> {
        self.running.iter().position(|request| request.id == id)
    }

    fn up(&self) -> Vec<WorkerId> {
        self.workers.iter().filter(|(_, worker)| worker.up).map(|(id, _)| *id).collect()
    }
}
