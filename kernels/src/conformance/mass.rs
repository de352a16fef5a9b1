//! Column mass: what the queries of a block spend on each key.

use std::sync::Arc;

use half::bf16;

use crate::backend::{Attended, AttentionOps, Backend, BackendError, Scope};
use crate::compare::{Tolerance, close, identical};
use crate::fold::{Missing, Node, fold};
use crate::memory::{Keys, Leaves, Ranking};
use crate::state::AttentionState;
use crate::tensor::{KvDtype, Rows};
use crate::window::Window;

use super::attention::masses;
use super::near::close_to;
use super::oracle;
use super::scene::{Block, Shape};

/// What rows see besides keys has its share of what they spend, and gives them nothing.
pub fn sinks_have_a_share_and_no_value(backend: &dyn Backend) {
    for kv in [KvDtype::F32, KvDtype::Bf16] {
        for (head_dim, spread) in [(64, 1.0), (36, 1.0), (128, 8.0)] {
            let shape = Shape { heads: 6, head_dim, kv, sinks: true, spread, ..Shape::default() };
            for (past, tokens) in [(0, 1), (70, 1), (41, 3), (0, 40), (130, 65)] {
                check_sinks(backend, shape, (past, tokens));
            }
        }
    }
    let seeing_little = Shape { window: Some(Window::Last(3)), sinks: true, ..Shape::default() };
    check_sinks(backend, seeing_little, (40, 33));
}

fn check_sinks(backend: &dyn Backend, shape: Shape, (count, tokens): (usize, usize)) {
    let (past, block) = (shape.past(count), shape.block(2 * count as u32, tokens));
    let keys = oracle::joined(&oracle::entries(&past), &oracle::entries(&block.keys));
    let (queries, sinks) = (block.queries(), block.sinks.as_ref());
    let weights = vec![1.0; tokens];
    let truth =
        oracle::attention_beside(&queries, sinks.map(|sinks| &**sinks), &keys, &vec![1.0; tokens]);
    let (leaves, own, row_weights) = (Leaves::ONE, &block.keys, Some(&weights[..]));
    let scope =
        Scope { past: &past, leaves, own, row_weights, sinks, outputs: tokens, rounded: false };
    let seen = backend.attend_all(queries, scope).expect("fits");
    let name = format!("{tokens} rows over {count} remembered keys, {shape:?}");
    close_to(&format!("output, {name}"), seen.output.data(), &truth.output, truth.tolerance())
        .unwrap();
    for (g, want) in truth.mass.iter().enumerate() {
        let past = &seen.past_mass[g * count..(g + 1) * count];
        let own = &seen.own_mass[g * tokens..(g + 1) * tokens];
        let name = format!("mass of KV head {g}, {name}");
        close(&name, &[past, own].concat(), want, truth.tolerance()).unwrap();
    }
    let too_few: Arc<[f32]> = [0.0; 1].into();
    let refused = backend.attend_all(queries, Scope { sinks: Some(&too_few), ..scope });
    assert!(matches!(refused, Err(BackendError::Shape { op: "attend", .. })), "{refused:?}");
}

fn check_masses(backend: &dyn Backend, shape: Shape, tokens: usize, row_weights: &[f64]) {
    let (past, block) = (shape.past(41), shape.block(82, tokens));
    let narrow: Vec<f32> = row_weights.iter().map(|&weight| weight as f32).collect();
    let (past_mass, own_mass) = masses(backend, &past, &block, &narrow);
    let keys = oracle::joined(&oracle::entries(&past), &oracle::entries(&block.keys));
    let truth = oracle::attention(&block.queries(), &keys, row_weights);
    for (g, want) in truth.mass.iter().enumerate() {
        let past = &past_mass[g * 41..(g + 1) * 41];
        let own = &own_mass[g * tokens..(g + 1) * tokens];
        let name = format!("mass of KV head {g}, {shape:?}");
        close(&name, &[past, own].concat(), want, truth.tolerance()).unwrap();
    }
}

/// Every key's mass is the sum, by definition, over the group's heads and the block's rows.
pub fn column_sums_match_a_manual_sum(backend: &dyn Backend) {
    for (heads, kv_heads) in [(4, 4), (4, 2), (6, 2), (8, 1)] {
        for kv in [KvDtype::F32, KvDtype::Bf16] {
            for head_dim in [16, 80] {
                let shape = Shape { heads, kv_heads, head_dim, kv, ..Shape::default() };
                check_masses(backend, shape, 35, &[1.0; 35]);
            }
        }
    }
    for spread in [25.0, 3e3] {
        check_masses(backend, Shape { spread, ..Shape::default() }, 35, &[1.0; 35]);
    }
    for tokens in [1, 2, 15, 64, 65] {
        check_masses(backend, Shape::default(), tokens, &vec![1.0; tokens]);
    }
    check_masses(
        backend,
        Shape { window: Some(Window::Last(20)), ..Shape::default() },
        35,
        &[1.0; 35],
    );
    for (tokens, head_dim) in [(1, 64), (35, 16), (35, 128)] {
        let shape = Shape { softcap: Some(2.0), head_dim, kv: KvDtype::Bf16, ..Shape::default() };
        check_masses(backend, shape, tokens, &vec![1.0; tokens]);
        let shape = Shape { slopes: true, heads: 6, softcap: None, ..shape };
        check_masses(backend, shape, tokens, &vec![1.0; tokens]);
        check_masses(backend, Shape { kv: KvDtype::F32, ..shape }, tokens, &vec![1.0; tokens]);
    }
}

/// Each row alone spends 1 per query head over past and own keys together.
pub fn a_row_spends_exactly_one_per_query_head(backend: &dyn Backend) {
    let shape = Shape { heads: 6, kv_heads: 2, ..Shape::default() };
    for (spread, off) in [(1.0, 1e-5), (25.0, 2e-4), (3e3, 2e-2)] {
        let shape = Shape { spread, ..shape };
        let (past, block) = (shape.past(40), shape.block(80, 11));
        for row in 0..11 {
            let mut weights = [0.0; 11];
            weights[row] = 1.0;
            let (past, own) = masses(backend, &past, &block, &weights);
            let spent = |g: usize| -> f64 {
                let (past, own) = (&past[g * 40..(g + 1) * 40], &own[g * 11..(g + 1) * 11]);
                past.iter().chain(own).map(|&mass| f64::from(mass)).sum()
            };
            let name = format!("spent by row {row} of spread {spread}");
            close(&name, &[spent(0), spent(1)], &[3.0, 3.0], Tolerance::new(off, off)).unwrap();
        }
    }
}

/// A row whose log-sum-exp is -inf adds nothing, and not NaN.
pub fn a_row_that_saw_nothing_spends_nothing(backend: &dyn Backend) {
    let shape = Shape::default();
    let (past, block) = (shape.past(10), shape.block(20, 3));
    let nothing = vec![f32::NEG_INFINITY; shape.heads * 3];
    let mass = backend.weigh(block.queries(), &past, &nothing, &[1.0; 3]).expect("fits");
    assert_eq!(mass, vec![0.0; shape.kv_heads * 10]);
    let mass = backend.weigh(block.queries(), &shape.past(0), &nothing, &[1.0; 3]).expect("fits");
    assert!(mass.is_empty());
}

/// Decay and observation window are row weights; no other code path.
pub fn row_weight_modes(backend: &dyn Backend) {
    for (decay, window) in [(1.0, 0), (0.95, 0), (0.5, 0), (1.0, 4), (0.95, 4), (1.0, 100)] {
        let ranking = Ranking { decay, window, age_normalised: false };
        let want = oracle::row_weights(&ranking, 35);
        close("row weights", &ranking.row_weights(35), &want, Tolerance::new(1e-7, 1e-6)).unwrap();
        check_masses(backend, Shape::default(), 35, &want);
    }
}

/// Past and own keys at once give the bits that either gives alone: whether the past was at hand
/// in time changes nothing.
pub fn one_pass_gives_the_same_bits(backend: &dyn Backend) {
    let ranking = Ranking { decay: 0.95, window: 40, age_normalised: false };
    for kv in [KvDtype::F32, KvDtype::Bf16] {
        for (past, tokens) in [(0, 1), (0, 70), (1, 1), (300, 1), (130, 3), (41, 33), (150, 170)] {
            for (head_dim, window) in
                [(16, None), (36, Some(Window::Last(90))), (128, None), (64, None)]
            {
                let (sinks, softcap) = (head_dim != 16, window.map(|_| 2.0));
                let slopes = matches!(head_dim, 36 | 64);
                let odd = Shape { heads: 6, window, sinks, softcap, slopes, ..Shape::default() };
                let shape = Shape { head_dim, kv, ..odd };
                let weights = ranking.row_weights(tokens);
                // Weights of one are much like others: few rows are enough for them.
                let ones = (tokens < 100).then(|| Some(vec![1.0; tokens]));
                for weights in [None, Some(weights)].into_iter().chain(ones) {
                    let rounded = weights.is_some(); // either, and not everything twice
                    let want = Want { row_weights: weights.as_deref(), rounded };
                    check_one_pass(backend, shape, (past, tokens), want);
                }
            }
        }
    }
    let lifted = Shape { spread: 3e3, ..Shape::default() };
    let want = Want { row_weights: Some(&[1.0; 33]), rounded: true };
    check_one_pass(backend, lifted, (40, 33), want);
}

/// What is asked of a block besides its output.
#[derive(Clone, Copy)]
pub(super) struct Want<'a> {
    pub(super) row_weights: Option<&'a [f32]>,
    pub(super) rounded: bool,
}

pub(super) fn check_one_pass(
    backend: &dyn AttentionOps,
    shape: Shape,
    (past, tokens): (usize, usize),
    want: Want<'_>,
) {
    let (past, block) = (shape.past(past), shape.block(2 * past as u32, tokens));
    let chunks = Leaves::of_chunks(13);
    let own_state = backend.attend(block.queries(), &block.keys).expect("fits");
    for leaves in [Leaves::ONE, chunks, chunks.going_on_behind(30)] {
        check_leaves(backend, &past, (&block, &own_state), leaves, want);
    }
}

fn check_leaves(
    backend: &dyn AttentionOps,
    past: &Keys,
    (block, own_state): (&Block, &AttentionState),
    leaves: Leaves,
    Want { row_weights, rounded }: Want<'_>,
) {
    let (tokens, keys) = (block.keys.len(), past.len());
    let (own, outputs) = (&block.keys, tokens);
    let sinks = block.sinks.as_ref();
    let scope = Scope { past, leaves, own, row_weights, sinks, outputs, rounded };
    let want = backend.attend_rest(block.queries(), scope, own_state).expect("fits");
    let (dtype, head_dim) = (past.k.dtype(), past.k.head_dim);
    let of = format!("{tokens} rows over {keys} {dtype:?} keys, D = {head_dim}, {leaves:?}");
    let check = |outputs: usize, what: &str, seen: Attended| {
        let of = format!("{what}, the last {outputs} of {of}");
        assert_eq!((seen.output.rows(), seen.output.cols()), (outputs, want.output.cols()), "{of}");
        let last = want.output.clone().of_last(outputs).expect("it can be read");
        // Of what may be rounded, the bits that the next product reads.
        let read = |rows: &Rows| -> Vec<f32> {
            let read = |&x: &f32| if rounded { bf16::from_f32(x).to_f32() } else { x };
            rows.data().iter().map(read).collect()
        };
        identical(&format!("output of {of}"), &read(&seen.output), &read(&last)).unwrap();
        identical(&format!("past mass of {of}"), &seen.past_mass, &want.past_mass).unwrap();
        identical(&format!("own mass of {of}"), &seen.own_mass, &want.own_mass).unwrap();
    };
    let some = tokens.div_ceil(3); // a part of a tile, and whole ones before it
    for outputs in [tokens, some, 0] {
        let scope = Scope { outputs, ..scope };
        let seen = backend.attend_all(block.queries(), scope).expect("fits");
        check(outputs, "attend_all", seen);
    }
    let scope_of_some = Scope { outputs: some, ..scope };
    let seen = backend.attend_rest(block.queries(), scope_of_some, own_state).expect("fits");
    check(some, "attend_rest", seen);
    let too_many = Scope { outputs: tokens + 1, ..scope };
    let refused = backend.attend_all(block.queries(), too_many);
    assert!(matches!(refused, Err(BackendError::Shape { op: "attend", .. })), "{refused:?}");
    assert_eq!(want.own_mass.len(), row_weights.map_or(0, |_| past.kv_heads() * tokens));
}

/// One KV head has all its keys in one leaf, another in all four.
pub fn a_leaf_may_have_all_keys_of_one_head(backend: &dyn Backend) {
    for kv in [KvDtype::F32, KvDtype::Bf16] {
        for head_dim in [16, 36, 128] {
            let shape = Shape { heads: 6, kv_heads: 2, head_dim, kv, ..Shape::default() };
            for first in 0..2 {
                let positions = |g: u32| (0..40).map(move |j| if g == first { j } else { 13 * j });
                let positions: Vec<u32> = (0..2).flat_map(positions).collect();
                let past = shape.keys(&positions, |_, _| 0.0);
                for tokens in [1, 3, 40] {
                    let block = shape.block(13 * 40, tokens);
                    let own = backend.attend(block.queries(), &block.keys).expect("fits");
                    for row_weights in [None, Some(&[1.0; 40][..tokens])] {
                        let want = Want { row_weights, rounded: false };
                        let leaves = Leaves::of_chunks(40);
                        check_leaves(backend, &past, (&block, &own), leaves, want);
                    }
                }
            }
        }
    }
}

/// Sets of keys at once give the bits that they give one by one, merged: any node of a fold.
pub fn folded_sets_give_the_same_bits(backend: &dyn Backend) {
    for kv in [KvDtype::F32, KvDtype::Bf16] {
        for (head_dim, window) in [(16, None), (36, Some(Window::Last(700))), (128, None)] {
            let shape = Shape { heads: 6, kv_heads: 3, head_dim, kv, window, ..Shape::default() };
            // Few keys, none, and so many that rows pass them block by block.
            for lengths in [&[70, 0, 33, 300, 1][..], &[1030, 40, 1030]] {
                let mut start = 0;
                let sets = lengths.iter().map(|&length| {
                    let positions = |_| start..start + length;
                    let keys =
                        shape.keys(&(0..3).flat_map(positions).collect::<Vec<_>>(), |_, _| 0.0);
                    start += length;
                    keys
                });
                let sets: Vec<Keys> = sets.collect();
                // Rows of more than one task; of the widest over most keys, where they take minutes
                // under emulation, of more than one tile.
                let most = if head_dim == 128 && lengths.len() == 3 { 70 } else { 150 };
                for tokens in [1, 3, most] {
                    check_folded(backend, &sets, &shape.block(start, tokens));
                }
            }
        }
    }
}

fn check_folded(backend: &dyn Backend, sets: &[Keys], block: &Block) {
    let chunks = sets.len() as u32;
    let attend = |keys: &Keys| backend.attend(block.queries(), keys).expect("fits");
    let merge = |state, other: &_| backend.merge(state, other);
    let states: Vec<AttentionState> = sets.iter().map(attend).collect();
    let every = (0..3).flat_map(|level| (0..1 << level).map(move |first| Node { level, first }));
    for node in every.filter(|node| node.is_of(chunks)) {
        let mut leaf = |node: Node| {
            Ok::<_, Missing>(node.is_leaf(chunks).then(|| states[node.first as usize].clone()))
        };
        let want = fold(node, chunks, &merge, &mut leaf).expect("all are there");
        let keys: Vec<&Keys> = node.leaves(chunks).map(|leaf| &sets[leaf as usize]).collect();
        let seen = backend.attend_folded(block.queries(), &keys, (node, chunks)).expect("fits");
        let of = format!("{node:?} of {chunks} sets, {} rows", block.keys.len());
        for (what, seen, want) in
            [("m", &seen.m, &want.m), ("l", &seen.l, &want.l), ("o", &seen.o, &want.o)]
        {
            identical(&format!("{what}, {of}"), seen, want).unwrap();
        }
        let refused = backend.attend_folded(block.queries(), &keys[1..], (node, chunks));
        assert!(matches!(refused, Err(BackendError::Shape { .. })), "{of}: {refused:?}");
    }
}

/// Beside weights that are no bf16, what rows make of their keys is not rounded.
pub fn an_output_is_rounded_only_where_the_next_weight_is(backend: &dyn Backend) {
    for (past, tokens) in [(40, 1), (40, 33), (0, 33)] {
        for head_dim in [64, 24] {
            let shape = Shape { head_dim, kv: KvDtype::Bf16, ..Shape::default() };
            let (past, block) = (shape.past(past), shape.block(2 * past as u32, tokens));
            let (leaves, own) = (Leaves::ONE, &block.keys);
            let (past_keys, row_weights, outputs) = (&past, None, tokens);
            let scope = Scope {
                past: past_keys,
                leaves,
                own,
                row_weights,
                sinks: None,
                outputs,
                rounded: false,
            };
            let attended = |scope| backend.attend_all(block.queries(), scope).expect("fits").output;
            let exact = attended(scope);
            let state = |keys| backend.attend(block.queries(), keys).expect("fits");
            let merged = state(&past).merge(&state(&block.keys)).output();
            let name = format!("{tokens} rows over {} keys, {shape:?}", past.len());
            let nearly = Tolerance { abs: 1e-5, rel: 1e-5, cosine: 1e-9 };
            close(&name, exact.data(), merged.data(), nearly).unwrap();
            let rounded = attended(Scope { rounded: true, ..scope });
            close(&name, rounded.data(), exact.data(), Tolerance::new(4e-3, 8e-3)).unwrap();
        }
    }
}
