//! Partial states merge into one, whatever their maxima.

use crate::backend::Backend;
use crate::compare::{close, identical};
use crate::state::AttentionState;

use super::attention::check_block;
use super::scene::{Block, Random, Shape};

/// States of one block's queries over three stretches of the past, logits within ±100.
fn three_states(backend: &dyn Backend) -> [AttentionState; 3] {
    let shape = Shape { spread: 25.0, ..Shape::default() };
    let block = shape.block(90, 7);
    let over = |positions: std::ops::Range<u32>| {
        let keys = shape.keys(&positions.collect::<Vec<_>>().repeat(2), |_, _| 0.0);
        backend.attend(block.queries(), &keys).expect("fits")
    };
    [over(0..20), over(20..21), over(30..77)]
}

fn same_bits(a: &AttentionState, b: &AttentionState) {
    identical("m", &a.m, &b.m).unwrap();
    identical("l", &a.l, &b.l).unwrap();
    identical("o", &a.o, &b.o).unwrap();
}

/// Merging with a state that saw nothing changes no bit, on either side.
pub fn merge_with_empty_is_the_identity(backend: &dyn Backend) {
    let [a, ..] = three_states(backend);
    let empty = AttentionState::empty(a.heads, a.tokens, a.head_dim);
    same_bits(&a.clone().merge(&empty), &a);
    same_bits(&empty.clone().merge(&a), &a);
    same_bits(&empty.clone().merge(&empty), &empty);
}

/// Either order gives the same bits.
pub fn merge_is_commutative_bit_for_bit(backend: &dyn Backend) {
    let [a, b, c] = three_states(backend);
    for (x, y) in [(&a, &b), (&b, &c), (&a, &c)] {
        same_bits(&x.clone().merge(y), &y.clone().merge(x));
    }
}

/// Either grouping gives the same state up to rounding.
pub fn merge_is_associative(backend: &dyn Backend) {
    let [a, b, c] = three_states(backend);
    let left = a.clone().merge(&b).merge(&c);
    let right = a.merge(&b.merge(&c));
    let tolerance = crate::compare::Tolerance::new(1e-6, 1e-6);
    identical("m", &left.m, &right.m).unwrap();
    close("l", &left.l, &right.l, tolerance).unwrap();
    close("output", left.output().data(), right.output().data(), tolerance).unwrap();
}

/// What a backend merges, and makes activations of, are the definition's bits: with rows that saw
/// nothing, and more of them than a task takes.
pub fn a_backend_merges_as_defined(backend: &dyn Backend) {
    let (heads, head_dim) = (5, 48);
    for tokens in [1, 7, 333] {
        let state = |seed: u64| {
            let mut random = Random::new(seed);
            let mut state = AttentionState::empty(heads, tokens, head_dim);
            for row in 0..heads * tokens {
                if !random.next().is_multiple_of(4) {
                    state.m[row] = 30.0 * random.normal();
                    state.l[row] = 1.0 + random.normal().abs();
                    let o = &mut state.o[row * head_dim..(row + 1) * head_dim];
                    o.copy_from_slice(&random.normals(head_dim));
                }
            }
            state
        };
        let (a, b) = (state(3), state(4));
        let want = a.clone().merge(&b);
        let seen = backend.merge(a, &b);
        same_bits(&seen, &want);
        identical("output", backend.output(&seen).data(), want.output().data()).unwrap();
    }
}

/// Past and own maxima lie up to 1e4 apart, either above the other.
pub fn maximum_gaps_up_to_1e4(backend: &dyn Backend) {
    let shape = Shape::default();
    for gap in [1.0, 20.0, 88.0, 104.0, 1e3, 1e4] {
        for (past_lift, own_lift) in [(gap, 0.0), (0.0, gap), (-gap, 0.0), (0.0, -gap)] {
            let past = shape.lifted_past(13, |_, _| past_lift);
            let block: Block = shape.lifted_block(26, 9, |_, _| own_lift);
            check_block(backend, &past, &block);
        }
    }
}
