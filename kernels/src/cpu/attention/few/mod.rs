//! Few rows, as in decode steps: bound by memory, so every key and value is read once, where it
//! lies, and nothing is laid out anew.
//!
//! Keys are cut at fixed places into parts, which are computed apart and merged in ascending
//! order, so that few KV heads still occupy all threads.

mod head;
mod merge;
mod part;
mod streamed;

use std::ops::Range;

use self::head::{Head, Results, each_head};
use self::merge::{Merged, spend};
use self::part::{Part, Seen, Task};
use super::side::Wanted;
use super::sides;
use super::sight::in_sight;
use crate::backend::{Attended, BackendError, Queries, Scope};
use crate::cpu::gemm::Place;
use crate::cpu::simd::LANES;
use crate::fold::{Node, merges};
use crate::memory::{Keys, LEAVES, LeafKeys};
use crate::shapes;
use crate::state::AttentionState;

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
    let q = queries.q;
    let rows = q.tokens * q.heads / keys.kv_heads();
    let mut state = AttentionState::empty(q.heads, q.tokens, q.head_dim);
    let (m, l, o) = (state.m.make_mut(), state.l.make_mut(), state.o.make_mut());
    let wanted = Wanted { o: true, p: false };
    let heads = look(place, queries, &[LeafKeys::all(keys)], wanted);
    for (g, mut seen) in heads.into_iter().enumerate() {
        finite(&seen)?;
        let Some(merged) = Merged::new(&mut seen, []) else { continue };
        for row in 0..rows {
            let i = g * rows + row;
            (m[i], l[i]) = (merged.m[row], merged.l[row]);
            merged.put(row, &mut o[i * q.head_dim..][..q.head_dim]);
        }
    }
    Ok(state)
}

/// See [`super::weigh`].
pub(super) fn weigh(
    place: Place,
    queries: &Queries<'_>,
    keys: &Keys,
    lse: &[f32],
    row_weights: &[f32],
) -> Result<Vec<f32>, BackendError> {
    let (sides, rows) = ([LeafKeys::all(keys)], lse.len() / keys.kv_heads());
    let mut masses = vec![0.0; keys.positions.len()];
    let heads = look(place, queries, &sides, Wanted { o: false, p: true });
    let each = heads.into_iter().zip(each_head(&mut masses, keys.kv_heads()));
    for (g, (seen, masses)) in each.enumerate() {
        finite(&seen)?;
        let lse = &lse[g * rows..][..rows];
        spend(place.isa, (g, &sides), &seen, (lse, row_weights), &mut [masses]);
    }
    shapes::finite("weigh", "a column mass", &masses)?;
    Ok(masses)
}

/// All rows over the keys of each KV head.
fn look(
    place: Place,
    queries: &Queries<'_>,
    sides: &[LeafKeys<'_>],
    wanted: Wanted,
) -> Vec<Vec<Seen>> {
    let heads = 0..sides[0].of.kv_heads();
    let heads = heads.map(|g| Look { queries, sides, g, wanted }.tasks()).collect();
    run_all(place, heads)
}

/// Runs the tasks of all KV heads.
fn run_all(place: Place, heads: Vec<Vec<Task<'_>>>) -> Vec<Vec<Seen>> {
    let counts: Vec<usize> = heads.iter().map(Vec::len).collect();
    let tasks = heads.into_iter().flatten().collect();
    let mut seen = place.crew.map(tasks, |task: Task<'_>| place.isa.run(task)).into_iter();
    counts.into_iter().map(|count| seen.by_ref().take(count).collect()).collect()
}

/// See [`super::attend_each`].
pub(super) fn attend_each(
    place: Place,
    blocks: &[(Queries<'_>, Scope<'_>)],
) -> Vec<Result<Attended, BackendError>> {
    let (isa, merges) = (place.isa, merges(Node::ROOT, LEAVES));
    let mut results: Vec<_> = blocks.iter().map(Results::new).collect();
    let mut heads = Vec::with_capacity(blocks.iter().map(|(_, scope)| scope.own.kv_heads()).sum());
    for (block, (results, (queries, scope))) in results.iter_mut().zip(blocks).enumerate() {
        let head = |(g, place)| Head { block, queries, scope, g, place };
        heads.extend(results.places().enumerate().map(head));
    }
    // A KV head with few keys is one thread's from beginning to end.
    let (whole, cut): (Vec<_>, Vec<_>) = heads.into_iter().partition(Head::has_few_keys);
    let mut ended = place.crew.map(whole, |head: Head<'_>| (head.block, head.run(isa, &merges)));
    let splits = place.crew.map(cut.iter().collect(), Head::split);
    let sides: Vec<_> =
        cut.iter().zip(&splits).map(|(head, split)| sides(head.scope, split.as_ref())).collect();
    let looks = cut.iter().zip(&sides).map(|(head, sides)| head.look(sides));
    let seen = run_all(place, looks.map(Look::tasks).collect());
    let cut = cut.into_iter().zip(&sides).zip(seen).collect();
    ended.extend(place.crew.map(cut, |((head, sides), seen): ((Head<'_>, &Vec<_>), _)| {
        (head.block, head.end(isa, &merges, sides, seen))
    }));
    let mut refused: Vec<_> = results.iter().map(|_| None).collect();
    for (block, ended) in ended {
        if let Err(error) = ended {
            refused[block].get_or_insert(error);
        }
    }
    let each = results.into_iter().zip(refused);
    let outputs = blocks.iter().map(|(_, scope)| scope.outputs);
    each.zip(outputs)
        .map(|((results, refused), outputs)| match refused {
            Some(error) => Err(error),
            None => {
                // SAFETY: every KV head came to its end, which clears its place.
                let attended = unsafe { results.attended() };
                attended.of_last(outputs)
            }
        })
        .collect()
}

/// # Errors
/// Parts whose sums are not.
fn finite(seen: &[Seen]) -> Result<(), BackendError> {
    match seen.iter().all(|seen| seen.finite) {
        true => Ok(()),
        false => Err(BackendError::NotFinite { op: "attend", what: "a weighted sum of values" }),
    }
}

/// All rows of a KV head before some keys.
#[derive(Clone, Copy)]
struct Look<'a> {
    queries: &'a Queries<'a>,
    /// Of one type.
    sides: &'a [LeafKeys<'a>],
    g: usize,
    wanted: Wanted,
}

impl<'a> Look<'a> {
    /// The keys in parts, side by side and ascending within.
    fn tasks(self) -> Vec<Task<'a>> {
        let Self { queries, sides, g, wanted } = self;
        let group = queries.q.heads / sides[0].of.kv_heads();
        let (mut tasks, mut keys) = (vec![Vec::with_capacity(sides.len())], 0);
        for (side, of) in sides.iter().enumerate() {
            for span in spans(queries, of, g) {
                let count = span.len();
                let part = Part { side, span };
                // Few keys, as a decode step's own or those of a leaf, are no task of their own.
                match tasks.last_mut() {
                    Some(parts) if keys == 0 || keys + count <= PART || count < PART / 8 => {
                        parts.push(part);
                        keys += count;
                    }
                    _ => {
                        tasks.push(vec![part]);
                        keys = count;
                    }
                }
            }
        }
        let task = |parts| Task { queries, group, g, wanted, sides, parts };
        tasks.into_iter().map(task).collect()
    }
}

/// The parts of the keys that some row sees. They start at fixed places, so they are summed
/// alike beside any others.
fn spans(
    queries: &Queries<'_>,
    keys: &LeafKeys<'_>,
    g: usize,
) -> impl Iterator<Item = Range<usize>> + use<> {
    let (mut first, mut last) = (usize::MAX, 0);
    for t in 0..queries.q.tokens {
        let sight = in_sight(queries, t, keys, g);
        if !sight.is_empty() {
            (first, last) = (first.min(sight.start / LANES * LANES), last.max(sight.end));
        }
    }
    let first = first.min(last);
    (first / PART..last.div_ceil(PART))
        .map(move |idx| first.max(idx * PART)..last.min((idx + 1) * PART))
}
