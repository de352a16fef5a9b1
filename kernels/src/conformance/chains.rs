//! Blocks of one sequence after each other: attention, masses and memory together.

use std::sync::Arc;

use crate::array::Array;
use crate::backend::Backend;
use crate::compare::{Tolerance, close, identical};
use crate::memory::{MemorySet, Ranking, Selection};
use crate::tensor::{KvDtype, Rows};
use crate::window::Window;

use super::attention::{masses, merged};
use super::near::close_to;
use super::oracle::{self, Entries};
use super::scene::{Block, Shape};

pub(super) const CUMULATIVE: Ranking = Ranking { decay: 1.0, window: 0, age_normalised: false };

/// Two sinks, four recent, five heavy.
pub(super) const H2O: Selection =
    Selection { keep_all: false, sinks: 2, local: 4, heavy: 5, ranking: CUMULATIVE, window: None };

const DENSE: Selection = Selection { keep_all: true, ..H2O };

/// One block through one layer, as the engine's spine does it.
fn advance(
    backend: &dyn Backend,
    past: Arc<MemorySet>,
    block: &Block,
    selection: &Selection,
) -> (Rows, Arc<MemorySet>) {
    let output = merged(backend, &past.keys, block).output();
    let (past_mass, own_mass) = if selection.keep_all {
        (Array::default(), Array::default())
    } else {
        let weights = selection.ranking.row_weights(block.tokens());
        masses(backend, &past.keys, block, &weights)
    };
    let memory = backend.select(past, &block.keys, (&past_mass, &own_mass), selection);
    (output, Arc::new(memory.expect("fits").memory))
}

fn nothing(shape: Shape) -> Arc<MemorySet> {
    Arc::new(MemorySet::empty(shape.kv_heads, shape.head_dim, shape.kv))
}

/// Blocks of `sizes` one after the other; every output and every memory set by definition.
fn check_chain(backend: &dyn Backend, shape: Shape, selection: &Selection, sizes: &[usize]) {
    let mut memory = nothing(shape);
    let mut truth: Entries = vec![Vec::new(); shape.kv_heads];
    for &tokens in sizes {
        let block = shape.block(memory.end, tokens);
        let (want, kept) = oracle::advance(&truth, &block, selection);
        let (output, next) = advance(backend, memory, &block, selection);
        let name = format!("output of {tokens} rows at {}, {selection:?}", block.start);
        close_to(&name, output.data(), &want.output, want.tolerance()).unwrap();
        check_memory(&next, &kept, selection);
        assert_eq!(next.end, block.start + tokens as u32);
        (memory, truth) = (next, kept);
    }
}

fn check_memory(memory: &MemorySet, want: &Entries, selection: &Selection) {
    let count = memory.keys.len();
    for (g, want) in want.iter().enumerate() {
        let positions: Vec<u32> = want.iter().map(|entry| entry.position).collect();
        assert_eq!(memory.keys.head_positions(g), positions, "KV head {g}, {selection:?}");
        let k: Vec<f32> = want.iter().flat_map(|entry| entry.k.clone()).collect();
        let v: Vec<f32> = want.iter().flat_map(|entry| entry.v.clone()).collect();
        identical("remembered keys", &memory.keys.k_rows(g).to_f32(), &k).unwrap();
        identical("remembered values", &memory.keys.v_rows(g).to_f32(), &v).unwrap();
        if !selection.keep_all {
            let head = g * count..(g + 1) * count;
            let score: Vec<f64> = want.iter().map(|entry| entry.score).collect();
            let votes: Vec<f64> = want.iter().map(|entry| entry.votes).collect();
            let tolerance = Tolerance::new(1e-5, 5e-5);
            close("score", &memory.score[head.clone()], &score, tolerance).unwrap();
            close("votes", &memory.votes[head], &votes, tolerance).unwrap();
        }
    }
}

/// Chunks, a short tail, decode steps, an appended turn: for every policy and score option.
pub fn every_policy_follows_the_definition(backend: &dyn Backend) {
    let ranked = |ranking| Selection { ranking, ..H2O };
    let policies = [
        DENSE,
        H2O,
        Selection { heavy: 0, ..H2O },
        Selection { sinks: 0, ..H2O },
        Selection { sinks: 0, local: 0, heavy: 0, ..H2O },
        Selection { local: 0, ..H2O },
        ranked(Ranking { decay: 0.95, ..CUMULATIVE }),
        ranked(Ranking { window: 4, ..CUMULATIVE }),
        ranked(Ranking { age_normalised: true, ..CUMULATIVE }),
        ranked(Ranking { decay: 0.95, window: 4, age_normalised: true }),
    ];
    for selection in policies {
        for kv in [KvDtype::F32, KvDtype::Bf16] {
            for window in [None, Some(Window::Last(12)), Some(Window::Block(14))] {
                let (shape, selection) = (Shape { kv, window, ..Shape::default() }, &selection);
                let sizes = [16, 16, 16, 5, 1, 1, 1, 9, 1, 1, 1, 1, 1];
                check_chain(backend, shape, selection, &sizes);
                check_chain(backend, shape, &Selection { window, ..*selection }, &sizes);
            }
        }
    }
}

/// Inputs shorter than a chunk, a budget or the local window, and one token either side.
pub fn edge_lengths(backend: &dyn Backend) {
    const CHUNK: usize = 8;
    let wide = Selection { local: 30, ..H2O };
    for tokens in [1, 3, 4, 7, 8, 9, 11, 12, 15, 16, 17, 59] {
        let sizes: Vec<usize> =
            (0..tokens).step_by(CHUNK).map(|start| CHUNK.min(tokens - start)).collect();
        for selection in [H2O, wide, DENSE] {
            check_chain(backend, Shape::default(), &selection, &sizes);
        }
        check_chain(backend, Shape::default(), &H2O, &vec![1; tokens]);
    }
}

/// A key that every row spends its mass on keeps that mass under its own position.
pub fn scores_are_aligned_with_positions(backend: &dyn Backend) {
    let shape = Shape::default();
    let only_best = Selection { sinks: 0, local: 0, heavy: 1, ..H2O };
    let hot = |g: usize| 5 + 3 * g as u32;
    let block =
        shape.lifted_block(0, 16, |g, position| if position == hot(g) { 15.0 } else { 0.0 });
    let (_, memory) = advance(backend, nothing(shape), &block, &only_best);
    assert_eq!(memory.keys.positions, [hot(0), hot(1)]);
    let group = (shape.heads / shape.kv_heads) as f32;
    let want = [0, 1].map(|g| group * (16 - hot(g)) as f32);
    close("score", &memory.score, &want, Tolerance::new(0.01, 0.01)).unwrap();
}

/// With decay 1 a remembered key's score only grows.
pub fn cumulative_scores_never_decrease(backend: &dyn Backend) {
    let shape = Shape::default();
    let roomy = Selection { heavy: 1000, ..H2O };
    let mut memory = nothing(shape);
    for tokens in [16, 16, 1, 1, 7] {
        let before = memory.clone();
        memory = advance(backend, memory, &shape.block(before.end, tokens), &roomy).1;
        let (old, new) = (before.keys.len(), memory.keys.len());
        assert_eq!(new, old + tokens, "a budget that holds everything keeps everything");
        for i in 0..shape.kv_heads * old {
            let (g, j) = (i / old, i % old);
            let (was, is) = (before.score[i], memory.score[g * new + j]);
            assert!(is >= was, "score of key {j} of KV head {g} fell from {was} to {is}");
        }
    }
}

/// A row knows nothing of later keys; own attention nothing of the past; cutting a sequence
/// elsewhere changes nothing where every key is kept.
pub fn no_leak_across_a_chunk_boundary(backend: &dyn Backend) {
    let shape = Shape::default();
    let plain = shape.block(16, 16);
    let lifted = shape.lifted_block(16, 16, |_, position| if position >= 21 { 9.0 } else { 0.0 });
    let attend = |block: &Block| backend.attend(block.queries(), &block.keys).expect("fits");
    let (a, b) = (attend(&plain).output(), attend(&lifted).output());
    for t in 0..5 {
        identical("a row before the change", a.row(t), b.row(t)).unwrap();
    }
    assert_ne!(a.row(5), b.row(5), "the change must be visible from its own row on");

    let own = oracle::attention(&plain.queries(), &oracle::entries(&plain.keys), &[1.0; 16]);
    close_to("own attention", a.data(), &own.output, own.tolerance()).unwrap();

    let whole = shape.block(0, 48);
    let truth = oracle::attention(&whole.queries(), &oracle::entries(&whole.keys), &[1.0; 48]);
    let (mut memory, mut outputs) = (nothing(shape), Vec::new());
    for tokens in [16, 16, 15, 1] {
        let block = shape.block(memory.end, tokens);
        let (output, next) = advance(backend, memory, &block, &DENSE);
        outputs.extend_from_slice(output.data());
        memory = next;
    }
    close_to("dense output, cut into chunks", &outputs, &truth.output, truth.tolerance()).unwrap();
}

/// Every KV head keeps the sinks, the recent keys and its own heavy hitters.
pub fn local_and_hot_tokens_present_per_kv_head(backend: &dyn Backend) {
    let shape = Shape { heads: 6, kv_heads: 3, ..Shape::default() };
    let hot = |g: usize| [5 + 2 * g as u32, 20 + g as u32, 39 - g as u32];
    let lift = |g: usize, position| if hot(g).contains(&position) { 10.0 } else { 0.0 };
    let mut memory = nothing(shape);
    for _ in 0..4 {
        let block = shape.lifted_block(memory.end, 16, lift);
        memory = advance(backend, memory, &block, &H2O).1;
    }
    assert_eq!(memory.keys.len(), 2 + 4 + 5);
    for g in 0..shape.kv_heads {
        let kept = memory.keys.head_positions(g);
        assert!(kept.is_sorted_by(|a, b| a < b), "KV head {g} keeps {kept:?}");
        for position in hot(g).into_iter().chain([0, 1, 60, 61, 62, 63]) {
            assert!(kept.contains(&position), "KV head {g} lost {position}: {kept:?}");
        }
    }
}

/// What stood in the first chunk is read in the last one, long after it was recent; and is not
/// where nothing is kept for its mass.
pub fn memory_propagates_over_chunks(backend: &dyn Backend) {
    let shape = Shape::default();
    let lift = |_: usize, position| if position == 9 { 20.0 } else { 0.0 };
    let needle = shape.keys(&[9, 9], lift).v;
    let last_output = |selection: &Selection| {
        let mut memory = nothing(shape);
        let mut last = Rows::default();
        for _ in 0..6 {
            let block = shape.lifted_block(memory.end, 16, lift);
            (last, memory) = advance(backend, memory, &block, selection);
        }
        last.last_row().row(0)[..shape.head_dim].to_vec()
    };
    let tolerance = Tolerance { abs: 1e-4, rel: 1e-4, cosine: 1e-4 };
    let want = needle.head_f32(0);
    close("the needle's value", &last_output(&H2O), &want, tolerance).unwrap();
    let forgot = last_output(&Selection { heavy: 0, ..H2O });
    assert!(close("the needle's value", &forgot, &want, tolerance).is_err());
}
