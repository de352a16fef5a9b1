//! Requests whose keys stay in shards: the same bits from one worker and from many, whatever
//! travels, and nothing left behind.

use std::sync::Arc;

use aqueduct_core::exchange::merge_error_bound;
use aqueduct_core::work::{Assignment, Command, Event, FailureKind};
use aqueduct_core::{Carry, Directory, Epoch, MemoryPolicy, WindowedLayers, WireDtype};
use aqueduct_engine::Model;
use aqueduct_kernels::{KvDtype, Window};
use aqueduct_worker::link::codec;
use aqueduct_worker::{LoopbackHub, Worker, WorkerOptions};

use crate::rig::{Answer, Carrier, Job, Member, cluster, decode, finish, in_process};
use crate::tiny_model::tiny;
use crate::wide_model::wide;
use crate::windowed_model::windowed;

/// Where chunks go.
type Place = fn(usize, usize) -> usize;

/// Where chunks go, what travels, and in what form.
#[derive(Clone, Copy)]
pub(crate) struct How {
    place: Place,
    carry: Carry,
    wire: WireDtype,
}

impl How {
    pub(crate) fn exact(place: Place, carry: Carry) -> Self {
        Self { place, carry, wire: WireDtype::F32 }
    }
}

pub(crate) fn in_turn(idx: usize, count: usize) -> usize {
    idx % count
}

fn anyhow(idx: usize, count: usize) -> usize {
    (idx * idx * 7 + idx / 3 + 1) % count
}

/// The assignment of chunk `idx` in `epoch`, whose past is at `members` as `place` says.
pub(crate) fn assignment(
    job: &Job,
    (idx, epoch): (u32, u32),
    members: &[Member],
    How { place, carry, wire }: How,
) -> Assignment {
    let at = |chunk: u32| place(chunk as usize, members.len()) as u32;
    let peer = &members[at(idx) as usize].peer;
    let directory = Directory {
        holders: members.iter().map(|member| member.peer.clone()).collect(),
        shards: (0..idx).map(|chunk| (at(chunk), Epoch(epoch))).collect(),
        carry,
        wire,
    };
    let shards = Some(Box::new(directory));
    Assignment { next: None, shards, ..job.assignment(idx, epoch, (peer, 0)) }
}

/// Runs `job` up to its last chunk.
async fn prefill(members: &mut [Member], job: &Job, how: How) -> Answer {
    let mut answer = Answer::default();
    for chunk in job.grid().chunks() {
        let at = (how.place)(chunk.idx as usize, members.len());
        members[at].assign(assignment(job, (chunk.idx, 0), members, how)).await;
    }
    for chunk in job.grid().chunks() {
        let at = (how.place)(chunk.idx as usize, members.len());
        finish(&mut members[at], job.key(chunk.idx, 0), &mut answer).await;
    }
    answer
}

/// Ends `job`; nothing of it is left anywhere.
async fn forget(members: &[Member], job: &Job) {
    for member in members {
        member.send(Command::Cancel { request: job.request }).await;
        member.settle_empty().await;
    }
}

/// Runs `job`, decodes two completions and forgets everything.
async fn answer(at: (usize, Carrier), job: &Job, how: How, kv: KvDtype) -> Answer {
    answer_of(&tiny(kv), at, job, how).await
}

async fn answer_of(
    model: &Arc<Model>,
    (count, carrier): (usize, Carrier),
    job: &Job,
    how: How,
) -> Answer {
    let mut members = cluster(model, count, carrier).await;
    let mut answer = prefill(&mut members, job, how).await;
    if !job.policy.keeps_all() {
        let held: u64 = members.iter().map(|member| member.stats().shard_bytes).sum();
        assert_eq!(answer.memory.last().map(|last| last.1), Some(held), "told as held");
    }
    let home = (how.place)(job.grid().chunk_count() as usize - 1, count);
    decode(&mut members[home], job, 11, &mut answer).await;
    let audits: Vec<_> = members.iter().flat_map(|member| member.worker.merge_audits()).collect();
    assert_eq!(audits.is_empty(), job.grid().chunk_count() == 1);
    let bound = merge_error_bound(codec::to_core(model.kv()), how.wire);
    assert!(audits.iter().all(|audit| audit.is_within(bound)), "{audits:?}");
    forget(&members, job).await;
    answer
}

async fn check(job: Job, kv: KvDtype) {
    check_of(&tiny(kv), job).await;
}

async fn check_of(model: &Arc<Model>, job: Job) {
    let queries = How::exact(in_turn, Carry::Queries);
    let want = answer_of(model, (1, Carrier::Loopback), &job, queries).await;
    assert_eq!(want.logits.len(), job.prompt.len());
    assert_eq!(want.tokens.len(), 22);
    let carries: &[Carry] = match job.policy.keeps_all() {
        true => &[Carry::Queries, Carry::Keys, Carry::Fewest],
        false => &[Carry::Queries],
    };
    for &carry in carries {
        for (count, place) in [(2, in_turn as Place), (3, in_turn), (4, anyhow), (8, in_turn)] {
            for carrier in [Carrier::Loopback, Carrier::Grpc] {
                let how = How::exact(place, carry);
                let seen = answer_of(model, (count, carrier), &job, how).await;
                let what = format!("{count} workers over {carrier:?}, {carry:?}, {:?}", job.policy);
                assert!(seen == want, "{what}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dense() {
    for n in [1, 8, 9, 59] {
        check(Job::new(n, MemoryPolicy::dense()), KvDtype::Bf16).await;
    }
    check(Job::new(43, MemoryPolicy::dense()), KvDtype::F32).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scored() {
    for n in [1, 8, 9, 59] {
        check(Job::new(n, MemoryPolicy::h2o(2, 3, 3)), KvDtype::Bf16).await;
    }
    check(Job::new(43, MemoryPolicy::window(2, 4)), KvDtype::F32).await;
}

/// Some layers have wider heads than others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_of_another_shape() {
    check_of(&wide(KvDtype::Bf16), Job::new(59, MemoryPolicy::dense())).await;
    check_of(&wide(KvDtype::F32), Job::new(43, MemoryPolicy::h2o(2, 3, 3))).await;
}

/// Rows of some layers see the last few keys, a block, or nothing before themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_of_every_kind() {
    let all = [Some(Window::Last(11)), Some(Window::Block(20)), None, Some(Window::Last(1))];
    check_of(&windowed(&all, KvDtype::Bf16), Job::new(59, MemoryPolicy::dense())).await;
    check_of(&windowed(&all, KvDtype::F32), Job::new(43, MemoryPolicy::h2o(2, 3, 3))).await;
}

/// Whoever has nothing that a block sees is not asked about it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_asked_about_what_is_out_of_sight() {
    let job = Job::new(59, MemoryPolicy::dense());
    let (chunks, layers) = (8, 8_u32);
    // How many of the holders of earlier chunks a chunk asks in one layer.
    let check = async |window: Option<Window>, asked: fn(u32) -> u32| {
        let model = windowed(&[window], KvDtype::Bf16);
        for carry in [Carry::Queries, Carry::Keys] {
            let mut members = cluster(&model, 4, Carrier::Grpc).await;
            prefill(&mut members, &job, How::exact(in_turn, carry)).await;
            let traffic = members.iter().fold((0, 0), |(asked, fetched), member| {
                (asked + member.traffic.asked, fetched + member.traffic.fetched)
            });
            let all = (0..chunks).map(asked).sum::<u32>() * layers;
            let want = if carry == Carry::Queries { (all, 0) } else { (0, all) };
            assert_eq!(traffic, want, "{window:?} {carry:?}");
            forget(&members, &job).await;
        }
    };
    check(None, |chunk| chunk.min(3)).await;
    check(Some(Window::Last(1000)), |chunk| chunk.min(3)).await;
    check(Some(Window::Last(9)), |chunk| chunk.min(1)).await; // keys of the chunk before
    check(Some(Window::Last(10)), |chunk| chunk.min(2)).await; // and one before these
    check(Some(Window::Last(1)), |_| 0).await;
    check(Some(Window::Block(16)), |chunk| chunk % 2).await;
}

/// Of a layer with a window a chunk keeps the keys that rows behind it see, in as many pages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chunk_keeps_what_rows_behind_it_see() {
    let job = Job { chunk_tokens: 64, ..Job::new(4 * 64, MemoryPolicy::dense()) };
    let model = windowed(&[None, Some(Window::Last(17))], KvDtype::Bf16);
    assert_eq!(model.shape().windowed, WindowedLayers { layers: 4, tokens: 16 });
    let how = How::exact(in_turn, Carry::Queries);
    let want = answer_of(&model, (2, Carrier::Loopback), &job, how).await;
    // Four chunks, half of whose layers keep 64 keys and the others 16; each of two completions
    // has a page besides.
    let all = 4 * (64 + 16) / 2;
    for (pool_tokens, fits) in [(all + 2 * 16, true), (all - 1, false)] {
        let pool_bytes = pool_tokens * model.token_bytes();
        let options = WorkerOptions { pool_bytes, ..in_process(&model, &LoopbackHub::default()) };
        let mut members = [Member::join(Worker::start(model.clone(), options).unwrap()).await];
        if fits {
            let mut seen = prefill(&mut members, &job, how).await;
            let of_key = model.token_bytes() + 8 * 2 * (4 + 4 + 4); // scores, votes, positions
            assert_eq!(members[0].stats().shard_bytes, all * of_key);
            decode(&mut members[0], &job, 3, &mut seen).await;
            let prefilled = seen.logits.iter().zip(&want.logits);
            assert!(prefilled.into_iter().all(|(seen, want)| seen == want));
            assert_eq!(seen.memory, want.memory);
        } else {
            for chunk in job.grid().chunks() {
                members[0].assign(assignment(&job, (chunk.idx, 0), &members, how)).await;
            }
            let (failed, kind) = members[0].failure().await;
            assert_eq!((failed.chunk_idx, kind), (3, FailureKind::Exhausted));
        }
        forget(&members, &job).await;
    }
}

/// A holder dies: who needs its shards says so, and the request done again gives the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_holder_fails_those_that_need_it() {
    for policy in [MemoryPolicy::dense(), MemoryPolicy::h2o(2, 3, 3)] {
        let (job, how) = (Job::new(59, policy), How::exact(in_turn, Carry::Queries));
        let want = answer((1, Carrier::Loopback), &job, how, KvDtype::Bf16).await;
        let mut members = cluster(&tiny(KvDtype::Bf16), 3, Carrier::Loopback).await;
        // Chunk 2 never runs: its worker dies first.
        for idx in [0, 1, 3, 4] {
            members[idx as usize % 3].assign(assignment(&job, (idx, 0), &members, how)).await;
        }
        drop(members.remove(2));
        let (failed, kind) = members[0].failure().await;
        assert_eq!((failed.chunk_idx, kind), (3, FailureKind::Peer));
        let mut again = Answer::default();
        for chunk in job.grid().chunks() {
            let work = assignment(&job, (chunk.idx, 1), &members, how);
            members[chunk.idx as usize % 2].assign(work).await;
        }
        for chunk in job.grid().chunks() {
            let at = chunk.idx as usize % 2;
            finish(&mut members[at], job.key(chunk.idx, 1), &mut again).await;
        }
        let home = (job.grid().chunk_count() as usize - 1) % 2;
        decode(&mut members[home], &job, 11, &mut again).await;
        assert_eq!(again.tokens, want.tokens, "{policy:?}");
        for (position, bits) in &want.logits {
            let last = again.logits.iter().rfind(|(at, _)| at == position);
            assert_eq!(last.map(|(_, bits)| bits), Some(bits), "{policy:?} {position}");
        }
        forget(&members, &job).await;
    }
}

/// A chunk is made again elsewhere while its request lives on: its shard alone is dropped, and
/// what is made of the others and of the new one is the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_is_made_again_elsewhere_is_dropped_alone() {
    let job = Job::new(32, MemoryPolicy::dense());
    let in_turn = How::exact(in_turn, Carry::Queries);
    let moved = How::exact(|idx, count| if idx == 1 { 0 } else { idx % count }, Carry::Queries);
    let want = answer((1, Carrier::Loopback), &job, in_turn, KvDtype::Bf16).await;
    let mut members = cluster(&tiny(KvDtype::Bf16), 2, Carrier::Loopback).await;
    let mut seen = Answer::default();
    for idx in 0..4 {
        let work = assignment(&job, (idx, 0), &members, in_turn);
        members[idx as usize % 2].assign(work).await;
    }
    for idx in 0..4 {
        finish(&mut members[idx as usize % 2], job.key(idx, 0), &mut seen).await;
    }
    let both = members[1].stats().shard_bytes;
    members[1].send(Command::Drop { request: job.request, chunk_idx: 1 }).await;
    members[1].settle(|stats| stats.shard_bytes == both / 2).await;
    let mut seen = Answer::default();
    for (idx, at) in [(1, 0), (3, 1)] {
        let mut work = assignment(&job, (idx, 1), &members, moved);
        for (chunk, (_, epoch)) in (0..).zip(&mut work.shards.as_mut().unwrap().shards) {
            *epoch = Epoch(u32::from(chunk == 1));
        }
        members[at].assign(work).await;
        finish(&mut members[at], job.key(idx, 1), &mut seen).await;
    }
    assert_eq!(members[1].stats().shard_bytes, both / 2);
    decode(&mut members[1], &job, 11, &mut seen).await;
    assert_eq!(seen.tokens, want.tokens);
    assert!(seen.logits.iter().all(|row| want.logits.contains(row)));
    forget(&members, &job).await;
}

/// Logits over shards are those of a memory set that travels: every bit, where keys are given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_a_set_that_travels() {
    let policies = [MemoryPolicy::dense(), MemoryPolicy::h2o(2, 3, 3), MemoryPolicy::window(1, 5)];
    for (policy, kv) in
        policies.iter().flat_map(|policy| [KvDtype::F32, KvDtype::Bf16].map(|kv| (*policy, kv)))
    {
        let job = Job::new(83, policy);
        let mut members = cluster(&tiny(kv), 2, Carrier::Loopback).await;
        let moved = crate::rig::run(&mut members, &job, 11).await;
        for count in [1, 3, 4, 8] {
            let how = How::exact(in_turn, Carry::Queries);
            let stayed = answer((count, Carrier::Loopback), &job, how, kv).await;
            let what = format!("{count} workers, {kv:?}, {policy:?}");
            if !policy.keeps_all() {
                assert!(
                    (&stayed.logits, &stayed.tokens) == (&moved.logits, &moved.tokens),
                    "{what}"
                );
            } else if kv == KvDtype::F32 {
                // The job by itself has one set of all keys, which no request has.
                let apart = stayed.difference(&moved);
                assert!(apart <= 1e-5, "{apart}, {what}");
            }
        }
    }
}

/// Before it decodes a home takes the shards of leaves that lie with several workers, if they have
/// room in what its own chunks were given. Then no step changes anything elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn torn_leaves_come_home_if_there_is_room() {
    let job = Job { chunk_tokens: 256, ..Job::new(6 * 256 + 5, MemoryPolicy::h2o(2, 3, 3)) };
    let (kv, how) = (KvDtype::Bf16, How::exact(in_turn, Carry::Queries));
    let want = answer((1, Carrier::Loopback), &job, how, kv).await;
    // Eight keys in seven shards: 8 + 7 * 15 cells of whole pages, three times, for the prompt
    // and two completions, are 339. Two chunks and the last were given 528, the last alone 16.
    for (count, come) in [(3, true), (8, false)] {
        let mut members = cluster(&tiny(kv), count, Carrier::Grpc).await;
        let mut seen = prefill(&mut members, &job, how).await;
        let home = job.home(count);
        let elsewhere = |members: &[Member]| -> Vec<u64> {
            let others = members.iter().enumerate().filter(|(idx, _)| *idx != home);
            others.map(|(_, member)| member.stats().shard_bytes).collect()
        };
        let before = elsewhere(&members);
        decode(&mut members[home], &job, 11, &mut seen).await;
        assert_eq!(elsewhere(&members) == before, come, "{count} workers");
        assert_eq!(seen.tokens, want.tokens, "{count} workers");
        forget(&members, &job).await;
    }
}

/// Each completion gives up keys in copies of the prompt's shards. Where the pool has no room for
/// them, this is what is said: no peer was lost, so nothing is done again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_that_have_no_room_are_said_to_have_none() {
    // All of the prompt is kept, and each token that is generated takes the place of one of it.
    let job = Job { chunk_tokens: 16, ..Job::new(64, MemoryPolicy::window(49, 15)) };
    let (model, how) = (tiny(KvDtype::Bf16), How::exact(in_turn, Carry::Queries));
    // The prompt alone; and three times that, with a page for what each of two completions adds.
    for (pool_tokens, fits) in [(64, false), (3 * 64 + 2 * 16, true)] {
        let pool_bytes = pool_tokens * model.token_bytes();
        let options = WorkerOptions { pool_bytes, ..in_process(&model, &LoopbackHub::default()) };
        let mut members = [Member::join(Worker::start(model.clone(), options).unwrap()).await];
        let mut seen = prefill(&mut members, &job, how).await;
        if fits {
            decode(&mut members[0], &job, 3, &mut seen).await;
            assert_eq!(seen.tokens.len(), 6);
        } else {
            members[0].send(job.decode(2, 3)).await;
            let is_failure = |event: &Event| matches!(event, Event::DecodeFailed { .. });
            let failed = members[0].event_where(is_failure).await;
            let Event::DecodeFailed { kind, message, .. } = failed else { unreachable!() };
            assert_eq!(kind, FailureKind::Exhausted, "{message}");
        }
        forget(&members, &job).await;
    }
}

/// Where keys travel, all come to the home before it decodes; but if its pool has no room for
/// them, or none that is kept for them, queries go to them, and what came goes again. It goes,
/// too, when the last chunk does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_have_no_room_at_home_stay() {
    let mut job = Job { chunk_tokens: 64, ..Job::new(250, MemoryPolicy::dense()) };
    let (model, queries) = (tiny(KvDtype::Bf16), How::exact(in_turn, Carry::Queries));
    let want = answer((1, Carrier::Loopback), &job, queries, KvDtype::Bf16).await;
    for (pool_tokens, gathers, come) in [(128, true, false), (512, true, true), (512, false, false)]
    {
        job.gathers = gathers;
        let hub = LoopbackHub::default();
        let mut members = Vec::new();
        for _ in 0..4 {
            let pool_bytes = pool_tokens * model.token_bytes();
            let options = WorkerOptions { pool_bytes, ..in_process(&model, &hub) };
            members.push(Member::join(Worker::start(model.clone(), options).unwrap()).await);
        }
        let how = How::exact(in_turn, Carry::Keys);
        let mut seen = prefill(&mut members, &job, how).await;
        let prompt: u64 = members.iter().map(|member| member.stats().shard_bytes).sum();
        decode(&mut members[3], &job, 11, &mut seen).await;
        let held = members[3].stats().shard_bytes;
        assert_eq!(held > prompt, come, "{held} of {prompt}, {pool_tokens}");
        assert!(come || held < prompt / 2, "{held} of {prompt}");
        assert_eq!(seen.tokens, want.tokens, "{pool_tokens}");
        members[3].send(Command::Drop { request: job.request, chunk_idx: 3 }).await;
        members[3].settle(|stats| stats.shard_bytes == 0).await;
        forget(&members, &job).await;
    }
}

/// Two bytes an element on the wire: close to four, and not the same, or nothing was rounded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rounded_on_the_wire() {
    for (wire, bound) in [(WireDtype::Bf16, 2e-2), (WireDtype::F16, 3e-3)] {
        let job = Job::new(59, MemoryPolicy::dense());
        let exact = How::exact(in_turn, Carry::Queries);
        let want = answer((3, Carrier::Grpc), &job, exact, KvDtype::F32).await;
        let seen = answer((3, Carrier::Grpc), &job, How { wire, ..exact }, KvDtype::F32).await;
        let apart = seen.difference(&want);
        assert!(apart > 0.0 && apart <= bound, "{apart}, {wire}");
    }
}
