//! What is shown of a memory is what is in it, and to be watched changes no bit.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use aqueduct_core::MemoryPolicy;
use aqueduct_core::work::SeenHead;
use aqueduct_engine::seen::remembered;
use aqueduct_engine::{LoadOptions, Model, Sequence, WeightDtype};
use aqueduct_kernels::{Cpu, CpuOptions, KvDtype, Leaves, MemorySet};

fn model() -> Model {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers/llama31-bfloat16");
    let backend = Arc::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap());
    let options = LoadOptions { kv: KvDtype::F32, weights: WeightDtype::F32, backend };
    Model::load(&dir, &options, &mut |_| {}).unwrap()
}

fn weights(head: &SeenHead) -> BTreeMap<u32, f32> {
    assert_eq!(head.left_out, 0);
    head.positions.iter().copied().zip(head.weights.iter().copied()).collect()
}

fn shown(memory: &[Arc<MemorySet>]) -> Vec<Vec<SeenHead>> {
    memory.iter().map(|set| remembered(set).unwrap()).collect()
}

/// Steps of a sequence that is watched and of one that is not, side by side; `each` sees what was
/// remembered before and after a step, and what it looked at.
fn check(policy: MemoryPolicy, each: impl Fn(&Model, &SeenHead, &SeenHead, &SeenHead)) {
    let model = model();
    let nothing = (0..model.layers()).map(|layer| Arc::new(model.empty_memory(layer)));
    let mut plain = Sequence::new(&model, nothing.collect(), Leaves::of_chunks(5));
    let mut watched = plain.clone();
    watched.watch();
    for token in (0..24).map(|idx| (idx * 37 + 5) % model.shape().vocab) {
        let before = shown(watched.memory());
        let bits = |logits: Vec<f32>| logits.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let logits = watched.step(&model, token, &policy).unwrap();
        assert_eq!(bits(logits), bits(plain.step(&model, token, &policy).unwrap()));
        let after = shown(watched.memory());
        assert_eq!(after, shown(plain.memory()));
        let looks = watched.take_looks();
        assert_eq!(looks.len(), model.layers());
        assert!(plain.take_looks().is_empty() && watched.take_looks().is_empty());
        for (layer, heads) in looks.iter().enumerate() {
            assert_eq!(heads.len(), model.shape().kv_heads as usize);
            for (head, look) in heads.iter().enumerate() {
                let all: f32 = look.weights.iter().sum();
                // Of many keys the heaviest alone are told.
                let is_all = look.left_out == 0;
                assert_eq!((all - 1.0).abs() < 1e-4, is_all, "shares sum to {all}");
                if is_all {
                    assert_eq!(look.positions.last(), Some(&(watched.position() - 1)));
                }
                each(&model, &before[layer][head], &after[layer][head], look);
            }
        }
    }
}

#[test]
fn scores_grow_by_what_is_looked_at() {
    check(MemoryPolicy::h2o(2, 4, 4), |model, before, after, look| {
        let queries = (model.shape().heads / model.shape().kv_heads) as f32;
        let (before, look) = (weights(before), weights(look));
        for (position, score) in weights(after) {
            let grown = score - before.get(&position).copied().unwrap_or(0.0);
            let share = look.get(&position).copied().unwrap_or(0.0);
            assert!((grown - share * queries).abs() < 1e-3, "{position}: {grown}, {share}");
        }
    });
}

/// Each row spends one for each query head: the next turn tells what was kept of that.
#[test]
fn what_is_kept_for_another_turn_counts_under_a_window_too() {
    let (model, policy) = (model(), MemoryPolicy::window(2, 30));
    let nothing = (0..model.layers()).map(|layer| Arc::new(model.empty_memory(layer)));
    let mut kept = Sequence::new(&model, nothing.collect(), Leaves::of_chunks(5));
    kept.keep();
    let steps = 24;
    for token in (0..steps).map(|idx| (idx * 37 + 5) % model.shape().vocab) {
        kept.step(&model, token, &policy).unwrap();
    }
    for heads in shown(kept.memory()) {
        let spent: f32 = heads.iter().flat_map(|head| &head.weights).sum();
        assert!((spent - (steps * model.shape().heads) as f32).abs() < 1e-2, "{spent}");
    }
}

/// Where every key is kept nobody counts, unless somebody watches.
#[test]
fn what_keeps_every_key_is_watched_too() {
    check(MemoryPolicy::dense(), |_, _, after, look| {
        assert!(after.weights.iter().all(|score| *score == 0.0));
        assert!(look.left_out > 0 || look.positions == after.positions);
    });
}

#[test]
fn a_window_is_watched_without_scores() {
    check(MemoryPolicy::window(2, 6), |_, _, after, _| {
        assert!(after.weights.iter().all(|score| *score == 0.0));
    });
}
