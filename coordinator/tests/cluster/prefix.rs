//! Prefixes that were seen: what is kept of them, who goes on from them, what if they are gone.

use aqueduct_coordinator::runtime::Stats;
use aqueduct_coordinator::submit::{PrefillReport, Submission, Update};
use aqueduct_coordinator::{Config, Coordinator};
use aqueduct_core::work::{Command, Outputs};
use aqueduct_core::{Exchange, MemoryPolicy, SessionUse, WireDtype};

use crate::fake::{Fake, Habit, SOON, all, submission};
use crate::runtime::{cluster, start};

/// Two workers that keep what they are asked to.
async fn keepers() -> (Coordinator, Vec<Fake>) {
    let mut fakes = cluster(&[Habit::Obey; 2]);
    fakes.iter_mut().for_each(|fake| fake.snapshots = Some(Default::default()));
    let coordinator = start(Config::default(), &fakes).await;
    (coordinator, fakes)
}

/// How `asked` went, which must not fail.
async fn report(coordinator: &Coordinator, asked: Submission) -> PrefillReport {
    let (updates, error) = all(&mut coordinator.submit(asked).await.unwrap()).await;
    assert_eq!(error, None);
    let progress = updates.iter().rev().find_map(|update| match update {
        Update::Progress(progress) => Some(progress),
        _ => None,
    });
    let progress = progress.unwrap();
    assert_eq!(progress.chunks_done, progress.chunk_count);
    let report = updates.into_iter().find_map(|update| match update {
        Update::Prefilled(report) => Some(*report),
        _ => None,
    });
    report.unwrap()
}

/// Waits until the figures are as wanted.
async fn until(coordinator: &Coordinator, wanted: impl Fn(&Stats) -> bool) {
    let settled = async {
        while !wanted(&coordinator.stats()) {
            tokio::task::yield_now().await;
        }
    };
    let done = tokio::time::timeout(SOON, settled).await;
    assert!(done.is_ok(), "{:?}", coordinator.stats());
}

/// What the workers were told of snapshots, and how many chunks they computed.
fn told(fakes: &[Fake]) -> (usize, usize, usize) {
    let seen: Vec<Command> = fakes.iter().flat_map(Fake::seen).collect();
    let count = |what: fn(&Command) -> bool| seen.iter().filter(|seen| what(seen)).count();
    (
        count(|command| matches!(command, Command::Keep(_))),
        count(|command| matches!(command, Command::Restore(_))),
        count(|command| matches!(command, Command::Assign(_))),
    )
}

/// Workers say what they are, and a little later what they keep: nobody asks in between.
#[tokio::test]
async fn a_session_is_kept_as_soon_as_workers_are_up() {
    let (coordinator, _fakes) = keepers().await;
    let asked = Submission { session: Some(SessionUse::New), ..submission(10) };
    let (updates, error) = all(&mut coordinator.submit(asked).await.unwrap()).await;
    assert_eq!(error, None);
    assert!(updates.iter().any(|update| matches!(update, Update::Session(_))), "{updates:?}");
}

#[tokio::test]
async fn the_same_prompt_costs_its_last_chunk() {
    let (coordinator, fakes) = keepers().await;
    let first = report(&coordinator, submission(26)).await;
    assert_eq!((first.cached_tokens, told(&fakes)), (0, (6, 0, 7)));
    let second = report(&coordinator, submission(26)).await;
    assert_eq!((second.cached_tokens, told(&fakes)), (24, (6, 1, 8)));
    let timeless = |report: PrefillReport| PrefillReport {
        cached_tokens: 0,
        elapsed: Default::default(),
        queued: Default::default(),
        ..report
    };
    assert_eq!(timeless(second), timeless(first), "also what was kept of the whole prompt");
}

#[tokio::test]
async fn prompts_share_as_much_as_they_begin_alike() {
    let (coordinator, fakes) = keepers().await;
    report(&coordinator, submission(26)).await;
    let mut parted = submission(26);
    parted.prompt[13] = 0;
    assert_eq!(report(&coordinator, parted).await.cached_tokens, 12);
    assert_eq!(told(&fakes), (9, 1, 11), "the rest of the second is kept too");
    assert_eq!(report(&coordinator, submission(40)).await.cached_tokens, 24, "a longer one");
    assert_eq!(report(&coordinator, submission(12)).await.cached_tokens, 8, "a token is left");
    assert_eq!(report(&coordinator, submission(4)).await.cached_tokens, 0);
}

#[tokio::test]
async fn who_asks_for_more_or_for_less_computes_it_all() {
    let (coordinator, fakes) = keepers().await;
    report(&coordinator, submission(26)).await;
    let check = async |asked: Submission| {
        assert_eq!(report(&coordinator, asked).await.cached_tokens, 0);
    };
    let base = || submission(26);
    check(Submission { cache_prompt: false, ..base() }).await;
    check(Submission { outputs: Outputs::Logprobs(0), ..base() }).await;
    check(Submission { policy: MemoryPolicy::h2o(1, 1, 0), ..base() }).await;
    check(Submission { chunk_tokens: 8, ..base() }).await;
    check(Submission { exchange: Exchange::Stay, ..base() }).await;
    check(Submission { policy: MemoryPolicy::dense(), ..base() }).await;
    assert_eq!(told(&fakes).1, 0, "nothing was restored");
    assert_eq!(report(&coordinator, base()).await.cached_tokens, 24);
}

/// Under exact attention each chunk's keys are kept for themselves, so whatever is left of them is
/// of use.
#[tokio::test]
async fn exact_attention_computes_what_nobody_has() {
    let (coordinator, fakes) = keepers().await;
    let dense = |tokens| Submission { policy: MemoryPolicy::dense(), ..submission(tokens) };
    assert_eq!(report(&coordinator, dense(26)).await.cached_tokens, 0);
    assert_eq!(told(&fakes), (6, 0, 7), "every full chunk");
    let second = report(&coordinator, dense(26)).await;
    assert_eq!((second.cached_tokens, told(&fakes)), (24, (6, 6, 8)));
    assert_eq!(report(&coordinator, dense(40)).await.cached_tokens, 24, "a longer one");
    assert_eq!(report(&coordinator, dense(12)).await.cached_tokens, 8, "a token is left");
    let (_, restored, _) = told(&fakes);
    for wire in [WireDtype::Bf16, WireDtype::F16] {
        let rounded = Submission { wire, ..dense(26) };
        assert_eq!(report(&coordinator, rounded).await.cached_tokens, 0, "rounded on its way");
    }
    assert_eq!(told(&fakes).1, restored);
    fakes[1].snapshots.as_ref().unwrap().lock().unwrap().clear();
    let partly = report(&coordinator, dense(26)).await;
    assert_eq!((partly.cached_tokens, partly.chunks_retried), (12, 0), "of every other chunk");
    assert_eq!(report(&coordinator, dense(26)).await.cached_tokens, 24, "kept again");
}

#[tokio::test]
async fn what_is_gone_is_computed_and_figures_stay_right() {
    let (coordinator, fakes) = keepers().await;
    let first = report(&coordinator, submission(26)).await;
    for fake in &fakes {
        fake.snapshots.as_ref().unwrap().lock().unwrap().clear();
    }
    let second = report(&coordinator, submission(26)).await;
    assert_eq!((second.cached_tokens, second.chunks_retried), (0, 0));
    assert_eq!(second.retained, first.retained);
    let (kept, restored, _) = told(&fakes);
    // The longest one that is thought to be there is asked for, then the next: all six are missed.
    assert_eq!((kept, restored), (12, 6), "and kept again");
    assert_eq!(report(&coordinator, submission(26)).await.cached_tokens, 24);
}

#[tokio::test]
async fn a_holder_that_dies_takes_its_snapshots_along() {
    let (coordinator, fakes) = keepers().await;
    report(&coordinator, submission(26)).await;
    until(&coordinator, |stats| stats.snapshots.count == 6).await;
    fakes[1].close();
    until(&coordinator, |stats| stats.workers_up == 1).await;
    assert_eq!(report(&coordinator, submission(26)).await.cached_tokens, 20);
}

#[tokio::test]
async fn workers_that_keep_nothing_are_not_asked_to() {
    let fakes = cluster(&[Habit::Obey; 2]);
    let coordinator = start(Config::default(), &fakes).await;
    for _ in 0..2 {
        assert_eq!(report(&coordinator, submission(26)).await.cached_tokens, 0);
    }
    assert_eq!(told(&fakes), (0, 0, 14));
}
