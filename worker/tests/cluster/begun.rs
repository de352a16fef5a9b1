//! Completions that go on elsewhere: the tokens that they had are not told again, and those after
//! them are the ones that would have come.

use std::sync::Arc;

use aqueduct_core::work::Begun;
use aqueduct_engine::Model;
use aqueduct_kernels::KvDtype;
use aqueduct_worker::Worker;
use tokio::sync::Mutex;

use crate::batch::{Plan, Tokens};
use crate::mixed_model::mixed;
use crate::rig::{Carrier, cluster};
use crate::tiny_model::tiny;

const REQUESTS: u64 = 30;

/// Every completion was interrupted somewhere, some before their first token, some after the
/// last, and some had ended.
fn interrupted(plan: &Plan, whole: &Tokens) -> Vec<Begun> {
    let seed = plan.job.request.0;
    let had = |choice: u32| {
        let of_choice = whole.iter().filter(|token| token.0 == choice);
        let ended = (seed + u64::from(choice)).is_multiple_of(4);
        let had = (seed * 5 + u64::from(choice) * 11) as usize % (plan.max_tokens as usize + 1);
        let had = if ended { 0 } else { had };
        Begun { choice, tokens: of_choice.map(|token| token.2).take(had).collect(), ended }
    };
    (0..plan.choices).map(had).filter(|begun| begun.ended || !begun.tokens.is_empty()).collect()
}

/// What is left of `whole`.
fn rest(whole: &Tokens, begun: &[Begun]) -> Tokens {
    let is_left = |(choice, idx): (u32, u32)| {
        let begun = begun.iter().find(|begun| begun.choice == choice);
        begun.is_none_or(|begun| !begun.ended && idx as usize >= begun.tokens.len())
    };
    whole.iter().filter(|token| is_left((token.0, token.1))).cloned().collect()
}

async fn check(model: Arc<Model>, carrier: Carrier) {
    let (first, second) = (cluster(&model, 2, carrier).await, cluster(&model, 3, carrier).await);
    let has_states = model.shape().recurrent_layers > 0;
    let [first_workers, second_workers] =
        [&first, &second].map(|it| it.iter().map(|at| at.worker.clone()).collect::<Vec<Worker>>());
    let turns = Mutex::default();
    let (mut left, mut told) = (0, 0);
    for plan in (0..REQUESTS).map(Plan::new) {
        let mut plan = plan.as_another();
        plan.shards = plan.shards.filter(|_| !has_states);
        let whole = plan.run(&first_workers, &turns, None).await;
        let begun = interrupted(&plan, &whole);
        let want = rest(&whole, &begun);
        let again = Plan { begun, ..plan.as_another() };
        let seen = again.run(&second_workers, &turns, None).await;
        assert!(seen == want, "{again:?}: {seen:?} instead of {want:?}");
        (left, told) = (left + want.len(), told + whole.len());
    }
    assert!(left > told / 4 && left < told * 3 / 4, "{left} of {told}");
    for member in first.iter().chain(&second) {
        member.settle_empty().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_begun_goes_on_with_the_same_bits() {
    check(tiny(KvDtype::Bf16), Carrier::Grpc).await;
    check(tiny(KvDtype::F32), Carrier::Loopback).await;
    check(mixed(KvDtype::F32), Carrier::Loopback).await;
}
