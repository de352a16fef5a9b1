//! The runtime with workers of this process that follow a script.

use std::time::Duration;

use crate::fake::{Fake, Habit, SOON, VOCAB, all, submission};
use aqueduct_coordinator::runtime::{Cluster, WorkerState};
use aqueduct_coordinator::submit::{Busy, RequestError, Submission, Update};
use aqueduct_coordinator::{Config, Coordinator};
use aqueduct_core::work::{Command, Outputs, Peer};
use aqueduct_core::{Carry, Epoch, Exchange, MemoryPolicy, WireDtype, limits};

pub(crate) async fn start(config: Config, fakes: &[Fake]) -> Coordinator {
    let coordinator =
        Coordinator::start(config, fakes.iter().map(Fake::session).collect()).unwrap();
    assert!(coordinator.wait_for_workers(fakes.len(), SOON).await);
    coordinator
}

pub(crate) fn cluster(habits: &[Habit]) -> Vec<Fake> {
    let name = |(idx, habit): (usize, &Habit)| Fake::new(&format!("fake{idx}"), *habit);
    habits.iter().enumerate().map(name).collect()
}

fn is_cancel(command: &Command) -> bool {
    matches!(command, Command::Cancel { .. })
}

#[tokio::test]
async fn updates_come_in_order_and_end() {
    let fakes = cluster(&[Habit::Obey; 3]);
    let coordinator = start(Config::default(), &fakes).await;
    let asked = Submission { choices: 2, ..submission(26) };
    let mut handle = coordinator.submit(asked).await.unwrap();
    let (updates, error) = all(&mut handle).await;
    assert_eq!(error, None);

    let Update::Accepted { request, chunk_count, clamps, .. } = &updates[0] else { panic!() };
    assert_eq!((*request, *chunk_count), (handle.request_id(), 7));
    assert!(clamps.is_empty());
    let progress = updates.iter().rev().find_map(|update| match update {
        Update::Progress(progress) => Some(progress),
        _ => None,
    });
    let progress = progress.unwrap();
    assert_eq!((progress.chunks_done, progress.tokens_done), (7, 26));
    let done: Vec<u32> = progress.workers.iter().map(|worker| worker.chunks_done).collect();
    assert_eq!(done, [3, 2, 2]);
    let report = updates.iter().find_map(|update| match update {
        Update::Prefilled(report) => Some(report),
        _ => None,
    });
    let report = report.unwrap();
    assert_eq!(report.retained.len(), 2);
    assert_eq!((report.retained[0].kept, report.retained[0].total), (26.0, 70.0));
    assert_eq!((report.memory_tokens, report.chunks_retried), (26, 0));
    let tail: Vec<String> = updates
        .iter()
        .filter_map(|update| match update {
            Update::Token(token) => Some(format!("{}:{}", token.choice, token.token)),
            Update::ChoiceDone { choice, .. } => Some(format!("{choice} done")),
            _ => None,
        })
        .collect();
    assert_eq!(tail, ["0:0", "0:1", "0 done", "1:10", "1:11", "1 done"]);
    assert_eq!(coordinator.stats().output_tokens, 4);
    for fake in &fakes {
        fake.told(is_cancel).await;
    }
}

#[tokio::test]
async fn a_report_of_what_is_done_already_changes_nothing() {
    let fakes = cluster(&[Habit::Repeat]);
    let coordinator = start(Config::default(), &fakes).await;
    let mut handle = coordinator.submit(submission(26)).await.unwrap();
    let (updates, error) = all(&mut handle).await;
    assert_eq!(error, None);
    let retained = updates.iter().find_map(|update| match update {
        Update::Prefilled(report) => Some(report.retained.clone()),
        _ => None,
    });
    let retained = retained.unwrap();
    assert_eq!((retained[0].kept, retained[0].total), (26.0, 70.0));
}

/// A request whose keys stay with the workers.
fn exact(prompt_tokens: u32) -> Submission {
    Submission { policy: MemoryPolicy::dense(), wire: WireDtype::F16, ..submission(prompt_tokens) }
}

#[tokio::test]
async fn keys_that_stay_are_named_to_later_chunks_and_forgotten_at_the_end() {
    let fakes = cluster(&[Habit::Obey; 2]);
    let coordinator = start(Config::default(), &fakes).await;
    let (updates, error) = all(&mut coordinator.submit(exact(11)).await.unwrap()).await;
    assert_eq!(error, None);
    let report = updates.iter().find_map(|update| match update {
        Update::Prefilled(report) => Some(report),
        _ => None,
    });
    let report = report.unwrap();
    assert_eq!((report.exchange, report.memory_tokens), (Exchange::Stay, 4 + 8 + 11));
    let shard = |holder| (holder, Epoch(0));
    let past = [vec![], vec![shard(0)], vec![shard(0), shard(1)]];
    for (chunk_idx, past) in past.iter().enumerate() {
        let fake = &fakes[chunk_idx % 2];
        fake.told(|command| match command {
            Command::Assign(chunk) if chunk.key.chunk_idx as usize == chunk_idx => {
                let shards = chunk.shards.as_ref().unwrap();
                let peers = ["local://fake0", "local://fake1"].map(|peer| Peer(peer.into()));
                let holders = &peers[..chunk_idx];
                assert_eq!((&shards.holders[..], &shards.shards), (holders, past));
                assert_eq!((shards.carry, shards.wire), (Carry::Fewest, WireDtype::F16));
                chunk.next.is_none()
            }
            _ => false,
        })
        .await;
        fake.told(is_cancel).await;
    }
}

#[tokio::test]
async fn keys_that_no_pool_could_hold_are_refused() {
    let mut fakes = cluster(&[Habit::Obey; 2]);
    // Seven chunks each, in pages of 16 tokens: a chunk of four tokens takes one.
    fakes.iter_mut().for_each(|fake| fake.pool_tokens = 7 * limits::PAGE_TOKENS);
    let coordinator = start(Config::default(), &fakes).await;
    assert_eq!(all(&mut coordinator.submit(exact(52)).await.unwrap()).await.1, None);
    assert_eq!(all(&mut coordinator.submit(submission(26)).await.unwrap()).await.1, None);
    let Err(RequestError::Refused(refusal)) = coordinator.submit(exact(53)).await else { panic!() };
    assert_eq!(
        refusal.to_string(),
        "prompt_tokens = 53: must be at most 52, what the pools of 2 workers (224 tokens) hold \
         beside 2 tokens to generate"
    );
}

#[tokio::test]
async fn clamps_are_told() {
    let coordinator = start(Config::default(), &cluster(&[Habit::Obey])).await;
    let policy = MemoryPolicy::h2o(1, 3, 3);
    let mut handle = coordinator.submit(Submission { policy, ..submission(5) }).await.unwrap();
    let Some(Ok(Update::Accepted { policy, clamps, .. })) = handle.next().await else { panic!() };
    assert_eq!((policy.heavy, clamps.len()), (0, 1));
}

#[tokio::test]
async fn a_dropped_handle_cancels_on_every_worker() {
    let fakes = cluster(&[Habit::Hold { chunk_idx: 0 }; 2]);
    let coordinator = start(Config::default(), &fakes).await;
    let handle = coordinator.submit(submission(8)).await.unwrap();
    let request = handle.request_id();
    drop(handle);
    for fake in &fakes {
        fake.told(|command| *command == Command::Cancel { request }).await;
    }
}

#[tokio::test]
async fn a_full_queue_is_busy_and_frees_itself() {
    let config = Config { queued_requests: 1, running_requests: 1, ..Config::default() };
    let coordinator = start(config, &cluster(&[Habit::Hold { chunk_idx: 1 }])).await;
    let running = coordinator.submit(submission(8)).await.unwrap();
    let mut waiting = coordinator.submit(submission(1)).await.unwrap();
    let error = coordinator.submit(submission(1)).await.unwrap_err();
    let (busy, retry_after) = (Busy::Requests { queued: 1 }, Duration::from_secs(1));
    assert_eq!(error, RequestError::Busy { busy, retry_after });
    drop(running);
    assert_eq!(all(&mut waiting).await.1, None);
}

#[tokio::test]
async fn a_deadline_ends_a_request() {
    let fakes = cluster(&[Habit::Hold { chunk_idx: 1 }; 2]);
    let coordinator = start(Config::default(), &fakes).await;
    let deadline = Duration::from_millis(30);
    let mut handle = coordinator.submit(Submission { deadline, ..submission(8) }).await.unwrap();
    assert_eq!(all(&mut handle).await.1, Some(RequestError::Deadline(deadline)));
    fakes[0].told(is_cancel).await;
    assert_eq!(all(&mut handle).await, (vec![], None), "an error is told once");
}

#[tokio::test]
async fn a_deadline_passes_in_the_queue_too() {
    let config = Config { running_requests: 1, ..Config::default() };
    let fakes = cluster(&[Habit::Hold { chunk_idx: 1 }]);
    let coordinator = start(config, &fakes).await;
    let running = coordinator.submit(submission(8)).await.unwrap();
    let deadline = Duration::from_millis(30);
    let asked = Submission { deadline, priority: -100, ..submission(8) };
    let mut waiting = coordinator.submit(asked).await.unwrap();
    let (updates, error) = all(&mut waiting).await;
    assert!(matches!(updates[..], [Update::Accepted { .. }]), "{updates:?}");
    assert_eq!(error, Some(RequestError::Deadline(deadline)));
    drop(running);
}

#[tokio::test]
async fn who_finds_the_queue_full_by_tokens_is_told_how_long_it_will_take() {
    let config = Config {
        running_requests: 1,
        queued_tokens: 9,
        retry_after: Duration::from_millis(1),
        ..Config::default()
    };
    let coordinator = start(config, &cluster(&[Habit::Hold { chunk_idx: 1 }])).await;
    let running = coordinator.submit(submission(8)).await.unwrap();
    let mut first = coordinator.submit(submission(4)).await.unwrap();
    let mut second = coordinator.submit(submission(4)).await.unwrap();
    let error = coordinator.submit(submission(2)).await.unwrap_err();
    let RequestError::Busy { busy, retry_after } = error else { panic!("{error}") };
    assert_eq!(busy, Busy::Tokens { queued_tokens: 8, prompt_tokens: 2, most: 9 });
    assert!(retry_after >= Duration::from_millis(1));
    assert_eq!(coordinator.stats().queued_tokens, 8);
    drop(running);
    assert_eq!(all(&mut first).await.1, None);
    assert_eq!(all(&mut second).await.1, None);
}

/// Logits of the whole prompt, and the tokens.
pub(crate) fn answer(updates: &[Update]) -> (Vec<f32>, Vec<u32>) {
    let mut rows: Vec<(u32, f32)> = Vec::new();
    let mut tokens = Vec::new();
    for update in updates {
        match update {
            Update::Logits { start, rows: count, logits } => {
                assert_eq!(logits.len(), (*count * VOCAB) as usize);
                rows.extend((*start..).zip(logits.iter().step_by(VOCAB as usize).copied()));
            }
            Update::Token(token) => tokens.push(token.token),
            _ => {}
        }
    }
    rows.sort_by_key(|row| row.0);
    assert!(rows.windows(2).all(|pair| pair[0].0 < pair[1].0), "a row was told twice");
    (rows.into_iter().map(|row| row.1).collect(), tokens)
}

#[tokio::test]
async fn a_lost_worker_changes_no_answer() {
    survives_any_loss(submission(26)).await;
    survives_any_loss(Submission { exchange: Exchange::Stay, ..submission(26) }).await;
    survives_any_loss(exact(26)).await;
}

async fn survives_any_loss(submission: Submission) {
    let asked = || Submission { outputs: Outputs::Logits, ..submission.clone() };
    let calm = start(Config::default(), &cluster(&[Habit::Obey; 3])).await;
    let (want, error) = all(&mut calm.submit(asked()).await.unwrap()).await;
    assert_eq!(error, None);
    for chunk_idx in 0..7 {
        let mut fakes = cluster(&[Habit::Obey; 3]);
        fakes[chunk_idx as usize % 3].habit = Habit::DieAt { chunk_idx };
        let coordinator = start(Config::default(), &fakes).await;
        let (got, error) = all(&mut coordinator.submit(asked()).await.unwrap()).await;
        assert_eq!(error, None);
        assert_eq!(answer(&got), answer(&want), "lost at chunk {chunk_idx}");
        assert!(coordinator.stats().chunks_retried > 0);
        let state = coordinator.describe().workers[chunk_idx as usize % 3].state;
        assert_eq!(state, WorkerState::Down);
    }
}

#[tokio::test]
async fn without_workers_requests_are_unavailable() {
    let config = Config { worker_grace: Duration::from_millis(50), ..Config::default() };
    let coordinator = start(config, &cluster(&[Habit::DieAt { chunk_idx: 0 }])).await;
    let mut handle = coordinator.submit(submission(8)).await.unwrap();
    let (_, error) = all(&mut handle).await;
    assert!(matches!(error, Some(RequestError::Unavailable(_))), "{error:?}");
    let error = coordinator.submit(submission(8)).await.unwrap_err();
    assert!(matches!(error, RequestError::Unavailable(_)), "{error:?}");
}

#[tokio::test]
async fn a_caller_that_does_not_read_stalls_nobody() {
    let coordinator = start(Config::default(), &cluster(&[Habit::Obey; 2])).await;
    let asked = Submission { outputs: Outputs::Logits, ..submission(900) };
    let mut slow = coordinator.submit(asked).await.unwrap();
    for _ in 0..3 {
        let mut quick = coordinator.submit(submission(9)).await.unwrap();
        assert_eq!(all(&mut quick).await.1, None);
    }
    let (updates, error) = all(&mut slow).await;
    assert_eq!(error, None);
    assert_eq!(answer(&updates).0.len(), 900);
}

#[tokio::test]
async fn a_stopped_choice_is_done_and_says_nothing_more() {
    let fakes = cluster(&[Habit::Obey]);
    let coordinator = start(Config::default(), &fakes).await;
    let asked = Submission { choices: 64, max_tokens: 500, ..submission(3) };
    let mut handle = coordinator.submit(asked).await.unwrap();
    handle.stop_choice(63);
    let (updates, error) = all(&mut handle).await;
    assert_eq!(error, None);
    let done = updates.iter().filter(|update| matches!(update, Update::ChoiceDone { .. }));
    assert_eq!(done.count(), 64);
}

#[tokio::test]
async fn what_no_other_worker_could_be_told_ends_on_a_drained_one() {
    for (tokens, goes) in [(100, true), (limits::BEGUN_TOKENS_MAX / 2, false)] {
        let mut fakes = cluster(&[Habit::NeverEnd; 2]);
        fakes.iter_mut().for_each(|fake| fake.max_positions = limits::OUTPUT_TOKENS_MAX);
        let coordinator = start(Config::default(), &fakes).await;
        let asked = Submission { choices: 2, max_tokens: tokens as u32 + 1, ..submission(3) };
        let mut handle = coordinator.submit(asked).await.unwrap();
        let mut read = 0;
        while read < 2 * tokens {
            let next = tokio::time::timeout(SOON, handle.next()).await.expect("no token came");
            read += usize::from(matches!(next.unwrap().unwrap(), Update::Token(_)));
        }
        let decodes =
            |fake: &&Fake| fake.seen().iter().any(|command| matches!(command, Command::Decode(_)));
        let home = fakes.iter().find(decodes).unwrap();
        coordinator.drain(&home.name, true).await.unwrap();
        drop(handle);
        home.told(is_cancel).await;
        let goes_over = |command: &Command| matches!(command, Command::HandOver { .. });
        assert_eq!(home.seen().iter().any(goes_over), goes, "after {tokens} tokens of each");
    }
}

#[tokio::test]
async fn who_has_left_is_given_nothing_more() {
    let mut fakes = cluster(&[Habit::Hold { chunk_idx: 0 }; 2]);
    // Room for one request.
    fakes.iter_mut().for_each(|fake| fake.pool_tokens = 2 * limits::PAGE_TOKENS);
    let coordinator = start(Config::default(), &fakes).await;
    let mut seen = coordinator.watch();
    fakes[1].leave();
    let leaves = seen.wait_for(|cluster| cluster.workers[1].draining);
    tokio::time::timeout(SOON, leaves).await.expect("it stays").unwrap();
    let _running = coordinator.submit(exact(2)).await.unwrap();
    let _waiting = coordinator.submit(exact(2)).await.unwrap();
    fakes[1].close();
    let is_gone = |cluster: &Cluster| cluster.workers[1].state == WorkerState::Down;
    tokio::time::timeout(SOON, seen.wait_for(is_gone)).await.expect("it is there").unwrap();
    // By then the loop has done all that follows from it.
    let _another = coordinator.submit(exact(2)).await.unwrap();
    let stats = coordinator.stats();
    assert_eq!((stats.running, stats.workers_up), (1, 1), "{stats:?}");
}

#[tokio::test]
async fn a_worker_with_another_model_is_refused() {
    let mut fakes = cluster(&[Habit::Obey; 2]);
    fakes[1].fingerprint = "other".into();
    let sessions = vec![fakes[0].session()];
    let coordinator = Coordinator::start(Config::default(), sessions).unwrap();
    assert!(coordinator.wait_for_workers(1, SOON).await);
    assert_eq!(coordinator.describe().model.unwrap().fingerprint, "same");

    let sessions = fakes.iter().map(Fake::session).collect();
    let coordinator = Coordinator::start(Config::default(), sessions).unwrap();
    let mut cluster = coordinator.watch();
    let settled = cluster.wait_for(|cluster| {
        let states: Vec<WorkerState> = cluster.workers.iter().map(|worker| worker.state).collect();
        states.contains(&WorkerState::Up) && states.contains(&WorkerState::Refused)
    });
    let cluster = tokio::time::timeout(SOON, settled).await.unwrap().unwrap();
    let refused = cluster.workers.iter().find(|worker| worker.state == WorkerState::Refused);
    assert!(refused.unwrap().reason.as_ref().unwrap().starts_with("fingerprint = "));
}

#[tokio::test]
async fn of_two_workers_that_name_one_address_the_one_found_there_serves() {
    let check = async |places: [&str; 2], served: usize| {
        let (twin, other) = (Fake::new("twin", Habit::Obey), Fake::new("other", Habit::Obey));
        let mut sessions: Vec<_> = places.iter().map(|place| twin.session_at(place)).collect();
        sessions.push(other.session());
        let coordinator = Coordinator::start(Config::default(), sessions).unwrap();
        let mut cluster = coordinator.watch();
        let settled = cluster.wait_for(|cluster| {
            let state = |idx: usize| cluster.workers[idx].state;
            let pair = (state(served), state(1 - served));
            pair == (WorkerState::Up, WorkerState::Refused) && state(2) == WorkerState::Up
        });
        let cluster = tokio::time::timeout(SOON, settled).await.unwrap().unwrap().clone();
        let reason = cluster.workers[1 - served].reason.as_ref().unwrap();
        assert!(reason.starts_with("peer = local://twin: "), "{reason}");
        let mut handle = coordinator.submit(submission(26)).await.unwrap();
        assert_eq!(all(&mut handle).await.1, None);
    };
    check(["elsewhere", "local://twin"], 1).await;
    check(["local://twin", "elsewhere"], 0).await;
}

#[tokio::test]
async fn wrong_requests_are_refused_by_field() {
    let coordinator = start(Config::default(), &cluster(&[Habit::Obey])).await;
    let error = coordinator.submit(submission(999)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "prompt_tokens = 999: must be at most 998, which is max_positions = 1000 less \
         max_tokens = 2"
    );
}
