//! The central promise: the same bits from one worker and from many, over any link.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_core::work::{Outputs, Traffic};
use aqueduct_core::{MemoryPolicy, RequestId, WireDtype};
use aqueduct_engine::Model;
use aqueduct_kernels::{KvDtype, MemorySet};

use crate::in_process::{Meeting, Trouble};
use crate::mixed_model::mixed;
use crate::rig::{Answer, Carrier, Job, Member, cluster, run, with_devices};
use crate::shared_model::shared;
use crate::tiny_model::tiny;
use crate::wide_model::wide;

async fn answer(count: usize, carrier: Carrier, job: &Job, kv: KvDtype) -> Answer {
    answer_of(&tiny(kv), count, carrier, job).await
}

async fn answer_of(model: &Arc<Model>, count: usize, carrier: Carrier, job: &Job) -> Answer {
    let mut members = cluster(model, count, carrier).await;
    let answer = run(&mut members, job, 5).await;
    for member in &members {
        member.settle(|stats| stats.home_bytes + stats.inbox_bytes + stats.outbox_bytes == 0).await;
    }
    check_traffic(&members, carrier, job, model);
    answer
}

/// Whatever was sent and spared comes to the sets that were given, wherever there was a wire:
/// between one worker and itself there is none.
fn check_traffic(members: &[Member], carrier: Carrier, job: &Job, model: &Model) {
    let mut traffic = Traffic::default();
    members.iter().for_each(|member| traffic.add(member.traffic));
    if carrier == Carrier::Loopback {
        assert_eq!(traffic, Traffic::default());
    }
    if carrier == Carrier::Grpc && job.policy.heavy > 0 {
        let hops = if members.len() > 1 { job.grid().chunk_count() - 1 } else { 0 };
        assert_eq!(traffic.fetched, hops * model.memory_layers() as u32);
        let is_repeated = hops as usize >= members.len();
        assert_eq!(traffic.spared_bytes > 0, is_repeated, "{hops} hops, {traffic:?}");
    }
}

/// Every number of workers gives what one gives.
async fn check(job: Job, kv: KvDtype) {
    check_of(&tiny(kv), job).await;
}

async fn check_of(model: &Arc<Model>, job: Job) {
    let n = job.prompt.len();
    let want = answer_of(model, 1, Carrier::Loopback, &job).await;
    match job.outputs {
        Outputs::Logits => assert_eq!(want.logits.len(), n),
        Outputs::Logprobs(_) => {
            let positions: Vec<u32> = want.logprobs.iter().map(|entry| entry.0).collect();
            assert_eq!(positions, (1..n as u32).collect::<Vec<_>>());
        }
        Outputs::None => {}
    }
    assert_eq!(want.memory.len(), job.grid().chunk_count() as usize);
    assert_eq!(want.tokens.len(), 10);
    for (count, carrier) in [
        (2, Carrier::Loopback),
        (4, Carrier::Loopback),
        (1, Carrier::Grpc),
        (2, Carrier::Grpc),
        (3, Carrier::Grpc),
        (4, Carrier::Grpc),
        (2, Carrier::Direct),
        (4, Carrier::Direct),
    ] {
        let seen = answer_of(model, count, carrier, &job).await;
        assert!(seen == want, "{count} workers over {carrier:?}, n = {n}: {:?}", job.policy);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h2o_at_edge_lengths() {
    for n in [1, 7, 8, 9, 15, 59] {
        check(Job::new(n, MemoryPolicy::h2o(2, 3, 3)), KvDtype::Bf16).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dense_and_window_in_f32() {
    check(Job::new(43, MemoryPolicy::dense()), KvDtype::F32).await;
    check(Job::new(43, MemoryPolicy::window(2, 4)), KvDtype::F32).await;
}

/// States go from chunk to chunk beside keys, whatever is kept of these.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layers_that_remember_in_a_state() {
    for n in [1, 8, 9, 59] {
        check_of(&mixed(KvDtype::Bf16), Job::new(n, MemoryPolicy::h2o(2, 3, 3))).await;
    }
    let model = mixed(KvDtype::F32);
    for policy in [MemoryPolicy::dense(), MemoryPolicy::window(2, 4)] {
        check_of(&model, Job::new(43, policy)).await;
    }
    let wire = Job { wire: WireDtype::F16, ..Job::new(43, MemoryPolicy::h2o(2, 3, 3)) };
    check_of(&model, wire).await;
}

/// Some layers have wider heads than others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_of_another_shape() {
    for n in [1, 9, 59] {
        check_of(&wide(KvDtype::Bf16), Job::new(n, MemoryPolicy::h2o(2, 3, 3))).await;
    }
    for policy in [MemoryPolicy::dense(), MemoryPolicy::window(2, 4)] {
        check_of(&wide(KvDtype::F32), Job::new(43, policy)).await;
    }
}

/// The last layers attend to keys of earlier ones. Where only what comes of the last token is
/// wanted they are left out of every chunk but the last, and the completion is the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_earlier_layers() {
    for n in [1, 9, 59] {
        check_of(&shared(KvDtype::Bf16), Job::new(n, MemoryPolicy::h2o(2, 3, 3))).await;
    }
    for policy in [MemoryPolicy::dense(), MemoryPolicy::window(2, 4)] {
        check_of(&shared(KvDtype::F32), Job::new(43, policy)).await;
    }
    let model = shared(KvDtype::F32);
    let whole = Job::new(59, MemoryPolicy::h2o(2, 3, 3));
    let want = answer_of(&model, 1, Carrier::Loopback, &whole).await;
    let job = Job { outputs: Outputs::None, ..whole };
    check_of(&model, job.clone()).await;
    let seen = answer_of(&model, 2, Carrier::Loopback, &job).await;
    assert_eq!((seen.tokens, seen.memory), (want.tokens, want.memory));
}

/// Where every key is kept, no bit tells how long chunks are but through sums over keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_do_not_tell_where_a_prompt_was_cut() {
    let model = mixed(KvDtype::F32);
    let job = Job::new(43, MemoryPolicy::dense());
    let want = answer_of(&model, 2, Carrier::Loopback, &job).await;
    for chunk_tokens in [1, 5, 43] {
        let job = Job { chunk_tokens, ..job.clone() };
        let apart = answer_of(&model, 2, Carrier::Loopback, &job).await.difference(&want);
        assert!(apart <= 1e-5, "{apart}, chunks of {chunk_tokens}");
    }
}

/// Two bytes an element on the way: the same on any number of workers, close to four, and not the
/// same as four, or nothing was rounded. Where two are stored, nothing is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rounded_on_the_wire() {
    let exact = Job::new(59, MemoryPolicy::h2o(2, 3, 3));
    for (wire, bound) in [(WireDtype::Bf16, 2e-2), (WireDtype::F16, 3e-3)] {
        let job = Job { wire, ..exact.clone() };
        check(job.clone(), KvDtype::F32).await;
        let [seen, want] =
            [&job, &exact].map(|job| answer(1, Carrier::Loopback, job, KvDtype::F32));
        let apart = seen.await.difference(&want.await);
        assert!(apart > 0.0 && apart <= bound, "{apart}, {wire}");
    }
    let job = Job { wire: WireDtype::F16, ..exact.clone() };
    let [seen, want] = [&job, &exact].map(|job| answer(2, Carrier::Grpc, job, KvDtype::Bf16));
    assert!(seen.await == want.await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logprobs_of_every_token_but_the_first() {
    for n in [8, 9, 27] {
        let job = Job::new(n, MemoryPolicy::h2o(2, 3, 3));
        check(Job { outputs: Outputs::Logprobs(3), ..job }, KvDtype::F32).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logprobs_agree_with_logits() {
    let job = Job::new(20, MemoryPolicy::h2o(2, 3, 3));
    let logits = answer(2, Carrier::Loopback, &job, KvDtype::F32).await.logits;
    let with_logprobs = Job { outputs: Outputs::Logprobs(0), ..job.clone() };
    let logprobs = answer(2, Carrier::Loopback, &with_logprobs, KvDtype::F32).await.logprobs;
    for (position, token, logprob) in logprobs {
        assert_eq!(token, job.prompt[position as usize]);
        let row = &logits[position as usize - 1].1;
        let row: Vec<f64> = row.iter().map(|&bits| f32::from_bits(bits).into()).collect();
        let lse = row.iter().map(|z| z.exp()).sum::<f64>().ln();
        let want = row[token as usize] - lse;
        assert!((f64::from(f32::from_bits(logprob)) - want).abs() < 1e-5);
    }
}

/// Whatever devices do among themselves, answers stay the same.
async fn check_devices(troubles: [Trouble; 3], done: impl Fn(&Meeting) -> bool) {
    let (job, kv) = (Job::new(59, MemoryPolicy::h2o(2, 3, 3)), KvDtype::Bf16);
    let want = answer(1, Carrier::Loopback, &job, kv).await;
    let meeting = Arc::<Meeting>::default();
    let mut members = with_devices(&tiny(kv), &meeting, &troubles).await;
    let (started, mut rounds_after) = (Instant::now(), 0);
    for request in 1.. {
        let job = Job { request: RequestId(request), ..job.clone() };
        assert!(run(&mut members, &job, 5).await == want, "request {request}, {troubles:?}");
        rounds_after += u32::from(done(&meeting));
        if rounds_after == 2 {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(30), "it never came to that: {troubles:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_join_while_requests_run() {
    check_devices([Trouble::None; 3], |meeting| meeting.moved() > 0).await;
    let mixed = [Trouble::None, Trouble::NoLibrary, Trouble::None];
    check_devices(mixed, |meeting| meeting.moved() > 0 && meeting.groups() == 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_that_fail_are_parted() {
    let changes: fn(&mut MemorySet) = |set| set.keys.positions[0] += 1;
    for trouble in [Trouble::NeverMoves, Trouble::Fails, Trouble::Changes(changes)] {
        let begun_and_parted = |meeting: &Meeting| meeting.begun() > 0 && meeting.given_up() > 1;
        check_devices([Trouble::None, trouble, Trouble::None], begun_and_parted).await;
    }
    let never = [Trouble::None, Trouble::NeverJoins, Trouble::None];
    check_devices(never, |meeting| meeting.moved() > 0).await;
}
