//! Few rows, as in decode steps: bound by memory, so every key and value is read once, where it
//! lies, and nothing is laid out anew.
//!
//! Keys are cut at fixed places into parts, which are computed apart and merged in ascending
//! order, so that few KV heads still occupy all threads.

mod part;

use std::ops::Range;

use self::part::{Part, Seen, Spend};
use super::sight::range_in_sight;
use crate::backend::{Attended, BackendError, Queries, Scope};
use crate::cpu::gemm::Place;
use crate::cpu::isa::Isa;
use crate::cpu::simd::LANES;
use crate::memory::Keys;
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
    let [seen] = look(place, queries, keys, true)?;
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
    let [seen] = look(place, queries, keys, false)?;
    spent(place.isa, queries, keys, &seen, (lse, row_weights))
}

/// See [`super::attend_each`].
pub(super) fn attend_each(
    place: Place,
    blocks: &[(Queries<'_>, Scope<'_>)],
) -> Vec<Result<Attended, BackendError>> {
    let sets: Vec<_> =
        blocks.iter().map(|(queries, scope)| (*queries, [scope.past, scope.own])).collect();
    let seen = look_each(place, &sets, true).into_iter().zip(blocks).collect();
    let isa = place.isa;
    place.crew.map(seen, |(seen, (queries, scope)): (Result<[Vec<Seen>; 2], _>, &(_, _))| {
        attended(isa, queries, scope, &seen?)
    })
}

/// What a block's rows make of all that they saw.
fn attended(
    isa: Isa,
    queries: &Queries<'_>,
    scope: &Scope<'_>,
    [past, own]: &[Vec<Seen>; 2],
) -> Result<Attended, BackendError> {
    let state = merged(queries, past).merge(&merged(queries, own));
    let (mut past_mass, mut own_mass) = (Vec::new(), Vec::new());
    if let Some(row_weights) = scope.row_weights {
        let lse = state.lse();
        past_mass = spent(isa, queries, scope.past, past, (&lse, row_weights))?;
        own_mass = spent(isa, queries, scope.own, own, (&lse, row_weights))?;
    }
    Ok(Attended { output: state.output(), past_mass: past_mass.into(), own_mass: own_mass.into() })
}

/// All rows over each part of `keys`, KV heads and parts ascending.
fn look(
    place: Place,
    queries: &Queries<'_>,
    keys: &Keys,
    with_values: bool,
) -> Result<[Vec<Seen>; 1], BackendError> {
    let mut seen = look_each(place, &[(*queries, [keys])], with_values);
    seen.pop().expect("one for each block")
}

/// For every block and each of its sets: all rows over each part of it, KV heads and parts
/// ascending.
fn look_each<const N: usize>(
    place: Place,
    blocks: &[(Queries<'_>, [&Keys; N])],
    with_values: bool,
) -> Vec<Result<[Vec<Seen>; N], BackendError>> {
    let tasks = blocks.iter().enumerate().flat_map(|(block, (queries, sets))| {
        tasks(queries, sets, with_values).into_iter().map(move |task| (block, task))
    });
    let seen = place.crew.map(tasks.collect(), |(block, task): (usize, Vec<(usize, Part<'_>)>)| {
        let look = |(set, part)| (set, place.isa.run(part));
        (block, task.into_iter().map(look).collect::<Vec<_>>())
    });
    let mut sorted: Vec<_> = blocks.iter().map(|_| Ok([const { Vec::new() }; N])).collect();
    for (block, seen) in seen {
        for (set, seen) in seen {
            match &mut sorted[block] {
                Ok(sets) if seen.finite => sets[set].push(seen),
                refused => {
                    let what = "a weighted sum of values";
                    *refused = Err(BackendError::NotFinite { op: "attend", what });
                }
            }
        }
    }
    sorted
}

/// The parts of a block's sets as tasks, each part with the set that it is of.
fn tasks<'a, const N: usize>(
    queries: &'a Queries<'a>,
    sets: &[&'a Keys; N],
    with_values: bool,
) -> Vec<Vec<(usize, Part<'a>)>> {
    let mut tasks: Vec<Vec<(usize, Part<'_>)>> = Vec::new();
    for g in 0..sets[0].kv_heads() {
        let first = tasks.len();
        for (set, keys) in sets.iter().enumerate() {
            let sight: Vec<_> = (0..queries.q.tokens)
                .map(|t| range_in_sight(queries, t, keys.head_positions(g)))
                .collect();
            for span in spans(&sight) {
                let sight = sight.clone();
                let part = Part { queries, keys, g, span: span.clone(), sight, with_values };
                // A short part, as a decode step's own key is, is no task of its own.
                match tasks[first..].last_mut() {
                    Some(task) if span.len() < PART / 8 => task.push((set, part)),
                    _ => tasks.push(vec![(set, part)]),
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

/// Column masses, `[kv_heads, keys]`, for lse `[heads, tokens]` and row weights `[tokens]`.
fn spent(
    isa: Isa,
    queries: &Queries<'_>,
    keys: &Keys,
    seen: &[Seen],
    (lse, row_weights): (&[f32], &[f32]),
) -> Result<Vec<f32>, BackendError> {
    let mut masses = vec![0.0; keys.positions.len()];
    for seen in seen {
        let rows = seen.m.len();
        let lse = &lse[seen.g * rows..(seen.g + 1) * rows];
        let weight = |row: usize| match lse[row] {
            f32::NEG_INFINITY => 0.0,
            lse => row_weights[row % queries.q.tokens] * (seen.m[row] - lse).exp(),
        };
        let weights: Vec<f32> = (0..rows).map(weight).collect();
        let to = &mut masses[seen.g * keys.len()..][seen.span.clone()];
        isa.run(Spend { p: &seen.p, weights: &weights, to });
    }
    shapes::finite("weigh", "a column mass", &masses)?;
    Ok(masses)
}
