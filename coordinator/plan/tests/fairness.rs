//! Who is served next: random arrivals, ends and cancels, without failures. From the moment
//! a request could have its next chunk dispatched until it is, no other request may get more
//! than the bound that the plan promises.

use std::collections::BTreeMap;

use aqueduct_core::work::Peer;
use aqueduct_core::{ChunkGrid, ChunkKey, RequestId, WorkerId};
use aqueduct_plan::{Command, Event, Job, Limits, Plan};
use proptest::prelude::*;

const LIMITS: Limits = Limits {
    batch_tokens: 40,
    batch_chunks: 9,
    queued_requests: 4,
    queued_tokens: 1000,
    running_requests: 4,
    page_tokens: 1,
    retries: 0,
    grace_ms: 0,
    hedge_after_ms: None,
};
const WORKERS: u32 = 2;
/// Sizes of chunks.
const SIZES: [u32; 3] = [5, 10, 40];

/// A request that runs: of whose chunks the first `done` are done, those up to `begun` in flight.
#[derive(Debug)]
struct Running {
    grid: ChunkGrid,
    priority: i32,
    workers: Vec<WorkerId>,
    done: u32,
    begun: u32,
    /// What the others had dispatched since it could have had its next chunk, at its cost.
    passed: BTreeMap<RequestId, u64>,
}

impl Running {
    /// Every step of priority halves a share, at most three steps either way.
    fn cost(&self, tokens: u32) -> u64 {
        u64::from(tokens) << (3 + self.priority.clamp(-3, 3))
    }

    /// Most that a chunk of it costs.
    fn chunk_cost(&self) -> u64 {
        self.cost(self.grid.chunk_tokens())
    }

    fn waits(&self) -> bool {
        let window = (LIMITS.batch_tokens / self.grid.chunk_tokens()).max(1);
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
    fn submit(&mut self, prompt_tokens: u32, chunk_tokens: u32, priority: i32) {
        if self.running.len() == LIMITS.running_requests {
            return;
        }
        let request = RequestId(self.next_id);
        self.next_id += 1;
        let grid = ChunkGrid::new(prompt_tokens, chunk_tokens).unwrap();
        let (workers, passed) = (Vec::new(), BTreeMap::new());
        let running = Running { grid, priority, workers, done: 0, begun: 0, passed };
        self.running.insert(request, running);
        let (arrived_at_ms, deadline_at_ms) = (0, 1000);
        let sharded = None;
        let job = Job {
            grid,
            choices: 0,
            sharded,
            memory_tokens: 0,
            state_tokens: 0,
            keeps_all: false,
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
        let cost = served.cost(served.grid.chunk(key.chunk_idx).unwrap().tokens);
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
            assert!(*passed <= own + served_chunk, "{id} was passed by {key} for {passed}");
            let all: u64 = running.passed.values().sum();
            let most = (LIMITS.running_requests as u64 - 1) * (own + self.dearest);
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

#[derive(Debug, Clone)]
enum Move {
    Submit { prompt_tokens: u32, chunk_tokens: u32, priority: i32 },
    Finish(usize),
    Cancel(usize),
}

fn any_move() -> impl Strategy<Value = Move> {
    let prompt_tokens = prop_oneof![2 => 1u32..20, 1 => 20u32..400];
    let sizes = prop::sample::select(&SIZES[..]);
    prop_oneof![
        4 => (prompt_tokens, sizes, -4..5).prop_map(|(prompt_tokens, chunk_tokens, priority)| {
            Move::Submit { prompt_tokens, chunk_tokens, priority }
        }),
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
                Move::Submit { prompt_tokens, chunk_tokens, priority } => {
                    scene.submit(prompt_tokens, chunk_tokens, priority);
                }
                Move::Finish(which) => scene.finish(which),
                Move::Cancel(which) => scene.cancel(which),
            }
        }
    }
}

#[test]
fn a_short_prompt_does_not_wait_for_a_long_one() {
    let mut scene = Scene::new();
    scene.submit(64_000, 10, 0);
    let short = RequestId(scene.next_id);
    scene.submit(15, 10, 0);
    let mut chunks = 0;
    while scene.running.contains_key(&short) {
        scene.finish(chunks % 2);
        chunks += 1;
    }
    assert!(chunks <= 8, "{chunks} chunks were done first");
}
