//! What a prefix left goes on as another request, with the bits of one that computed it all.

use std::fs;
use std::path::{Path, PathBuf};

use aqueduct_core::snapshot::{Keep, Made, Restore, SnapshotNews};
use aqueduct_core::work::{Command, Event, FailureKind, NextHop, Outputs, RetainedMass};
use aqueduct_core::{Epoch, MemoryPolicy, RequestId, SnapshotKey, WireDtype};
use aqueduct_kernels::KvDtype;
use aqueduct_worker::{DiskOptions, LoopbackHub, SnapshotOptions, Worker, WorkerOptions};

use crate::rig::{Answer, Carrier, Job, Member, cluster, decode, finish};
use crate::tiny_model::tiny;

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
    let next = NextHop { peer: next.peer.clone(), epoch: Epoch(0), base: None };
    let restore = Restore { key: job.key(chunk_idx, 0), snapshot: NAME, next, wire: job.wire };
    member.send(Command::Restore(Box::new(restore))).await;
}

async fn check(policy: MemoryPolicy, kv: KvDtype, carrier: Carrier) {
    check_wire(policy, kv, carrier, WireDtype::F32).await;
}

async fn check_wire(policy: MemoryPolicy, kv: KvDtype, carrier: Carrier, wire: WireDtype) {
    for (count, kept, shift) in [(1, 2, 0), (2, 0, 0), (3, 4, 1), (4, 6, 2)] {
        let job = Job { wire, ..Job::new(59, policy) };
        let mut members = cluster(&tiny(kv), count, carrier).await;
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
    let disk = Some(DiskOptions { path: folder.to_owned(), bytes: 1 << 20 });
    let options = WorkerOptions::new("local://keeper", LoopbackHub::default());
    let options = WorkerOptions { snapshots: SnapshotOptions { bytes: 1 << 20, disk }, ..options };
    Member::join(Worker::start(tiny(KvDtype::Bf16), options).unwrap()).await
}

fn job(request: u64) -> Job {
    Job { request: RequestId(request), ..Job::new(43, MemoryPolicy::h2o(2, 3, 3)) }
}

/// A folder in which what chunk 2 of the job gave has been kept, its file, and the answer.
async fn kept_on_disk() -> (tempfile::TempDir, PathBuf, Answer) {
    let folder = tempfile::tempdir().unwrap();
    let mut members = [keeper(folder.path()).await];
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
