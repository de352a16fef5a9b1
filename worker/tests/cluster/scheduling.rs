//! Who goes first changes when an answer comes, and no bit of it.

use std::sync::Arc;

use aqueduct_core::work::{Command, Event, Outputs};
use aqueduct_core::{MemoryPolicy, RequestId};
use aqueduct_kernels::{Cpu, CpuOptions, KvDtype};
use aqueduct_worker::{LoopbackHub, Scheduler, Scheduling};

use crate::rig::{Answer, Job, Member, finish};
use crate::tiny_model::{tiny, tiny_on};

fn job(request: u64, prompt_tokens: u32, policy: MemoryPolicy) -> Job {
    let job = Job::new(prompt_tokens, policy);
    Job { request: RequestId(request), outputs: Outputs::None, ..job }
}

async fn prefill(home: &mut Member, job: &Job) {
    for chunk in job.grid().chunks() {
        home.assign(job.assignment(chunk.idx, 0, (&home.peer, 0))).await;
    }
    let last = job.grid().chunk_count() - 1;
    finish(home, job.key(last, 0), &mut Answer::default()).await;
}

/// Bits of one request's completions, and of the mass that the other's prefill kept, both at
/// once on one worker.
async fn answers(scheduling: Scheduling) -> (Vec<(u32, u32, u32, u32)>, Vec<u64>) {
    let (tokens, long_tokens) = (40, 160);
    let hub = LoopbackHub::default();
    let mut home = Member::scheduled(tiny(KvDtype::Bf16), &hub, scheduling).await;
    let short = job(1, 20, MemoryPolicy::h2o(2, 3, 3));
    let long = job(2, long_tokens, MemoryPolicy::h2o(1, 2, 4));
    prefill(&mut home, &short).await;
    home.send(short.decode(2, tokens)).await;
    for chunk in long.grid().chunks() {
        home.assign(long.assignment(chunk.idx, 0, (&home.peer, 0))).await;
    }
    let (mut seen, mut kept, mut open) = (Vec::new(), Vec::new(), 2);
    while open > 0 || kept.len() < long.grid().chunk_count() as usize * 8 {
        match home.event().await {
            Event::Token(token) => {
                let logprob = token.logprob.to_bits();
                seen.push((token.choice, token.token_idx, token.token, logprob));
            }
            Event::ChoiceDone { .. } => open -= 1,
            Event::ChunkDone { report, .. } => {
                kept.extend(report.retained.iter().map(|mass| mass.kept.to_bits()));
            }
            Event::Progress { .. } => {}
            other => panic!("under {scheduling:?}: {other:?}"),
        }
    }
    home.send(Command::Cancel { request: long.request }).await;
    home.send(Command::Cancel { request: short.request }).await;
    home.settle_empty().await;
    seen.sort_unstable();
    (seen, kept)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_scheduler_gives_the_same_answers() {
    let want = answers(Scheduling::default()).await;
    assert_eq!(want.0.len(), 80);
    for scheduler in [Scheduler::DecodeFirst, Scheduler::Static, Scheduler::Plain] {
        for step_tokens in [1, 24] {
            let scheduling = Scheduling { scheduler, step_tokens };
            assert_eq!(answers(scheduling).await, want, "{scheduling:?}");
        }
    }
}

/// Bits of the mass that the second of two chunks kept, of several requests in turn beside a
/// decode. Each first chunk is assigned so many times, each while the one before is computed.
async fn kept_behind(assignments: u32) -> Vec<Vec<u64>> {
    let decode_first = Scheduling { scheduler: Scheduler::DecodeFirst, ..Scheduling::default() };
    let hub = LoopbackHub::default();
    let backend = Cpu::new(CpuOptions::default()).unwrap(); // it computes beside a decode
    let model = tiny_on(KvDtype::Bf16, Arc::new(backend));
    let mut home = Member::scheduled(model, &hub, decode_first).await;
    let short = job(1, 20, MemoryPolicy::h2o(2, 3, 3));
    prefill(&mut home, &short).await;
    home.send(short.decode(1, 1_000_000)).await;
    let before = home.stats().outbox_bytes;
    let mut all = Vec::new();
    for request in 2..8 {
        let long = Job { chunk_tokens: 4000, ..job(request, 8000, MemoryPolicy::h2o(1, 20, 40)) };
        for epoch in 0..assignments {
            home.assign(long.assignment(0, epoch, (&home.peer, epoch))).await;
            home.settle(|stats| stats.outbox_bytes > before).await;
            for _ in 0..request * 10_000 {
                tokio::task::yield_now().await; // now in this part of a layer, now in that
            }
        }
        let epoch = assignments - 1;
        home.assign(long.assignment(1, epoch, (&home.peer, epoch))).await;
        all.push(loop {
            match home.event().await {
                Event::ChunkDone { key, report } if key == long.key(1, epoch) => {
                    break report.retained.iter().map(|mass| mass.kept.to_bits()).collect();
                }
                Event::ChunkFailed { key, message, .. } => panic!("{key}: {message}"),
                _ => {}
            }
        });
        home.send(Command::Cancel { request: long.request }).await;
        home.settle(|stats| stats.outbox_bytes == before).await;
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chunk_that_is_assigned_anew_gives_each_layer_once() {
    assert_eq!(kept_behind(2).await, kept_behind(1).await);
}
