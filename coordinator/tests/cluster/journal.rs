//! Coordinators that are gone in the middle, and what the next one makes of their journal.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aqueduct_coordinator::generation::Claim;
use aqueduct_coordinator::keys::{KeyFile, KeyLimits, Keys, Limit, Secret};
use aqueduct_coordinator::submit::{RequestError, Submission, Update};
use aqueduct_coordinator::{Config, Coordinator, Keeping, Session};
use aqueduct_core::journal::{
    Accepted, Batch, Completion, Drawn, Ended, Kept, Outcome, Record, RecordKind,
};
use aqueduct_core::work::{Begun, Command, FailureKind, TokenLogprob};
use aqueduct_core::{MemoryPolicy, Refusal, RequestId, Telling};
use aqueduct_journal::{Journal, Options, Standing};

use crate::fake::{CHUNK_TOKENS, Fake, Habit, SOON, all, submission};
use crate::runtime::{cluster, start};

async fn open(folder: &Path) -> Journal {
    let journal = Journal::open(folder, Options::alone(), ()).unwrap();
    let mut standing = journal.standing();
    let leads = standing.wait_for(|standing| matches!(standing, Standing::Leads { .. }));
    tokio::time::timeout(SOON, leads).await.expect("it does not lead").unwrap();
    journal
}

/// The file is free when its task has ended.
async fn close(journal: Journal) {
    let mut standing = journal.standing();
    drop(journal);
    let closed = async { while standing.changed().await.is_ok() {} };
    tokio::time::timeout(SOON, closed).await.expect("somebody keeps the journal");
}

fn keeping(journal: &Journal) -> Keeping {
    let constrain = |_| Err(Refusal::new("grammar", "any", "none"));
    let constrain = Arc::new(constrain);
    Keeping { journal: journal.clone(), constrain, keys: None, group: None }
}

fn caller(holder: &str) -> Claim {
    Claim::Caller(holder.to_owned())
}

async fn keeps(fakes: &[Fake], journal: &Journal, interrupted: usize) -> Coordinator {
    let coordinator = start(Config::default(), fakes).await;
    assert_eq!(coordinator.keep(keeping(journal)).await, Ok(interrupted));
    coordinator
}

/// What is kept of a request, once it has ended.
async fn ended(journal: &Journal, request: RequestId) -> Kept {
    let wait = async {
        loop {
            let kept = journal.read(move |state| state.get(request).cloned()).await.unwrap();
            match kept {
                Some(kept) if kept.ended.is_some() => return kept,
                _ => tokio::task::yield_now().await,
            }
        }
    };
    tokio::time::timeout(SOON, wait).await.expect("it never ends")
}

fn drawn(token: u32) -> Drawn {
    Drawn { token: TokenLogprob { token, logprob: -0.5 }, top: Vec::new() }
}

/// A completion of these tokens.
fn completion(tokens: std::ops::Range<u32>) -> Completion {
    Completion { tokens: tokens.map(drawn).collect(), eos: Some(false) }
}

fn outcome(kept: &Kept) -> &Outcome {
    &kept.ended.as_ref().unwrap().outcome
}

#[tokio::test]
async fn a_request_is_written_down_from_its_beginning_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let journal = open(folder.path()).await;
    let fakes = cluster(&[Habit::Obey; 2]);
    let coordinator = keeps(&fakes, &journal, 0).await;
    let asked = Submission { choices: 2, max_tokens: 3, ..submission(26) };
    let mut handle = coordinator.submit(asked).await.unwrap();
    assert_eq!(all(&mut handle).await.1, None);
    let kept = ended(&journal, handle.request_id()).await;
    assert_eq!(kept.choices, [completion(0..3), completion(10..13)]);
    assert_eq!(outcome(&kept), &Outcome::Finished);
}

#[tokio::test]
async fn a_caller_that_goes_ends_its_request() {
    let folder = tempfile::tempdir().unwrap();
    let journal = open(folder.path()).await;
    let fakes = cluster(&[Habit::Hold { chunk_idx: 0 }]);
    let coordinator = keeps(&fakes, &journal, 0).await;
    let handle = coordinator.submit(submission(26)).await.unwrap();
    let request = handle.request_id();
    let known = journal.read(move |state| state.live().map(|(id, _)| id).collect::<Vec<_>>());
    assert_eq!(known.await.unwrap(), [request], "before its caller hears of it");
    drop(handle);
    assert_eq!(outcome(&ended(&journal, request).await), &Outcome::Cancelled);
}

#[tokio::test]
async fn what_was_under_way_goes_on_with_the_next_coordinator() {
    let folder = tempfile::tempdir().unwrap();
    let journal = open(folder.path()).await;
    let coordinator = keeps(&cluster(&[Habit::Hold { chunk_idx: 3 }]), &journal, 0).await;
    let telling = Telling { prompt_tokens: 26, ..resumable() };
    let asked = Submission { choices: 2, max_tokens: 3, telling, ..submission(26) };
    let mut handle = coordinator.submit(asked).await.unwrap();
    let request = handle.request_id();
    coordinator.stop().await;
    assert_eq!(all(&mut handle).await.1, Some(RequestError::Stopping));
    drop((handle, coordinator));
    close(journal).await;

    let journal = open(folder.path()).await;
    let coordinator = keeps(&cluster(&[Habit::Obey; 2]), &journal, 1).await;
    let kept = ended(&journal, request).await;
    assert_eq!(kept.choices, [completion(0..3), completion(10..13)]);
    assert_eq!(outcome(&kept), &Outcome::Finished);
    let next = coordinator.submit(submission(5)).await.unwrap();
    assert!(next.request_id() > request);
}

fn accepted() -> Accepted {
    let policy = MemoryPolicy::h2o(1, 1, 1);
    let (choices, max_tokens, telling) = (3, 4, resumable());
    let asked = Accepted::of("same", (0..10).collect());
    Accepted { policy, chunk_tokens: CHUNK_TOKENS, choices, max_tokens, telling, ..asked }
}

async fn write(journal: &Journal, request: u64, kinds: Vec<RecordKind>) {
    for kind in kinds {
        let record = Record { request: RequestId(request), at_ms: 1, kind };
        journal.append(record).await.unwrap();
    }
}

fn tokens(choice: u32, tokens: std::ops::Range<u32>) -> RecordKind {
    let tokens = tokens.map(drawn).collect();
    RecordKind::Tokens(Batch { choice, first_idx: 0, tokens })
}

#[tokio::test]
async fn completions_go_on_from_the_tokens_that_were_written() {
    let folder = tempfile::tempdir().unwrap();
    let journal = open(folder.path()).await;
    let over = RecordKind::ChoiceEnded { choice: 1, eos: true };
    let begin = RecordKind::Accepted(Box::new(accepted()));
    write(&journal, 7, vec![begin, tokens(0, 0..3), tokens(1, 10..12), over]).await;
    let fakes = cluster(&[Habit::Obey]);
    let _coordinator = keeps(&fakes, &journal, 1).await;
    let kept = ended(&journal, RequestId(7)).await;
    let second = Completion { eos: Some(true), ..completion(10..12) };
    assert_eq!(kept.choices, [completion(0..4), second, completion(20..24)]);
    assert_eq!(outcome(&kept), &Outcome::Finished);
    let begun = |command: &Command| match command {
        Command::Decode(spec) => Some(spec.begun.clone()),
        _ => None,
    };
    let told = fakes[0].seen().iter().find_map(begun);
    let want = [
        Begun { choice: 0, tokens: vec![0, 1, 2], ended: false },
        Begun { choice: 1, tokens: Vec::new(), ended: true },
    ];
    assert_eq!(told.as_deref(), Some(&want[..]));
}

#[tokio::test]
async fn what_cannot_go_on_ends_once() {
    let check = async |accepted: Accepted, more: Vec<RecordKind>, want: Outcome| {
        let folder = tempfile::tempdir().unwrap();
        let journal = open(folder.path()).await;
        let begin = RecordKind::Accepted(Box::new(accepted));
        write(&journal, 7, [vec![begin], more].concat()).await;
        let fakes = cluster(&[Habit::Obey]);
        let _coordinator = keeps(&fakes, &journal, 1).await;
        let kept = ended(&journal, RequestId(7)).await;
        assert_eq!(kept.ended.map(|Ended { outcome, .. }| outcome), Some(want));
        assert!(fakes[0].seen().is_empty(), "nothing is computed for it");
    };
    let failed = |kind: FailureKind, message: &str| {
        let message = message.to_owned();
        Outcome::Failed { kind, message }
    };
    let other = Accepted { model: "other".into(), ..accepted() };
    let why = "fingerprint = same: must be other, with which its tokens were drawn";
    check(other, Vec::new(), failed(FailureKind::Invalid, why)).await;
    let late = Accepted { deadline_at_ms: 1, ..accepted() };
    let why = "its time was over before anybody went on with it";
    check(late, Vec::new(), failed(FailureKind::Deadline, why)).await;
    let over = (0..3).map(|choice| RecordKind::ChoiceEnded { choice, eos: true }).collect();
    check(accepted(), over, Outcome::Finished).await;
}

#[tokio::test]
async fn who_was_drained_remains_so_with_the_next_coordinator() {
    let folder = tempfile::tempdir().unwrap();
    let journal = open(folder.path()).await;
    let coordinator = keeps(&cluster(&[Habit::Obey; 2]), &journal, 0).await;
    for (worker, draining) in [("fake0", true), ("fake1", true), ("fake1", false)] {
        assert_eq!(coordinator.drain(worker, draining).await.unwrap().draining, draining);
    }
    coordinator.stop().await;
    drop(coordinator);
    close(journal).await;

    let journal = open(folder.path()).await;
    let fakes = cluster(&[Habit::Obey; 2]);
    let coordinator = keeps(&fakes, &journal, 0).await;
    let mut shown = coordinator.watch();
    let drained = shown.wait_for(|cluster| {
        let draining = cluster.workers.iter().map(|worker| worker.draining);
        draining.eq([true, false])
    });
    drop(tokio::time::timeout(SOON, drained).await.expect("it is not drained").unwrap());
    let mut handle = coordinator.submit(submission(26)).await.unwrap();
    assert_eq!(all(&mut handle).await.1, None);
    assert!(fakes[0].seen().is_empty(), "it is given nothing");
    coordinator.drain("fake0", false).await.unwrap();
    let drained = journal.read(|state| state.drained().count()).await;
    assert_eq!(drained, Ok(0));
}

fn resumable() -> Telling {
    Telling { resumable: true, prompt_tokens: 10, ..Telling::default() }
}

/// The tokens and ends that a caller was told, by completion.
fn told(updates: &[Update]) -> Vec<Completion> {
    let mut all = vec![Completion::default(); 3];
    for update in updates {
        match update {
            Update::Token(token) => {
                let of = &mut all[token.choice as usize];
                assert_eq!(of.tokens.len(), token.token_idx as usize, "{updates:?}");
                of.tokens.push(drawn(token.token));
            }
            Update::ChoiceDone { choice, eos } => {
                let end = &mut all[*choice as usize].eos;
                assert_eq!(end.replace(*eos), None, "{updates:?}");
            }
            _ => {}
        }
    }
    all
}

#[tokio::test]
async fn a_caller_comes_back_and_is_told_everything_once() {
    let folder = tempfile::tempdir().unwrap();
    let journal = open(folder.path()).await;
    let over = RecordKind::ChoiceEnded { choice: 1, eos: true };
    let begin = Accepted { telling: resumable(), ..accepted() };
    let begin = RecordKind::Accepted(Box::new(begin));
    write(&journal, 7, vec![begin, tokens(0, 0..3), tokens(1, 10..12), over]).await;
    let second = Completion { eos: Some(true), ..completion(10..12) };
    let want = [completion(0..4), second, completion(20..24)];
    let fakes = cluster(&[Habit::Obey]);
    let coordinator = keeps(&fakes, &journal, 1).await;
    // Before it has gone on, after it has ended, and from the journal of who comes next.
    for round in 0..3 {
        let stranger = coordinator.attach(RequestId(7), caller("bob")).await.map(drop);
        assert_eq!(stranger, Err(RequestError::Unknown(RequestId(7))), "round {round}");
        let (asked, mut handle) = coordinator.attach(RequestId(7), caller("")).await.unwrap();
        assert_eq!((asked.choices, asked.telling), (3, resumable()));
        let (updates, error) = all(&mut handle).await;
        assert_eq!((told(&updates), error), (want.to_vec(), None), "round {round}");
        assert!(matches!(updates[0], Update::Accepted { chunk_count: 3, .. }), "{updates:?}");
        ended(&journal, RequestId(7)).await;
    }
    let unknown = coordinator.attach(RequestId(8), caller("")).await.map(drop);
    assert_eq!(unknown, Err(RequestError::Unknown(RequestId(8))));
}

#[tokio::test]
async fn the_later_caller_has_what_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let journal = open(folder.path()).await;
    let fakes = cluster(&[Habit::Hold { chunk_idx: 3 }]);
    let coordinator = keeps(&fakes, &journal, 0).await;
    let asked = Submission { telling: resumable(), ..submission(26) };
    let mut first = coordinator.submit(asked).await.unwrap();
    let (_, mut second) = coordinator.attach(first.request_id(), caller("")).await.unwrap();
    assert_eq!(all(&mut first).await.1, Some(RequestError::TakenOver));
    drop(first);
    assert!(matches!(second.next().await, Some(Ok(Update::Accepted { .. }))));
    let request = second.request_id();
    drop(second);
    assert_eq!(outcome(&ended(&journal, request).await), &Outcome::Cancelled);
}

#[tokio::test]
async fn who_may_not_come_back_to_a_request_does_nothing_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let journal = open(folder.path()).await;
    let holder = "alice".to_owned();
    let telling = Telling { holder: holder.clone(), ..resumable() };
    let begin = RecordKind::Accepted(Box::new(Accepted { telling, ..accepted() }));
    write(&journal, 7, vec![begin]).await;
    let coordinator = keeps(&cluster(&[Habit::Hold { chunk_idx: 0 }]), &journal, 1).await;
    let telling = Telling { holder, ..Telling::default() };
    let other = coordinator.submit(Submission { telling, ..submission(26) }).await.unwrap();
    let second = other.request_id();
    let (_, mut handle) = coordinator.attach(RequestId(7), caller("alice")).await.unwrap();
    let strangers = async || {
        let first = RequestId(7);
        for (request, holder) in [(first, ""), (first, "bob"), (second, "alice"), (second, "bob")] {
            let stranger = coordinator.attach(request, caller(holder)).await.map(drop);
            assert_eq!(stranger, Err(RequestError::Unknown(request)), "{holder:?}");
        }
    };
    strangers().await; // before it goes on, and while it does
    assert!(matches!(handle.next().await, Some(Ok(Update::Accepted { .. }))));
    strangers().await;
    let live = journal.read(|state| state.live().map(|(id, _)| id).collect::<Vec<_>>());
    assert_eq!(live.await.unwrap(), [RequestId(7), second]);
    drop(handle);
    assert_eq!(outcome(&ended(&journal, RequestId(7)).await), &Outcome::Cancelled);
}

#[tokio::test]
async fn what_waits_for_a_worker_ends_in_time_or_when_its_caller_says() {
    let folder = tempfile::tempdir().unwrap();
    let journal = open(folder.path()).await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    for (request, deadline_at_ms) in [(7, now + 300), (8, now + 1_000_000)] {
        let begin = Accepted { telling: resumable(), deadline_at_ms, ..accepted() };
        write(&journal, request, vec![RecordKind::Accepted(Box::new(begin))]).await;
    }
    let nobody = Session::connect("http://127.0.0.1:1").unwrap();
    let coordinator = Coordinator::start(Config::default(), vec![nobody]).unwrap();
    assert_eq!(coordinator.keep(keeping(&journal)).await, Ok(2));
    let (_, mut first) = coordinator.attach(RequestId(7), caller("")).await.unwrap();
    let (_, mut second) = coordinator.attach(RequestId(7), caller("")).await.unwrap();
    assert_eq!(all(&mut first).await.1, Some(RequestError::TakenOver));
    let error = all(&mut second).await.1;
    let is_late = |kind| kind == FailureKind::Deadline;
    assert!(matches!(error, Some(RequestError::Failed { kind, .. }) if is_late(kind)), "{error:?}");
    let kept = ended(&journal, RequestId(7)).await;
    assert!(matches!(outcome(&kept), Outcome::Failed { kind, .. } if is_late(*kind)), "{kept:?}");

    drop(coordinator.attach(RequestId(8), caller("")).await.unwrap());
    assert_eq!(outcome(&ended(&journal, RequestId(8)).await), &Outcome::Cancelled);
}

#[tokio::test]
async fn who_waits_for_an_answer_hears_that_nothing_goes_on_here() {
    let folder = tempfile::tempdir().unwrap();
    let journal = open(folder.path()).await;
    let begin = RecordKind::Accepted(Box::new(Accepted { telling: resumable(), ..accepted() }));
    write(&journal, 7, vec![begin]).await;
    let nobody = Session::connect("http://127.0.0.1:1").unwrap();
    let coordinator = Coordinator::start(Config::default(), vec![nobody]).unwrap();
    assert_eq!(coordinator.keep(keeping(&journal)).await, Ok(1));
    let (_, mut handle) = coordinator.attach(RequestId(7), caller("")).await.unwrap();
    coordinator.stop().await;
    let heard = tokio::time::timeout(SOON, all(&mut handle)).await.expect("it waits for ever");
    assert_eq!(heard.1, Some(RequestError::Stopping));
}

#[tokio::test]
async fn what_nobody_comes_back_to_ends() {
    let folder = tempfile::tempdir().unwrap();
    let journal = open(folder.path()).await;
    for (request, telling) in [(7, resumable()), (8, Telling::default())] {
        let begin = RecordKind::Accepted(Box::new(Accepted { telling, ..accepted() }));
        write(&journal, request, vec![begin]).await;
    }
    let fakes = cluster(&[Habit::Hold { chunk_idx: 0 }]);
    let config = Config { resume_grace: Duration::from_millis(1), ..Config::default() };
    let coordinator = start(config, &fakes).await;
    assert_eq!(coordinator.keep(keeping(&journal)).await, Ok(2));
    for request in [7, 8] {
        let ended = ended(&journal, RequestId(request)).await;
        assert_eq!(outcome(&ended), &Outcome::Cancelled, "{request}");
    }
    let run = |command: &Command| match command {
        Command::Assign(chunk) => Some(chunk.key.request),
        _ => None,
    };
    let runs: BTreeSet<_> = fakes[0].seen().iter().filter_map(run).collect();
    assert!(runs.len() <= 1, "nothing is computed for who cannot come back: {runs:?}");
    let gone = coordinator.attach(RequestId(7), caller("")).await.map(drop);
    assert_eq!(gone, Err(RequestError::Unknown(RequestId(7))));
}

/// Keys with these limits, and a call with each.
fn keys<const N: usize>(path: &Path, limits: [KeyLimits; N]) -> (Keys, [Secret; N]) {
    let mut file = KeyFile::default();
    let secrets = limits.map(|limits| {
        let secret = Secret::draw().unwrap();
        file.add(&secret, "somebody", false, limits).unwrap();
        secret
    });
    file.write(path).unwrap();
    (Keys::open(path).unwrap(), secrets)
}

/// What is said to a prompt of one token from who shows `secret`, if it is over a limit.
fn over(keys: &Keys, secret: &Secret) -> Option<(Limit, Duration)> {
    let holder = keys.check(Some(&format!("Bearer {}", secret.reveal()))).unwrap();
    match holder.admit(&[1]) {
        Ok(_) => None,
        Err(RequestError::Limited { limit, retry_after }) => Some((limit, retry_after)),
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn what_goes_on_counts_for_the_limits_of_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let journal = open(folder.path()).await;
    let at_once = KeyLimits { requests: Some(1), ..KeyLimits::default() };
    let in_a_minute = KeyLimits { tokens_per_minute: Some(1), ..KeyLimits::default() };
    let (keys, [alice, bob]) = keys(&folder.path().join("keys.json"), [at_once, in_a_minute]);
    let of = |secret: &Secret| Telling { holder: secret.id().unwrap().to_owned(), ..resumable() };
    let held = Accepted::of("same", (0..26).collect());
    let held = Accepted { telling: of(&alice), chunk_tokens: CHUNK_TOKENS, ..held };
    write(&journal, 7, vec![RecordKind::Accepted(Box::new(held))]).await;
    let begin = RecordKind::Accepted(Box::new(Accepted { telling: of(&bob), ..accepted() }));
    write(&journal, 8, vec![begin, tokens(0, 0..3)]).await;
    assert_eq!((over(&keys, &alice), over(&keys, &bob)), (None, None));

    let coordinator = start(Config::default(), &cluster(&[Habit::Hold { chunk_idx: 3 }])).await;
    let keeping = Keeping { keys: Some(keys.clone()), ..keeping(&journal) };
    assert_eq!(coordinator.keep(keeping).await, Ok(2));
    let is_over = || over(&keys, &alice).is_some_and(|(limit, _)| limit == Limit::Requests(1));
    assert!(is_over(), "while it waits to go on");
    ended(&journal, RequestId(8)).await;
    assert!(is_over(), "while it goes on");
    // Of twelve tokens three were drawn before; a token comes back in a minute.
    let (limit, after) = over(&keys, &bob).expect("what was generated since is owed for");
    assert_eq!(limit, Limit::TokensPerMinute(1));
    let minutes = after.as_secs_f64() / 60.0;
    assert!((8.0..=9.0).contains(&minutes), "{minutes}");

    drop(coordinator.attach(RequestId(7), caller(alice.id().unwrap())).await.unwrap());
    assert_eq!(outcome(&ended(&journal, RequestId(7)).await), &Outcome::Cancelled);
    let free = async {
        while is_over() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, free).await.expect("its place is not free");
}
