//! A layer that remembers in a state: it goes from chunk to chunk whatever carries it, and the
//! bits are those of one worker.

use aqueduct_core::work::{Command, FailureKind};
use aqueduct_core::{Carry, MemoryPolicy, WireDtype};
use aqueduct_kernels::KvDtype;

use crate::rig::{Carrier, Job, cluster, run};
use crate::shards::{How, assignment, in_turn};
use crate::tiny_model::{STATE_LEN, hybrid};

async fn check(policy: MemoryPolicy, kv: KvDtype, wire: WireDtype) {
    let (model, job) = (hybrid(kv), Job { wire, ..Job::new(59, policy) });
    let alone = run(&mut cluster(&model, 1, Carrier::Loopback).await, &job, 5).await;
    for (count, carrier) in [
        (2, Carrier::Loopback),
        (1, Carrier::Grpc),
        (2, Carrier::Grpc),
        (3, Carrier::Grpc),
        (2, Carrier::Direct),
    ] {
        let mut members = cluster(&model, count, carrier).await;
        let answer = run(&mut members, &job, 5).await;
        assert!(answer == alone, "{count} workers over {carrier:?}, {policy:?}");
        for member in &members {
            member.send(Command::Cancel { request: job.request }).await;
            member.settle_empty().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_number_of_workers_gives_what_one_gives() {
    check(MemoryPolicy::dense(), KvDtype::F32, WireDtype::F32).await;
    check(MemoryPolicy::dense(), KvDtype::Bf16, WireDtype::F32).await;
    check(MemoryPolicy::h2o(2, 3, 3), KvDtype::F32, WireDtype::F16).await;
    check(MemoryPolicy::window(2, 4), KvDtype::Bf16, WireDtype::F32).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_is_counted_and_does_not_grow() {
    let (kv, policy) = (KvDtype::F32, MemoryPolicy::dense());
    let (model, job) = (hybrid(kv), Job::new(24, policy));
    let answer = run(&mut cluster(&model, 2, Carrier::Loopback).await, &job, 2).await;
    let key_bytes = 2 * (3 * 4 + 2 * 8 * 4); // of both KV heads in one layer
    for (chunk_idx, bytes, tokens, _) in answer.memory {
        assert_eq!(tokens, 8 * (chunk_idx + 1), "a layer without keys says nothing of them");
        assert_eq!(bytes, 8 * u64::from(tokens) * key_bytes + 4 * STATE_LEN as u64);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_stay_in_no_shards() {
    let mut members = cluster(&hybrid(KvDtype::F32), 1, Carrier::Loopback).await;
    let job = Job::new(20, MemoryPolicy::dense());
    let how = How::exact(in_turn, Carry::Queries);
    members[0].assign(assignment(&job, (0, 0), &members, how)).await;
    assert_eq!(members[0].failure().await, (job.key(0, 0), FailureKind::Invalid));
}
