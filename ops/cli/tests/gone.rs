//! Callers that go away at any moment leave nothing behind, on no worker.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_coordinator::submit::{Submission, Update};
use aqueduct_coordinator::{Config, Coordinator, RequestHandle, Session};
use aqueduct_core::{Exchange, MemoryPolicy};
use aqueduct_engine::{LoadOptions, Model, WeightDtype};
use aqueduct_kernels::{Cpu, CpuOptions, KvDtype};
use aqueduct_worker::{LoopbackHub, Stats, Worker, WorkerOptions};
use tokio::task::JoinSet;

const PATIENCE: Duration = Duration::from_secs(120);
const CALLERS: usize = 48;

fn model() -> Arc<Model> {
    let cpu = Cpu::new(CpuOptions { threads: 2, ..CpuOptions::default() }).unwrap();
    let (kv, weights) = (KvDtype::Bf16, WeightDtype::Auto);
    let options = LoadOptions { kv, weights, backend: Arc::new(cpu) };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model");
    Arc::new(Model::load(&folder, &options, &mut |_| {}).unwrap())
}

/// Two workers with pools that not all requests fit into, and a coordinator that runs few at once.
async fn cluster() -> (Coordinator, Vec<Worker>) {
    let (model, hub) = (model(), LoopbackHub::default());
    let start = |idx| {
        let mut options = WorkerOptions::new(format!("local://w{idx}"), hub.clone());
        options.pool_tokens = 3000;
        Worker::start(model.clone(), options).unwrap()
    };
    let workers: Vec<Worker> = (0..2).map(start).collect();
    let session = |worker: &Worker| {
        let (commands, events) = worker.open_session();
        Session::in_process(worker.info().peer.to_string(), commands, events)
    };
    let config = Config { running_requests: 4, batch_tokens: 512, ..Config::default() };
    let coordinator = Coordinator::start(config, workers.iter().map(session).collect()).unwrap();
    assert!(coordinator.wait_for_workers(workers.len(), PATIENCE).await);
    (coordinator, workers)
}

fn submission(idx: usize) -> Submission {
    let policy = [MemoryPolicy::h2o(4, 32, 32), MemoryPolicy::dense()][idx % 2];
    let exchange = [Exchange::Auto, Exchange::Stay, Exchange::Auto][idx % 3];
    let prompt_tokens = [20, 300, 1500][idx / 2 % 3];
    Submission {
        policy,
        chunk_tokens: 128,
        exchange,
        choices: 1 + idx as u32 % 2,
        max_tokens: 60,
        priority: idx as i32 % 5 - 2,
        cache_prompt: false,
        deadline: PATIENCE,
        ..Submission::of((0..prompt_tokens).map(|token| token * 7 % 4000 + 1).collect())
    }
}

/// Reads so many updates, fewer if there are no more, and gives the tokens among them, by choice.
async fn read(mut handle: RequestHandle, updates: usize) -> Vec<(u32, u32, u32)> {
    let mut tokens = Vec::new();
    for _ in 0..updates {
        match handle.next().await.transpose().unwrap() {
            Some(Update::Token(one)) => tokens.push((one.choice, one.token_idx, one.token)),
            Some(_) => {}
            None => break,
        }
    }
    tokens.sort_unstable();
    tokens
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "never: {what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_go_away_at_any_moment_leave_nothing_behind() {
    let (coordinator, workers) = cluster().await;
    let ask = || coordinator.submit(submission(3));
    let alone = read(ask().await.unwrap(), usize::MAX).await;
    let mut callers = JoinSet::new();
    for idx in 0..CALLERS {
        let handle = coordinator.submit(submission(idx)).await.unwrap();
        // As it is accepted, so most likely in the queue; in the prefill; while it is decoded.
        let updates = [0, 1, 2, 3, 5, 8, 30, 70][idx * 5 % 8];
        callers.spawn(async move { drop(read(handle, updates).await) });
    }
    let in_between = read(ask().await.unwrap(), usize::MAX).await;
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
    until("nothing runs or waits", || {
        let stats = coordinator.stats();
        (stats.running, stats.queued, stats.queued_tokens) == (0, 0, 0)
    })
    .await;
    for worker in &workers {
        until("nothing is held", || worker.stats() == Stats::default()).await;
    }
    let after = read(ask().await.unwrap(), usize::MAX).await;
    assert_eq!((&in_between, &after), (&alone, &alone), "what others do changes no answer");
}
