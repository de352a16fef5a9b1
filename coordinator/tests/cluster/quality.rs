//! Floors: what a memory that kept too little leads to.

use std::time::Duration;

use aqueduct_coordinator::submit::{RequestError, Submission, Update};
use aqueduct_coordinator::{Config, Coordinator, RequestHandle};
use aqueduct_core::work::{Assignment, Command, Outputs, RetainedMass};
use aqueduct_core::{BelowFloor, Floor, MemoryPolicy, RequestId};

use crate::fake::{Fake, Habit, SOON, all, submission};
use crate::runtime::{answer, cluster, start};

/// The second layer keeps a twentieth of its mass for each key of the budget beside the sinks;
/// the first one keeps all.
pub(crate) fn by_budget(chunk: &Assignment) -> Vec<RetainedMass> {
    let MemoryPolicy { local, heavy, .. } = chunk.policy;
    let kept = if chunk.policy.keeps_all() { 20.0 } else { f64::from(local + heavy) };
    vec![RetainedMass { kept: 20.0, total: 20.0 }, RetainedMass { kept, total: 20.0 }]
}

async fn scripted(habit: Habit) -> (Coordinator, Vec<Fake>) {
    let mut fakes = cluster(&[habit; 2]);
    fakes.iter_mut().for_each(|fake| fake.retained = by_budget);
    let config = Config { worker_grace: Duration::ZERO, ..Config::default() };
    (start(config, &fakes).await, fakes)
}

/// Three chunks of 16 tokens under h2o with 1 + 1 keys, of whose mass so much must be kept.
fn asked(min_retained_mass: f64, below: BelowFloor) -> Submission {
    let floor = Some(Floor { min_retained_mass, below });
    Submission { floor, chunk_tokens: 16, ..submission(40) }
}

/// The policies that were tried.
fn tried(updates: &[Update]) -> Vec<String> {
    let policy = |update: &Update| match update {
        Update::Accepted { policy, .. } => Some(policy.to_string()),
        Update::Escalated(escalation) => Some(escalation.next.to_string()),
        _ => None,
    };
    updates.iter().filter_map(policy).collect()
}

/// Where the chunks of each try went, and the requests that were cancelled, as `fake` saw it.
fn story(fake: &Fake) -> Vec<(&'static str, RequestId)> {
    let told = |command: &Command| match command {
        Command::Assign(chunk) => Some(("assign", chunk.key.request)),
        Command::Decode(spec) => Some(("decode", spec.request)),
        Command::Cancel { request } => Some(("cancel", *request)),
        _ => None,
    };
    let mut story: Vec<_> = fake.seen().iter().filter_map(told).collect();
    story.dedup();
    story
}

#[tokio::test]
async fn a_memory_below_its_floor_is_made_again_with_a_larger_budget() {
    let steps = ["h2o 1 + 1 + 1", "h2o 1 + 2 + 2", "h2o 1 + 4 + 4", "h2o 1 + 8 + 7", "dense"];
    for (floor, tries) in [(0.1, 1), (0.15, 2), (0.4, 3), (0.7, 4), (0.8, 5), (1.0, 5)] {
        let (coordinator, fakes) = scripted(Habit::Obey).await;
        let submission = asked(floor, BelowFloor::Escalate);
        let mut handle = coordinator.submit(submission).await.unwrap();
        let (updates, error) = all(&mut handle).await;
        assert_eq!(error, None);
        assert_eq!(tried(&updates), steps[..tries], "{floor}");
        let first_token = updates.iter().position(|update| matches!(update, Update::Token(_)));
        let last_try = updates.iter().rposition(|update| matches!(update, Update::Escalated(_)));
        assert!(first_token.unwrap() > last_try.unwrap_or(0));
        for update in &updates {
            match update {
                Update::Token(token) => assert_eq!(token.request, handle.request_id()),
                Update::Prefilled(report) => {
                    assert!(RetainedMass::lowest_share(&report.retained) >= floor);
                }
                Update::Escalated(escalation) => {
                    assert!(escalation.lowest < floor && escalation.min_retained_mass == floor);
                }
                _ => {}
            }
        }
        let decoded: Vec<_> =
            fakes.iter().flat_map(story).filter(|(what, _)| *what == "decode").collect();
        assert_eq!(decoded.len(), 1, "one try generates");
    }
}

#[tokio::test]
async fn a_try_is_forgotten_before_the_next_one_comes() {
    let (coordinator, fakes) = scripted(Habit::Obey).await;
    let mut handle = coordinator.submit(asked(0.15, BelowFloor::Escalate)).await.unwrap();
    assert_eq!(all(&mut handle).await.1, None);
    let first = handle.request_id();
    for fake in &fakes {
        fake.told(|command| matches!(command, Command::Cancel { request } if *request != first))
            .await;
        let story: Vec<_> = story(fake).into_iter().filter(|(what, _)| *what != "decode").collect();
        let [("assign", one), ("cancel", gone), ("assign", two), ("cancel", end)] = story[..]
        else {
            panic!("{story:?}");
        };
        assert_eq!((one, gone), (first, first));
        assert!(two == end && two != first);
    }
}

#[tokio::test]
async fn whoever_wants_a_report_gets_an_answer_below_the_floor() {
    let (coordinator, _fakes) = scripted(Habit::Obey).await;
    let mut handle = coordinator.submit(asked(0.9, BelowFloor::Report)).await.unwrap();
    let (updates, error) = all(&mut handle).await;
    assert_eq!(error, None);
    assert_eq!(tried(&updates), ["h2o 1 + 1 + 1"]);
    assert_eq!(answer(&updates).1, [0, 1]);
}

#[tokio::test]
async fn logits_of_the_prompt_are_those_of_the_last_try() {
    let (coordinator, _fakes) = scripted(Habit::Obey).await;
    let submission = Submission { outputs: Outputs::Logits, ..asked(0.9, BelowFloor::Escalate) };
    let (updates, error) = all(&mut coordinator.submit(submission).await.unwrap()).await;
    assert_eq!(error, None);
    let last_try = updates.iter().rposition(|update| matches!(update, Update::Escalated(_)));
    let logits = updates.iter().position(|update| matches!(update, Update::Logits { .. }));
    assert!(logits > last_try);
    assert_eq!(answer(&updates).0.len(), 40);
}

/// A request whose second try no worker does.
async fn halfway(deadline: Duration) -> (Coordinator, RequestHandle, Vec<Fake>) {
    let (coordinator, fakes) = scripted(Habit::HoldBeyond { local: 1 }).await;
    let submission = Submission { deadline, ..asked(0.9, BelowFloor::Escalate) };
    let handle = coordinator.submit(submission).await.unwrap();
    (coordinator, handle, fakes)
}

/// Waits until `fake` was told to forget the second try.
async fn second_try_is_cancelled(fake: &Fake, first: RequestId) {
    fake.told(|command| matches!(command, Command::Cancel { request } if *request != first)).await;
}

#[tokio::test]
async fn a_caller_that_goes_away_between_tries_cancels_the_second() {
    let (_coordinator, mut handle, fakes) = halfway(SOON).await;
    let first = handle.request_id();
    while !matches!(handle.next().await.unwrap().unwrap(), Update::Escalated(_)) {}
    drop(handle);
    for fake in &fakes {
        second_try_is_cancelled(fake, first).await;
    }
}

#[tokio::test]
async fn a_deadline_holds_over_all_tries() {
    let deadline = Duration::from_millis(300);
    let (_coordinator, mut handle, fakes) = halfway(deadline).await;
    let (updates, error) = all(&mut handle).await;
    assert_eq!(error, Some(RequestError::Deadline(deadline)));
    assert_eq!(tried(&updates).len(), 2);
    second_try_is_cancelled(&fakes[0], handle.request_id()).await;
}

#[tokio::test]
async fn a_worker_lost_in_a_later_try_ends_the_request_with_its_error() {
    let (_coordinator, mut handle, fakes) = halfway(SOON).await;
    while !matches!(handle.next().await.unwrap().unwrap(), Update::Escalated(_)) {}
    fakes.iter().for_each(Fake::close);
    let (_, error) = all(&mut handle).await;
    assert!(matches!(error, Some(RequestError::Unavailable(_))), "{error:?}");
}
