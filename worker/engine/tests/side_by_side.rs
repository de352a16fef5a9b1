//! Layers that take the stream as the layer before took it: what nobody wants is not computed, and
//! neither that, nor where a prompt is cut, nor who else is in a batch changes a bit of the rest.

#[path = "support/backends.rs"]
mod backends;
#[path = "support/fixtures.rs"]
mod fixtures;
#[path = "support/steps.rs"]
mod steps;

use std::sync::Arc;

use aqueduct_core::MemoryPolicy;
use aqueduct_engine::{Block, LocalPort, Model, Sequence, Turn, Want, decode, prefill};
use aqueduct_kernels::{KvHeads, Leaves};
use fixtures::models;

const CHUNK: usize = 30;
const LEAVES: Leaves = Leaves::of_chunks(CHUNK as u32);
const PROMPT: usize = 2 * CHUNK + 17;

const FIXTURE: &str = "falcon-h1-bfloat16";

fn policies() -> [MemoryPolicy; 3] {
    [MemoryPolicy::dense(), MemoryPolicy::h2o(2, 8, 8), MemoryPolicy::window(2, 8)]
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
        let shape = model.shape();
        assert_eq!((shape.layers, shape.recurrent_layers), (4, 2), "two of each of a file's");
        for policy in policies() {
            let (mut all, mut some) = (LocalPort::empty(&model), LocalPort::empty(&model));
            let wants = [Want::Memory, Want::Memory, Want::Last];
            for (chunk, want) in tokens(&model, 0).chunks(CHUNK).zip(wants) {
                let block = Block { tokens: chunk, start: all.end(), leaves: LEAVES };
                let whole = prefill(&model, block, &policy, &mut all, Want::All).unwrap();
                let seen = prefill(&model, block, &policy, &mut some, want).unwrap();
                let rows = usize::from(want == Want::Last);
                let last = whole.hidden.clone().of_last(rows).unwrap();
                assert_eq!(bits(seen.hidden.data()), bits(last.data()), "{policy:?}");
                assert_eq!(some.layers(), all.layers(), "{policy:?}");
            }
            let has_keys = |idx: usize| !all.layers()[idx].keys.is_empty();
            assert_eq!([0, 1, 2, 3].map(has_keys), [false, true, false, true]);
        }
    }
}

fn begun(model: &Model, policy: &MemoryPolicy, seed: u32) -> LocalPort {
    let mut port = LocalPort::empty(model);
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

/// A state that is no number ends its sequence in the first layer of a pair, keys that are none
/// end it in the second, and the others go on from what is theirs.
#[test]
fn one_that_is_broken_ends_alone() {
    for model in models(FIXTURE) {
        let policy = MemoryPolicy::dense();
        for layer in 0..2 {
            let sets = |seed| begun(&model, &policy, seed).layers().to_vec();
            let mut broken = sets(1);
            let set = Arc::make_mut(&mut broken[layer]);
            match layer {
                0 => set.state = vec![f32::NAN; set.state.len()].into(),
                _ => {
                    let KvHeads { kv_heads, tokens, head_dim, .. } = set.keys.k;
                    let nan = vec![f32::NAN; kv_heads * tokens * head_dim];
                    set.keys.k = KvHeads::from_f32(kv_heads, tokens, head_dim, &nan, model.kv());
                }
            }
            let [first, broken, last] = [sets(0), broken, sets(2)];
            let mut batch = [first, broken, last].map(|it| Sequence::new(&model, it, LEAVES));
            let mut alone = [0, 2].map(|idx: usize| batch[idx].clone());
            let turns: Vec<Turn<'_>> = batch.iter_mut().map(|it| it.turn(3, &policy)).collect();
            let done = decode(&model, turns);
            assert!(done[1].is_err(), "layer {layer}");
            for (seen, want) in [&done[0], &done[2]].into_iter().zip(&mut alone) {
                let want = want.step(&model, 3, &policy).unwrap();
                assert_eq!(bits(seen.as_ref().unwrap()), bits(&want), "layer {layer}");
            }
        }
    }
}
