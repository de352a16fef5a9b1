//! The state of the cluster as decisions need it, and one function that moves it on.

mod dispatch;
mod resume;

use std::collections::BTreeMap;

use aqueduct_core::work::{FailureKind, Peer};
use aqueduct_core::{ChunkKey, RequestId, WorkerId};

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
}

/// The plan of one cluster.
#[derive(Debug)]
pub struct Plan {
    limits: Limits,
    /// Every worker there ever was: chunks may name one that is gone.
    workers: BTreeMap<WorkerId, Worker>,
    queue: Queue,
    /// In the order of admission.
    running: Vec<Request>,
    snapshots: Snapshots,
    turns: Turns,
    /// Greater than those of all chunks: their total order.
    next_ticket: u64,
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
            queue: Queue::default(),
            running: Vec::new(),
            snapshots: Snapshots::default(),
            turns: Turns::default(),
            next_ticket: 0,
            rotation: 0,
            now_ms: 0,
            commands: Vec::new(),
        }
    }

    /// Takes in what happened and says what is to be done, in order.
    pub fn step(&mut self, event: Event) -> Vec<Command> {
        match event {
            Event::WorkerUp { worker, peer, pool_tokens } => {
                self.worker_up(worker, Worker { peer, pool_tokens, up: true });
            }
            Event::WorkerDown { worker } => self.worker_down(worker),
            Event::Snapshots { worker, kept, dropped } => {
                self.snapshots_changed(worker, kept, dropped);
            }
            Event::Submit { request, job } => self.submit(request, job),
            Event::Again { request, anew, job } => self.again(request, anew, job),
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

    /// When the next [`Event::Tick`] is needed, if nothing else happens.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let running = self.running.iter().map(|request| request.job.deadline_at_ms);
        running.chain(self.queue.iter().map(|(_, job)| job.deadline_at_ms)).min()
    }

    fn worker_up(&mut self, id: WorkerId, worker: Worker) {
        if self.is_up(id) {
            self.worker_down(id);
        }
        self.workers.insert(id, worker);
    }

    fn worker_down(&mut self, worker: WorkerId) {
        let Some(known) = self.workers.get_mut(&worker).filter(|known| known.up) else { return };
        known.up = false;
        self.snapshots.forget(worker);
        let ids: Vec<RequestId> = self.running.iter().map(|request| request.id).collect();
        for id in ids {
            let Some(pos) = self.position(id) else { continue };
            let request = &self.running[pos];
            let part = match &request.phase {
                Phase::Prefill => {
                    let lost = request.on(worker);
                    self.do_again(pos, &lost, worker, "a worker was lost");
                    continue;
                }
                Phase::Decode { home, .. } if *home == worker => "was decoding the request",
                Phase::Decode { .. } if request.is_sharded() && !request.on(worker).is_empty() => {
                    "held a part of the request's memory"
                }
                Phase::Decode { .. } => continue,
            };
            let why = format!("worker {worker}, which {part}, was lost");
            self.fail(id, Failure::Unavailable(why));
        }
        self.fail_those_without_a_place();
    }

    /// Ends the requests in the queue that the workers that are left cannot serve.
    fn fail_those_without_a_place(&mut self) {
        let failure = |job: &Job| match self.without_a_place(job)? {
            Failure::TooLong(refusal) => Some(Failure::Unavailable(refusal.to_string())),
            failure => Some(failure),
        };
        let failed = self.queue.iter().filter_map(|(id, job)| Some((id, failure(job)?)));
        for (id, failure) in failed.collect::<Vec<_>>() {
            self.fail(id, failure);
        }
    }

    fn submit(&mut self, request: RequestId, job: Job) {
        let failure = self.without_a_place(&job);
        match failure.or_else(|| self.no_place_in_queue(&job).map(Failure::Busy)) {
            Some(failure) => {
                self.commands.push(Command::Ended { request, end: End::Failed(failure) });
            }
            None => self.queue.push(request, job),
        }
    }

    /// Why `job` may not wait, if it would have to.
    fn no_place_in_queue(&self, job: &Job) -> Option<Busy> {
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

    /// Why no worker, or none of those there are, could ever begin `job`.
    fn without_a_place(&self, job: &Job) -> Option<Failure> {
        if self.up().is_empty() {
            return Some(Failure::no_worker());
        }
        self.too_long(job).map(Failure::TooLong)
    }

    /// The caller waits already, so a full queue is no reason to send it away.
    fn again(&mut self, request: RequestId, anew: RequestId, job: Job) {
        if self.position(request).is_none() {
            return;
        }
        self.end(request, End::Cancelled);
        if let Some(failure) = self.without_a_place(&job) {
            let end = End::Failed(failure);
            return self.commands.push(Command::Ended { request: anew, end });
        }
        self.queue.push_front(anew, job);
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
        let home = request.home();
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
        if let Some(snapshot) = request.snapshot(key.chunk_idx as usize).filter(|_| is_own) {
            self.snapshots.dropped(worker, snapshot);
        }
        match kind {
            FailureKind::Peer | FailureKind::Deadline if is_next => {
                self.leave(pos, request.worker(key.chunk_idx as usize), &why);
            }
            FailureKind::Peer | FailureKind::Deadline => {
                self.do_again(pos, &[key.chunk_idx as usize], worker, &why);
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
        let lost = request.on(worker);
        let loss = request.lose(&lost);
        request.disruptions = disruptions;
        self.place_again(pos, &loss.moved, worker, why);
    }

    /// What `worker` did of the chunks `lost` is gone: they, and what needs them, begin anew.
    fn do_again(&mut self, pos: usize, lost: &[usize], worker: WorkerId, why: &str) {
        let loss = self.running[pos].lose(lost);
        self.drop_chunks(self.running[pos].id, loss.dropped);
        self.place_again(pos, &loss.moved, worker, why);
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
        let all = running.chain(self.queue.iter());
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
        let Some(chosen) = self.new_places(pos, moved, &places) else {
            let why = format!("the other workers have no room for the keys: {why}");
            return self.fail(id, Failure::Unavailable(why));
        };
        self.rotation = self.rotation.wrapping_add(moved.len());
        for (&idx, worker) in moved.iter().zip(chosen) {
            self.running[pos].move_to(idx, worker);
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

    fn is_up(&self, worker: WorkerId) -> bool {
        self.workers.get(&worker).is_some_and(|known| known.up)
    }

    fn up(&self) -> Vec<WorkerId> {
        self.workers.iter().filter(|(_, worker)| worker.up).map(|(id, _)| *id).collect()
    }
}
