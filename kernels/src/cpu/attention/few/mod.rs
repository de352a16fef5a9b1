//! Few rows, as in decode steps: bound by memory, so every key and value is read once, where it
//! lies, and nothing is laid out anew.
//!
//! Keys are cut at fixed places into parts, which are computed apart and merged in ascending
//! order, so that few KV heads still occupy all threads.

mod part;

use std::convert::Infallible;
use std::ops::Range;

use self::part::{Part, Seen, Spend};
use super::sight::range_in_sight;
use crate::backend::{Attended, BackendError, Queries, Scope};
use crate::cells::HeadRows;
use crate::cpu::gemm::Place;
use crate::cpu::isa::Isa;
use crate::cpu::simd::LANES;
use crate::memory::{Keys, LEAVES, Split, fold_leaves};
use crate::shapes;
use crate::state::{AttentionState, merge_row};

/// More rows of a KV head than this fill vectors well enough.
const ROWS_MAX: usize = 16;
/// Keys of a part: 256 KiB of bf16 at D = 128, and as much of values.
const PART: usize = 1024;

/// Whether so few rows share each KV head.
pub(super) fn serves(queries: &Queries<'_>, kv_heads: usize) -> bool {
    queries.q.tokens * queries.q.heads <= ROWS_MAX * kv_heads
}

/// See [`super::attend`].
pub(super) fn attend(
    place: Place,
    queries: &Queries<'_>,
    keys: &Keys,
) -> Result<AttentionState, BackendError> {
    let seen = look(place, queries, keys, true)?;
    Ok(merged(queries, &seen))
}

/// See [`super::weigh`].
pub(super) fn weigh(
    place: Place,
    queries: &Queries<'_>,
    keys: &Keys,
    lse: &[f32],
    row_weights: &[f32],
) -> Result<Vec<f32>, BackendError> {
    let seen = look(place, queries, keys, false)?;
    let mut masses = vec![0.0; keys.positions.len()];
    spent(place.isa, (queries, &Side::of(keys)), &seen, (lse, row_weights), &mut masses)?;
    Ok(masses)
}

/// See [`super::attend_each`].
pub(super) fn attend_each(
    place: Place,
    blocks: &[(Queries<'_>, Scope<'_>)],
) -> Vec<Result<Attended, BackendError>> {
    let split = |(_, scope): &(_, Scope<'_>)| scope.past.split(scope.leaves);
    let splits: Vec<_> = place.crew.map(blocks.iter().collect(), split);
    let each = blocks.iter().zip(&splits);
    let sets: Vec<_> =
        each.map(|((queries, scope), split)| (*queries, sides(scope, split.as_ref()))).collect();
    let seen = look_each(place, &sets, true).into_iter().zip(&sets).zip(blocks).collect();
    let isa = place.isa;
    place.crew.map(seen, |((seen, (queries, sides)), (_, scope)): ((Looked, _), &(_, _))| {
        attended(isa, (queries, scope), sides, &seen?)
    })
}

/// Keys that are summed together.
struct Side<'a> {
    keys: &'a Keys,
    /// Which of them; `None`: all.
    leaf: Option<(&'a Split, usize)>,
}

impl<'a> Side<'a> {
    fn of(keys: &'a Keys) -> Self {
        Self { keys, leaf: None }
    }

    fn positions(&self, g: usize) -> &'a [u32] {
        match self.leaf {
            Some((split, leaf)) => split.head(leaf, g).positions,
            None => self.keys.head_positions(g),
        }
    }

    /// Keys and values of KV head `g`.
    fn rows(&self, g: usize) -> (HeadRows<'a>, HeadRows<'a>) {
        let Keys { k, v, .. } = self.keys;
        match self.leaf.map(|(split, leaf)| split.head(leaf, g)) {
            Some(head) => (head.rows(k, g), head.rows(v, g)),
            None => (self.keys.k_rows(g), self.keys.v_rows(g)),
        }
    }
}

/// The parts of the past, and the own keys.
fn sides<'a>(scope: &Scope<'a>, split: Option<&'a Split>) -> Vec<Side<'a>> {
    let past = scope.past;
    let mut sides: Vec<_> = match split {
        Some(split) => {
            let leaves = 0..LEAVES as usize;
            leaves.map(|leaf| Side { keys: past, leaf: Some((split, leaf)) }).collect()
        }
        None => vec![Side::of(past)],
    };
    sides.push(Side::of(scope.own));
    sides
}

/// What a block's rows make of all that they saw, side by side.
fn attended(
    isa: Isa,
    (queries, scope): (&Queries<'_>, &Scope<'_>),
    sides: &[Side<'_>],
    seen: &[Vec<Seen>],
) -> Result<Attended, BackendError> {
    let (own, past) = seen.split_last().expect("own keys at least");
    let leaf = |leaf: usize| Ok::<_, Infallible>(merged(queries, &past[leaf]));
    let Ok(state) = match past.len() {
        1 => leaf(0),
        _ => fold_leaves(AttentionState::merge, leaf),
    };
    let state = state.merge(&merged(queries, own));
    let (mut past_mass, mut own_mass) = (Vec::new(), Vec::new());
    if let Some(row_weights) = scope.row_weights {
        let lse = state.lse();
        past_mass = vec![0.0; scope.past.positions.len()];
        own_mass = vec![0.0; scope.own.positions.len()];
        for (idx, (side, seen)) in sides.iter().zip(seen).enumerate() {
            let masses = if idx < past.len() { &mut past_mass } else { &mut own_mass };
            spent(isa, (queries, side), seen, (&lse, row_weights), masses)?;
        }
    }
    Ok(Attended { output: state.output(), past_mass: past_mass.into(), own_mass: own_mass.into() })
}

/// All rows over each part of `keys`, KV heads and parts ascending.
fn look(
    place: Place,
    queries: &Queries<'_>,
    keys: &Keys,
    with_values: bool,
) -> Result<Vec<Seen>, BackendError> {
    let block = (*queries, vec![Side::of(keys)]);
    let mut seen = look_each(place, &[block], with_values).pop().expect("one for each block")?;
    Ok(seen.pop().expect("one for each side"))
}

/// What a block saw of each side.
type Looked = Result<Vec<Vec<Seen>>, BackendError>;

/// For every block and each of its sides: all rows over each part of it, KV heads and parts
/// ascending.
fn look_each(
    place: Place,
    blocks: &[(Queries<'_>, Vec<Side<'_>>)],
    with_values: bool,
) -> Vec<Looked> {
    let tasks = blocks.iter().enumerate().flat_map(|(block, (queries, sides))| {
        tasks(queries, sides, with_values).into_iter().map(move |task| (block, task))
    });
    let seen = place.crew.map(tasks.collect(), |(block, task): (usize, Vec<(usize, Part<'_>)>)| {
        let look = |(side, part)| (side, place.isa.run(part));
        (block, task.into_iter().map(look).collect::<Vec<_>>())
    });
    let nothing = |(_, sides): &(_, Vec<_>)| Ok(sides.iter().map(|_| Vec::new()).collect());
    let mut sorted: Vec<Looked> = blocks.iter().map(nothing).collect();
    for (block, seen) in seen {
        for (side, seen) in seen {
            match &mut sorted[block] {
                Ok(sides) if seen.finite => sides[side].push(seen),
                refused => {
                    let what = "a weighted sum of values";
                    *refused = Err(BackendError::NotFinite { op: "attend", what });
                }
            }
        }
    }
    sorted
}

/// The parts of a block's sides as tasks, each part with the side that it is of.
fn tasks<'a>(
    queries: &'a Queries<'a>,
    sides: &[Side<'a>],
    with_values: bool,
) -> Vec<Vec<(usize, Part<'a>)>> {
    let mut tasks: Vec<Vec<(usize, Part<'_>)>> = Vec::new();
    let kv_heads = sides[0].keys.kv_heads();
    let group = queries.q.heads / kv_heads;
    for g in 0..kv_heads {
        let first = tasks.len();
        let mut keys = 0;
        for (idx, side) in sides.iter().enumerate() {
            let positions = side.positions(g);
            let sight: Vec<_> =
                (0..queries.q.tokens).map(|t| range_in_sight(queries, t, positions)).collect();
            for span in spans(&sight) {
                let (sight, rows) = (sight.clone(), side.rows(g));
                let count = span.len();
                let part = Part { queries, rows, group, g, span, sight, with_values };
                // Few keys, as a decode step's own or those of a leaf, are no task of their own.
                match tasks[first..].last_mut() {
                    Some(task) if keys + count <= PART || count < PART / 8 => {
                        task.push((idx, part));
                        keys += count;
                    }
                    _ => {
                        tasks.push(vec![(idx, part)]);
                        keys = count;
                    }
                }
            }
        }
    }
    tasks
}

/// The parts of the keys that some row sees. They start at fixed places, so they are summed
/// alike beside any others.
fn spans(sight: &[Range<usize>]) -> impl Iterator<Item = Range<usize>> + use<> {
    let seen = || sight.iter().filter(|range| !range.is_empty());
    let first = seen().map(|range| range.start / LANES * LANES).min().unwrap_or(0);
    let last = seen().map(|range| range.end).max().unwrap_or(first);
    (first / PART..last.div_ceil(PART))
        .map(move |idx| first.max(idx * PART)..last.min((idx + 1) * PART))
}

/// The state over all parts.
fn merged(queries: &Queries<'_>, seen: &[Seen]) -> AttentionState {
    let (tokens, head_dim) = (queries.q.tokens, queries.q.head_dim);
    let mut state = AttentionState::empty(queries.q.heads, tokens, head_dim);
    let (m, l, all) = (state.m.make_mut(), state.l.make_mut(), state.o.make_mut());
    for seen in seen {
        // Rows of a KV head's query heads are neighbours, tokens within.
        let first = seen.g * seen.m.len();
        for row in 0..seen.m.len() {
            let i = first + row;
            let o = &mut all[i * head_dim..(i + 1) * head_dim];
            let from = &seen.o[row * head_dim..(row + 1) * head_dim];
            let into = (&mut m[i], &mut l[i], o);
            merge_row(into, (seen.m[row], seen.l[row], from));
        }
    }
    state
}

/// Column masses for lse `[heads, tokens]` and row weights `[tokens]`, where they belong in
/// `masses`, `[kv_heads, keys]`.
fn spent(
    isa: Isa,
    (queries, side): (&Queries<'_>, &Side<'_>),
    seen: &[Seen],
    (lse, row_weights): (&[f32], &[f32]),
    masses: &mut [f32],
) -> Result<(), BackendError> {
    let keys = side.keys.len();
    let mut of_leaf = Vec::new();
    for seen in seen {
        let rows = seen.m.len();
        let lse = &lse[seen.g * rows..(seen.g + 1) * rows];
        let weight = |row: usize| match lse[row] {
            f32::NEG_INFINITY => 0.0,
            lse => row_weights[row % queries.q.tokens] * (seen.m[row] - lse).exp(),
        };
        let weights: Vec<f32> = (0..rows).map(weight).collect();
        let masses = &mut masses[seen.g * keys..(seen.g + 1) * keys];
        let to = match side.leaf {
            Some(_) => {
                of_leaf.clear();
                of_leaf.resize(seen.span.len(), 0.0);
                &mut of_leaf[..]
            }
            None => &mut masses[seen.span.clone()],
        };
        isa.run(Spend { p: &seen.p, weights: &weights, to });
        shapes::finite("weigh", "a column mass", to)?;
        if let Some((split, leaf)) = side.leaf {
            split.head(leaf, seen.g).scatter(seen.span.start, &of_leaf, masses);
        }
    }
    Ok(())
}
