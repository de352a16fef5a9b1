//! Selection after one token: for each KV head at most one key goes, and the new one takes its
//! cell.

use std::ops::Range;

use super::{count_past, rank, sum};
use crate::backend::BackendError;
use crate::memory::{Keys, MemorySet, Move, Ranking, Selection};

/// Cells that a growing set gets at least, when it needs one.
const CELLS_GROWN: usize = 32;

/// How many keys each KV head gives up when one is added: what the head with the most keys to
/// keep gives up.
pub(super) fn given_up(set: &MemorySet, selection: &Selection) -> usize {
    if selection.keep_all {
        return 0;
    }
    let surplus = |g| candidates(set, g, selection).len().saturating_sub(selection.heavy);
    (0..set.keys.kv_heads()).map(surplus).min().unwrap_or(0)
}

/// Adds the one key of `own`, for which every KV head gives up another if the set is `full`, as
/// [`given_up`] says. Returns what is
/// [retained](crate::Selected::retained): the scores of keys that go are taken from the sum of all,
/// so that scores are summed once.
///
/// # Errors
/// What [`Keys::store`] says.
pub(super) fn append(
    set: &mut MemorySet,
    own: &Keys,
    (past_mass, own_mass): (&[f32], &[f32]),
    (selection, full): (&Selection, bool),
) -> Result<[f64; 2], BackendError> {
    let (mut all, mut weight) = (0.0, 0.0);
    if !selection.keep_all {
        weight = selection.ranking.row_weight(0);
        all = count_past(set, past_mass, selection.ranking.fade(1), weight) + sum(own_mass);
    }
    let new =
        |g: usize| NewKey { own, g, score: own_mass.get(g).copied().unwrap_or(0.0), votes: weight };
    let gone = if full {
        replace(set, new, selection)?
    } else {
        add(set, new, selection)?;
        0.0
    };
    set.end += 1; // fits: checked with the shapes
    let kept = match all - gone {
        kept if kept.is_finite() => kept,
        _ => sum(&set.score), // what broke the sum may be gone
    };
    Ok([kept, all])
}

/// The own key of KV head `g`.
struct NewKey<'a> {
    own: &'a Keys,
    g: usize,
    score: f32,
    votes: f32,
}

impl NewKey<'_> {
    fn position(&self) -> u32 {
        self.own.positions[self.g]
    }
}

/// The keys of KV head `g`, the new one behind them, that neither age nor freshness saves.
fn candidates(set: &MemorySet, g: usize, selection: &Selection) -> Range<usize> {
    let positions = set.keys.head_positions(g);
    let recent = (set.end + 1).saturating_sub(selection.local);
    let below = |bound: u32| {
        let past = positions.partition_point(|&position| position < bound);
        past + usize::from(past == positions.len() && set.end < bound)
    };
    let first = below(selection.sinks);
    first..below(recent).max(first)
}

/// Adds a key to every KV head.
fn add<'a>(
    set: &mut MemorySet,
    new: impl Fn(usize) -> NewKey<'a>,
    selection: &Selection,
) -> Result<(), BackendError> {
    let keys = &mut set.keys;
    let (count, kv_heads) = (keys.keys, keys.kv_heads());
    let cells = match keys.k.tokens {
        cells if count < cells => cells,
        _ if keys.pool().is_some() => count + 1, // of pages, the next one
        _ => cells_after(count, selection),
    };
    let moves: Vec<Move> = (0..kv_heads).map(|g| Move::own(g, 0, count)).collect();
    keys.store(cells, &moves, new(0).own)?;
    push_each(keys.positions.make_mut(), count, kv_heads, |g| new(g).position());
    push_each(set.score.make_mut(), count, kv_heads, |g| new(g).score);
    push_each(set.votes.make_mut(), count, kv_heads, |g| new(g).votes);
    if let Some(table) = &mut keys.table {
        push_each(table.make_mut(), count, kv_heads, |_| count as u32);
    }
    keys.keys += 1;
    Ok(())
}

/// Cells for a set that has outgrown `count`: a part of it more, so that growing costs a step
/// little on average, and no more than the policy can fill.
pub(crate) fn cells_after(count: usize, selection: &Selection) -> usize {
    let roomy = count + (count / 4).max(CELLS_GROWN);
    if selection.keep_all {
        return roomy;
    }
    let budget = (selection.sinks as usize)
        .saturating_add(selection.local as usize)
        .saturating_add(selection.heavy);
    roomy.min(budget).max(count + 1)
}

/// `[heads, count]` to `[heads, count + 1]`.
fn push_each<T: Copy + Default>(
    values: &mut Vec<T>,
    count: usize,
    heads: usize,
    new: impl Fn(usize) -> T,
) {
    values.resize(heads * (count + 1), T::default());
    for g in (0..heads).rev() {
        values.copy_within(g * count..(g + 1) * count, g * (count + 1));
        values[g * (count + 1) + count] = new(g);
    }
}

/// Evicts the worst candidate of every KV head for the new key, which may be the worst itself.
/// Returns the sum of the scores that go.
fn replace<'a>(
    set: &mut MemorySet,
    new: impl Fn(usize) -> NewKey<'a>,
    selection: &Selection,
) -> Result<f64, BackendError> {
    let (count, kv_heads) = (set.keys.keys, set.keys.kv_heads());
    let (mut evicted, mut gone) = (Vec::with_capacity(kv_heads), 0.0);
    for g in 0..kv_heads {
        let new = new(g);
        let worst = worst(set, &new, selection);
        evicted.extend(worst.map(|j| (g, j)));
        gone += f64::from(worst.map_or(new.score, |j| set.score[g * count + j]));
    }
    if evicted.is_empty() {
        return Ok(gone);
    }
    let to_cell =
        |&(g, j): &(usize, usize)| Move::own(g, 0, set.keys.row(g, j) - g * set.keys.k.tokens);
    let moves: Vec<Move> = evicted.iter().map(to_cell).collect();
    set.keys.store(set.keys.k.tokens, &moves, new(0).own)?;
    let keys = &mut set.keys;
    let table =
        keys.table.get_or_insert_with(|| (0..kv_heads).flat_map(|_| 0..count as u32).collect());
    for ((g, j), Move { to, .. }) in evicted.into_iter().zip(moves) {
        let (span, new) = (g * count + j..(g + 1) * count, new(g));
        move_up(table, span.clone(), to as u32);
        move_up(&mut keys.positions, span.clone(), new.position());
        move_up(&mut set.score, span.clone(), new.score);
        move_up(&mut set.votes, span, new.votes);
    }
    Ok(gone)
}

/// The key of `new`'s KV head that goes; `None` where it is the new one.
fn worst(set: &MemorySet, new: &NewKey<'_>, selection: &Selection) -> Option<usize> {
    let count = set.keys.keys;
    let candidates = candidates(set, new.g, selection);
    let is_candidate = candidates.end > count;
    let first = new.g * count;
    let past = first + candidates.start..first + candidates.end.min(count);
    let (score, votes) = (&set.score[past.clone()], &set.votes[past]);
    let (idx, worst) = last_of_worst(score, votes, &selection.ranking);
    let stays = !is_candidate || order(rank(new.score, new.votes, &selection.ranking)) > worst;
    stays.then_some(candidates.start + idx)
}

/// Drops the first of `span`, moves the others up and puts `new` behind them.
fn move_up<T: Copy>(values: &mut [T], span: Range<usize>, new: T) {
    values.copy_within(span.start + 1..span.end, span.start);
    values[span.end - 1] = new;
}

/// Index and [`order`] of the last key of the lowest rank; the past's keys ascend by position.
fn last_of_worst(score: &[f32], votes: &[f32], ranking: &Ranking) -> (usize, i32) {
    let order_of = |(&score, &votes): (&f32, &f32)| order(rank(score, votes, ranking));
    let keys = score.iter().zip(votes);
    let worst = keys.clone().map(order_of).fold(i32::MAX, i32::min);
    (keys.map(order_of).rposition(|order| order == worst).unwrap_or(0), worst)
}

/// Integers in the order of the ranks ([`f32::total_cmp`]), which vectors compare faster.
fn order(rank: f32) -> i32 {
    let bits = rank.to_bits() as i32;
    bits ^ ((bits >> 31) as u32 >> 1) as i32
}
