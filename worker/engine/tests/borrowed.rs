//! Layers that attend to keys of earlier ones: what nobody wants is not computed, and neither that,
//! nor when the past arrives, nor who else is in a batch changes a bit of the rest.

#[path = "support/backends.rs"]
mod backends;
#[path = "support/fixtures.rs"]
mod fixtures;
#[path = "support/late.rs"]
mod late;
#[path = "support/steps.rs"]
mod steps;

use std::sync::Arc;

use aqueduct_core::MemoryPolicy;
use aqueduct_engine::{Block, LocalPort, Model, Sequence, Want, decode, prefill};
use aqueduct_kernels::{KvDtype, Leaves, Reference};
use fixtures::{load, models};
use late::Late;

/// Tokens of each chunk: more than attend where only the last is wanted, and no whole tiles.
const CHUNK: usize = 90;
const LEAVES: Leaves = Leaves::of_chunks(CHUNK as u32);
const PROMPT: usize = 2 * CHUNK + 70;

const FIXTURE: &str = "gemma4-small-float16";

fn policies() -> [MemoryPolicy; 3] {
    [MemoryPolicy::dense(), MemoryPolicy::h2o(2, 16, 16), MemoryPolicy::window(2, 16)]
}

fn tokens(model: &Model, seed: u32) -> Vec<u32> {
    (0..PROMPT as u32).map(|i| (i * 37 + i * i * 11 + seed) % model.shape().vocab).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn what_nobody_wants_changes_no_bit_of_the_rest() {
    for model in models(FIXTURE) {
        let (layers, shape) = (model.memory_layers(), model.shape());
        assert_eq!((model.layers(), layers, shape.kv_shared_layers), (4, 2, 2));
        for policy in policies() {
            let tokens = tokens(&model, 0);
            let (mut all, mut some) = (LocalPort::empty(&model), LocalPort::empty(&model));
            let mut late = Late::empty(&model);
            for (idx, chunk) in tokens.chunks(CHUNK).enumerate() {
                let want = [Want::Memory, Want::Memory, Want::Last][idx];
                let block = Block { tokens: chunk, start: all.end(), leaves: LEAVES };
                let whole = prefill(&model, block, &policy, &mut all, Want::All).unwrap();
                let seen = prefill(&model, block, &policy, &mut some, want).unwrap();
                let slow = prefill(&model, block, &policy, &mut late, Want::All).unwrap();
                let rows = seen.hidden.rows();
                assert_eq!(rows, usize::from(want == Want::Last));
                let last = whole.hidden.clone().of_last(rows).unwrap();
                assert_eq!(bits(seen.hidden.data()), bits(last.data()), "{policy:?}");
                assert_eq!(bits(slow.hidden.data()), bits(whole.hidden.data()), "{policy:?}");
                assert_eq!(some.layers(), all.layers(), "{policy:?}");
                assert_eq!(late.port.layers(), all.layers(), "{policy:?}");
                assert_eq!(std::mem::take(&mut late.given), (0..layers).collect::<Vec<_>>());
                assert_eq!(seen.retained().unwrap(), whole.retained().unwrap());
            }
            assert_eq!(all.layers().len(), layers);
        }
    }
}

/// Where none are given up for their rank, keys go that no row to come sees, in steps too; rows see
/// what they see where nothing goes, in a prompt of one chunk.
#[test]
fn what_no_row_to_come_sees_goes() {
    for model in models(FIXTURE).into_iter().filter(|model| model.kv() == KvDtype::F32) {
        let policy = MemoryPolicy::dense();
        let all = tokens(&model, 1);
        let whole = Block { tokens: &all, start: 0, leaves: Leaves::of_chunks(PROMPT as u32) };
        let mut alone = LocalPort::empty(&model);
        let want = prefill(&model, whole, &policy, &mut alone, Want::Last).unwrap().hidden;
        let (chunks, steps) = all.split_at(PROMPT - 5);
        let mut port = LocalPort::empty(&model);
        let mut last = None;
        for tokens in chunks.chunks(CHUNK).chain(steps.chunks(1)) {
            let block = Block { tokens, start: port.end(), leaves: LEAVES };
            last = Some(prefill(&model, block, &policy, &mut port, Want::Last).unwrap().hidden);
            let end = port.end();
            for (idx, set) in port.layers().iter().enumerate() {
                let first = model.window(idx).map_or(0, |window| window.first_seen(end));
                let kept: Vec<u32> = (first..end).collect();
                assert_eq!(set.keys.head_positions(0), kept, "layer {idx} at {end}");
            }
        }
        let (last, want) = (last.unwrap(), want.data());
        let size = want.iter().fold(0f32, |max, x| max.max(x.abs()));
        let apart = last.data().iter().zip(want).map(|(a, b)| (a - b).abs());
        let apart = apart.fold(0f32, f32::max) / size;
        assert!(apart <= 1e-4, "{apart}");
    }
}

/// The prompt of `seed`, prefilled in pages of a pool where there is one.
fn begun(model: &Model, policy: &MemoryPolicy, seed: u32) -> LocalPort {
    let pool = model.pool(64 << 20).unwrap().filter(|_| seed % 2 == 1);
    let mut port = match &pool {
        None => LocalPort::empty(model),
        Some(pool) => LocalPort::empty_in(pool, model),
    };
    for chunk in tokens(model, seed).chunks(CHUNK) {
        let block = Block { tokens: chunk, start: port.end(), leaves: LEAVES };
        prefill(model, block, policy, &mut port, Want::Memory).unwrap();
    }
    port
}

/// Steps of three sequences in a batch, of each alone, and as chunks of one token.
#[test]
fn a_batch_gives_what_each_gives_alone() {
    let leaves = LEAVES.going_on_behind(PROMPT as u32);
    for model in models(FIXTURE) {
        for policy in policies() {
            let ports = (0..3).map(|seed| begun(&model, &policy, seed)).collect();
            steps::check(&model, &policy, ports, leaves);
        }
    }
}

/// One that is broken ends alone, and the others' inputs stay theirs.
#[test]
fn a_token_that_is_none_ends_alone() {
    let model = load(FIXTURE, Arc::new(Reference), KvDtype::F32);
    let policy = MemoryPolicy::h2o(2, 16, 16);
    let sequence =
        |seed| Sequence::new(&model, begun(&model, &policy, seed).layers().to_vec(), LEAVES);
    let (mut first, mut broken, mut last) = (sequence(0), sequence(2), sequence(4));
    let mut want = last.clone();
    let vocab = model.shape().vocab;
    let turns = vec![first.turn(3, &policy), broken.turn(vocab, &policy), last.turn(5, &policy)];
    let done = decode(&model, turns);
    assert!(done[0].is_ok() && done[1].is_err());
    let alone = want.step(&model, 5, &policy).unwrap();
    assert_eq!(bits(done[2].as_ref().unwrap()), bits(&alone));
}

/// Layers without keys tell what they look at too, in keys of others.
#[test]
fn every_layer_is_watched() {
    every_layer_is_watched_under(&MemoryPolicy::h2o(2, 4, 4));
    every_layer_is_watched_under(&MemoryPolicy::dense());
}

fn every_layer_is_watched_under(policy: &MemoryPolicy) {
    let model = load(FIXTURE, Arc::new(Reference), KvDtype::F32);
    let mut watched = Sequence::new(&model, begun(&model, policy, 0).layers().to_vec(), LEAVES);
    let mut plain = watched.clone();
    watched.watch();
    for token in [3, 1, 4] {
        let logits = watched.step(&model, token, policy).unwrap();
        assert_eq!(bits(&logits), bits(&plain.step(&model, token, policy).unwrap()));
        assert_eq!(watched.memory(), plain.memory());
        let looks = watched.take_looks();
        assert_eq!(looks.len(), model.layers());
        for head in looks.iter().flatten() {
            let all: f32 = head.weights.iter().sum();
            if head.left_out > 0 {
                assert!(0.0 < all && all < 1.0, "the heaviest shares sum to {all}");
                continue;
            }
            assert!((all - 1.0).abs() < 1e-4, "shares sum to {all}");
            assert_eq!(head.positions.last(), Some(&(watched.position() - 1)));
        }
    }
}

#[test]
fn shards_are_refused() {
    let model = load(FIXTURE, Arc::new(Reference), KvDtype::F32);
    let refused = model.check_shards().unwrap_err().to_string();
    assert!(refused.contains("kv_shared_layers"), "{refused}");
}
