//! What a prefix left goes on as another request, with the bits of one that computed it all.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aqueduct_core::snapshot::{Keep, Made, Restore, SnapshotNews};
use aqueduct_core::work::{Command, Event, FailureKind, NextHop, Outputs, RetainedMass};
use aqueduct_core::{Carry, Epoch, MemoryPolicy, RequestId, SnapshotKey, WireDtype};
use aqueduct_engine::Model;
use aqueduct_kernels::{KvDtype, Window};
use aqueduct_worker::{DiskOptions, LoopbackHub, SnapshotOptions, Worker, WorkerOptions};

use crate::mixed_model::mixed;
use crate::rig::{Answer, Carrier, Job, Member, cluster, decode, finish, finish_all};
use crate::shards::{How, assignment, in_turn};
use crate::tiny_model::tiny;
use crate::windowed_model::windowed;

const NAME: SnapshotKey = SnapshotKey([7; 32]);

fn masses() -> Vec<RetainedMass> {
    (0..8).map(|layer| RetainedMass { kept: f64::from(layer), total: 9.0 }).collect()
}

/// Runs the chunks of `job` from `first` on, chunk k on member (k + `shift`) mod N; what chunk
/// `kept` gives is kept.
async fn run_from(
    members: &mut [Member],
    job: &Job,
    (first, shift): (u32, usize),
    kept: Option<u32>,
) -> Answer {
    let count = members.len();
    let at = |chunk_idx: u32| (chunk_idx as usize + shift) % count;
    let grid = job.grid();
    let chunks = || grid.chunks().filter(|chunk| chunk.idx >= first);
    for chunk in chunks() {
        let next = (&members[at(chunk.idx + 1)].peer, 0);
        members[at(chunk.idx)].assign(job.assignment(chunk.idx, 0, next)).await;
    }
    let mut answer = Answer::default();
    for chunk in chunks() {
        finish(&mut members[at(chunk.idx)], job.key(chunk.idx, 0), &mut answer).await;
        if kept == Some(chunk.idx) {
            let (request, made, retained) = (job.request, Made::Chunk(chunk.idx), masses());
            let keep = Keep { request, made, snapshot: NAME, retained };
            members[at(chunk.idx)].send(Command::Keep(Box::new(keep))).await;
        }
    }
    decode(&mut members[at(job.grid().chunk_count() - 1)], job, 5, &mut answer).await;
    answer
}

/// Has `member` restore chunk `chunk_idx` for `next`.
async fn restore(member: &Member, job: &Job, chunk_idx: u32, next: &Member) {
    let next = Some(NextHop { peer: next.peer.clone(), epoch: Epoch(0), base: None });
    let restore = Restore { key: job.key(chunk_idx, 0), snapshot: NAME, next, wire: job.wire };
    member.send(Command::Restore(Box::new(restore))).await;
}

async fn check(policy: MemoryPolicy, kv: KvDtype, carrier: Carrier) {
    check_wire(policy, kv, carrier, WireDtype::F32).await;
}

async fn check_wire(policy: MemoryPolicy, kv: KvDtype, carrier: Carrier, wire: WireDtype) {
    check_of(&tiny(kv), policy, carrier, wire).await;
}

async fn check_of(model: &Arc<Model>, policy: MemoryPolicy, carrier: Carrier, wire: WireDtype) {
    for (count, kept, shift) in [(1, 2, 0), (2, 0, 0), (3, 4, 1), (4, 6, 2)] {
        let job = Job { wire, ..Job::new(59, policy) };
        let mut members = cluster(model, count, carrier).await;
        let whole = run_from(&mut members, &job, (0, 0), Some(kept)).await;
        let again = Job { request: RequestId(2), ..job.clone() };
        let holder = kept as usize % count;
        let next = &members[(kept as usize + 1 + shift) % count];
        restore(&members[holder], &again, kept, next).await;
        let mut restored = Answer::default();
        finish(&mut members[holder], again.key(kept, 0), &mut restored).await;
        let (_, bytes, keys, _) = whole.memory[kept as usize].clone();
        let retained = masses().iter().map(|mass| mass.kept.to_bits()).collect();
        assert_eq!(restored.memory, [(kept, bytes, keys, retained)], "as if it had been done");
        let rest = run_from(&mut members, &again, (kept + 1, shift), None).await;
        let from = 8 * (kept as usize + 1);
        let context = format!("{policy:?} {carrier:?} {count} workers from chunk {kept}");
        assert!(rest.logits == whole.logits[from..], "logits, {context}");
        assert!(rest.memory == whole.memory[kept as usize + 1..], "memory, {context}");
        assert!(rest.tokens == whole.tokens, "tokens, {context}");
        for member in &members {
            for request in [job.request, again.request] {
                member.send(Command::Cancel { request }).await;
            }
            member.settle_empty().await;
        }
        let held = members[holder].worker.snapshots();
        assert_eq!((held.count, held.memory_bytes), (1, bytes), "it outlives its requests");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefix_goes_on_with_the_same_bits() {
    for carrier in [Carrier::Loopback, Carrier::Grpc] {
        check(MemoryPolicy::h2o(2, 3, 3), KvDtype::Bf16, carrier).await;
        check(MemoryPolicy::window(2, 4), KvDtype::F32, carrier).await;
        check(MemoryPolicy::dense(), KvDtype::F32, carrier).await;
        let mut policy = MemoryPolicy::h2o(1, 2, 4);
        policy.scoring.decay = 0.95;
        policy.scoring.age_normalised = true;
        check(policy, KvDtype::F32, carrier).await;
        check_wire(policy, KvDtype::F32, carrier, WireDtype::F16).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefix_with_states_goes_on_with_the_same_bits() {
    for carrier in [Carrier::Loopback, Carrier::Grpc] {
        let model = mixed(KvDtype::F32);
        for policy in [MemoryPolicy::h2o(2, 3, 3), MemoryPolicy::dense()] {
            check_of(&model, policy, carrier, WireDtype::F32).await;
            check_of(&model, policy, carrier, WireDtype::F16).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_of_a_whole_prompt_is_kept_from_its_home() {
    let policy = MemoryPolicy::h2o(2, 3, 3);
    let mut members = cluster(&tiny(KvDtype::Bf16), 2, Carrier::Loopback).await;
    let beginning = Job::new(16, policy);
    run_from(&mut members, &beginning, (0, 0), Some(1)).await;
    let longer = Job { request: RequestId(2), ..Job::new(27, policy) };
    restore(&members[1], &longer, 1, &members[0]).await;
    finish(&mut members[1], longer.key(1, 0), &mut Answer::default()).await;
    let rest = run_from(&mut members, &longer, (2, 0), None).await;
    let whole = Job { request: RequestId(3), ..longer };
    let whole = run_from(&mut members, &whole, (0, 0), None).await;
    assert!(rest.logits == whole.logits[16..] && rest.tokens == whole.tokens);
}

/// What keys of chunk `idx` are called.
fn name_of_keys(idx: u32) -> SnapshotKey {
    SnapshotKey([idx as u8; 32])
}

/// Runs `job` under exact attention, chunk k on member k mod N; keys of the chunks `restored` are
/// there already, and those of all others are kept.
async fn run_exact(members: &mut [Member], job: &Job, restored: &[u32]) -> Answer {
    let (count, grid) = (members.len(), job.grid());
    let how = How::exact(in_turn, Carry::Queries);
    // A chunk that is computed may wait for one that is restored after it was assigned.
    for chunk in grid.chunks().filter(|chunk| !restored.contains(&chunk.idx)) {
        let work = assignment(job, (chunk.idx, 0), members, how);
        members[in_turn(chunk.idx as usize, count)].assign(work).await;
    }
    for &idx in restored {
        let (key, snapshot) = (job.key(idx, 0), name_of_keys(idx));
        let restore = Restore { key, snapshot, next: None, wire: job.wire };
        let holder = &members[in_turn(idx as usize, count)];
        holder.send(Command::Restore(Box::new(restore))).await;
    }
    let mut answer = Answer::default();
    for (idx, member) in members.iter_mut().enumerate() {
        let here = grid.chunks().filter(|chunk| in_turn(chunk.idx as usize, count) == idx);
        let here: Vec<u32> = here.map(|chunk| chunk.idx).collect();
        let keys = here.iter().map(|idx| job.key(*idx, 0)).collect();
        finish_all(member, keys, &mut answer).await;
        for &idx in here.iter().filter(|idx| !restored.contains(idx)) {
            let (request, made) = (job.request, Made::Chunk(idx));
            let (snapshot, retained) = (name_of_keys(idx), vec![RetainedMass::default(); 8]);
            let keep = Keep { request, made, snapshot, retained };
            member.send(Command::Keep(Box::new(keep))).await;
        }
    }
    answer.logits.sort();
    answer.memory.sort();
    decode(&mut members[job.home(count)], job, 5, &mut answer).await;
    for member in members {
        member.send(Command::Cancel { request: job.request }).await;
        member.settle_empty().await;
    }
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_any_chunks_come_back_with_the_same_bits() {
    for (count, carrier) in [(1, Carrier::Loopback), (2, Carrier::Grpc), (3, Carrier::Loopback)] {
        let windows = [Some(Window::Last(5)), Some(Window::Block(12)), Some(Window::Last(1))];
        for model in [
            tiny(KvDtype::Bf16),
            tiny(KvDtype::F32),
            windowed(&windows, KvDtype::Bf16),
            windowed(&[None, windows[0]], KvDtype::F32),
        ] {
            let job = Job::new(59, MemoryPolicy::dense());
            let mut members = cluster(&model, count, carrier).await;
            let whole = run_exact(&mut members, &job, &[]).await;
            let restored: [&[u32]; 3] = [&[0, 1, 2, 3, 4, 5, 6], &[3, 6], &[0, 1, 4]];
            for (request, restored) in (2..).map(RequestId).zip(restored) {
                let again = Job { request, ..job.clone() };
                let answer = run_exact(&mut members, &again, restored).await;
                let context = format!("{count} workers over {carrier:?}, {restored:?} restored");
                let is_computed = |position: u32| !restored.contains(&(position / 8));
                let want = whole.logits.iter().filter(|(position, _)| is_computed(*position));
                assert!(answer.logits.iter().eq(want), "logits, {context}");
                assert!(answer.memory == whole.memory, "memory, {context}");
                assert!(answer.tokens == whole.tokens, "tokens, {context}");
            }
            let held = members.iter().map(|member| member.worker.snapshots().count);
            assert_eq!(held.sum::<u64>(), 8, "they outlive their requests");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_is_not_there_is_a_lost_peer() {
    let mut members = cluster(&tiny(KvDtype::Bf16), 1, Carrier::Loopback).await;
    let job = Job { outputs: Outputs::None, ..Job::new(20, MemoryPolicy::h2o(2, 3, 3)) };
    restore(&members[0], &job, 1, &members[0]).await;
    assert_eq!(members[0].failure().await, (job.key(1, 0), FailureKind::Peer));
    let (request, made, retained) = (job.request, Made::Chunk(0), Vec::new());
    let keep = Keep { request, made, snapshot: NAME, retained };
    members[0].send(Command::Keep(Box::new(keep))).await;
    let news = news_of(&mut members[0]).await;
    assert_eq!((news.kept, news.dropped), (vec![], vec![NAME]), "nothing was there to keep");
    members[0].send(Command::Cancel { request }).await;
    members[0].settle_empty().await;
}

/// What `member` says next of its snapshots.
async fn news_of(member: &mut Member) -> SnapshotNews {
    loop {
        if let Event::Snapshots(news) = member.any_event().await
            && !(news.kept.is_empty() && news.dropped.is_empty())
        {
            return *news;
        }
    }
}

/// A worker with the snapshots in `folder`.
async fn keeper(folder: &Path) -> Member {
    keeper_of(tiny(KvDtype::Bf16), folder).await
}

async fn keeper_of(model: Arc<Model>, folder: &Path) -> Member {
    let disk = Some(DiskOptions { path: folder.to_owned(), bytes: 1 << 20 });
    let options = WorkerOptions::new("local://keeper", LoopbackHub::default());
    let options = WorkerOptions { snapshots: SnapshotOptions { bytes: 1 << 20, disk }, ..options };
    Member::join(Worker::start(model, options).unwrap()).await
}

fn job(request: u64) -> Job {
    Job { request: RequestId(request), ..Job::new(43, MemoryPolicy::h2o(2, 3, 3)) }
}

/// A folder in which what chunk 2 of the job gave has been kept, its file, and the answer.
async fn kept_on_disk() -> (tempfile::TempDir, PathBuf, Answer) {
    kept_on_disk_of(tiny(KvDtype::Bf16)).await
}

async fn kept_on_disk_of(model: Arc<Model>) -> (tempfile::TempDir, PathBuf, Answer) {
    let folder = tempfile::tempdir().unwrap();
    let mut members = [keeper_of(model, folder.path()).await];
    let whole = run_from(&mut members, &job(1), (0, 0), Some(2)).await;
    while members[0].worker.snapshots().disk_bytes == 0 {
        tokio::task::yield_now().await;
    }
    let file = folder.path().join(format!("{NAME}.snapshot"));
    assert_eq!(fs::metadata(&file).unwrap().len(), members[0].worker.snapshots().disk_bytes);
    (folder, file, whole)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_goes_on_from_disk_with_the_same_bits() {
    let (folder, file, whole) = kept_on_disk().await;
    let foreign = folder.path().join("notes.txt");
    fs::write(&foreign, "not ours").unwrap();
    fs::write(folder.path().join(format!("{NAME}.snapshot-part")), "half").unwrap();
    let mut members = [keeper(folder.path()).await];
    assert_eq!(news_of(&mut members[0]).await.kept, [NAME]);
    let again = job(2);
    restore(&members[0], &again, 2, &members[0]).await;
    let mut restored = Answer::default();
    finish(&mut members[0], again.key(2, 0), &mut restored).await;
    assert_eq!(restored.memory[0].1, whole.memory[2].1, "bytes");
    let rest = run_from(&mut members, &again, (3, 0), None).await;
    assert!(rest.logits == whole.logits[24..] && rest.tokens == whole.tokens);
    assert!(rest.memory == whole.memory[3..]);
    assert_eq!(members[0].worker.snapshots().memory_bytes, restored.memory[0].1);
    let mut files: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    let mut want = [file, foreign];
    want.sort();
    assert_eq!(files, want, "what is half written goes, what is not ours stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_come_back_from_disk_with_the_same_bits() {
    let model = mixed(KvDtype::Bf16);
    let (folder, _, whole) = kept_on_disk_of(model.clone()).await;
    let mut members = [keeper_of(model, folder.path()).await];
    assert_eq!(news_of(&mut members[0]).await.kept, [NAME]);
    let again = job(2);
    restore(&members[0], &again, 2, &members[0]).await;
    finish(&mut members[0], again.key(2, 0), &mut Answer::default()).await;
    let rest = run_from(&mut members, &again, (3, 0), None).await;
    assert!(rest.logits == whole.logits[24..] && rest.tokens == whole.tokens);
    assert!(rest.memory == whole.memory[3..]);
}

/// Layers of a chunk need not keep as many keys, or any.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_in_sight_come_back_from_disk_with_the_same_bits() {
    let windows = [None, Some(Window::Last(5)), Some(Window::Block(16)), Some(Window::Last(1))];
    let model = windowed(&windows, KvDtype::Bf16);
    let folder = tempfile::tempdir().unwrap();
    let job = Job::new(59, MemoryPolicy::dense());
    let mut members = [keeper_of(model.clone(), folder.path()).await];
    let whole = run_exact(&mut members, &job, &[]).await;
    let is_whole = |file: &fs::DirEntry| file.path().extension().is_some_and(|it| it == "snapshot");
    let on_disk =
        || fs::read_dir(folder.path()).unwrap().filter(|it| is_whole(it.as_ref().unwrap()));
    while on_disk().count() < 8 {
        tokio::task::yield_now().await;
    }
    drop(members);
    let mut members = [keeper_of(model, folder.path()).await];
    assert_eq!(news_of(&mut members[0]).await.kept.len(), 8);
    let again = Job { request: RequestId(2), ..job };
    let restored = run_exact(&mut members, &again, &[0, 1, 2, 3, 4, 5, 6]).await;
    assert!(restored.tokens == whole.tokens && restored.memory == whole.memory);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_cannot_be_read_now_is_there_when_it_can() {
    let (folder, file, _) = kept_on_disk().await;
    let mut member = keeper(folder.path()).await;
    assert_eq!(news_of(&mut member).await.kept, [NAME]);
    // Whoever reads a folder is refused by the system, and nothing is wrong with the file.
    let aside = folder.path().join("aside");
    fs::rename(&file, &aside).unwrap();
    fs::create_dir(&file).unwrap();
    for request in [2, 3] {
        restore(&member, &job(request), 2, &member).await;
        let late = (job(request).key(2, 0), FailureKind::Deadline);
        assert_eq!(member.failure().await, late, "there is an answer each time");
    }
    let held = member.worker.snapshots();
    assert_eq!((held.count, held.disk_bytes), (1, fs::metadata(&aside).unwrap().len()));
    fs::remove_dir(&file).unwrap();
    fs::rename(&aside, &file).unwrap();
    restore(&member, &job(4), 2, &member).await;
    finish(&mut member, job(4).key(2, 0), &mut Answer::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_file_is_never_used() {
    let (folder, file, _) = kept_on_disk().await;
    let mut bytes = fs::read(&file).unwrap();
    bytes[500] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let mut member = keeper(folder.path()).await;
    assert_eq!(news_of(&mut member).await.kept, [NAME], "its beginning is right");
    restore(&member, &job(2), 2, &member).await;
    assert_eq!(member.failure().await, (job(2).key(2, 0), FailureKind::Peer));
    assert!(!file.exists());
    let held = member.worker.snapshots();
    assert_eq!((held.count, held.disk_bytes), (0, 0));
    member.send(Command::Cancel { request: RequestId(2) }).await;
    member.settle_empty().await;
    drop(member);
    bytes.truncate(600);
    fs::write(&file, &bytes).unwrap();
    let member = keeper(folder.path()).await;
    assert!(!file.exists(), "found when the folder is opened");
    assert_eq!(member.worker.snapshots().count, 0);
}
