//! Attention over past and own keys is softmax by definition over both.

use crate::array::Array;
use crate::backend::{AttentionOps, Backend, Op, Queries};
use crate::compare::{Tolerance, close, identical};
use crate::memory::Keys;
use crate::state::AttentionState;
use crate::tensor::{KvDtype, KvHeads};
use crate::window::Window;

use super::near::close_to;
use super::oracle;
use super::scene::{Block, Shape};

/// Past and own keys attended apart and merged.
pub(super) fn merged(backend: &dyn AttentionOps, past: &Keys, block: &Block) -> AttentionState {
    let own = backend.attend(block.queries(), &block.keys).expect("own keys fit");
    backend.attend(block.queries(), past).expect("past keys fit").merge(&own)
}

/// Output and log-sum-exp of `block` over `past` and its own keys, against the definition.
pub(super) fn check_block(backend: &dyn AttentionOps, past: &Keys, block: &Block) {
    let keys = oracle::joined(&oracle::entries(past), &oracle::entries(&block.keys));
    let truth = oracle::attention(&block.queries(), &keys, &vec![1.0; block.tokens()]);
    let state = merged(backend, past, block);
    let tolerance = truth.tolerance();
    let name = |what: &str| {
        let (past, tokens, head_dim) = (past.len(), block.tokens(), block.q.head_dim);
        format!("{what} of {tokens} rows over {past} remembered keys of {head_dim}")
    };
    close(&name("lse"), &state.lse(), &truth.lse, tolerance).unwrap();
    close_to(&name("output"), state.output().data(), &truth.output, tolerance).unwrap();
}

fn check_shape(backend: &dyn Backend, shape: Shape, past: usize, tokens: usize) {
    check_block(backend, &shape.past(past), &shape.block(2 * past as u32, tokens));
}

/// Logits spread over [-100, 100].
pub fn logits_within_100(backend: &dyn Backend) {
    check_shape(backend, Shape { spread: 25.0, ..Shape::default() }, 40, 33);
}

/// Logits of thousands and of 1e4: never clamped.
pub fn logits_beyond_1e4(backend: &dyn Backend) {
    check_shape(backend, Shape { spread: 3e3, ..Shape::default() }, 40, 33);
    let shape = Shape::default();
    for lift in [1e4, -1e4] {
        let past = shape.lifted_past(30, |_, _| lift);
        check_block(backend, &past, &shape.lifted_block(60, 17, |_, _| lift));
    }
}

/// Keys that are alike weigh the same, however many tiles of them there are: a running maximum
/// that stays is worth exactly 1. Half of the values are 1 and half are 0, and the first element
/// of each is 1: what rounding does to all weights alike is in both. What it does to their sums is
/// below 3e-5; a maximum that is worth what is left of rounding its exponent is off by 4e-4 at the
/// largest logit.
pub fn keys_that_are_alike_weigh_alike(backend: &dyn Backend) {
    const KEYS: usize = 2048;
    for kv in [KvDtype::F32, KvDtype::Bf16] {
        for (head_dim, tokens) in [(16, 1), (64, 40), (128, 3)] {
            for logit in [29.7, -333.3, 1000.1, 3333.3] {
                let shape = Shape { head_dim, kv, ..Shape::default() };
                let mut block = shape.block(KEYS as u32, tokens);
                for row in block.q.data.chunks_mut(head_dim) {
                    row[1..].fill(0.0);
                }
                let (mut k, mut v) = (Vec::new(), Vec::new());
                for j in (0..shape.kv_heads).flat_map(|_| 0..KEYS) {
                    let upper = f32::from(u8::from(j >= KEYS / 2));
                    k.extend((0..head_dim).map(|d| if d == 0 { logit } else { 0.5 }));
                    v.extend((0..head_dim).map(|d| if d == 0 { 1.0 } else { upper }));
                }
                let stored =
                    |data: &[f32]| KvHeads::from_f32(shape.kv_heads, KEYS, head_dim, data, kv);
                let positions: Vec<u32> = (0..KEYS as u32).collect();
                let keys = Keys::new(positions.repeat(shape.kv_heads), stored(&k), stored(&v));
                let state = backend.attend(block.queries(), &keys).expect("fits");
                for (row, output) in state.output().data().chunks(head_dim).enumerate() {
                    let name = format!("row {row} of {tokens}, {head_dim} elements of {logit}");
                    let half = f64::from(output[1]) / f64::from(output[0]);
                    close(&name, &[half], &[0.5], Tolerance::new(3e-5, 0.0)).unwrap();
                }
            }
        }
    }
}

/// The running maximum rises, falls and jumps by up to 2e4 along the keys.
pub fn online_softmax_with_wide_gaps(backend: &dyn Backend) {
    let shape = Shape::default();
    let paths: [fn(u32) -> f32; 5] = [
        |position| position as f32,
        |position| -(position as f32),
        |position| 50.0 * position as f32 - 1e4,
        |position| if position % 2 == 0 { 1e4 } else { -1e4 },
        |position| if position == 70 { 1e4 } else { 0.0 },
    ];
    for path in paths {
        let past = shape.lifted_past(150, |_, position| path(position));
        check_block(backend, &past, &shape.lifted_block(300, 70, |_, position| path(position)));
    }
}

/// The first block of a sequence: the past gives the empty state, and the merge is own alone.
pub fn empty_memory(backend: &dyn Backend) {
    let shape = Shape::default();
    let (none, block) = (shape.past(0), shape.block(0, 21));
    let past = backend.attend(block.queries(), &none).expect("no keys is no error");
    assert_eq!(past, AttentionState::empty(shape.heads, 21, shape.head_dim));
    let own = backend.attend(block.queries(), &block.keys).expect("fits");
    identical("o", &past.merge(&own).o, &own.o).unwrap();
    check_block(backend, &none, &block);
}

/// A decode step, over pasts of none, one and many.
pub fn one_token_blocks(backend: &dyn Backend) {
    for past in [0, 1, 2, 100] {
        check_shape(backend, Shape::default(), past, 1);
        check_shape(backend, Shape { kv: KvDtype::Bf16, ..Shape::default() }, past, 1);
    }
}

/// Rows before every key: (-inf, 0, 0), output 0, never NaN. Rows behind them are not touched.
pub fn rows_that_see_nothing_are_empty(backend: &dyn Backend) {
    let shape = Shape::default();
    let block = shape.block(0, 9);
    let ahead = shape.block(4, 9).keys;
    let state = backend.attend(block.queries(), &ahead).expect("fits");
    let truth = oracle::attention(&block.queries(), &oracle::entries(&ahead), &[1.0; 9]);
    close("lse", &state.lse(), &truth.lse, truth.tolerance()).unwrap();
    close_to("output", state.output().data(), &truth.output, truth.tolerance()).unwrap();
    for h in 0..shape.heads {
        for t in 0..4 {
            let i = h * 9 + t;
            assert_eq!((state.m[i], state.l[i]), (f32::NEG_INFINITY, 0.0), "head {h}, row {t}");
            let o = &state.o[i * shape.head_dim..][..shape.head_dim];
            assert!(o.iter().all(|&o| o == 0.0), "head {h}, row {t}: {o:?}");
        }
    }
}

/// R = 1, 2, 4 and 8; one KV head and several; R that is no power of two.
pub fn grouped_and_multi_head(backend: &dyn Backend) {
    for (heads, kv_heads) in [(4, 4), (4, 2), (8, 2), (8, 1), (1, 1), (6, 2), (14, 2)] {
        check_shape(backend, Shape { heads, kv_heads, ..Shape::default() }, 20, 18);
    }
}

/// The head sizes of the families served, and small odd ones.
pub fn head_sizes(backend: &dyn Backend) {
    for head_dim in [64, 80, 96, 128, 256, 8, 2, 36] {
        for kv in [KvDtype::F32, KvDtype::Bf16] {
            let op = Op::Attention { head_dim, group: 2, kv };
            assert!(backend.supports(op), "{op:?}");
            check_shape(backend, Shape { head_dim, kv, ..Shape::default() }, 35, 19);
        }
    }
}

/// bf16 keys and values are widened exactly: no more error than with f32.
pub fn kv_dtypes(backend: &dyn Backend) {
    for kv in [KvDtype::F32, KvDtype::Bf16] {
        check_shape(backend, Shape { kv, spread: 4.0, ..Shape::default() }, 70, 65);
    }
}

/// Rows see keys above p - window only, or those of their block, remembered or own.
pub fn model_sliding_window(backend: &dyn Backend) {
    for window in [1, 5, 16, 24, 30, 1000, u32::MAX] {
        let last = Some(Window::Last(window));
        check_shape(backend, Shape { window: last, ..Shape::default() }, 12, 19);
        let block = Shape { window: Some(Window::Block(window)), ..Shape::default() };
        check_shape(backend, block, 12, 19);
        check_shape(backend, Shape { kv: KvDtype::Bf16, ..block }, 70, 40);
    }
}

/// A model's cap on logits: far below it, about it, and where all logits are at it.
pub fn capped_logits(backend: &dyn Backend) {
    for (softcap, spread) in [(50.0, 1.0), (50.0, 25.0), (2.0, 1.0), (30.0, 3e3)] {
        let shape = Shape { softcap: Some(softcap), spread, ..Shape::default() };
        for kv in [KvDtype::F32, KvDtype::Bf16] {
            for (head_dim, window, past, tokens) in
                [(16, None, 40, 33), (128, None, 70, 65), (36, Some(20), 41, 3), (64, None, 9, 1)]
            {
                check_shape(
                    backend,
                    Shape { head_dim, kv, window: window.map(Window::Last), ..shape },
                    past,
                    tokens,
                );
            }
        }
    }
}

/// Logits that fall with distance, by another slope for each head: many rows and few, with a window
/// and with a cap.
pub fn falling_logits(backend: &dyn Backend) {
    let falling = Shape { slopes: true, ..Shape::default() };
    let small = Shape { heads: 6, head_dim: 36, softcap: Some(5.0), ..falling };
    for kv in [KvDtype::F32, KvDtype::Bf16] {
        for (past, tokens) in [(0, 1), (40, 33), (70, 65), (300, 1), (1100, 3), (41, 130)] {
            for shape in [falling, small, Shape { head_dim: 64, spread: 4.0, ..falling }] {
                check_shape(backend, Shape { kv, ..shape }, past, tokens);
                let window = Some(Window::Last(20));
                check_shape(backend, Shape { kv, window, ..shape }, past, tokens);
            }
            check_shape(backend, Shape { kv, head_dim: 128, ..falling }, past, tokens);
        }
    }
    for tokens in [3, 40] {
        check_far_away(backend, falling, tokens);
    }
}

/// What counts is how far keys are, and not where they and their rows stand.
fn check_far_away(backend: &dyn Backend, shape: Shape, tokens: usize) {
    const BY: u32 = 3_000_000_019;
    let (past, block) = (shape.past(70), shape.block(140, tokens));
    let far = |keys: &Keys| {
        let positions: Vec<u32> = keys.positions.iter().map(|position| position + BY).collect();
        Keys::new(positions, keys.k.clone(), keys.v.clone())
    };
    let there = Queries { start: block.start + BY, ..block.queries() };
    for keys in [&past, &block.keys] {
        let near = backend.attend(block.queries(), keys).expect("fits");
        let far = backend.attend(there, &far(keys)).expect("fits");
        identical("output", far.output().data(), near.output().data()).unwrap();
        identical("lse", &far.lse(), &near.lse()).unwrap();
    }
}

/// Rows and keys in every number around powers of two.
pub fn lengths_around_a_tile(backend: &dyn Backend) {
    for tokens in [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130] {
        for past in [0, 1, 3, 8, 15, 17, 31, 33, 64, 65, 129, 257] {
            check_shape(backend, Shape { head_dim: 8, ..Shape::default() }, past, tokens);
        }
    }
}

/// Column masses of past and own keys on the scale of the merged state.
pub(super) fn masses(
    backend: &dyn Backend,
    past: &Keys,
    block: &Block,
    row_weights: &[f32],
) -> (Array<f32>, Array<f32>) {
    let lse = merged(backend, past, block).lse();
    let queries: Queries<'_> = block.queries();
    let weigh = |keys| backend.weigh(queries, keys, &lse, row_weights).expect("fits");
    (weigh(past), weigh(&block.keys))
}
