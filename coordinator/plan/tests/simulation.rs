//! A small cluster around the plan: workers with queues first in, first out, memories that
//! travel between them, messages that are late, workers that die. Random schedules must keep
//! the plan's promises, and every schedule must end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use aqueduct_core::work::{Base, FailureKind, NextHop, Peer};
use aqueduct_core::{ChunkGrid, ChunkKey, Epoch, RequestId, SnapshotKey, WorkerId};
use aqueduct_plan::{Command, End, Event, Failure, Job, Limits, Plan, Sharded, Shards, Windowed};
use proptest::prelude::*;

const LIMITS: Limits = Limits {
    batch_tokens: 30,
    batch_chunks: 5,
    queued_requests: 4,
    queued_tokens: 150,
    running_requests: 4,
    page_tokens: 1,
    retries: 50,
    grace_ms: 0,
    hedge_after_ms: Some(40),
};
const CHUNK_TOKENS: u32 = 10;
/// Of the past of a session's turn.
const KNOWN_TOKENS: u32 = 25;
const GRACE_MS: u64 = 1000;
const DEADLINE_MS: u64 = 1_000_000;

#[derive(Debug, Clone)]
struct Task {
    key: ChunkKey,
    next: Option<NextHop>,
    shards: Option<Shards>,
}

/// A worker as far as the order of things is concerned.
#[derive(Debug, Default)]
struct Worker {
    up: bool,
    commands: VecDeque<Command>,
    events: VecDeque<Event>,
    tasks: VecDeque<Task>,
    /// Memories that came from the chunk before, by the chunk that receives.
    inbox: BTreeSet<ChunkKey>,
    /// Chunks whose memory is kept until it is confirmed.
    given: BTreeSet<(RequestId, u32)>,
    /// Those of them that are snapshots, which do not lie in what requests have reserved.
    restored: BTreeSet<(RequestId, u32)>,
    /// Chunks whose keys are here, their epoch, and the newest chunk that has pruned them.
    shards: BTreeMap<(RequestId, u32), (Epoch, u32)>,
    /// Chunks that failed here; commands about them may still be under way.
    failed: BTreeSet<(RequestId, u32)>,
    decoding: BTreeMap<RequestId, BTreeSet<u32>>,
    /// Thirds of tokens of the shards that come here as long as their request is decoded.
    gathered: BTreeMap<RequestId, u64>,
    /// The newest epoch seen of each request.
    seen: BTreeMap<RequestId, Epoch>,
    /// Memories that outlive their requests.
    snapshots: BTreeSet<SnapshotKey>,
    /// Memories up to these epochs are not taken.
    forgotten: BTreeMap<RequestId, Epoch>,
}

#[derive(Debug, Default)]
struct Promises {
    ended: BTreeMap<RequestId, End>,
    assigned: BTreeSet<ChunkKey>,
    done: BTreeSet<(RequestId, u32)>,
    /// Where each chunk was assigned last.
    places: BTreeMap<(RequestId, u32), (Peer, Epoch)>,
    /// The last chunk of each request so far, and where it was told that its past is.
    directories: BTreeMap<RequestId, (ChunkKey, Shards)>,
    /// The chunk of each request that was assigned last for the first time.
    begun: BTreeMap<RequestId, u32>,
    /// Completions that have ended.
    choices: BTreeSet<(RequestId, u32)>,
    /// Requests whose completions must end where they are decoded.
    staying: BTreeSet<RequestId>,
    /// Requests whose keys stay in shards.
    sharded: BTreeSet<RequestId>,
    /// Requests that another one went on as; if that was not running, they end at once.
    anew: BTreeSet<RequestId>,
}

struct Cluster {
    plan: Plan,
    workers: Vec<Worker>,
    jobs: BTreeMap<RequestId, Job>,
    /// Whether what chunks give is kept.
    remembers: bool,
    pools: Vec<u64>,
    /// Pairs of workers that do not reach each other, the lower one first.
    severed: BTreeSet<(usize, usize)>,
    promises: Promises,
    now_ms: u64,
    /// What completions left to be gone on with.
    sessions: Vec<SnapshotKey>,
    /// Chunks that were given to a second worker.
    hedged: BTreeSet<(RequestId, u32)>,
    /// Hand-offs whose receiver did not have what the plan said that it had given.
    lacking: u32,
    limits: Limits,
    /// How long chunks take, and those of every third request.
    busy_us: [u64; 2],
    /// Most commands of one step for one worker so far.
    most_commands: usize,
}

fn peer(idx: usize) -> Peer {
    Peer(format!("local://{idx}"))
}

fn idx_of(peer: &Peer) -> usize {
    peer.0.trim_start_matches("local://").parse().unwrap()
}

impl Cluster {
    /// As many workers as pools.
    fn new(pools: &[u64], grace_ms: u64) -> Self {
        Self::within(Limits { grace_ms, ..LIMITS }, pools)
    }

    fn within(limits: Limits, pools: &[u64]) -> Self {
        let workers = pools.len();
        let mut cluster = Self {
            plan: Plan::new(limits.clone()),
            pools: pools.to_vec(),
            workers: (0..workers).map(|_| Worker::default()).collect(),
            jobs: BTreeMap::new(),
            remembers: false,
            severed: BTreeSet::new(),
            promises: Promises::default(),
            now_ms: 0,
            sessions: Vec::new(),
            hedged: BTreeSet::new(),
            lacking: 0,
            limits,
            busy_us: [10_000, 300_000],
            most_commands: 0,
        };
        (0..workers).for_each(|idx| cluster.start(idx));
        cluster
    }

    fn step(&mut self, event: Event) {
        if let Event::ChunkDone { key, worker, .. } = event {
            self.promises.done.insert((key.request, key.chunk_idx));
            self.keep(worker, key);
        }
        let mut told = vec![0; self.workers.len()];
        for command in self.plan.step(event) {
            self.promises.check(&command);
            if let Command::Assign { key, is_hedge: true, .. } = &command {
                let chunk = (key.request, key.chunk_idx);
                assert!(self.hedged.insert(chunk), "{key} was hedged twice");
            }
            if let Command::Ended { request, end: End::Finished } = &command {
                let ended = self.promises.choices.iter().filter(|ended| ended.0 == *request);
                assert_eq!(ended.count() as u32, self.jobs[request].choices, "{request}");
            }
            if let Some(to) = addressee(&command) {
                assert!(self.workers[to].up, "a command to a worker that is gone: {command:?}");
                self.workers[to].commands.push_back(command);
                told[to] += 1;
            }
        }
        // A worker that leaves what it is told unread counts as lost.
        let (most, told) = (self.limits.commands_most(), told.into_iter().max().unwrap());
        assert!(told <= most, "{told} commands at once for one worker");
        self.most_commands = told.max(self.most_commands);
    }

    /// What was done is kept, and the plan hears so before it hears that it was done.
    fn keep(&mut self, worker: WorkerId, key: ChunkKey) {
        let job = &self.jobs[&key.request];
        let is_pruned = job.sharded.is_some_and(|sharded| sharded.pruned);
        let snapshot = job.prefix.get(key.chunk_idx as usize).filter(|_| !is_pruned);
        if let Some(&snapshot) = snapshot {
            self.workers[worker.0 as usize].snapshots.insert(snapshot);
            let (kept, dropped) = (vec![snapshot], Vec::new());
            self.step(Event::Snapshots { worker, kept, dropped });
        }
    }

    /// The worker lets go of a snapshot; when it `tells`, the plan hears of it.
    fn evict(&mut self, idx: usize, tells: bool) {
        let Some(snapshot) = self.workers[idx].snapshots.pop_first() else { return };
        if tells {
            let (kept, dropped) = (Vec::new(), vec![snapshot]);
            let worker = WorkerId(idx as u32);
            self.workers[idx].events.push_back(Event::Snapshots { worker, kept, dropped });
        }
    }

    fn submit(&mut self, asked: Asked) {
        let (request, job) = self.ask(asked);
        self.step(Event::Submit { request, job });
    }

    /// One that a coordinator accepted which has ended since.
    fn resume(&mut self, asked: Asked) {
        let (request, job) = self.ask(asked);
        self.step(Event::Resume { request, job });
    }

    /// What a request remembers is not good enough: it begins anew, with more.
    fn again(&mut self, request: RequestId) {
        let ended = |request| self.promises.ended.contains_key(&request);
        let Some(job) = self.jobs.get(&request).filter(|_| !ended(request)) else { return };
        let anew = RequestId(self.jobs.len() as u64);
        let job = Job { memory_tokens: 2 * job.memory_tokens, ..job.clone() };
        self.jobs.insert(anew, job.clone());
        self.promises.sharded.extend(job.sharded.map(|_| anew));
        self.promises.anew.insert(anew);
        self.step(Event::Again { request, anew, job });
    }

    /// A request that was never seen before.
    fn ask(&mut self, asked: Asked) -> (RequestId, Job) {
        let Asked { chunks, choices, sharded, memory_tokens, state_tokens, .. } = asked;
        let request = RequestId(self.jobs.len() as u64);
        let deadline_at_ms = asked.time_ms.map_or(DEADLINE_MS, |time_ms| self.now_ms + time_ms);
        let tokens = chunks * CHUNK_TOKENS - 3;
        let session = asked.session.filter(|_| sharded.is_none() && !self.sessions.is_empty());
        let session = session.map(|turn| self.sessions[turn % self.sessions.len()]);
        let grid = match session {
            Some(_) => ChunkGrid::after(KNOWN_TOKENS, KNOWN_TOKENS + tokens, CHUNK_TOKENS),
            None => ChunkGrid::new(tokens, CHUNK_TOKENS),
        };
        // One prompt is the beginning of another. Keys of a chunk are no memory of all before it.
        let kind = u32::from(sharded.is_some());
        let names = (0..chunks).map(|idx| SnapshotKey(name_of(2 * idx + kind)));
        let names = names.filter(|_| self.remembers && session.is_none());
        let job = Job {
            grid: grid.unwrap(),
            choices,
            sharded,
            memory_tokens,
            state_tokens,
            keeps_all: asked.keeps_all,
            priority: asked.priority,
            arrived_at_ms: request.0,
            prefix: session.into_iter().chain(names).collect(),
            resumes: session.is_some(),
            deadline_at_ms,
        };
        self.jobs.insert(request, job.clone());
        self.promises.sharded.extend(job.sharded.map(|_| request));
        (request, job)
    }

    /// Of a request that is decoded, or not any more: what was said of it before counts no more.
    fn stay(&mut self, request: RequestId, stays: bool) {
        let is_decoded = self.workers.iter().any(|it| it.decoding.contains_key(&request));
        if !stays {
            self.promises.staying.remove(&request);
        } else if is_decoded && self.jobs.contains_key(&request) {
            self.promises.staying.insert(request);
        }
        self.step(Event::Stays { request, stays });
    }

    fn start(&mut self, idx: usize) {
        if !self.workers[idx].up {
            self.workers[idx].up = true;
            let (worker, pool_tokens) = (WorkerId(idx as u32), self.pools[idx]);
            let (draining, kept) = (false, Vec::new());
            self.step(Event::WorkerUp { worker, peer: peer(idx), pool_tokens, draining, kept });
        }
    }

    fn kill(&mut self, idx: usize) {
        if self.workers[idx].up {
            self.workers[idx] = Worker::default();
            self.step(Event::WorkerDown { worker: WorkerId(idx as u32) });
        }
    }

    /// The connection is lost. The worker lives: it lets go of what it had, and takes no more
    /// of what it was promised before. What it was told to forget may come back in newer epochs.
    fn cut(&mut self, idx: usize) {
        if self.workers[idx].up {
            let seen = std::mem::take(&mut self.workers[idx].seen);
            self.workers[idx] = Worker { forgotten: seen.clone(), seen, ..Worker::default() };
            self.step(Event::WorkerDown { worker: WorkerId(idx as u32) });
        }
    }

    /// The worker comes back, if it is not there, with another pool.
    fn resize(&mut self, idx: usize, pool: u64) {
        if !self.workers[idx].up {
            self.pools[idx] = pool;
        }
    }

    fn reaches(&self, idx: usize, other: usize) -> bool {
        !self.severed.contains(&(idx.min(other), idx.max(other)))
    }

    /// Whether the worker reaches all that have the keys of chunks before the task.
    fn reaches_holders(&self, idx: usize, task: &Task) -> bool {
        let holders = task.shards.iter().flat_map(|shards| {
            let of_chunk = |(holder, _): &(u32, Epoch)| &shards.holders[*holder as usize];
            shards.chunks.iter().map(of_chunk)
        });
        holders.map(idx_of).all(|at| self.reaches(idx, at))
    }

    /// The worker reads its next command.
    fn deliver(&mut self, idx: usize) -> bool {
        let Some(command) = self.workers[idx].commands.pop_front() else { return false };
        let worker = &mut self.workers[idx];
        match command {
            Command::Assign { key, next, shards, .. } => {
                worker.forgotten.remove(&key.request);
                worker.see(key);
                worker.drop_chunk((key.request, key.chunk_idx));
                worker.tasks.push_back(Task { key, next, shards });
                let held = self.held(idx);
                assert!(held <= self.pools[idx], "{held} tokens at {idx}, of {:?}", self.pools);
            }
            Command::Restore { key, snapshot, next, .. } => {
                let chunk = (key.request, key.chunk_idx);
                worker.forgotten.remove(&key.request);
                worker.see(key);
                worker.drop_chunk(chunk);
                let worker_id = WorkerId(idx as u32);
                if worker.snapshots.contains(&snapshot) {
                    let busy_us = 0;
                    worker.events.push_back(Event::ChunkDone { worker: worker_id, key, busy_us });
                    if let Some(next) = next {
                        worker.given.insert(chunk);
                        worker.restored.insert(chunk);
                        self.give(key.request, key.chunk_idx + 1, &next);
                    } else {
                        worker.shards.insert(chunk, (key.epoch, key.chunk_idx));
                        let held = self.held(idx);
                        assert!(held <= self.pools[idx], "{held} at {idx}, of {:?}", self.pools);
                    }
                } else {
                    worker.given.remove(&chunk);
                    worker.failed.insert(chunk);
                    let (kind, message) = (FailureKind::Peer, "simulated".into());
                    let failed = Event::ChunkFailed { worker: worker_id, key, kind, message };
                    worker.events.push_back(failed);
                }
            }
            Command::Drop { request, chunk_idx, .. } => {
                worker.drop_try((request, chunk_idx));
                if self.jobs[&request].grid.is_last(chunk_idx) {
                    worker.decoding.remove(&request);
                }
            }
            Command::Redirect { request, chunk_idx, next, .. } => {
                let own = (request, chunk_idx - 1);
                let task = worker
                    .tasks
                    .iter_mut()
                    .find(|task| (task.key.request, task.key.chunk_idx) == own);
                if let Some(task) = task {
                    task.next = Some(next);
                } else if worker.given.contains(&own) {
                    self.give(request, chunk_idx, &next);
                } else {
                    assert!(worker.failed.contains(&own), "nothing is held to send to {next:?}");
                }
            }
            Command::Confirm { request, chunk_idx, .. } => {
                worker.given.remove(&(request, chunk_idx));
            }
            Command::HandOver { request, next, .. } => {
                // As a worker whose completions have all ended: it has nothing to say.
                if worker.decoding.remove(&request).is_some() {
                    let chunk_idx = self.jobs[&request].grid.chunk_count();
                    worker.given.remove(&(request, chunk_idx - 1));
                    let worker_id = WorkerId(idx as u32);
                    let is_up = self.workers[idx_of(&next.peer)].up;
                    let events = &mut self.workers[idx].events;
                    if is_up {
                        events.push_back(Event::HandedOver { worker: worker_id, request });
                        self.give(request, chunk_idx, &next);
                    } else {
                        let (kind, message) = (FailureKind::Peer, "simulated".into());
                        let worker = worker_id;
                        events.push_back(Event::DecodeFailed { worker, request, kind, message });
                    }
                }
            }
            Command::Decode { request, handed_over, gathers, .. } => {
                let Job { choices, grid, .. } = &self.jobs[&request];
                let last = (request, grid.chunk_count() - 1);
                let is_here = worker.given.contains(&last) || worker.shards.contains_key(&last);
                let has_come = handed_over.is_some_and(|epoch| {
                    let chunk_idx = grid.chunk_count();
                    worker.inbox.contains(&ChunkKey { request, chunk_idx, epoch })
                });
                if !has_come && handed_over.is_some() {
                    let (worker_id, kind) = (WorkerId(idx as u32), FailureKind::Peer);
                    let message = "simulated".into();
                    let failed = Event::DecodeFailed { worker: worker_id, request, kind, message };
                    worker.events.push_back(failed);
                    return true;
                }
                assert!(has_come || is_here, "{request} is decoded from what is not at {idx}");
                worker.decoding.insert(request, (0..*choices).collect());
                let is_elsewhere = |chunk| !worker.shards.contains_key(&(request, chunk));
                let elsewhere = (0..grid.chunk_count()).filter(|chunk| is_elsewhere(*chunk));
                let thirds = elsewhere.map(|chunk| thirds(&self.jobs[&request], chunk));
                let thirds = thirds.filter(|_| gathers).sum();
                worker.gathered.insert(request, thirds);
                let held = self.held(idx);
                assert!(held <= self.pools[idx], "{held} tokens at {idx}, of {:?}", self.pools);
            }
            Command::StopChoice { request, choice, .. } => {
                worker.decoding.get_mut(&request).map(|open| open.remove(&choice));
            }
            Command::Cancel { request, .. } => worker.forget(request),
            _ => unreachable!("not for a worker"),
        }
        true
    }

    fn give(&mut self, request: RequestId, chunk_idx: u32, next: &NextHop) {
        let to = &mut self.workers[idx_of(&next.peer)];
        let is_stale = to.forgotten.get(&request).is_some_and(|last| next.epoch <= *last);
        if to.up && !is_stale {
            let key = ChunkKey { request, chunk_idx, epoch: next.epoch };
            to.see(key);
            to.inbox.insert(key);
            let is_there = |base: Base| to.given.contains(&(request, base.chunk_idx));
            self.lacking += u32::from(next.base.is_some_and(|base| !is_there(base)));
        }
    }

    /// Tokens that the worker's pool has to hold.
    fn held(&self, idx: usize) -> u64 {
        let worker = &self.workers[idx];
        let tasks = worker.tasks.iter().filter(|task| task.shards.is_some());
        let tasks = tasks.map(|task| (task.key.request, task.key.chunk_idx));
        let chunks = tasks.chain(worker.shards.keys().copied());
        let of_chunk = |(request, chunk_idx): (RequestId, u32)| {
            let job = &self.jobs[&request];
            let output_tokens = job.sharded.filter(|_| job.grid.is_last(chunk_idx));
            let output_tokens = output_tokens.map_or(0, |sharded| sharded.output_tokens);
            thirds(job, chunk_idx) + 3 * output_tokens
        };
        let decoded = worker.gathered.iter().filter(|(id, _)| worker.decoding.contains_key(id));
        let thirds: u64 = chunks.map(of_chunk).chain(decoded.map(|(_, thirds)| *thirds)).sum();
        thirds.div_ceil(3) + self.sets_held(idx)
    }

    /// Tokens of the memory sets that are handed on: of each chunk that waits or is done until its
    /// receiver is, and of each completion.
    fn sets_held(&self, idx: usize) -> u64 {
        let worker = &self.workers[idx];
        let tasks = worker.tasks.iter().filter(|task| task.shards.is_none());
        let tasks = tasks.map(|task| (task.key.request, task.key.chunk_idx));
        // What is done again takes the place of what there is of it.
        let given = worker.given.difference(&worker.restored).copied();
        let chunks: BTreeSet<_> = tasks.chain(given).collect();
        let decoding = worker.decoding.iter().filter(|(id, _)| self.jobs[id].sharded.is_none());
        let completions = decoding.map(|(&id, open)| {
            let job = &self.jobs[&id];
            // The first completion goes on with what the last chunk left.
            let begun = worker.given.contains(&(id, job.grid.chunk_count() - 1));
            job.memory_tokens * (open.len() as u64).saturating_sub(begun.into())
        });
        chunks.iter().map(|(id, _)| self.jobs[id].memory_tokens).chain(completions).sum()
    }

    /// Whether everything is there that the task needs. Where chunks prune the shards of
    /// earlier ones, it prunes them: that must happen in order, and once.
    fn find_shards(&mut self, task: &Task) -> bool {
        let Task { key: ChunkKey { request, chunk_idx, .. }, shards: Some(shards), .. } = task
        else {
            return true;
        };
        let shard = |(earlier, (holder, epoch)): (u32, &(u32, Epoch))| {
            let at = idx_of(&shards.holders[*holder as usize]);
            let found = self.workers[at].shards.get(&(*request, earlier));
            found.is_some_and(|(held, _)| held == epoch).then_some((at, earlier))
        };
        let all: Option<Vec<_>> = (0..).zip(&shards.chunks).map(shard).collect();
        let Some(all) = all else { return false };
        if self.jobs[request].sharded.is_some_and(|sharded| sharded.pruned) {
            for (at, earlier) in all {
                let (_, pruned_by) = self.workers[at].shards.get_mut(&(*request, earlier)).unwrap();
                assert_eq!(*pruned_by, chunk_idx - 1, "pruned out of order, or twice");
                *pruned_by = *chunk_idx;
            }
        }
        true
    }

    /// The worker's device does the first chunk of its queue, if its memory is there.
    fn run(&mut self, idx: usize) -> bool {
        let Some(task) = self.workers[idx].tasks.front().cloned() else { return false };
        let Task { key, next, shards } = &task;
        let is_handed = key.chunk_idx == 0 || shards.is_some();
        if !self.reaches_holders(idx, &task) {
            self.fail(idx);
            return true;
        }
        if !(is_handed || self.workers[idx].inbox.contains(key)) || !self.find_shards(&task) {
            return false;
        }
        let (key, next) = (*key, next.clone());
        let chunk = (key.request, key.chunk_idx);
        let busy_us = self.busy_us[usize::from(key.request.0 % 3 == 2)];
        let worker = &mut self.workers[idx];
        worker.tasks.pop_front();
        if task.shards.is_some() {
            worker.shards.insert(chunk, (key.epoch, key.chunk_idx));
        } else {
            worker.given.insert(chunk);
            worker.restored.remove(&chunk);
        }
        let worker_id = WorkerId(idx as u32);
        worker.events.push_back(Event::ChunkDone { worker: worker_id, key, busy_us });
        if let Some(next) = next {
            self.give(key.request, key.chunk_idx + 1, &next);
        }
        true
    }

    /// The worker gives up the first chunk of its queue, of which it may have done a part.
    fn fail(&mut self, idx: usize) {
        if let Some(task) = self.workers[idx].tasks.front().cloned() {
            self.find_shards(&task);
        }
        let worker = &mut self.workers[idx];
        if let Some(Task { key, .. }) = worker.tasks.pop_front() {
            worker.failed.insert((key.request, key.chunk_idx));
            let (worker_id, kind) = (WorkerId(idx as u32), FailureKind::Peer);
            let message = "simulated".into();
            worker.events.push_back(Event::ChunkFailed { worker: worker_id, key, kind, message });
        }
    }

    /// The worker runs a chunk and cannot hand its memory on.
    fn miss(&mut self, idx: usize) {
        let next = self.workers[idx].tasks.front().and_then(|task| {
            let next = task.next.clone()?;
            Some((ChunkKey { chunk_idx: task.key.chunk_idx + 1, ..task.key }, next))
        });
        let Some((key, next)) = next else { return };
        let (key, peer) = (ChunkKey { epoch: next.epoch, ..key }, idx_of(&next.peer));
        if peer == idx {
            return; // nothing is lost on the way to itself
        }
        let has_it = self.workers[peer].inbox.contains(&key); // of who did the chunk as well
        if self.run(idx) {
            if !has_it {
                self.workers[peer].inbox.remove(&key);
            }
            let (worker, kind, message) =
                (WorkerId(idx as u32), FailureKind::Peer, "simulated".into());
            let failed = Event::ChunkFailed { worker, key, kind, message };
            self.workers[idx].events.push_back(failed);
        }
    }

    fn decode(&mut self, idx: usize) -> bool {
        let worker = &mut self.workers[idx];
        let open = worker.decoding.iter_mut().find_map(|(request, open)| {
            let choice = open.pop_first()?;
            Some((*request, choice))
        });
        let Some((request, choice)) = open else { return false };
        let worker_id = WorkerId(idx as u32);
        if self.jobs[&request].sharded.is_none() {
            let session = SnapshotKey(name_of(FIRST_SESSION + 4 * request.0 as u32 + choice));
            worker.snapshots.insert(session);
            let (kept, dropped) = (vec![session], Vec::new());
            worker.events.push_back(Event::Snapshots { worker: worker_id, kept, dropped });
            self.sessions.push(session);
        }
        let ended = Event::ChoiceDone { worker: worker_id, request, choice, eos: false };
        worker.events.push_back(ended);
        true
    }

    /// The worker finds that it can decode a request with shards no further.
    fn lose(&mut self, idx: usize) {
        let jobs = &self.jobs;
        let worker = &mut self.workers[idx];
        let request = worker.decoding.keys().find(|request| jobs[request].sharded.is_some());
        let Some(&request) = request else { return };
        worker.decoding.remove(&request);
        let (worker_id, kind, message) =
            (WorkerId(idx as u32), FailureKind::Peer, "simulated".into());
        let failed = Event::DecodeFailed { worker: worker_id, request, kind, message };
        worker.events.push_back(failed);
    }

    /// The plan hears the worker's next event.
    fn report(&mut self, idx: usize) -> bool {
        let Some(event) = self.workers[idx].events.pop_front() else { return false };
        self.step(event);
        true
    }

    fn wait(&mut self, ms: u64) {
        self.now_ms += ms;
        self.step(Event::Tick { now_ms: self.now_ms });
    }

    /// Everybody does what can be done until nothing moves any more, and nobody is waited for.
    fn settle(&mut self) {
        self.go_on();
        self.wait(GRACE_MS);
        self.go_on();
        // What is not waited for so long are others that cannot be reached.
        while let Some(at_ms) = self.plan.next_deadline_ms().filter(|at_ms| *at_ms < DEADLINE_MS) {
            self.wait(at_ms - self.now_ms);
            self.go_on();
        }
    }

    fn go_on(&mut self) {
        let mut rounds = 0;
        let mut moved = true;
        while moved {
            moved = false;
            rounds += 1;
            assert!(rounds < 10_000, "it goes round in circles");
            for idx in 0..self.workers.len() {
                moved |= self.deliver(idx) | self.run(idx) | self.decode(idx) | self.report(idx);
            }
        }
    }

    fn check_at_rest(&self) {
        for (request, job) in &self.jobs {
            match self.promises.ended.get(request) {
                None => panic!("{request} never ended"),
                Some(End::Failed(Failure::SessionLost)) => assert!(job.resumes, "{request}"),
                Some(End::Failed(Failure::Deadline)) => {
                    let has_none = job.deadline_at_ms < DEADLINE_MS;
                    assert!(has_none || self.promises.anew.contains(request), "{request} had time");
                }
                Some(_) => {}
            }
        }
        for worker in &self.workers {
            assert!(worker.tasks.is_empty() && worker.given.is_empty(), "{worker:?}");
            assert!(worker.decoding.is_empty() && worker.shards.is_empty(), "{worker:?}");
        }
        assert_eq!((self.plan.queued(), self.plan.running()), (0, 0));
    }
}

impl Worker {
    fn see(&mut self, key: ChunkKey) {
        let seen = self.seen.entry(key.request).or_default();
        *seen = key.epoch.max(*seen);
    }

    fn drop_chunk(&mut self, chunk: (RequestId, u32)) {
        self.tasks.retain(|task| (task.key.request, task.key.chunk_idx) != chunk);
        self.shards.remove(&chunk);
    }

    /// The chunk is not wanted any more, nor what it gave.
    fn drop_try(&mut self, chunk: (RequestId, u32)) {
        self.drop_chunk(chunk);
        self.given.remove(&chunk);
        self.failed.insert(chunk);
    }

    fn forget(&mut self, request: RequestId) {
        self.tasks.retain(|task| task.key.request != request);
        self.inbox.retain(|key| key.request != request);
        self.given.retain(|given| given.0 != request);
        self.shards.retain(|shard, _| shard.0 != request);
        self.decoding.remove(&request);
        self.forgotten.insert(request, Epoch(u32::MAX));
    }
}

impl Promises {
    fn check(&mut self, command: &Command) {
        match command {
            Command::Restore { worker, key, next, .. } => {
                let is_sharded = self.sharded.contains(&key.request);
                assert_eq!(next.is_none(), is_sharded, "where {key} goes");
                assert!(self.assigned.insert(*key), "{key} was assigned twice");
                assert!(!self.ended.contains_key(&key.request), "{key} after its end");
                let chunk = (key.request, key.chunk_idx);
                self.places.insert(chunk, (peer(worker.0 as usize), key.epoch));
                let begun = self.begun.entry(key.request).or_insert(0);
                *begun = key.chunk_idx.max(*begun);
            }
            Command::Assign { worker, key, next, shards, .. } => {
                assert!(self.assigned.insert(*key), "{key} was assigned twice");
                assert!(!self.ended.contains_key(&key.request), "{key} after its end");
                let chunk = (key.request, key.chunk_idx);
                self.places.insert(chunk, (peer(worker.0 as usize), key.epoch));
                if let Some(shards) = shards {
                    assert_eq!(*next, None, "{key} keeps its keys");
                    self.check_shards(*key, shards);
                    let known = self.directories.get(&key.request);
                    if known.is_none_or(|(known, _)| known.chunk_idx <= key.chunk_idx) {
                        self.directories.insert(key.request, (*key, shards.clone()));
                    }
                }
                let begun = self.begun.entry(key.request).or_insert(0);
                assert!(key.chunk_idx <= *begun + 1, "{key} before {begun}");
                *begun = key.chunk_idx.max(*begun);
            }
            Command::HandOver { request, .. } => {
                assert!(!self.staying.contains(request), "{request} stays");
            }
            Command::Confirm { request, chunk_idx, .. } => {
                let next = (*request, chunk_idx + 1);
                assert!(self.done.contains(&next), "{next:?} is not done");
            }
            Command::Decode { request, .. } => {
                if let Some((last, shards)) = self.directories.get(request) {
                    self.check_shards(*last, shards);
                }
            }
            Command::ChoiceEnded { request, choice, .. } => {
                assert!(self.choices.insert((*request, *choice)), "{request} {choice} ended twice");
            }
            Command::Ended { request, end } => {
                let before = self.ended.insert(*request, end.clone());
                assert_eq!(before, None, "{request} ended twice");
            }
            _ => {}
        }
    }
}

impl Promises {
    /// Each earlier chunk is where it was assigned last, in that epoch.
    fn check_shards(&self, key: ChunkKey, shards: &Shards) {
        let named = shards
            .chunks
            .iter()
            .map(|(holder, epoch)| (shards.holders[*holder as usize].clone(), *epoch));
        let earlier = 0..key.chunk_idx;
        let assigned = earlier.map(|chunk_idx| self.places[&(key.request, chunk_idx)].clone());
        assert!(named.eq(assigned), "{key} looks for its past in {shards:?}");
    }
}

fn addressee(command: &Command) -> Option<usize> {
    let worker = match command {
        Command::Assign { worker, .. }
        | Command::Restore { worker, .. }
        | Command::Redirect { worker, .. }
        | Command::Confirm { worker, .. }
        | Command::Decode { worker, .. }
        | Command::HandOver { worker, .. }
        | Command::StopChoice { worker, .. }
        | Command::Drop { worker, .. }
        | Command::Cancel { worker, .. } => *worker,
        Command::Prefilled { .. } | Command::ChoiceEnded { .. } | Command::Ended { .. } => {
            return None;
        }
    };
    Some(worker.0 as usize)
}

/// What there is to know of a request before it comes.
#[derive(Debug, Clone, Default)]
struct Asked {
    chunks: u32,
    choices: u32,
    sharded: Option<Sharded>,
    /// Of a memory set, where they are handed on.
    memory_tokens: u64,
    state_tokens: u64,
    keeps_all: bool,
    priority: i32,
    /// Which of the sessions that there have been it is a turn of, if there have been any.
    session: Option<usize>,
    /// How long it may take, if not as long as it likes.
    time_ms: Option<u64>,
}

#[derive(Debug, Clone)]
enum Move {
    Submit(Asked),
    Resume(Asked),
    Again(u64),
    Cancel(u64),
    Stop(u64),
    Kill(usize),
    Cut(usize),
    Start(usize),
    Resize(usize, u64),
    Sever(usize, usize),
    Heal(usize, usize),
    Drain(usize, bool),
    Stay(u64, bool),
    Fail(usize),
    Miss(usize),
    Lose(usize),
    Evict(usize, bool),
    Wait(u64),
    Deliver(usize),
    Run(usize),
    Decode(usize),
    Report(usize),
}

const WORKERS: usize = 4;

/// What a worker holds of the keys of a chunk of `job`, in thirds of tokens: some layers may keep
/// its last ones alone.
fn thirds(job: &Job, chunk_idx: u32) -> u64 {
    let tokens = u64::from(job.grid.chunk(chunk_idx).unwrap().tokens);
    let windowed = job.sharded.filter(|sharded| !sharded.pruned).map(|sharded| sharded.windowed);
    let Windowed { kept_tokens, bytes, .. } = windowed.unwrap_or_default();
    (3 - bytes) * tokens + bytes * kept_tokens.min(tokens)
}

fn any_shards() -> impl Strategy<Value = Option<Sharded>> {
    let windowed = (0u64..8, 0u64..4).prop_map(|(kept_tokens, bytes)| Windowed {
        kept_tokens,
        bytes,
        all_bytes: 3,
    });
    let some = (0u64..15, any::<bool>(), any::<bool>(), windowed);
    let some = some.prop_map(|(output_tokens, pruned, gathers, windowed)| Sharded {
        output_tokens,
        pruned,
        gathers,
        windowed,
    });
    prop::option::of(some)
}

/// Pools of so many workers; some have no bound.
fn any_pools(workers: usize) -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(prop_oneof![Just(u64::MAX), 0u64..80], workers)
}

fn any_asked(chunks: std::ops::Range<u32>) -> impl Strategy<Value = Asked> {
    let sizes =
        (chunks, 0u32..3, prop_oneof![Just(0u64), 0u64..16], prop_oneof![Just(0u64), 0..9u64]);
    let session = prop::option::weighted(0.3, 0usize..6);
    let time_ms = prop::option::weighted(0.1, 1u64..200);
    (sizes, any_shards(), any::<bool>(), -4..5, session, time_ms).prop_map(
        |(sizes, sharded, keeps_all, priority, session, time_ms)| {
            let (chunks, choices, memory_tokens, state_tokens) = sizes;
            Asked {
                chunks,
                choices,
                sharded,
                memory_tokens,
                state_tokens,
                keeps_all,
                priority,
                session,
                time_ms,
            }
        },
    )
}

fn any_move() -> impl Strategy<Value = Move> {
    let worker = 0..WORKERS;
    prop_oneof![
        3 => any_asked(1..9).prop_map(Move::Submit),
        1 => any_asked(1..9).prop_map(Move::Resume),
        1 => (0u64..12).prop_map(Move::Again),
        1 => (0u64..12).prop_map(Move::Cancel),
        1 => (0u64..12).prop_map(Move::Stop),
        1 => worker.clone().prop_map(Move::Kill),
        1 => worker.clone().prop_map(Move::Cut),
        2 => worker.clone().prop_map(Move::Start),
        1 => (worker.clone(), 0u64..80).prop_map(|(idx, pool)| Move::Resize(idx, pool)),
        1 => (worker.clone(), worker.clone()).prop_map(|(idx, other)| Move::Sever(idx, other)),
        1 => (worker.clone(), worker.clone()).prop_map(|(idx, other)| Move::Heal(idx, other)),
        1 => (worker.clone(), any::<bool>()).prop_map(|(idx, leave)| Move::Drain(idx, leave)),
        1 => (0u64..12, any::<bool>()).prop_map(|(request, stays)| Move::Stay(request, stays)),
        1 => worker.clone().prop_map(Move::Fail),
        1 => worker.clone().prop_map(Move::Miss),
        1 => worker.clone().prop_map(Move::Lose),
        1 => (worker.clone(), any::<bool>()).prop_map(|(idx, tells)| Move::Evict(idx, tells)),
        4 => (1u64..100).prop_map(Move::Wait),
        20 => worker.clone().prop_map(Move::Deliver),
        12 => worker.clone().prop_map(Move::Run),
        3 => worker.clone().prop_map(Move::Decode),
        12 => worker.prop_map(Move::Report),
    ]
}

fn play(cluster: &mut Cluster, step: Move) {
    match step {
        Move::Submit(asked) => cluster.submit(asked),
        Move::Resume(asked) => cluster.resume(asked),
        Move::Again(request) => cluster.again(RequestId(request)),
        Move::Cancel(request) => cluster.step(Event::Cancel { request: RequestId(request) }),
        Move::Stop(request) => {
            cluster.step(Event::StopChoice { request: RequestId(request), choice: 0 });
        }
        Move::Kill(idx) => cluster.kill(idx),
        Move::Cut(idx) => cluster.cut(idx),
        Move::Start(idx) => cluster.start(idx),
        Move::Resize(idx, pool) => cluster.resize(idx, pool),
        Move::Sever(idx, other) => {
            if idx != other {
                cluster.severed.insert((idx.min(other), idx.max(other)));
            }
        }
        Move::Heal(idx, other) => drop(cluster.severed.remove(&(idx.min(other), idx.max(other)))),
        Move::Drain(idx, draining) => {
            cluster.step(Event::Drain { worker: WorkerId(idx as u32), draining });
        }
        Move::Stay(request, stays) => cluster.stay(RequestId(request), stays),
        Move::Fail(idx) => cluster.fail(idx),
        Move::Miss(idx) => cluster.miss(idx),
        Move::Lose(idx) => cluster.lose(idx),
        Move::Evict(idx, tells) => cluster.evict(idx, tells),
        Move::Wait(ms) => cluster.wait(ms),
        Move::Deliver(idx) => drop(cluster.deliver(idx)),
        Move::Run(idx) => drop(cluster.run(idx)),
        Move::Decode(idx) => drop(cluster.decode(idx)),
        Move::Report(idx) => drop(cluster.report(idx)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, ..ProptestConfig::with_cases(400)
    })]

    #[test]
    fn whatever_happens_every_request_ends_once(
        workers in 1..=WORKERS,
        pools in any_pools(WORKERS),
        remembers in any::<bool>(),
        grace_ms in prop_oneof![Just(0), Just(GRACE_MS)],
        moves in prop::collection::vec(any_move(), 0..300),
    ) {
        let mut cluster = Cluster::new(&pools, grace_ms);
        cluster.remembers = remembers;
        (workers..WORKERS).for_each(|idx| cluster.kill(idx));
        moves.into_iter().for_each(|step| play(&mut cluster, step));
        cluster.settle();
        cluster.check_at_rest();
    }

    #[test]
    fn without_faults_every_request_finishes(
        pools in (1..=WORKERS).prop_flat_map(any_pools),
        remembers in any::<bool>(),
        asked in prop::collection::vec(any_asked(1..20), 1..4),
        moves in prop::collection::vec(any_move(), 0..200),
    ) {
        let workers = pools.len();
        let mut cluster = Cluster::new(&pools, 0);
        cluster.remembers = remembers;
        asked.into_iter().for_each(|asked| cluster.submit(asked));
        for step in moves {
            if let Move::Deliver(idx)
            | Move::Run(idx)
            | Move::Decode(idx)
            | Move::Report(idx) = step
                && idx < workers
            {
                play(&mut cluster, step);
            }
        }
        cluster.settle();
        cluster.check_at_rest();
        let ended = &cluster.promises.ended;
        let refused =
            |end: &End| matches!(end, End::Failed(Failure::TooLong(_) | Failure::Busy(_)));
        prop_assert!(ended.values().all(|end| *end == End::Finished || refused(end)));
        let finished = ended.iter().filter(|(_, end)| **end == End::Finished);
        let chunks = finished.map(|(request, _)| cluster.jobs[request].grid.chunk_count());
        let (assigned, chunks) = (cluster.promises.assigned.len(), chunks.sum::<u32>() as usize);
        // One that waited for room may go on from what another has left.
        prop_assert!(assigned == chunks || remembers && assigned < chunks);
        prop_assert_eq!(cluster.lacking, 0);
    }
}

/// Many requests of many chunks, more than are in flight at once.
const CROWD: Limits = Limits {
    batch_tokens: 3072,
    batch_chunks: 16,
    queued_requests: 20,
    queued_tokens: 100_000,
    running_requests: 8,
    grace_ms: GRACE_MS,
    ..LIMITS
};

/// A name for each number.
/// Names above are of sessions.
const FIRST_SESSION: u32 = 1 << 20;

fn name_of(number: u32) -> [u8; 32] {
    let mut name = [0; 32];
    name[..4].copy_from_slice(&number.to_le_bytes());
    name
}

/// Workers of a crowd.
const CROWD_WORKERS: usize = 6;

/// Everybody does what can be done, so many times, and then what `moves` say; then these workers
/// are lost, in this order, and come back. Between the losses the others may say what they did.
#[derive(Debug, Clone)]
struct Round {
    times: usize,
    moves: Vec<Move>,
    lost: Vec<usize>,
    reports: bool,
}

fn any_round() -> impl Strategy<Value = Round> {
    let worker = 0..CROWD_WORKERS;
    let moves = prop_oneof![
        4 => worker.clone().prop_map(Move::Deliver),
        3 => worker.clone().prop_map(Move::Run),
        2 => worker.clone().prop_map(Move::Report),
        1 => (1u64..100).prop_map(Move::Wait),
        1 => worker.prop_map(Move::Miss),
    ];
    let lost = Just((0..CROWD_WORKERS).collect::<Vec<_>>()).prop_shuffle();
    let lost = (lost, 1..=CROWD_WORKERS).prop_map(|(lost, count)| lost[..count].to_vec());
    let round = (0usize..60, prop::collection::vec(moves, 0..40), lost, any::<bool>());
    round.prop_map(|(times, moves, lost, reports)| Round { times, moves, lost, reports })
}

impl Cluster {
    fn play_round(&mut self, round: Round) {
        for _ in 0..round.times {
            for idx in 0..self.workers.len() {
                let _ = self.deliver(idx) | self.run(idx) | self.decode(idx) | self.report(idx);
            }
        }
        let workers = self.workers.len();
        for step in round.moves {
            if let Move::Deliver(idx) | Move::Run(idx) | Move::Report(idx) | Move::Miss(idx) = step
                && idx >= workers
            {
                continue;
            }
            play(self, step);
        }
        let lost = round.lost.iter().filter(|idx| **idx < workers);
        for idx in lost.clone() {
            self.kill(*idx);
            if round.reports {
                (0..workers).for_each(|idx| {
                    let _ = self.report(idx);
                });
            }
        }
        lost.for_each(|idx| self.start(*idx));
    }

    fn check_all_finished(&self) {
        self.check_at_rest();
        let ended = &self.promises.ended;
        let may_fail = |end: &End| matches!(end, End::Failed(Failure::Deadline));
        assert!(ended.values().all(|end| *end == End::Finished || may_fail(end)), "{ended:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, ..ProptestConfig::with_cases(600)
    })]

    #[test]
    fn whoever_is_lost_what_is_done_again_comes_in_small_steps(
        workers in 1..=CROWD_WORKERS,
        remembers in any::<bool>(),
        busy_us in prop::sample::select(&[[0, 0], [10_000, 300_000]][..]),
        batch_tokens in prop::sample::select(&[2 * CHUNK_TOKENS, CROWD.batch_tokens][..]),
        hedges in any::<bool>(),
        asked in prop_oneof![
            9 => prop::collection::vec(any_asked(1..80), 1..14),
            1 => prop::collection::vec(any_asked(1..400), 1..4),
        ],
        rounds in prop::collection::vec(any_round(), 1..5),
    ) {
        let hedge_after_ms = CROWD.hedge_after_ms.filter(|_| hedges);
        let limits = Limits { batch_tokens, hedge_after_ms, ..CROWD };
        let mut cluster = Cluster::within(limits, &vec![u64::MAX; workers]);
        cluster.remembers = remembers;
        cluster.busy_us = busy_us;
        asked.into_iter().for_each(|asked| cluster.submit(asked));
        rounds.into_iter().for_each(|round| cluster.play_round(round));
        cluster.settle();
        cluster.check_all_finished();
    }
}

/// The numbers of a coordinator, and requests of small chunks, all of which are to be done again
/// when all workers, or all but one, are lost: as often as a request survives.
#[test]
fn small_chunks_survive_as_many_losses_as_large_ones() {
    const CHANNEL: usize = 1024;
    let limits = Limits {
        batch_tokens: 4096,
        batch_chunks: 128,
        running_requests: 32,
        queued_tokens: 1_000_000,
        retries: 4,
        hedge_after_ms: Some(500),
        ..CROWD
    };
    for (workers, losses, lost) in [(1, 4, 0..1), (2, 2, 0..2), (3, 2, 0..2), (4, 1, 0..3)] {
        let mut cluster = Cluster::within(limits.clone(), &vec![u64::MAX; workers]);
        cluster.busy_us = [100; 2];
        for _ in 0..20 {
            cluster.submit(Asked { chunks: 120, choices: 1, ..Asked::default() });
        }
        for _ in 0..losses {
            let (lost, moves) = (lost.clone().collect(), Vec::new());
            cluster.play_round(Round { times: 500, moves, lost, reports: false });
        }
        cluster.settle();
        cluster.check_all_finished();
        let most = cluster.most_commands;
        assert!(most < CHANNEL / 3, "{most} commands at once for one of {workers} workers");
    }
}

/// Runs that once failed.
#[test]
fn what_was_found_stays_mended() {
    let submit = |chunks, sharded| Move::Submit(Asked { chunks, sharded, ..Asked::default() });
    let check = |cluster: &mut Cluster, moves: &[Move]| {
        moves.iter().for_each(|step| play(cluster, step.clone()));
        cluster.settle();
        cluster.check_at_rest();
    };
    let assigned_twice = [
        Move::Drain(1, true),
        Move::Kill(0),
        submit(5, None),
        Move::Start(0),
        Move::Deliver(3),
        submit(7, None),
        Move::Deliver(2),
        Move::Deliver(0),
        Move::Deliver(3),
        Move::Run(2),
        Move::Run(3),
        Move::Run(3),
        Move::Deliver(2),
        Move::Run(2),
        Move::Run(0),
        Move::Report(3),
        Move::Report(2),
        Move::Report(3),
        submit(3, None),
        Move::Drain(1, false),
        Move::Report(0),
        Move::Report(2),
        Move::Wait(40),
        Move::Kill(3),
        Move::Cut(2),
        Move::Start(2),
        Move::Wait(40),
        Move::Kill(0),
    ];
    let mut cluster = Cluster::new(&[u64::MAX; WORKERS], 0);
    cluster.remembers = true;
    check(&mut cluster, &assigned_twice);

    let sharded = |pruned| Some(Sharded { pruned, ..Sharded::default() });
    let room_freed_too_early = [
        Move::Kill(1),
        Move::Kill(3),
        submit(3, sharded(true)),
        Move::Deliver(0),
        Move::Run(0),
        Move::Deliver(2),
        submit(3, None),
        Move::Start(3),
        Move::Run(2),
        submit(1, None),
        Move::Report(2),
        Move::Cut(0),
        Move::Drain(2, true),
        Move::Drain(2, false),
        submit(1, sharded(false)),
    ];
    let mut cluster = Cluster::new(&[u64::MAX, u64::MAX, 10, u64::MAX], 0);
    check(&mut cluster, &room_freed_too_early);

    // Who came again with less room than it had was given a chunk that another was slow with.
    let mut cluster = Cluster::new(&[7, u64::MAX, u64::MAX, u64::MAX], 0);
    cluster.submit(Asked { chunks: 4, memory_tokens: 5, ..Asked::default() });
    let hedged_without_room = [
        Move::Deliver(2),
        Move::Kill(1),
        Move::Deliver(2),
        submit(1, None),
        Move::Deliver(2),
        Move::Deliver(2),
        Move::Run(2),
        Move::Run(2),
        Move::Deliver(3),
        Move::Run(3),
        Move::Report(2),
        Move::Report(2),
        Move::Report(3),
        Move::Cut(2),
        Move::Resize(2, 0),
        Move::Wait(40),
        Move::Start(2),
        Move::Cut(0),
    ];
    check(&mut cluster, &hedged_without_room);

    // A chunk that was done again for its report alone came to be needed by what was before it.
    let limits = Limits { batch_tokens: 2 * CHUNK_TOKENS, hedge_after_ms: None, ..CROWD };
    let mut cluster = Cluster::within(limits, &[u64::MAX; 5]);
    cluster.busy_us = [0; 2];
    for chunks in [173, 181, 188] {
        cluster.submit(Asked { chunks, ..Asked::default() });
    }
    let moves = vec![Move::Run(3), Move::Run(4)];
    cluster.play_round(Round { times: 6, moves, lost: vec![1, 3, 4], reports: true });
    cluster.settle();
    cluster.check_all_finished();

    // What was done again for its report alone has a later ticket than what is done again behind.
    let mut cluster = Cluster::within(CROWD, &[u64::MAX; 6]);
    (cluster.remembers, cluster.busy_us) = (true, [0; 2]);
    let windowed = Windowed { kept_tokens: 0, bytes: 0, all_bytes: 3 };
    let sharded = Some(Sharded { windowed, ..Sharded::default() });
    cluster.submit(Asked { chunks: 69, sharded, priority: -1, ..Asked::default() });
    for (chunks, priority) in [(39, -3), (63, 1), (67, 2), (2, 2)] {
        cluster.submit(Asked { chunks, priority, ..Asked::default() });
    }
    let moves = vec![Move::Wait(40), Move::Run(3), Move::Run(4), Move::Report(4)];
    cluster.play_round(Round { times: 7, moves, lost: vec![2, 0, 5, 3], reports: false });
    cluster.settle();
    cluster.check_all_finished();
}
