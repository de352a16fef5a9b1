//! The state of the cluster as decisions need it, and one function that moves it on.

mod again;
mod ahead;
mod dispatch;
mod drain;
mod hedge;
mod loss;
mod places;
mod resume;
mod unreached;

use std::collections::BTreeMap;

use aqueduct_core::work::{FailureKind, Peer};
use aqueduct_core::{ChunkKey, RequestId, SnapshotKey, WorkerId};

use crate::pace::Pace;
use crate::queue::Queue;
use crate::request::{Phase, Request};
use crate::snapshots::Snapshots;
use crate::turns::Turns;
use crate::words::{Busy, Command, End, Event, Failure, Job, Limits};

#[derive(Debug)]
struct Worker {
    peer: Peer,
    pool_tokens: u64,
    up: bool,
    /// It is to be left.
    draining: bool,
}

/// The plan of one cluster.
#[derive(Debug)]
pub struct Plan {
    limits: Limits,
    /// Every worker there ever was, by ids that are given again: chunks may name one that is gone.
    workers: BTreeMap<WorkerId, Worker>,
    queue: Queue,
    /// In the order of admission.
    running: Vec<Request>,
    snapshots: Snapshots,
    turns: Turns,
    /// How long chunks take whose memory is handed on.
    pace: Pace,
    /// How long work takes of any kind, for each unit of it.
    work: Pace,
    /// Chunks that were done a second time elsewhere because they took long.
    hedges: u64,
    /// Greater than those of all chunks: their total order.
    next_ticket: u64,
    /// Where the next placement starts, so that short requests spread over the workers.
    rotation: usize,
    now_ms: u64,
    /// Until then, what no worker can take over waits for one to come.
    grace_until_ms: Option<u64>,
    /// Whether one may come meanwhile who was never here: what was accepted before this plan began
    /// may lie with whom it does not know.
    awaits_unknown: bool,
    commands: Vec<Command>,
}

impl Plan {
    /// A plan without workers.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            workers: BTreeMap::new(),
            queue: Queue::default(),
            running: Vec::new(),
            snapshots: Snapshots::default(),
            turns: Turns::default(),
            pace: Pace::default(),
            work: Pace::default(),
            hedges: 0,
            next_ticket: 0,
            rotation: 0,
            now_ms: 0,
            grace_until_ms: None,
            awaits_unknown: false,
            commands: Vec::new(),
        }
    }

    /// Takes in what happened and says what is to be done, in order.
    pub fn step(&mut self, event: Event) -> Vec<Command> {
        match event {
            Event::WorkerUp { worker, peer, pool_tokens, draining, kept } => {
                self.worker_up(worker, Worker { peer, pool_tokens, up: true, draining }, kept);
            }
            Event::WorkerDown { worker } => self.worker_down(worker),
            Event::Snapshots { worker, kept, dropped } => {
                self.snapshots_changed(worker, kept, dropped);
            }
            Event::Submit { request, job } => self.submit(request, job),
            Event::Again { request, anew, job } => self.again(request, anew, job),
            Event::Resume { request, job } => self.take_up(request, job),
            Event::Cancel { request } => self.end(request, End::Cancelled),
            Event::ChunkDone { worker, key, busy_us } => self.chunk_done(worker, key, busy_us),
            Event::ChunkFailed { worker, key, kind, message } => {
                self.chunk_failed(worker, key, kind, message);
            }
            Event::ChoiceDone { worker, request, choice, eos } => {
                self.choice_done(request, choice, eos, Some(worker));
            }
            Event::StopChoice { request, choice } => {
                self.choice_done(request, choice, false, None);
            }
            Event::HandedOver { worker, request } => self.handed_over(worker, request),
            Event::Stays { request, stays } => self.stays(request, stays),
            Event::CameFurther { request } => self.came_further(request),
            Event::DecodeFailed { worker, request, kind, message } => {
                self.decode_failed(worker, request, kind, message);
            }
            Event::Drain { worker, draining } => self.drain(worker, draining),
            Event::Tick { now_ms } => self.tick(now_ms),
        }
        self.leave_drained();
        // What has begun has the room that is free before what is new.
        self.place_stranded();
        self.dispatch();
        self.hedge();
        std::mem::take(&mut self.commands)
    }

    /// Requests that wait for their turn.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Tokens of their prompts.
    pub fn queued_tokens(&self) -> u64 {
        self.queue.prompt_tokens()
    }

    /// Requests that are prefilled or decoded.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Whether any of them is prefilled.
    pub fn prefills(&self) -> bool {
        self.running.iter().any(|request| request.phase == Phase::Prefill)
    }

    /// Whether it counts if `worker` says that `key` is done: that is what it is at, and nobody
    /// else has done the chunk.
    pub fn awaits(&self, worker: WorkerId, key: ChunkKey) -> bool {
        let request = self.position(key.request).map(|pos| &self.running[pos]);
        request.is_some_and(|request| request.awaits(worker, key))
    }

    /// Chunks so far that a second worker was given as well because they took long.
    pub fn hedges(&self) -> u64 {
        self.hedges
    }

    /// When the next [`Event::Tick`] is needed, if nothing else happens.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let running = self.running.iter().map(|request| request.job.deadline_at_ms);
        let queued = self.queue.iter().map(|(_, job)| job.deadline_at_ms);
        let waits = |request: &Request| request.waits_until_ms(self.now_ms);
        let patience = self.running.iter().filter_map(waits);
        let all = running.chain(queued).chain(patience).chain(self.grace_until_ms);
        all.chain(self.next_hedge_ms()).min()
    }

    fn worker_up(&mut self, id: WorkerId, worker: Worker, kept: Vec<SnapshotKey>) {
        if self.is_up(id) {
            self.worker_down(id);
        }
        self.workers.insert(id, worker);
        self.snapshots_changed(id, kept, Vec::new());
        self.running.iter_mut().for_each(|request| request.begin_again_with(id));
        // Beside one that stays, what is drained counts no more.
        self.fail_those_without_a_place();
    }

    fn submit(&mut self, request: RequestId, job: Job) {
        let failure = self.closed().or_else(|| match self.without_a_place_for_long(&job)? {
            // Whoever has its memory may come back, as for what was accepted before.
            Failure::SessionLost if self.awaits_workers() => None,
            failure => Some(failure),
        });
        match failure.or_else(|| self.no_place_in_queue(&job).map(Failure::Busy)) {
            Some(failure) => {
                self.commands.push(Command::Ended { request, end: End::Failed(failure) });
            }
            None => self.queue.push(request, job),
        }
    }

    /// Why no worker, or none of those there are, could ever begin `job`.
    fn without_a_place(&self, job: &Job) -> Option<Failure> {
        if self.up().is_empty() {
            return Some(Failure::no_worker());
        }
        if job.resumes && self.resumed(job).is_none() {
            return Some(Failure::SessionLost);
        }
        self.too_long(job).map(Failure::TooLong)
    }

    /// The same; but nothing is too long that others may have room for who come, or come back, or
    /// are to be left and stay after all.
    fn without_a_place_for_long(&self, job: &Job) -> Option<Failure> {
        match self.without_a_place(job)? {
            Failure::TooLong(refusal) if self.awaits_workers() || self.all_could_hold(job) => {
                Some(Failure::Unavailable(refusal.to_string()))
            }
            failure => Some(failure),
        }
    }

    /// The caller waits already, so a full queue is no reason to send it away, and what has no
    /// place now may have one when a worker comes. What has ended in the moment before, by its
    /// deadline, ends under the name that its caller waits by.
    fn again(&mut self, request: RequestId, anew: RequestId, job: Job) {
        if self.position(request).is_none() {
            let end = End::Failed(Failure::Deadline);
            return self.commands.push(Command::Ended { request: anew, end });
        }
        self.end(request, End::Cancelled);
        let failure = self.without_a_place_for_long(&job);
        match failure.filter(|_| !self.awaits_workers()) {
            Some(failure) => {
                self.commands.push(Command::Ended { request: anew, end: End::Failed(failure) });
            }
            None => self.queue.push_front(anew, job),
        }
    }

    /// It was accepted: what is refused is what nobody could serve for as long as others may come.
    fn take_up(&mut self, request: RequestId, job: Job) {
        self.wait_for_workers();
        self.awaits_unknown = true;
        self.queue.push(request, job);
        self.fail_those_without_a_place();
    }

    fn chunk_done(&mut self, worker: WorkerId, key: ChunkKey, busy_us: u64) {
        let Some(pos) = self.position(key.request) else { return };
        self.settle_race(pos, worker, key);
        let request = &mut self.running[pos];
        if !request.finish(worker, key, self.now_ms) {
            return;
        }
        let idx = key.chunk_idx as usize;
        request.took(idx, busy_us);
        self.work.took(request.work(idx), busy_us);
        self.pace.took(request.computed_tokens(idx), busy_us);
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
        if !std::mem::replace(&mut request.told_prefilled, true) {
            self.commands.push(Command::Prefilled { request: id, chunks_retried });
        }
        if request.job.choices == 0 {
            return self.end(id, End::Finished);
        }
        let home = request.home();
        request.phase = Phase::Decode { home };
        let gathers = self.gather(pos, home);
        let worker = home;
        self.commands.push(Command::Decode { worker, request: id, handed_over: None, gathers });
    }

    /// A choice ended at its home (`by`), or is ended by its caller, who may have enough of it
    /// while chunks are done again.
    fn choice_done(&mut self, id: RequestId, choice: u32, eos: bool, by: Option<WorkerId>) {
        let Some(pos) = self.position(id) else { return };
        let request = &mut self.running[pos];
        let home = match request.phase {
            Phase::Decode { home } => Some(home),
            Phase::Prefill => None,
        };
        let is_legal = by.map_or(request.told_prefilled, |by| home == Some(by));
        if !is_legal || !request.open.remove(&choice) {
            return;
        }
        let all = request.open.is_empty();
        if let Some(worker) = home.filter(|_| by.is_none()) {
            self.commands.push(Command::StopChoice { worker, request: id, choice });
        }
        self.commands.push(Command::ChoiceEnded { request: id, choice, eos });
        if all {
            self.end(id, End::Finished);
        }
    }

    fn tick(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        let running = self.running.iter().map(|request| (request.id, &request.job));
        let all = running.chain(self.queue.iter());
        let overdue = all.filter(|(_, job)| job.deadline_at_ms <= self.now_ms);
        for id in overdue.map(|(id, _)| id).collect::<Vec<_>>() {
            self.fail(id, Failure::Deadline);
        }
        self.running.iter_mut().for_each(|request| request.patience.tick(self.now_ms));
        if self.grace_until_ms.is_some_and(|until_ms| until_ms <= self.now_ms) {
            self.end_grace();
        }
    }

    fn fail_as(&mut self, id: RequestId, kind: FailureKind, message: String) {
        let failure = match kind {
            FailureKind::Exhausted => Failure::Busy(Busy::Memory(message)),
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
        } else if self.queue.take(id).is_none() {
            return;
        }
        self.commands.push(Command::Ended { request: id, end });
    }

    fn position(&self, id: RequestId) -> Option<usize> {
        self.running.iter().position(|request| request.id == id)
    }
}
