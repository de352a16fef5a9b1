//! Few rows, as in decode steps: bound by memory, so every key and value is read once, where it
//! lies, and nothing is laid out anew.
//!
//! Keys are cut at fixed places into parts, which are computed apart and merged in ascending
//! order, so that few KV heads still occupy all threads.

mod part;
mod streamed;

use std::convert::Infallible;
use std::ops::Range;

use self::part::{Part, Seen, Spend, Task};
use super::sides;
use super::sight::in_sight;
use crate::backend::{Attended, BackendError, Queries, Scope};
use crate::cpu::gemm::Place;
use crate::cpu::isa::Isa;
use crate::cpu::simd::LANES;
use crate::memory::{Keys, LeafKeys, fold_leaves};
use crate::shapes;
use crate::state::{AttentionState, merge_row};
use crate::tensor::Rows;

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
    Ok(merged(queries, 0..queries.q.heads, seen.iter()))
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
    let (side, lse_rows) = (LeafKeys::all(keys), lse.len() / keys.kv_heads());
    let mut masses = vec![0.0; keys.positions.len()];
    for seen in &seen {
        let masses = &mut masses[seen.g * keys.len()..][..keys.len()];
        let lse = &lse[seen.g * lse_rows..][..lse_rows];
        spent(place.isa, &side, seen, (lse, row_weights), masses)?;
    }
    Ok(masses)
}

/// See [`super::attend_each`].
pub(super) fn attend_each(
    place: Place,
    blocks: &[(Queries<'_>, Scope<'_>)],
) -> Vec<Result<Attended, BackendError>> {
    let split = |(_, scope): &(_, Scope<'_>)| scope.past.split(scope.leaves);
    let splits: Vec<_> = place.crew.map(blocks.iter().collect(), split);
    let sides: Vec<_> = blocks
        .iter()
        .zip(&splits)
        .map(|((_, scope), split)| sides(scope, split.as_ref()))
        .collect();
    let isa = place.isa;
    let end = |((block, g), seen): ((usize, usize), Vec<Seen>)| {
        let (queries, scope) = &blocks[block];
        (block, attended(isa, (queries, scope), (g, &sides[block]), &seen))
    };
    // A KV head whose keys are one task is done with by the thread that has it.
    let tasks = blocks.iter().zip(&sides).enumerate().flat_map(|(block, ((queries, _), sides))| {
        let tasks = tasks(queries, sides, true).enumerate();
        tasks.map(move |(g, tasks)| ((block, g), tasks))
    });
    let (whole, cut): (Vec<_>, Vec<_>) = tasks.partition(|(_, tasks)| tasks.len() == 1);
    let mut heads = place.crew.map(whole, |(of, tasks): ((usize, usize), Vec<Task<'_>>)| {
        end((of, tasks.into_iter().flat_map(|task| isa.run(task)).collect()))
    });
    let (of, tasks): (Vec<_>, Vec<_>) = cut.into_iter().unzip();
    let counts: Vec<usize> = tasks.iter().map(Vec::len).collect();
    let tasks = tasks.into_iter().flatten().collect();
    let mut seen = place.crew.map(tasks, |task: Task<'_>| isa.run(task)).into_iter();
    let counted = counts.into_iter().map(|count| seen.by_ref().take(count).flatten().collect());
    heads.extend(place.crew.map(of.into_iter().zip(counted).collect(), end));
    let mut of_blocks: Vec<Vec<_>> = blocks.iter().map(|_| Vec::new()).collect();
    heads.into_iter().for_each(|(block, head)| of_blocks[block].push(head));
    let each = blocks.iter().zip(of_blocks);
    each.map(|((queries, scope), heads)| joined(queries, scope, heads)).collect()
}

/// What the rows of one KV head make of all that they saw.
struct Head {
    g: usize,
    /// `[T, R D]`.
    output: Rows,
    /// `[M]`.
    past_mass: Vec<f32>,
    /// `[T]`.
    own_mass: Vec<f32>,
}

/// Of a KV head's parts, side by side and ascending within.
fn attended(
    isa: Isa,
    (queries, scope): (&Queries<'_>, &Scope<'_>),
    (g, sides): (usize, &[LeafKeys<'_>]),
    seen: &[Seen],
) -> Result<Head, BackendError> {
    finite(seen)?;
    let group = queries.q.heads / scope.own.kv_heads();
    let heads = g * group..(g + 1) * group;
    let side = |side: usize| {
        merged(queries, heads.clone(), seen.iter().filter(move |seen| seen.side == side))
    };
    let own = sides.len() - 1;
    let Ok::<_, Infallible>(state) = match own {
        1 => Ok(side(0)),
        _ => fold_leaves(AttentionState::merge, |leaf| Ok(side(leaf))),
    };
    let state = state.merge(&side(own));
    let (mut past_mass, mut own_mass) = (Vec::new(), Vec::new());
    if let Some(row_weights) = scope.row_weights {
        let lse = state.lse();
        past_mass = vec![0.0; scope.past.len()];
        own_mass = vec![0.0; scope.own.len()];
        for seen in seen {
            let masses = if seen.side == own { &mut own_mass } else { &mut past_mass };
            spent(isa, &sides[seen.side], seen, (&lse, row_weights), masses)?;
        }
    }
    Ok(Head { g, output: state.output(), past_mass, own_mass })
}

/// The KV heads of a block side by side.
fn joined(
    queries: &Queries<'_>,
    scope: &Scope<'_>,
    heads: Vec<Result<Head, BackendError>>,
) -> Result<Attended, BackendError> {
    let width = queries.q.heads * queries.q.head_dim;
    let mut output = Rows::zeros(queries.q.tokens, width);
    let masses = |keys: &Keys| vec![0.0; scope.row_weights.map_or(0, |_| keys.positions.len())];
    let (mut past_mass, mut own_mass) = (masses(scope.past), masses(scope.own));
    for head in heads {
        let head = head?;
        let columns = head.output.cols();
        for t in 0..queries.q.tokens {
            output.row_mut(t)[head.g * columns..][..columns].copy_from_slice(head.output.row(t));
        }
        for (to, from) in [(&mut past_mass, &head.past_mass), (&mut own_mass, &head.own_mass)] {
            to[head.g * from.len()..][..from.len()].copy_from_slice(from);
        }
    }
    Ok(Attended { output, past_mass: past_mass.into(), own_mass: own_mass.into() })
}

/// All rows over each part of `keys`, KV heads and parts ascending.
fn look(
    place: Place,
    queries: &Queries<'_>,
    keys: &Keys,
    with_values: bool,
) -> Result<Vec<Seen>, BackendError> {
    let sides = [LeafKeys::all(keys)];
    let tasks = tasks(queries, &sides, with_values).flatten().collect();
    let seen = place.crew.map(tasks, |task: Task<'_>| place.isa.run(task));
    let seen: Vec<Seen> = seen.into_iter().flatten().collect();
    finite(&seen)?;
    Ok(seen)
}

/// # Errors
/// A part whose sums are not.
fn finite(seen: &[Seen]) -> Result<(), BackendError> {
    match seen.iter().all(|seen| seen.finite) {
        true => Ok(()),
        false => Err(BackendError::NotFinite { op: "attend", what: "a weighted sum of values" }),
    }
}

/// For every KV head, the parts of a block's sides as tasks.
fn tasks<'a>(
    queries: &'a Queries<'a>,
    sides: &[LeafKeys<'a>],
    with_values: bool,
) -> impl Iterator<Item = Vec<Task<'a>>> {
    let kv_heads = sides[0].of.kv_heads();
    let group = queries.q.heads / kv_heads;
    (0..kv_heads).map(move |g| {
        let task = |parts| Task { queries, group, g, with_values, parts };
        let (mut tasks, mut keys) = (vec![task(Vec::new())], 0);
        for (side, of) in sides.iter().enumerate() {
            let sight: Vec<_> =
                (0..queries.q.tokens).map(|t| in_sight(queries, t, of, g)).collect();
            for span in spans(&sight) {
                let (count, keys_of) = (span.len(), of.within(g, span.clone()).collect());
                let rows = (of.of.k_rows(g), of.of.v_rows(g));
                let part = Part { side, rows, keys: keys_of, span, sight: sight.clone() };
                // Few keys, as a decode step's own or those of a leaf, are no task of their own.
                match tasks.last_mut() {
                    Some(task) if keys == 0 || keys + count <= PART || count < PART / 8 => {
                        task.parts.push(part);
                        keys += count;
                    }
                    _ => {
                        tasks.push(task(vec![part]));
                        keys = count;
                    }
                }
            }
        }
        tasks
    })
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

/// The state of some query heads over parts of all that they share.
fn merged<'s>(
    queries: &Queries<'_>,
    heads: Range<usize>,
    seen: impl Iterator<Item = &'s Seen>,
) -> AttentionState {
    let (tokens, head_dim) = (queries.q.tokens, queries.q.head_dim);
    let mut state = AttentionState::empty(heads.len(), tokens, head_dim);
    let (m, l, o) = (state.m.make_mut(), state.l.make_mut(), state.o.make_mut());
    for seen in seen {
        // Rows of a KV head's query heads are neighbours, tokens within.
        let first = seen.g * seen.m.len() - heads.start * tokens;
        for row in 0..seen.m.len() {
            let i = first + row;
            let into = (&mut m[i], &mut l[i], &mut o[i * head_dim..(i + 1) * head_dim]);
            merge_row(into, (seen.m[row], seen.l[row], seen.o(row, head_dim)));
        }
    }
    state
}

/// Column masses of a part's keys for lse `[R, tokens]` and row weights `[tokens]`, where they
/// belong in those of its KV head, `[keys]`.
fn spent(
    isa: Isa,
    side: &LeafKeys<'_>,
    seen: &Seen,
    (lse, row_weights): (&[f32], &[f32]),
    masses: &mut [f32],
) -> Result<(), BackendError> {
    let weight = |row: usize| match lse[row] {
        f32::NEG_INFINITY => 0.0,
        lse => row_weights[row % row_weights.len()] * (seen.m[row] - lse).exp(),
    };
    let weights: Vec<f32> = (0..seen.m.len()).map(weight).collect();
    let mut of_part = vec![0.0; seen.span.len()];
    isa.run(Spend { p: &seen.p, weights: &weights, to: &mut of_part });
    shapes::finite("weigh", "a column mass", &of_part)?;
    side.add(seen.g, seen.span.clone(), &of_part, masses);
    Ok(())
}
