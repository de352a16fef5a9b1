//! What nobody wants is not computed, and changes no bit of the rest.

#[path = "support/backends.rs"]
mod backends;
#[path = "support/fixtures.rs"]
mod fixtures;
#[path = "support/stores.rs"]
mod stores;

use aqueduct_core::MemoryPolicy;
use aqueduct_engine::{Block, LocalPort, Model, Want, prefill};
use aqueduct_kernels::{Leaves, Rows};
use fixtures::models;
use stores::Sharded;

/// Tokens of each chunk: more than attend where only the last is wanted, and no whole tiles.
const CHUNK: usize = 90;

const FIXTURE: &str = "llama31-bfloat16";

fn policies() -> [MemoryPolicy; 3] {
    [MemoryPolicy::dense(), MemoryPolicy::h2o(2, 16, 16), MemoryPolicy::window(2, 16)]
}

/// Chunks of a prompt, of which nothing but the last token's hidden state is wanted in the end.
fn chunks(model: &Model) -> Vec<(Vec<u32>, Want)> {
    let tokens = |first: u32| (first..).take(CHUNK).map(|i| i * 37 % model.shape().vocab).collect();
    let wants = [Want::Memory, Want::Memory, Want::Last];
    (0..).step_by(CHUNK).map(tokens).zip(wants).collect()
}

fn bits(x: &Rows) -> Vec<u32> {
    x.data().iter().map(|x| x.to_bits()).collect()
}

/// `seen` are those of `all` that were wanted.
fn check(want: Want, seen: &Rows, all: &Rows) {
    let rows = match want {
        Want::Memory => 0,
        Want::Last => 1,
        Want::All => all.rows(),
    };
    let all = all.clone().of_last(rows).unwrap();
    assert_eq!((seen.rows(), bits(seen)), (rows, bits(&all)), "{want:?}");
}

#[test]
fn of_sets_that_travel() {
    for model in models(FIXTURE) {
        for policy in policies() {
            let (mut all, mut some) = (LocalPort::empty(&model), LocalPort::empty(&model));
            for (tokens, want) in chunks(&model) {
                let leaves = Leaves::of_chunks(CHUNK as u32);
                let block = Block { tokens: &tokens, start: all.end(), leaves };
                let whole = prefill(&model, block, &policy, &mut all, Want::All).unwrap();
                let seen = prefill(&model, block, &policy, &mut some, want).unwrap();
                check(want, &seen.hidden, &whole.hidden);
                assert_eq!(some.layers(), all.layers(), "{policy:?}");
                assert_eq!(seen.retained().unwrap(), whole.retained().unwrap());
            }
        }
    }
}

#[test]
fn of_shards() {
    for model in models(FIXTURE) {
        for policy in policies() {
            for places in [[0, 0, 0], [0, 1, 2]] {
                let mut all = Sharded::new(&model, policy, CHUNK as u32, &places);
                let mut some = Sharded::new(&model, policy, CHUNK as u32, &places);
                for (tokens, want) in chunks(&model) {
                    some.want = want;
                    let (whole, seen) = (all.chunk(&tokens), some.chunk(&tokens));
                    check(want, &seen.hidden, &whole.hidden);
                    assert_eq!(seen.retained().unwrap(), whole.retained().unwrap());
                }
                let last = model.layers() as u32 - 1;
                assert_eq!(some.kept(last), all.kept(last), "{policy:?} at {places:?}");
            }
        }
    }
}
