//! Which keys a memory set keeps: bookkeeping that every backend on a CPU shares.

mod loops;
mod step;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use self::loops::{Count, below};
pub(crate) use self::loops::{Ranks, sum};
pub(crate) use self::step::cells_after;
use crate::array::Array;
use crate::backend::{BackendError, Choice, Selected};
use crate::memory::{Keys, MemorySet, Move, Ranking, Selection, Source};
use crate::shapes;

/// Who does what can be done for every KV head apart. Results are in the order of the tasks.
pub(crate) trait Workers {
    fn map<T: Send, R: Send>(&self, tasks: Vec<T>, run: impl Fn(T) -> R + Sync) -> Vec<R>;
}

/// One thread.
struct Alone;

impl Workers for Alone {
    fn map<T: Send, R: Send>(&self, tasks: Vec<T>, run: impl Fn(T) -> R + Sync) -> Vec<R> {
        tasks.into_iter().map(run).collect()
    }
}

/// See [`SelectionOps::select`](crate::SelectionOps::select).
///
/// A set that nobody else holds is changed in place, and of one that lies in pages only those
/// pages are copied that change: kept keys stay in their cells, own keys come to those that
/// others leave. A key whose rank is NaN ranks last.
///
/// # Errors
/// Arrays that do not fit each other; own keys that do not follow the past; a pool without pages
/// for them.
pub fn select(
    past: Arc<MemorySet>,
    own: &Keys,
    masses: (&[f32], &[f32]),
    selection: &Selection,
) -> Result<Selected, BackendError> {
    select_by(Alone, past, own, masses, selection)
}

/// [`select`], after one token by several.
///
/// # Errors
/// As there.
pub(crate) fn select_by(
    workers: impl Workers,
    past: Arc<MemorySet>,
    own: &Keys,
    masses: (&[f32], &[f32]),
    selection: &Selection,
) -> Result<Selected, BackendError> {
    shapes::selection(&past, own, masses, selection)?;
    let mut set = Arc::try_unwrap(past).unwrap_or_else(|shared| shared.apart());
    let given_up = (own.len() == 1).then(|| step::given_up(&set, selection));
    let retained = match given_up {
        Some(count @ (0 | 1)) => {
            step::append(workers, &mut set, own, masses, (selection, count == 1))?
        }
        _ => append(workers, &mut set, own, masses, selection)?,
    };
    Ok(Selected { memory: set, retained: Vec::from(retained).into() })
}

/// See [`SelectionOps::select_each`](crate::SelectionOps::select_each): a set is one thread's.
pub(crate) fn select_each(
    workers: impl Workers,
    choices: Vec<Choice<'_>>,
) -> Vec<Result<Selected, BackendError>> {
    workers.map(choices, |Choice { past, own, masses, selection }| {
        select(past, own, (masses.0, masses.1), selection)
    })
}

/// Any number of own keys, any number given up. Returns what is
/// [retained](crate::Selected::retained).
fn append(
    workers: impl Workers,
    set: &mut MemorySet,
    own: &Keys,
    masses: (&[f32], &[f32]),
    selection: &Selection,
) -> Result<[f64; 2], BackendError> {
    let mut all = 0.0;
    let end = set.end + own.len() as u32; // fits: checked with the shapes
    let first_seen = selection.first_seen(end);
    let own_tally = if selection.keep_all {
        let nothing = vec![0.0; own.positions.len()];
        Tally { score: nothing.clone(), votes: nothing }
    } else {
        if first_seen == 0 {
            let fade = f64::from(selection.ranking.fade(own.len()));
            all = sum(&set.score) * fade + sum(masses.0) + sum(masses.1);
        }
        let tally = count(set, masses, own.len(), &selection.ranking);
        if first_seen > 0 {
            all = in_sight(&set.keys, &set.score, first_seen)
                + in_sight(own, &tally.score, first_seen);
        }
        tally
    };
    set.end = end;
    let plan = Plan::new(set, own, &own_tally, selection);
    let cells = plan.cells(&set.keys);
    set.keys.store_by(workers, plan.kept_keys, &cells.moves, own)?;
    set.keys.table = cells.table;
    set.keys.keys = plan.kept_keys;
    plan.apply(set.keys.positions.make_mut(), &own.positions);
    plan.apply(set.score.make_mut(), &own_tally.score);
    plan.apply(set.votes.make_mut(), &own_tally.votes);
    let kept = if selection.keep_all { 0.0 } else { in_sight(&set.keys, &set.score, first_seen) };
    Ok([kept, all])
}

/// The sum of the scores, `[kv_heads, keys]`, of keys from position `first_seen` on.
pub(crate) fn in_sight(keys: &Keys, score: &[f32], first_seen: u32) -> f64 {
    if first_seen == 0 {
        return sum(score);
    }
    let of_head =
        |(g, score): (usize, &[f32])| sum(&score[unseen(keys.head_positions(g), first_seen)..]);
    score.chunks(keys.len().max(1)).enumerate().map(of_head).sum()
}

/// How many of ascending `positions` no row to come sees, if the first one that it sees is this.
fn unseen(positions: &[u32], first_seen: u32) -> usize {
    if first_seen > 0 { below(positions, [first_seen; 2])[0] } else { 0 }
}

/// What ranks keys.
struct Tally {
    /// `[kv_heads, keys]`.
    score: Vec<f32>,
    /// `[kv_heads, keys]`.
    votes: Vec<f32>,
}

/// Adds a block's masses and votes to the remembered keys; returns the own keys' first tally.
fn count(
    set: &mut MemorySet,
    (past_mass, own_mass): (&[f32], &[f32]),
    tokens: usize,
    ranking: &Ranking,
) -> Tally {
    let (total, own_votes) = votes(&ranking.row_weights(tokens));
    let fade = ranking.fade(tokens);
    let (score, votes) = (set.score.make_mut(), set.votes.make_mut());
    Count { score, votes, mass: past_mass, fade, total }.done();
    Tally { score: own_mass.to_vec(), votes: own_votes.repeat(set.keys.kv_heads()) }
}

/// The sum of all row weights, and for every own key the sum from its own row on.
pub(crate) fn votes(row_weights: &[f32]) -> (f32, Vec<f32>) {
    let mut sum = 0.0_f64;
    let mut from: Vec<f32> = row_weights
        .iter()
        .rev()
        .map(|&weight| {
            sum += f64::from(weight);
            sum as f32
        })
        .collect();
    from.reverse();
    (sum as f32, from)
}

/// A candidate, and which key it is.
#[derive(Clone, Copy)]
struct Candidate {
    key: crate::shard::Candidate,
    /// Into past keys followed by own keys.
    idx: usize,
}

impl Candidate {
    /// Best first. Positions of one head are distinct, so no two candidates are equal and the
    /// kept set does not depend on how it was partitioned.
    fn order(a: &Self, b: &Self) -> std::cmp::Ordering {
        a.key.order(&b.key)
    }
}

/// What stays, per KV head, as ascending runs of keys.
struct Plan {
    past_keys: usize,
    own_keys: usize,
    kept_keys: usize,
    heads: Vec<Kept>,
}

/// What stays of one KV head.
struct Kept {
    past: Vec<Range<usize>>,
    own: Vec<Range<usize>>,
}

impl Plan {
    fn new(set: &MemorySet, own: &Keys, own_tally: &Tally, selection: &Selection) -> Self {
        let (past_keys, own_keys) = (set.keys.len(), own.len());
        let kv_heads = own.kv_heads();
        let all = past_keys + own_keys;
        if selection.keep_all {
            let heads = (0..kv_heads).map(|_| Kept::everything(past_keys, own_keys)).collect();
            return Self { past_keys, own_keys, kept_keys: all, heads };
        }
        let mut marks = Vec::with_capacity(kv_heads);
        let mut candidates = Vec::with_capacity(kv_heads);
        for g in 0..kv_heads {
            let head = Head { set, own, own_tally, g };
            let (always, rest) = head.split(selection);
            marks.push(always);
            candidates.push(rest);
        }
        // Heads may differ in how many of their keys are always kept (a session whose policy
        // changed), but not in how many they keep: a head that has fewer keeps more by rank.
        let kept_keys = candidates
            .iter()
            .map(|rest| all - rest.len() + selection.heavy.min(rest.len()))
            .max()
            .unwrap_or(0);
        let heads = marks
            .into_iter()
            .zip(candidates)
            .map(|(mut marks, rest)| {
                let heavy = kept_keys + rest.len() - all;
                for candidate in best(rest, heavy) {
                    marks[candidate.idx] = true;
                }
                Kept { past: runs(&marks[..past_keys]), own: runs(&marks[past_keys..]) }
            })
            .collect();
        Self { past_keys, own_keys, kept_keys, heads }
    }

    /// Turns `[kv_heads, past keys]` into `[kv_heads, kept keys]`, taking what stays of `own`,
    /// `[kv_heads, own keys]`.
    fn apply<T: Copy>(&self, values: &mut Vec<T>, own: &[T]) {
        let mut kept = Vec::with_capacity(self.heads.len() * self.kept_keys);
        for (g, head) in self.heads.iter().enumerate() {
            let stay = |values: &[T], runs: &[Range<usize>], first: usize, to: &mut Vec<T>| {
                let runs = runs.iter().map(|run| &values[first + run.start..first + run.end]);
                runs.for_each(|run| to.extend_from_slice(run));
            };
            stay(values, &head.past, g * self.past_keys, &mut kept);
            stay(own, &head.own, g * self.own_keys, &mut kept);
        }
        *values = kept;
    }

    /// Where all that stays comes to lie: in the first `kept_keys` cells, and past keys that
    /// have one of these already keep it.
    fn cells(&self, keys: &Keys) -> Cells {
        let all = |head: &Kept| head.past.iter().map(Range::len).sum::<usize>() == self.past_keys;
        if keys.table.is_none() && self.heads.iter().all(all) {
            let own = self.heads.iter().enumerate().flat_map(|(g, head)| {
                let own = head.own.iter().cloned().flatten().zip(self.past_keys..);
                own.map(move |(j, to)| Move::own(g, j, to))
            });
            return Cells { moves: own.collect(), table: None };
        }
        let mut table = Vec::with_capacity(self.heads.len() * self.kept_keys);
        let mut moves = Vec::new();
        for (g, head) in self.heads.iter().enumerate() {
            let cell = |j: usize| keys.head_cells(g).map_or(j, |cells| cells[j] as usize);
            let past = || head.past.iter().cloned().flatten().map(cell);
            let mut holes = vec![true; self.kept_keys];
            past().filter(|cell| *cell < self.kept_keys).for_each(|cell| holes[cell] = false);
            let mut holes = (0..self.kept_keys).filter(|cell| holes[*cell]);
            let own = head.own.iter().cloned().flatten().map(Source::Own);
            for from in past().map(Source::Cell).chain(own) {
                let to = match from {
                    Source::Cell(cell) if cell < self.kept_keys => cell,
                    _ => holes.next().expect("as many cells as keys"),
                };
                table.push(to as u32);
                moves.extend((!matches!(from, Source::Cell(cell) if cell == to)).then_some(Move {
                    g,
                    from,
                    to,
                }));
            }
        }
        let in_order = table.iter().zip((0..self.kept_keys as u32).cycle()).all(|(a, b)| *a == b);
        Cells { moves, table: (!in_order).then(|| table.into()) }
    }
}

/// Where keys come to lie.
struct Cells {
    /// Ascending by KV head and cell.
    moves: Vec<Move>,
    /// See [`Keys`].
    table: Option<Array<u32>>,
}

impl Kept {
    fn everything(past_keys: usize, own_keys: usize) -> Self {
        let one_run = |keys| std::iter::once(0..keys).collect();
        Self { past: one_run(past_keys), own: one_run(own_keys) }
    }
}

/// One KV head's past and own keys.
struct Head<'a> {
    set: &'a MemorySet,
    own: &'a Keys,
    own_tally: &'a Tally,
    g: usize,
}

impl Head<'_> {
    /// Marks of the keys that are always kept, and the candidates for the rest.
    fn split(&self, selection: &Selection) -> (Vec<bool>, Vec<Candidate>) {
        let recent = self.set.end.saturating_sub(selection.local);
        let ranks = Ranks::new(selection, self.set.end);
        let mut always = Vec::with_capacity(self.set.keys.len() + self.own.len());
        let mut rest = Vec::with_capacity(always.capacity());
        for (idx, (position, score, votes)) in self.keys().enumerate() {
            let safe = position < selection.sinks || position >= recent;
            always.push(safe);
            if !safe {
                let rank = ranks.of(position, score, votes);
                rest.push(Candidate { key: crate::shard::Candidate { rank, position }, idx });
            }
        }
        (always, rest)
    }

    /// Position, score and votes of past and own keys.
    fn keys(&self) -> impl Iterator<Item = (u32, f32, f32)> {
        let (n, t) = (self.set.keys.len(), self.own.len());
        let past = self.g * n..(self.g + 1) * n;
        let own = self.g * t..(self.g + 1) * t;
        let positions = self.set.keys.positions[past.clone()].iter();
        let scores = self.set.score[past.clone()].iter();
        let votes = self.set.votes[past].iter();
        positions
            .chain(self.own.positions[own.clone()].iter())
            .zip(scores.chain(&self.own_tally.score[own.clone()]))
            .zip(votes.chain(&self.own_tally.votes[own]))
            .map(|((&position, &score), &votes)| (position, score, votes))
    }
}

/// The `count` first by [`Candidate::order`], in no particular order.
fn best(mut candidates: Vec<Candidate>, count: usize) -> Vec<Candidate> {
    if count < candidates.len() {
        candidates.select_nth_unstable_by(count, Candidate::order);
        candidates.truncate(count);
    }
    candidates
}

/// The runs of true.
fn runs(marks: &[bool]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for idx in (0..marks.len()).filter(|&idx| marks[idx]) {
        match runs.last_mut() {
            Some(run) if run.end == idx => run.end += 1,
            _ => runs.push(idx..idx + 1),
        }
    }
    runs
}
