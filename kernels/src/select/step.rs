//! Selection after one token: for each KV head at most one key goes, and the new one takes its
//! cell.

use std::ops::Range;

use super::{count_past, rank};
use crate::memory::{Keys, MemorySet, Ranking, Selection};

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

/// Adds the one key of `own`. What [`given_up`] said must be at most 1.
pub(super) fn append(
    set: &mut MemorySet,
    own: &Keys,
    (past_mass, own_mass): (&[f32], &[f32]),
    selection: &Selection,
) {
    let full = given_up(set, selection) > 0;
    let weight = if selection.keep_all {
        0.0
    } else {
        let weight = selection.ranking.row_weight(0);
        count_past(set, past_mass, selection.ranking.fade(1), weight);
        weight
    };
    let new =
        |g: usize| NewKey { own, g, score: own_mass.get(g).copied().unwrap_or(0.0), votes: weight };
    if full {
        for g in 0..set.keys.kv_heads() {
            replace(set, new(g), selection);
        }
    } else {
        add(set, new, selection);
    }
    set.end += 1; // fits: checked with the shapes
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

    fn store(&self, keys: &mut Keys, cell: usize) {
        let to = self.g * keys.k.tokens + cell;
        keys.k.copy_row(to, &self.own.k, self.own.row(self.g, 0));
        keys.v.copy_row(to, &self.own.v, self.own.row(self.g, 0));
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
fn add<'a>(set: &mut MemorySet, new: impl Fn(usize) -> NewKey<'a>, selection: &Selection) {
    let keys = &mut set.keys;
    let count = keys.keys;
    if count == keys.k.tokens {
        let cells = cells_after(count, selection);
        keys.k.make_room(cells);
        keys.v.make_room(cells);
    }
    let kv_heads = keys.kv_heads();
    push_each(keys.positions.make_mut(), count, kv_heads, |g| new(g).position());
    push_each(set.score.make_mut(), count, kv_heads, |g| new(g).score);
    push_each(set.votes.make_mut(), count, kv_heads, |g| new(g).votes);
    if let Some(table) = &mut keys.table {
        push_each(table.make_mut(), count, kv_heads, |_| count as u32);
    }
    keys.keys += 1;
    (0..kv_heads).for_each(|g| new(g).store(keys, count));
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

/// Evicts the worst candidate of `new`'s KV head for `new`, which may be the worst itself.
fn replace(set: &mut MemorySet, new: NewKey<'_>, selection: &Selection) {
    let count = set.keys.keys;
    let head = new.g * count..(new.g + 1) * count;
    let candidates = candidates(set, new.g, selection);
    let is_candidate = candidates.end > count;
    let past = head.start + candidates.start..head.start + candidates.end.min(count);
    let (score, votes) = (&set.score[past.clone()], &set.votes[past.clone()]);
    let (idx, worst) = last_of_worst(score, votes, &selection.ranking);
    if is_candidate && order(rank(new.score, new.votes, &selection.ranking)) <= worst {
        return;
    }
    let evicted = past.start + idx;
    let keys = &mut set.keys;
    let kv_heads = keys.kv_heads();
    let table =
        keys.table.get_or_insert_with(|| (0..kv_heads).flat_map(|_| 0..count as u32).collect());
    let cell = table[evicted];
    move_up(table, evicted..head.end, cell);
    move_up(&mut keys.positions, evicted..head.end, new.position());
    move_up(&mut set.score, evicted..head.end, new.score);
    move_up(&mut set.votes, evicted..head.end, new.votes);
    new.store(keys, cell as usize);
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
