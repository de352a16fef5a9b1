//! Who is served next: random arrivals, ends and cancels, without failures. From the moment
//! a request could have its next chunk dispatched until it is, no other request may get more
//! than the bound that the plan promises.

use std::collections::{BTreeMap, VecDeque};

use aqueduct_core::work::Peer;
use aqueduct_core::{ChunkGrid, ChunkKey, RequestId, WorkerId};
use aqueduct_plan::{Command, Event, Job, Limits, Plan, Sharded};
use proptest::prelude::*;

const LIMITS: Limits = Limits {
    batch_tokens: 2560,
    batch_chunks: 12,
    queued_requests: 4,
    queued_tokens: 100_000,
    running_requests: 4,
    page_tokens: 1,
    retries: 0,
    grace_ms: 0,
    hedge_after_ms: None,
};
const WORKERS: u32 = 2;
/// Sizes of chunks.
const SIZES: [u32; 3] = [50, 300, 1000];

/// A request that runs: of whose chunks the first `done` are done, those up to `begun` in flight.
#[derive(Debug)]
struct Running {
    grid: ChunkGrid,
    priority: i32,
    keeps_all: bool,
    workers: Vec<WorkerId>,
    done: u32,
    begun: u32,
    /// What the others had dispatched since it could have had its next chunk, at its cost.
    passed: BTreeMap<RequestId, u64>,
}

impl Running {
    /// Every step of priority halves a share, at most three steps either way; small chunks count as
    /// larger ones, and where no key is given up later ones as more than earlier ones.
    fn cost(&self, chunk_idx: u32) -> u64 {
        let span = self.grid.chunk(chunk_idx).unwrap();
        let past = if self.keeps_all { span.start } else { 0 };
        let work = u64::from(span.tokens.max(128)) * u64::from(4096 + past) / 4096;
        work << (3 + self.priority.clamp(-3, 3))
    }

    /// Most that a chunk of it costs.
    fn chunk_cost(&self) -> u64 {
        (0..self.grid.chunk_count()).map(|chunk_idx| self.cost(chunk_idx)).max().unwrap()
    }

    /// At most three quarters of all that may be in flight, and of small chunks as many as of 256
    /// tokens.
    fn waits(&self) -> bool {
        let window = (LIMITS.batch_tokens / self.grid.chunk_tokens()).min(10).min(9);
        self.begun < self.grid.chunk_count() && self.begun - self.done < window
    }

    fn in_flight_tokens(&self) -> u64 {
        let in_flight = self.grid.chunks().skip(self.done as usize);
        let in_flight = in_flight.take((self.begun - self.done) as usize);
        in_flight.map(|span| u64::from(span.tokens)).sum()
    }
}

struct Scene {
    plan: Plan,
    running: BTreeMap<RequestId, Running>,
    /// Most that a chunk has cost so far.
    dearest: u64,
    next_id: u64,
}

impl Scene {
    fn new() -> Self {
        let (plan, running) = (Plan::new(LIMITS), BTreeMap::new());
        let mut scene = Self { plan, running, dearest: 0, next_id: 0 };
        for worker in (0..WORKERS).map(WorkerId) {
            let peer = Peer(format!("local://{worker}"));
            scene.step(Event::WorkerUp {
                worker,
                peer,
                pool_tokens: u64::MAX,
                draining: false,
                kept: Vec::new(),
            });
        }
        scene
    }

    /// Only as many as run at once, so that none waits in the queue.
    fn submit(&mut self, asked: Asked) {
        let Asked { prompt_tokens, chunk_tokens, priority, keeps_all } = asked;
        if self.running.len() == LIMITS.running_requests {
            return;
        }
        let request = RequestId(self.next_id);
        self.next_id += 1;
        let grid = ChunkGrid::new(prompt_tokens, chunk_tokens).unwrap();
        let (workers, passed) = (Vec::new(), BTreeMap::new());
        let running = Running { grid, priority, keeps_all, workers, done: 0, begun: 0, passed };
        self.running.insert(request, running);
        let (arrived_at_ms, deadline_at_ms) = (0, 1000);
        let sharded = None;
        let job = Job {
            grid,
            choices: 0,
            sharded,
            memory_tokens: 0,
            state_tokens: 0,
            keeps_all,
            prefix: Vec::new().into(),
            resumes: false,
            priority,
            arrived_at_ms,
            deadline_at_ms,
        };
        self.step(Event::Submit { request, job });
    }

    /// One of the requests, if there are any.
    fn pick(&self, which: usize) -> Option<RequestId> {
        self.running.keys().nth(which % self.running.len().max(1)).copied()
    }

    /// The first chunk in flight of one of the requests is done.
    fn finish(&mut self, which: usize) {
        let Some(request) = self.pick(which) else { return };
        let running = self.running.get_mut(&request).unwrap();
        if running.done == running.begun {
            return;
        }
        let key = ChunkKey { request, chunk_idx: running.done, epoch: Default::default() };
        let worker = running.workers[running.done as usize];
        let waited = running.waits();
        running.done += 1;
        if !waited {
            running.passed.clear();
        }
        self.step(Event::ChunkDone { worker, key, busy_us: 0 });
    }

    fn cancel(&mut self, which: usize) {
        if let Some(request) = self.pick(which) {
            self.step(Event::Cancel { request });
        }
    }

    fn step(&mut self, event: Event) {
        for command in self.plan.step(event) {
            match command {
                Command::Assign { worker, key, .. } => self.dispatched(worker, key),
                Command::Ended { request, .. } => drop(self.running.remove(&request)),
                _ => {}
            }
        }
        self.check_nothing_waits_in_vain();
    }

    fn dispatched(&mut self, worker: WorkerId, key: ChunkKey) {
        let served = self.running.get_mut(&key.request).unwrap();
        assert!(served.waits() && served.begun == key.chunk_idx, "{key} is not the next one");
        served.begun += 1;
        served.workers.push(worker);
        served.passed.clear();
        let cost = served.cost(key.chunk_idx);
        let served_chunk = served.chunk_cost();
        let dearest = self.running.values().map(Running::chunk_cost).max().unwrap();
        self.dearest = self.dearest.max(dearest);
        for (id, running) in &mut self.running {
            if *id == key.request || !running.waits() {
                continue;
            }
            let own = running.chunk_cost();
            let passed = running.passed.entry(key.request).or_default();
            *passed += cost;
            assert!(*passed <= 2 * own + served_chunk, "{id} was passed by {key} for {passed}");
            let all: u64 = running.passed.values().sum();
            let most = (LIMITS.running_requests as u64 - 1) * 2 * (own + self.dearest);
            assert!(all <= most, "{id} was passed for {all}");
        }
    }

    fn check_nothing_waits_in_vain(&self) {
        let in_flight: u32 = self.running.values().map(|one| one.begun - one.done).sum();
        let tokens: u64 = self.running.values().map(Running::in_flight_tokens).sum();
        let is_full = in_flight as usize >= LIMITS.batch_chunks
            || tokens >= u64::from(WORKERS * LIMITS.batch_tokens);
        assert!(is_full || !self.running.values().any(Running::waits), "{:?}", self.running);
    }
}

#[derive(Debug, Clone, Copy)]
struct Asked {
    prompt_tokens: u32,
    chunk_tokens: u32,
    priority: i32,
    keeps_all: bool,
}

#[derive(Debug, Clone)]
enum Move {
    Submit(Asked),
    Finish(usize),
    Cancel(usize),
}

fn any_asked() -> impl Strategy<Value = Asked> {
    let prompt_tokens = prop_oneof![2 => 1u32..500, 1 => 500u32..12_000];
    let sizes = prop::sample::select(&SIZES[..]);
    (prompt_tokens, sizes, -4..5, any::<bool>()).prop_map(
        |(prompt_tokens, chunk_tokens, priority, keeps_all)| Asked {
            prompt_tokens,
            chunk_tokens,
            priority,
            keeps_all,
        },
    )
}

fn any_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        4 => any_asked().prop_map(Move::Submit),
        8 => any::<usize>().prop_map(Move::Finish),
        1 => any::<usize>().prop_map(Move::Cancel),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, ..ProptestConfig::with_cases(400)
    })]

    #[test]
    fn nobody_is_passed_for_longer_than_promised(
        moves in prop::collection::vec(any_move(), 0..400),
    ) {
        let mut scene = Scene::new();
        for step in moves {
            match step {
                Move::Submit(asked) => scene.submit(asked),
                Move::Finish(which) => scene.finish(which),
                Move::Cancel(which) => scene.cancel(which),
            }
        }
    }
}

#[test]
fn a_short_prompt_does_not_wait_for_a_long_one() {
    let mut scene = Scene::new();
    let asked =
        |prompt_tokens| Asked { prompt_tokens, chunk_tokens: 1000, priority: 0, keeps_all: false };
    scene.submit(asked(64_000));
    let short = RequestId(scene.next_id);
    scene.submit(asked(1500));
    let mut chunks = 0;
    while scene.running.contains_key(&short) {
        scene.finish(chunks % 2);
        chunks += 1;
    }
    assert!(chunks <= 8, "{chunks} chunks were done first");
}

/// What a coordinator takes on.
const SERVING: Limits = Limits {
    batch_tokens: 4096,
    batch_chunks: 128,
    queued_tokens: 10_000_000,
    running_requests: 32,
    ..LIMITS
};
/// How long a word takes from a coordinator to a worker and back.
const ROUND_TRIP_US: u64 = 1000;
/// A token takes so long, without a past.
const TOKEN_US: u64 = 300;
/// And a chunk at least.
const CHUNK_LEAST_US: u64 = 30_000;

/// A prompt, and whether its memory is exact.
#[derive(Debug, Clone, Copy)]
struct Prompt {
    tokens: u32,
    chunk_tokens: u32,
    is_exact: bool,
}

/// Workers on a clock: each is at its chunks one after the other.
struct Clock {
    plan: Plan,
    now_us: u64,
    /// What each has before it, when that came, and until when it is at the first.
    queues: Vec<VecDeque<(ChunkKey, u64)>>,
    until_us: Vec<Option<u64>>,
    prompts: Vec<Prompt>,
    /// How long all chunks took so far.
    busy_us: u64,
    /// When each request ended.
    ended_us: BTreeMap<RequestId, u64>,
}

impl Clock {
    fn new(workers: u32) -> Self {
        let mut clock = Self {
            plan: Plan::new(SERVING),
            now_us: 0,
            queues: vec![VecDeque::new(); workers as usize],
            until_us: vec![None; workers as usize],
            prompts: Vec::new(),
            busy_us: 0,
            ended_us: BTreeMap::new(),
        };
        for worker in (0..workers).map(WorkerId) {
            let (peer, pool_tokens) = (Peer(format!("local://{worker}")), u64::MAX);
            let (draining, kept) = (false, Vec::new());
            clock.step(Event::WorkerUp { worker, peer, pool_tokens, draining, kept });
        }
        clock
    }

    fn submit(&mut self, prompt: Prompt) -> RequestId {
        let request = RequestId(self.prompts.len() as u64);
        self.prompts.push(prompt);
        let job = Job {
            grid: ChunkGrid::new(prompt.tokens, prompt.chunk_tokens).unwrap(),
            choices: 0,
            sharded: prompt.is_exact.then(Sharded::default),
            memory_tokens: 0,
            state_tokens: 0,
            keeps_all: prompt.is_exact,
            prefix: Vec::new().into(),
            resumes: false,
            priority: 0,
            arrived_at_ms: 0,
            deadline_at_ms: u64::MAX,
        };
        self.step(Event::Submit { request, job });
        request
    }

    /// A model of which attention is as much as all else at 3000 keys, not at 4096.
    fn chunk_us(&self, key: ChunkKey) -> u64 {
        let prompt = self.prompts[key.request.0 as usize];
        let grid = ChunkGrid::new(prompt.tokens, prompt.chunk_tokens).unwrap();
        let span = grid.chunk(key.chunk_idx).unwrap();
        let past = if prompt.is_exact { span.start } else { 0 };
        let alone = (u64::from(span.tokens) * TOKEN_US).max(CHUNK_LEAST_US);
        alone + alone * u64::from(past) / 3000
    }

    fn step(&mut self, event: Event) {
        for command in self.plan.step(event) {
            match command {
                Command::Assign { worker, key, .. } => {
                    self.queues[worker.0 as usize].push_back((key, self.now_us + ROUND_TRIP_US));
                }
                Command::Ended { request, .. } => drop(self.ended_us.insert(request, self.now_us)),
                _ => {}
            }
        }
        for idx in 0..self.queues.len() {
            if let (None, Some((key, at_us))) = (self.until_us[idx], self.queues[idx].front()) {
                self.until_us[idx] = Some(self.now_us.max(*at_us) + self.chunk_us(*key));
            }
        }
    }

    /// The next chunk is done, if any is in flight.
    fn go_on(&mut self) -> bool {
        let untils = self.until_us.iter().enumerate();
        let next = untils.filter_map(|(idx, until_us)| Some(((*until_us)?, idx))).min();
        let Some((until_us, idx)) = next else { return false };
        self.now_us = until_us;
        self.until_us[idx] = None;
        let (key, _) = self.queues[idx].pop_front().unwrap();
        let busy_us = self.chunk_us(key);
        self.busy_us += busy_us;
        self.step(Event::ChunkDone { worker: WorkerId(idx as u32), key, busy_us });
        true
    }

    /// How long a prompt takes that comes now.
    fn time_of(&mut self, prompt: Prompt) -> u64 {
        let (since_us, request) = (self.now_us, self.submit(prompt));
        while !self.ended_us.contains_key(&request) {
            assert!(self.go_on());
        }
        self.ended_us[&request] - since_us
    }

    fn go_on_until(&mut self, chunks: usize) {
        (0..chunks).for_each(|_| assert!(self.go_on()));
    }
}

/// Whoever comes waits for what takes a quarter of a second, and for the chunk that a worker is at
/// by then; where many others wait, for a few of those that have waited longer.
#[test]
fn a_short_prompt_waits_for_no_more_than_is_ahead_of_it() {
    let short = Prompt { tokens: 200, chunk_tokens: 1024, is_exact: false };
    let exact = Prompt { tokens: 260_000, chunk_tokens: 1024, is_exact: true };
    let bounded = Prompt { is_exact: false, ..exact };
    let tiny = Prompt { tokens: 50_000, chunk_tokens: 1, is_exact: false };
    let tiny_exact = Prompt { is_exact: true, ..tiny };
    for (long, count, chunks) in [
        (exact, 1, 1),
        (exact, 4, 2),
        (bounded, 1, 1),
        (bounded, 6, 5),
        (tiny, 1, 1),
        (tiny, 6, 12),
        (tiny_exact, 1, 2),
    ] {
        let mut clock = Clock::new(2);
        for _ in 0..3 {
            clock.time_of(short); // by then it is known how long chunks take
        }
        for _ in 0..count {
            clock.submit(long);
        }
        for _ in 0..30 {
            clock.go_on_until(4 * count);
            let took_us = clock.time_of(short);
            let ahead = clock.queues.iter().flatten().map(|(key, _)| clock.chunk_us(*key));
            let own_us = TOKEN_US * 200 + 10 * ROUND_TRIP_US;
            let due_us = 250_000 + chunks * ahead.max().unwrap() + own_us;
            assert!(took_us <= due_us, "{count} {long:?}: {took_us} us, {due_us} were due");
        }
    }
}

/// One of three chunks, at least, is the long prompt's, however many short ones come.
#[test]
fn a_long_prompt_has_its_share_beside_short_ones() {
    let short = Prompt { tokens: 1024, chunk_tokens: 1024, is_exact: false };
    for is_exact in [false, true] {
        let mut clock = Clock::new(1);
        let long = Prompt { tokens: 20_480, is_exact, ..short };
        let long = clock.submit(long);
        while !clock.ended_us.contains_key(&long) {
            let running = clock.prompts.len() - clock.ended_us.len();
            for _ in running..3 {
                clock.submit(short);
            }
            assert!(clock.go_on());
        }
        let alone: u64 = (0..20)
            .map(|chunk_idx| {
                clock.chunk_us(ChunkKey { request: long, chunk_idx, epoch: Default::default() })
            })
            .sum();
        let took_us = clock.ended_us[&long];
        assert!(took_us <= 4 * alone, "{took_us} us, {alone} alone");
    }
}

/// What is bounded by time keeps workers at work.
#[test]
fn a_prompt_alone_has_all_workers() {
    let exact = Prompt { tokens: 100_000, chunk_tokens: 1024, is_exact: true };
    let bounded = Prompt { is_exact: false, ..exact };
    let small = Prompt { tokens: 10_000, chunk_tokens: 16, is_exact: false };
    for (prompt, workers) in [(exact, 1), (exact, 4), (bounded, 1), (bounded, 4), (small, 8)] {
        let mut clock = Clock::new(workers);
        let took_us = clock.time_of(prompt);
        let idle_us = took_us - clock.busy_us / u64::from(workers);
        assert!(idle_us * 25 < took_us, "{prompt:?}: {idle_us} us of {took_us} by {workers}");
    }
}
