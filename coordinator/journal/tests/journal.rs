//! Journals at work, alone and in a group, over channels in the place of a network.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use aqueduct_core::RequestId;
use aqueduct_core::journal::{Accepted, Batch, Drawn, Outcome, Record, RecordKind};
use aqueduct_core::work::TokenLogprob;
use aqueduct_journal::{
    AppendError, Bounds, Ear, Identity, Journal, Message, MessageType, Misfit, Options, Standing,
    State, Transport, Unable,
};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(30);

fn accepted() -> RecordKind {
    let accepted = Accepted { choices: 2, max_tokens: 8, ..Accepted::of("m", vec![1, 2, 3]) };
    RecordKind::Accepted(Box::new(accepted))
}

fn tokens(first_idx: u32, tokens: &[u32]) -> RecordKind {
    let drawn = |token: &u32| {
        let token = TokenLogprob { token: *token, logprob: -1.0 };
        Drawn { token, top: Vec::new() }
    };
    let tokens = tokens.iter().map(drawn).collect();
    RecordKind::Tokens(Batch { choice: 1, first_idx, tokens })
}

fn record(request: u64, kind: RecordKind) -> Record {
    Record { request: RequestId(request), at_ms: 1, kind }
}

/// Once it leads.
async fn leading(journal: &Journal) {
    let mut standing = journal.standing();
    let leads = standing.wait_for(|standing| matches!(standing, Standing::Leads { .. }));
    tokio::time::timeout(PATIENCE, leads).await.expect("nobody leads").unwrap();
}

async fn alone(folder: &Path) -> Journal {
    let journal = Journal::open(folder, Options::alone(), ()).unwrap();
    leading(&journal).await;
    journal
}

/// Tokens of the second completion.
async fn read_tokens(journal: &Journal, request: u64) -> Option<Vec<u32>> {
    let read = journal.read(move |state| {
        let kept = state.get(RequestId(request))?;
        Some(kept.choices[1].tokens.iter().map(|drawn| drawn.token.token).collect())
    });
    read.await.unwrap()
}

/// The file is free when the task that had it open has ended.
async fn ended(journal: Journal) {
    let mut standing = journal.standing();
    drop(journal);
    let closed = async { while standing.changed().await.is_ok() {} };
    tokio::time::timeout(PATIENCE, closed).await.expect("it goes on");
}

#[tokio::test]
async fn a_coordinator_that_is_alone_finds_again_what_it_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let journal = alone(folder.path()).await;
    journal.append(record(7, accepted())).await.unwrap();
    journal.append(record(7, tokens(0, &[4, 5]))).await.unwrap();
    ended(journal).await;
    let journal = alone(folder.path()).await;
    assert_eq!(read_tokens(&journal, 7).await, Some(vec![4, 5]));
    journal.append(record(7, tokens(1, &[5, 6]))).await.unwrap();
    assert_eq!(read_tokens(&journal, 7).await, Some(vec![4, 5, 6]));
    let other = journal.append(record(7, tokens(2, &[9]))).await;
    assert_eq!(other, Err(AppendError::Misfit(Misfit::Different)));
    journal.append(record(7, RecordKind::Ended(Outcome::Finished))).await.unwrap();
    let late = journal.append(record(7, tokens(3, &[9]))).await;
    assert_eq!(late, Err(AppendError::Misfit(Misfit::Over)));
}

#[tokio::test]
async fn time_goes_on_where_it_was_over_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let journal = alone(folder.path()).await;
    assert_eq!(journal.clock_ms().await, Ok(None));
    journal.append(Record { at_ms: 1_000, ..record(7, accepted()) }).await.unwrap();
    let soon = |now_ms: Option<u64>| now_ms.is_some_and(|now_ms| (1_000..60_000).contains(&now_ms));
    assert!(soon(journal.clock_ms().await.unwrap()));
    ended(journal).await;
    let journal = alone(folder.path()).await;
    let now_ms = journal.clock_ms().await.unwrap();
    assert!(soon(now_ms), "{now_ms:?}");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(journal.clock_ms().await.unwrap() > now_ms, "it stands still");
}

/// Whoever writes has much to write when its disk was slow.
#[tokio::test]
async fn many_records_at_once_are_added_in_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let journal = alone(folder.path()).await;
    let of = |request: u64| {
        let ends = (0..2).map(|choice| RecordKind::ChoiceEnded { choice, eos: true });
        let kinds = [accepted(), tokens(0, &[1, 2])].into_iter().chain(ends);
        let kinds = kinds.chain([RecordKind::Ended(Outcome::Finished)]);
        kinds.map(move |kind| record(request, kind)).collect::<Vec<_>>()
    };
    let results = journal.append_in(None, (1..=200).flat_map(of).collect()).await;
    let wrong: Vec<_> = results.iter().enumerate().filter(|(_, result)| result.is_err()).collect();
    assert!(results.len() == 1000 && wrong.is_empty(), "{wrong:?}");
    assert_eq!(read_tokens(&journal, 200).await, Some(vec![1, 2]));
}

/// It would end every journal that reads it, its own first.
#[tokio::test]
async fn a_record_that_nobody_could_read_is_not_added() {
    let folder = tempfile::tempdir().unwrap();
    let journal = alone(folder.path()).await;
    let drained =
        |bytes: usize| record(0, RecordKind::Drained { worker: "w".repeat(bytes), draining: true });
    let results = journal.append_in(None, vec![drained(300), drained(20)]).await;
    assert_eq!(results, [Err(AppendError::Unable(Unable::Unreadable)), Ok(())]);
    ended(journal).await;
    let journal = alone(folder.path()).await;
    assert_eq!(journal.read(|state| state.drained().count()).await, Ok(1));
}

#[tokio::test]
async fn what_is_kept_outlives_many_compactions() {
    let folder = tempfile::tempdir().unwrap();
    let bounds = Bounds { log_entries: 8, log_bytes: 1, ended: 3, ..Bounds::default() };
    let open = || Journal::open(folder.path(), Options { bounds, ..Options::alone() }, ()).unwrap();
    let journal = open();
    leading(&journal).await;
    for request in 1..=20 {
        journal.append(record(request, accepted())).await.unwrap();
        journal.append(record(request, tokens(0, &[request as u32]))).await.unwrap();
        if request != 5 {
            let end = RecordKind::Ended(Outcome::Cancelled);
            journal.append(record(request, end)).await.unwrap();
        }
    }
    ended(journal).await;
    let journal = open();
    leading(&journal).await;
    let is_kept = |state: &State, request: &u64| state.get(RequestId(*request)).is_some();
    let kept = journal
        .read(move |state| (1..=20).filter(|request| is_kept(state, request)).collect::<Vec<_>>());
    assert_eq!(kept.await.unwrap(), vec![5, 18, 19, 20]);
    assert_eq!(read_tokens(&journal, 5).await, Some(vec![5]));
}

/// Keeps whoever writes waiting, as a disk does that hangs; not for ever, or a test that fails
/// would not end.
struct Hanging(Arc<(Mutex<bool>, Condvar)>);

impl Transport for Hanging {
    fn send(&mut self, _: Vec<Message>) -> Vec<(MessageType, u64)> {
        let (hangs, changed) = &*self.0;
        let hangs = hangs.lock().unwrap();
        drop(changed.wait_timeout_while(hangs, PATIENCE, |hangs| *hangs).unwrap());
        Vec::new()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_disk_had_no_time_for_is_not_added_later() {
    let folder = tempfile::tempdir().unwrap();
    let hangs = Arc::<(Mutex<bool>, Condvar)>::default();
    let options = Options { append_deadline: Duration::from_millis(200), ..Options::alone() };
    let journal = Journal::open(folder.path(), options, Hanging(hangs.clone())).unwrap();
    leading(&journal).await;
    *hangs.0.lock().unwrap() = true;
    // One is on its way to the disk; the next ones wait behind it.
    for request in 1..=3 {
        let late = journal.append(record(request, accepted())).await;
        assert!(matches!(late, Err(AppendError::Deadline(_))), "{late:?}");
    }
    *hangs.0.lock().unwrap() = false;
    hangs.1.notify_all();
    let mut reads: Vec<Vec<u64>> = Vec::new();
    // The first may be read before what was taken together with it is agreed on.
    while reads.len() < 2 {
        let read = journal.read(|state| state.iter().map(|(request, _)| request.0).collect());
        reads.extend(read.await.ok());
    }
    assert!(reads[1].len() <= 1, "{reads:?}");
}

type Wires = Arc<Mutex<BTreeMap<u64, Journal>>>;

/// Hands messages to whoever is plugged in.
struct Wire {
    wires: Wires,
    birth: u64,
}

impl Transport for Wire {
    fn open(&mut self, ear: Ear) {
        self.birth = ear.birth();
    }

    fn send(&mut self, messages: Vec<Message>) -> Vec<(MessageType, u64)> {
        let mut lost = Vec::new();
        for message in messages {
            let (birth, journal) =
                (self.birth, self.wires.lock().unwrap().get(&message.to).map(Journal::ear));
            match journal {
                Some(ear) => drop(tokio::spawn(async move { ear.hear(birth, message).await })),
                None => lost.push((message.msg_type, message.to)),
            }
        }
        lost
    }
}

struct Group {
    wires: Wires,
    folders: Vec<TempDir>,
}

impl Group {
    fn new() -> Self {
        let folders = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        let group = Self { wires: Wires::default(), folders };
        (1..=3).for_each(|member| group.start(member));
        group
    }

    fn start(&self, member: u64) {
        let identity = Identity { member, members: vec![1, 2, 3], group: 0, named: 0 };
        let options = Options { identity, seed: member, ..Options::alone() };
        let folder = self.folders[member as usize - 1].path();
        let wire = Wire { wires: self.wires.clone(), birth: 0 };
        let journal = Journal::open(folder, options, wire).unwrap();
        self.wires.lock().unwrap().insert(member, journal);
    }

    async fn stop(&self, member: u64) {
        let journal = self.wires.lock().unwrap().remove(&member);
        ended(journal.unwrap()).await;
    }

    fn journal(&self, member: u64) -> Journal {
        self.wires.lock().unwrap()[&member].clone()
    }

    async fn leader(&self) -> (u64, Journal) {
        let journals = self.wires.lock().unwrap().clone();
        let each = journals.into_iter().map(|(member, journal)| {
            Box::pin(async move {
                leading(&journal).await;
                (member, journal)
            })
        });
        let mut set = tokio::task::JoinSet::new();
        each.for_each(|one| drop(set.spawn(one)));
        set.join_next().await.unwrap().unwrap()
    }
}

#[tokio::test]
async fn three_survive_the_loss_of_their_leader() {
    let group = Group::new();
    let (first, journal) = group.leader().await;
    journal.append(record(7, accepted())).await.unwrap();
    journal.append(record(7, tokens(0, &[4, 5]))).await.unwrap();
    let follower = group.journal(first % 3 + 1);
    let refused = follower.append(record(8, accepted())).await;
    assert_eq!(refused, Err(AppendError::Unable(Unable::NotLeading)));
    drop((journal, follower));
    group.stop(first).await;
    let (second, journal) = group.leader().await;
    assert_ne!(first, second);
    assert_eq!(read_tokens(&journal, 7).await, Some(vec![4, 5]));
    journal.append(record(7, tokens(2, &[6]))).await.unwrap();
    group.start(first);
    drop(journal);
    group.stop(second).await;
    let (_, journal) = group.leader().await;
    assert_eq!(read_tokens(&journal, 7).await, Some(vec![4, 5, 6]));
}

#[tokio::test]
async fn who_lost_its_disk_is_told_everything_by_the_same_leader_and_votes_again() {
    let mut group = Group::new();
    let (first, journal) = group.leader().await;
    let (lost, other) = (first % 3 + 1, (first + 1) % 3 + 1);
    let leads = *journal.standing().borrow();
    journal.append(record(7, accepted())).await.unwrap();
    journal.append(record(7, tokens(0, &[4]))).await.unwrap();
    group.stop(lost).await;
    group.folders[lost as usize - 1] = tempfile::tempdir().unwrap();
    group.start(lost);
    let told = async {
        while read_tokens(&group.journal(lost), 7).await != Some(vec![4]) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, told).await.expect("it is told nothing");
    assert_eq!(*journal.standing().borrow(), leads, "nobody had to be elected");

    // Now it counts: without it there is no majority.
    group.stop(other).await;
    journal.append(record(7, tokens(1, &[5]))).await.unwrap();
    drop(journal);
    group.stop(first).await;
    group.start(other);
    let (_, journal) = group.leader().await;
    assert_eq!(read_tokens(&journal, 7).await, Some(vec![4, 5]));
}
