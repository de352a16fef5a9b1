//! Selection after one token: for each KV head at most one key goes, and the new one takes its
//! cell.

use std::ops::Range;

use super::loops::{Count, LOWEST, Ranks, below, last_of_worst, order, sum};
use super::{Alone, Workers, in_sight, unseen};
use crate::backend::BackendError;
use crate::memory::{Keys, MemorySet, Move, Selection};

/// Cells that a growing set gets at least, when it needs one.
const CELLS_GROWN: usize = 32;

/// How many keys each KV head gives up when one is added: what the head with the most keys to
/// keep gives up.
pub(super) fn given_up(set: &MemorySet, selection: &Selection) -> usize {
    if selection.keep_all {
        return 0;
    }
    let surplus = |g| {
        let candidates = candidates(set.keys.head_positions(g), set.end, selection);
        candidates.len().saturating_sub(selection.heavy)
    };
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
    workers: impl Workers,
    set: &mut MemorySet,
    own: &Keys,
    masses: (&[f32], &[f32]),
    (selection, full): (&Selection, bool),
) -> Result<[f64; 2], BackendError> {
    let step = Step { selection, end: set.end, full, own, masses };
    let has_table = set.keys.table.is_some();
    let counted = match set.score.len() {
        0..ALONE => step.count(&Alone, set),
        _ => step.count(&workers, set),
    };
    let (mut all, mut gone) = (0.0, 0.0);
    for head in &counted {
        all += head.all;
        gone += head.gone;
    }
    if full {
        let moves = counted.iter().enumerate();
        let moves = moves.filter_map(|(g, head)| Some(Move::own(g, 0, head.cell?)));
        let moves: Vec<Move> = moves.collect();
        if moves.is_empty() && !has_table {
            set.keys.table = None; // as it was: every key has its own cell
        }
        set.keys.store(set.keys.k.tokens, &moves, own)?;
    } else {
        add(set, own, |g| step.new_key(g), selection)?;
    }
    set.end += 1; // fits: checked with the shapes
    let kept = match all - gone {
        kept if kept.is_finite() => kept,
        // What broke the sum may be gone.
        _ => in_sight(&set.keys, &set.score, selection.first_seen(set.end)),
    };
    Ok([kept, all])
}

/// Elements of scores up to which one thread counts sooner than several.
const ALONE: usize = 1024;

/// One token more.
struct Step<'a> {
    selection: &'a Selection,
    /// Its position.
    end: u32,
    /// Whether KV heads give up a key.
    full: bool,
    own: &'a Keys,
    /// `[kv_heads, past keys]` and `[kv_heads]`, or empty where all are kept.
    masses: (&'a [f32], &'a [f32]),
}

/// What became of a KV head.
struct Counted {
    /// The sum of all scores.
    all: f64,
    /// The score that goes.
    gone: f64,
    /// The cell that another key's row comes to.
    cell: Option<usize>,
}

/// The own key of a KV head.
struct NewKey {
    position: u32,
    score: f32,
    votes: f32,
}

/// One KV head's part of a set.
struct Head<'a> {
    g: usize,
    positions: &'a mut [u32],
    /// Empty unless the set is full.
    table: &'a mut [u32],
    score: &'a mut [f32],
    votes: &'a mut [f32],
}

impl Step<'_> {
    fn new_key(&self, g: usize) -> NewKey {
        let Self { selection, own, masses, .. } = self;
        let votes = if selection.keep_all { 0.0 } else { selection.ranking.row_weight(0) };
        let score = masses.1.get(g).copied().unwrap_or(0.0);
        NewKey { position: own.positions[g], score, votes }
    }

    /// The score of the new key, if a row to come sees it.
    fn in_sight(&self, new: &NewKey) -> f64 {
        let is_seen = new.position >= self.selection.first_seen(self.end + 1);
        if is_seen { f64::from(new.score) } else { 0.0 }
    }

    /// Counts masses and, where the set is full, puts the new key of every KV head in the place
    /// of another, but for the rows of keys and values.
    fn count(&self, workers: &impl Workers, set: &mut MemorySet) -> Vec<Counted> {
        let (count, kv_heads) = (set.keys.keys, set.keys.kv_heads());
        if self.selection.keep_all || count == 0 {
            let alone = |g| {
                let all = self.in_sight(&self.new_key(g));
                Counted { all, gone: if self.full { all } else { 0.0 }, cell: None }
            };
            return (0..kv_heads).map(alone).collect();
        }
        let table = self.full.then(|| {
            let each = || (0..kv_heads).flat_map(|_| 0..count as u32).collect();
            set.keys.table.get_or_insert_with(each).make_mut().as_mut_slice()
        });
        let mut tables = table.unwrap_or_default().chunks_exact_mut(count);
        let heads = set
            .keys
            .positions
            .make_mut()
            .chunks_exact_mut(count)
            .zip(set.score.make_mut().chunks_exact_mut(count))
            .zip(set.votes.make_mut().chunks_exact_mut(count))
            .enumerate()
            .map(|(g, ((positions, score), votes))| {
                let table = tables.next().unwrap_or_default();
                Head { g, positions, table, score, votes }
            });
        workers.map(heads.collect(), |head: Head<'_>| self.count_head(head))
    }

    fn count_head(&self, mut head: Head<'_>) -> Counted {
        let Self { selection, masses, .. } = self;
        let (new, count) = (self.new_key(head.g), head.score.len());
        let mass = &masses.0[head.g * count..][..count];
        let fade = selection.ranking.fade(1);
        let (score, votes) = (&mut *head.score, &mut *head.votes);
        let all = Count { score, votes, mass, fade, total: new.votes }.done();
        let first_seen = selection.first_seen(self.end + 1);
        let unseen = unseen(head.positions, first_seen);
        let of_new = self.in_sight(&new);
        let all = if unseen > 0 { sum(&head.score[unseen..]) } else { all } + of_new;
        if !self.full {
            return Counted { all, gone: 0.0, cell: None };
        }
        let worst = head.worst(&new, self.end, selection);
        let gone = match worst {
            None => of_new,
            Some(j) if j < unseen => 0.0,
            Some(j) => f64::from(head.score[j]),
        };
        Counted { all, gone, cell: worst.map(|j| head.replace(j, &new)) }
    }
}

impl Head<'_> {
    /// The key that goes; `None` where it is the new one.
    fn worst(&self, new: &NewKey, end: u32, selection: &Selection) -> Option<usize> {
        let count = self.positions.len();
        let candidates = candidates(self.positions, end, selection);
        let is_candidate = candidates.end > count;
        let past = candidates.start..candidates.end.min(count);
        let ranks = Ranks::new(selection, end + 1);
        let unseen = unseen(&self.positions[past.clone()], ranks.first_seen);
        let seen = past.start + unseen..past.end;
        let (score, votes) = (&self.score[seen.clone()], &self.votes[seen.clone()]);
        let (idx, worst) = last_of_worst(score, votes, &selection.ranking);
        // Of those that are not seen the last is the worst, unless one behind it ranks as low.
        let (idx, worst) = match unseen > 0 && worst > order(LOWEST) {
            true => (seen.start - 1, order(LOWEST)),
            false => (seen.start + idx, worst),
        };
        let new = ranks.of(new.position, new.score, new.votes);
        (!is_candidate || order(new) > worst).then_some(idx)
    }

    /// Gives key `j` up for the new one, whose cell this is then.
    fn replace(&mut self, j: usize, new: &NewKey) -> usize {
        let cell = self.table[j];
        move_up(&mut self.table[j..], cell);
        move_up(&mut self.positions[j..], new.position);
        move_up(&mut self.score[j..], new.score);
        move_up(&mut self.votes[j..], new.votes);
        cell as usize
    }
}

/// Drops the first, moves the others up and puts `new` behind them.
fn move_up<T: Copy>(values: &mut [T], new: T) {
    values.copy_within(1.., 0);
    values[values.len() - 1] = new;
}

/// Of keys at `positions`, one at `end` behind them, those that neither age nor freshness saves.
fn candidates(positions: &[u32], end: u32, selection: &Selection) -> Range<usize> {
    let recent = (end + 1).saturating_sub(selection.local);
    let bounds = [selection.sinks, recent];
    let past = below(positions, bounds);
    let with_new = |i: usize| past[i] + usize::from(past[i] == positions.len() && end < bounds[i]);
    let first = with_new(0);
    first..with_new(1).max(first)
}

/// Adds a key to every KV head.
fn add(
    set: &mut MemorySet,
    own: &Keys,
    new: impl Fn(usize) -> NewKey,
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
    keys.store(cells, &moves, own)?;
    push_each(keys.positions.make_mut(), count, kv_heads, |g| new(g).position);
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
