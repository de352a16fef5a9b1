//! Cancels, lost workers and silent predecessors.

use std::time::Duration;

use aqueduct_core::work::{Command, DecodeSpec, Event, FailureKind, NextHop, Outputs, Peer};
use aqueduct_core::{Epoch, MemoryPolicy, RequestId};
use aqueduct_kernels::KvDtype;
use aqueduct_worker::{LoopbackHub, Stats, Worker, WorkerOptions};
use tokio::sync::watch;

use crate::rig::{Answer, Carrier, Job, Member, cluster, decode, finish, in_process, run};
use crate::tiny_model::tiny;

const NOBODY: &str = "local://nobody";
const SOON: Duration = Duration::from_secs(20);

fn job() -> Job {
    Job { outputs: Outputs::None, ..Job::new(43, MemoryPolicy::h2o(2, 3, 3)) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancel_frees_everything_while_a_chunk_waits() {
    for carrier in [Carrier::Loopback, Carrier::Grpc] {
        let members = cluster(&tiny(KvDtype::F32), 2, carrier).await;
        let job = job();
        // Chunk 2 waits for chunk 1, which nobody runs; chunk 0's memory waits in the inbox.
        members[0].assign(job.assignment(0, 0, (&members[1].peer, 0))).await;
        members[1].assign(job.assignment(2, 0, (&members[0].peer, 0))).await;
        members[1].assign(job.assignment(3, 0, (&members[0].peer, 0))).await;
        members[0].settle(|stats| stats.outbox_bytes > 0).await;
        members[1].settle(|stats| stats.inbox_bytes > 0 && stats.requests == 1).await;
        for member in &members {
            member.send(Command::Cancel { request: job.request }).await;
        }
        for member in &members {
            member.settle_empty().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancel_frees_what_came_before_its_chunk_was_assigned() {
    let members = cluster(&tiny(KvDtype::F32), 2, Carrier::Grpc).await;
    let job = job();
    members[0].assign(job.assignment(0, 0, (&members[1].peer, 0))).await;
    members[1].settle(|stats| stats.inbox_bytes > 0 && stats.requests == 0).await;
    for member in &members {
        member.send(Command::Cancel { request: job.request }).await;
        member.settle_empty().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_session_cancels_what_it_started() {
    let mut members = cluster(&tiny(KvDtype::F32), 2, Carrier::Loopback).await;
    let job = job();
    let peer = members[1].peer.clone();
    members[0].assign(job.assignment(0, 0, (&peer, 0))).await;
    members[1].assign(job.assignment(2, 0, (&peer, 0))).await;
    members[1].settle(|stats| stats.inbox_bytes > 0 && stats.requests == 1).await;
    for member in &mut members {
        let (commands, events) = member.worker.open_session();
        (member.commands, member.events) = (commands, events);
    }
    for member in &members {
        member.settle_empty().await;
    }
    // The workers live on and serve the next request.
    for member in &mut members {
        assert!(matches!(member.event().await, Event::Hello(_)));
    }
    let next = Job { request: aqueduct_core::RequestId(2), ..job };
    assert_eq!(run(&mut members, &next, 3).await.tokens.len(), 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_that_comes_back_goes_on_though_its_lost_session_seems_to_live() {
    let mut members = cluster(&tiny(KvDtype::F32), 1, Carrier::Loopback).await;
    let (home, job) = (&mut members[0], job());
    // Its predecessor never runs.
    home.assign(job.assignment(1, 0, (&home.peer, 0))).await;
    home.settle(|stats| stats.requests == 1).await;
    let (commands, events) = home.worker.open_session();
    let lost_commands = std::mem::replace(&mut home.commands, commands);
    let mut lost_events = std::mem::replace(&mut home.events, events);
    assert!(matches!(home.event().await, Event::Hello(_)));
    for chunk in job.grid().chunks() {
        home.assign(job.assignment(chunk.idx, 1, (&home.peer, 1))).await;
    }
    let last = job.grid().chunks().last().unwrap().idx;
    finish(home, job.key(last, 1), &mut Answer::default()).await;
    let over = tokio::time::timeout(SOON, async { while lost_events.recv().await.is_some() {} });
    over.await.expect("the lost session ends");
    assert!(lost_commands.is_closed());
    home.send(Command::Cancel { request: job.request }).await;
    home.settle_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancel_and_stop_free_completions() {
    let mut members = cluster(&tiny(KvDtype::F32), 1, Carrier::Loopback).await;
    let job = Job { outputs: Outputs::None, ..Job::new(20, MemoryPolicy::h2o(2, 3, 3)) };
    let home = &mut members[0];
    for chunk in job.grid().chunks() {
        home.assign(job.assignment(chunk.idx, 0, (&home.peer, 0))).await;
    }
    finish(home, job.key(2, 0), &mut Answer::default()).await;
    home.send(job.decode(2, 1_000_000)).await;
    home.event_where(|event| matches!(event, Event::Token(token) if token.token_idx == 5)).await;
    home.send(Command::StopChoice { request: job.request, choice: 0 }).await;
    let later =
        |event: &Event| matches!(event, Event::Token(t) if t.choice == 1 && t.token_idx > 40);
    home.event_where(later).await;
    home.send(Command::Cancel { request: job.request }).await;
    home.settle_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_flow_while_a_chunk_of_another_request_waits() {
    let mut members = cluster(&tiny(KvDtype::F32), 1, Carrier::Loopback).await;
    let first = Job { outputs: Outputs::None, ..Job::new(5, MemoryPolicy::h2o(2, 3, 3)) };
    let second = Job { request: aqueduct_core::RequestId(2), ..job() };
    let home = &mut members[0];
    home.assign(first.assignment(0, 0, (&home.peer, 0))).await;
    finish(home, first.key(0, 0), &mut Answer::default()).await;
    // Its predecessor never runs, so it holds the device until it is cancelled.
    home.assign(second.assignment(1, 0, (&home.peer, 0))).await;
    let mut answer = Answer::default();
    decode(home, &first, 50, &mut answer).await;
    assert_eq!(answer.tokens.len(), 100);
    home.settle(|stats| stats.requests == 2).await;
    for request in [first.request, second.request] {
        home.send(Command::Cancel { request }).await;
    }
    home.settle_empty().await;
}

/// Whoever looks after a worker hears that nothing is computed there any more.
#[tokio::test]
async fn a_worker_without_one_of_its_threads_has_ended() {
    let options = WorkerOptions::new("local://alone", LoopbackHub::default());
    let worker = Worker::start(tiny(KvDtype::F32), options).unwrap();
    assert!(!worker.has_ended());
    worker.holder().stop(); // as it does itself when it panics
    tokio::time::timeout(SOON, worker.ended()).await.expect("nobody hears of it");
    assert!(worker.has_ended());
}

/// A device that hangs says nothing. Here its thread hangs where it shows a prompt's memory, for
/// as long as somebody looks at what was shown before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_device_hangs_has_ended() {
    let (model, hub) = (tiny(KvDtype::F32), LoopbackHub::default());
    let (homes, shown) = watch::channel(None);
    let stall = Duration::from_millis(500);
    let options = WorkerOptions { homes: Some(homes), stall, ..in_process(&model, &hub) };
    let member = Member::join(Worker::start(model, options).unwrap()).await;
    let (worker, peer) = (member.worker.clone(), member.peer.clone());
    assert!(tokio::time::timeout(2 * stall, worker.ended()).await.is_err(), "it is idle");

    let first = Job { outputs: Outputs::None, ..Job::new(5, MemoryPolicy::h2o(2, 3, 3)) };
    let looked_at = shown.borrow();
    member.assign(first.assignment(0, 0, (&peer, 0))).await;
    tokio::time::timeout(SOON, worker.ended()).await.expect("nobody hears of it");
    assert!(worker.has_ended());
    drop(looked_at);
}

/// Nothing listens where the others, if there were any, would look for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_needs_no_network_to_hand_memory_to_itself() {
    let (model, hub) = (tiny(KvDtype::F32), LoopbackHub::default());
    let want = run(&mut cluster(&model, 1, Carrier::Loopback).await, &job(), 4).await;
    let options = WorkerOptions::new("http://127.0.0.1:9", hub);
    let member = Member::join(Worker::start(model, options).unwrap()).await;
    assert_eq!(run(&mut [member], &job(), 4).await, want);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_pauses_loses_no_token() {
    let mut members = cluster(&tiny(KvDtype::F32), 1, Carrier::Loopback).await;
    let job = Job { outputs: Outputs::None, ..Job::new(5, MemoryPolicy::h2o(2, 3, 3)) };
    let home = &mut members[0];
    home.assign(job.assignment(0, 0, (&home.peer, 0))).await;
    finish(home, job.key(0, 0), &mut Answer::default()).await;
    home.send(job.decode(1, 1500)).await;
    // The channel fills before anything is read.
    while home.events.len() < home.events.max_capacity() {
        tokio::task::yield_now().await;
    }
    for want in 0..1500 {
        let event = home.event().await;
        assert!(matches!(event, Event::Token(token) if token.token_idx == want));
    }
    assert!(matches!(home.event().await, Event::ChoiceDone { eos: false, .. }));
    home.settle(|stats| stats.home_bytes == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_worker_is_replaced_with_the_same_bits() {
    for carrier in [Carrier::Loopback, Carrier::Grpc, Carrier::Direct] {
        let model = tiny(KvDtype::Bf16);
        let job = Job::new(24, MemoryPolicy::h2o(2, 3, 3));
        let want = run(&mut cluster(&model, 1, Carrier::Loopback).await, &job, 4).await;
        let mut members = cluster(&model, 3, carrier).await;
        let peers: Vec<Peer> = members.iter().map(|member| member.peer.clone()).collect();
        // Chunk 1 is at a worker that is not there; chunk 2 waits for it.
        let mut answer = Answer::default();
        let lost = Peer(match carrier {
            Carrier::Loopback => NOBODY.into(),
            Carrier::Grpc | Carrier::Direct => "http://127.0.0.1:9".into(),
        });
        members[0].assign(job.assignment(0, 0, (&lost, 0))).await;
        members[2].assign(job.assignment(2, 0, (&lost, 0))).await;
        finish(&mut members[0], job.key(0, 0), &mut answer).await;
        assert_eq!(members[0].failure().await, (job.key(1, 0), FailureKind::Peer));
        // It is done again at member 1, from the memory that member 0 still holds. What either
        // is said to have given itself it has not: nothing can be spared.
        let mut again = job.assignment(1, 1, (&peers[2], 0));
        again.next.as_mut().unwrap().base = Some(job.base(0, 0));
        members[1].assign(again).await;
        let base = Some(job.base(0, 0));
        let next = NextHop { peer: peers[1].clone(), epoch: Epoch(1), base };
        let redirect = Command::Redirect { request: job.request, chunk_idx: 1, next };
        members[0].send(redirect).await;
        finish(&mut members[1], job.key(1, 1), &mut answer).await;
        finish(&mut members[2], job.key(2, 0), &mut answer).await;
        decode(&mut members[2], &job, 4, &mut answer).await;
        assert!(answer == want, "over {carrier:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirect_in_time_moves_what_is_still_to_come() {
    let model = tiny(KvDtype::F32);
    let job = Job::new(16, MemoryPolicy::h2o(2, 3, 3));
    let want = run(&mut cluster(&model, 1, Carrier::Loopback).await, &job, 4).await;
    let mut members = cluster(&model, 3, Carrier::Loopback).await;
    let peers: Vec<Peer> = members.iter().map(|member| member.peer.clone()).collect();
    members[0].assign(job.assignment(0, 0, (&peers[1], 0))).await;
    let next = NextHop { peer: peers[2].clone(), epoch: Epoch(1), base: None };
    members[0].send(Command::Redirect { request: job.request, chunk_idx: 1, next }).await;
    members[2].assign(job.assignment(1, 1, (&peers[0], 0))).await;
    let mut answer = Answer::default();
    finish(&mut members[0], job.key(0, 0), &mut answer).await;
    finish(&mut members[2], job.key(1, 1), &mut answer).await;
    decode(&mut members[2], &job, 4, &mut answer).await;
    assert!(answer == want);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_predecessor_is_a_deadline_and_the_next_request_works() {
    let mut members = cluster(&tiny(KvDtype::F32), 1, Carrier::Loopback).await;
    let (job, peer) = (job(), members[0].peer.clone());
    let mut waits = job.assignment(1, 0, (&peer, 0));
    waits.deadline_ms = 20;
    members[0].assign(waits).await;
    assert_eq!(members[0].failure().await, (job.key(1, 0), FailureKind::Deadline));
    members[0].send(Command::Cancel { request: job.request }).await;
    members[0].settle_empty().await;
    let next = Job { request: aqueduct_core::RequestId(2), ..job };
    assert_eq!(run(&mut members, &next, 3).await.tokens.len(), 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_chunk_says_nothing_and_blocks_nobody() {
    let mut members = cluster(&tiny(KvDtype::F32), 1, Carrier::Loopback).await;
    let (job, peer) = (job(), members[0].peer.clone());
    for chunk_idx in [1, 2] {
        members[0].assign(job.assignment(chunk_idx, 0, (&peer, 0))).await;
    }
    for chunk_idx in [2, 1, 5] {
        members[0].send(Command::Drop { request: job.request, chunk_idx }).await;
    }
    let next = Job { request: aqueduct_core::RequestId(2), ..job };
    assert_eq!(run(&mut members, &next, 3).await.tokens.len(), 6);
    for request in [job.request, next.request] {
        members[0].send(Command::Cancel { request }).await;
    }
    members[0].settle_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_epoch_supersedes_a_chunk_that_waits() {
    let mut members = cluster(&tiny(KvDtype::F32), 2, Carrier::Loopback).await;
    let job = Job { outputs: Outputs::None, ..Job::new(16, MemoryPolicy::h2o(2, 3, 3)) };
    let peers: Vec<Peer> = members.iter().map(|member| member.peer.clone()).collect();
    members[1].assign(job.assignment(1, 0, (&peers[0], 0))).await;
    members[1].assign(job.assignment(1, 1, (&peers[0], 0))).await;
    members[0].assign(job.assignment(0, 0, (&peers[1], 1))).await;
    finish(&mut members[1], job.key(1, 1), &mut Answer::default()).await;
}

/// What is shown is for whoever looks. A coordinator that reads late misses some of it, and no
/// request ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_shown_is_lost_where_nobody_reads() {
    let mut members = cluster(&tiny(KvDtype::F32), 1, Carrier::Loopback).await;
    let member = &mut members[0];
    let policy = MemoryPolicy::h2o(2, 3, 3);
    let job = |request| Job { request, outputs: Outputs::None, ..Job::new(1, policy) };
    // Each is shown eight layers; the session may have twice 1024 events under way.
    let jobs: Vec<Job> = (1..=300).map(|request| job(RequestId(request))).collect();
    for job in &jobs {
        member.assign(job.assignment(0, 0, (&member.peer, 0))).await;
        finish(member, job.key(0, 0), &mut Answer::default()).await;
    }
    for job in &jobs {
        let Command::Decode(spec) = job.decode(1, 2) else { unreachable!() };
        member.send(Command::Decode(Box::new(DecodeSpec { shows: true, ..*spec }))).await;
    }
    let commands = &member.commands;
    let obeyed = || commands.is_closed() || commands.capacity() == commands.max_capacity();
    while !obeyed() {
        tokio::task::yield_now().await;
    }
    let (mut shown, mut ended) = (0, 0);
    while ended < jobs.len() {
        match member.event().await {
            Event::Seen(_) => shown += 1,
            Event::ChoiceDone { .. } => ended += 1,
            Event::Token(_) => {}
            other => panic!("while decoding: {other:?}"),
        }
    }
    assert!((1..jobs.len() * 2 * 8).contains(&shown), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refuses_what_it_cannot_do_by_name() {
    let mut members = cluster(&tiny(KvDtype::F32), 1, Carrier::Loopback).await;
    let (job, member) = (job(), &mut members[0]);
    member.send(job.decode(1, 4)).await;
    let event = member.event().await;
    assert!(matches!(event, Event::DecodeFailed { kind: FailureKind::Invalid, .. }));
    let mut bad = job.assignment(0, 0, (&member.peer, 0));
    bad.tokens[3] = 61;
    member.assign(bad).await;
    let Event::ChunkFailed { kind, message, .. } = member.event().await else { panic!() };
    assert_eq!(kind, FailureKind::Invalid);
    assert_eq!(message, "tokens[3] = 61: must be below vocab = 61");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_handle_stops_the_worker() {
    let hub = LoopbackHub::default();
    let Member { worker, peer, mut events, .. } =
        Member::start(tiny(KvDtype::F32), &hub, Carrier::Loopback).await;
    assert!(hub.has(&peer));
    assert_eq!(worker.stats(), Stats::default());
    drop(worker);
    assert!(!hub.has(&peer));
    assert!(matches!(events.recv().await, Some(Event::Snapshots(_))), "said after hello");
    while let Some(event) = events.recv().await {
        assert!(matches!(event, Event::Pool(_)), "and its pool: {event:?}");
    }
}
