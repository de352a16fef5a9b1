//! What passes over all scores of a set, in plain loops that the compiler makes vectors of.

use crate::cpu::{PlainWork, on_widest_vectors};
use crate::memory::{Ranking, Selection};

/// Elements of a loop that is unrolled into vectors.
const BLOCK: usize = 16;

/// How many sums in f64 at once, since each would wait for the addition before.
const SUMS: usize = 8;

/// In f64, in an order that depends on their number alone.
pub(crate) fn sum(values: &[f32]) -> f64 {
    on_widest_vectors(Sum { values })
}

struct Sum<'a> {
    values: &'a [f32],
}

impl PlainWork for Sum<'_> {
    type Out = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let mut sums = [0.0; SUMS];
        let (blocks, rest) = self.values.as_chunks::<SUMS>();
        for block in blocks {
            add(&mut sums, block);
        }
        sums.iter().sum::<f64>() + rest.iter().map(|&value| f64::from(value)).sum::<f64>()
    }
}

#[inline(always)]
fn add(sums: &mut [f64; SUMS], block: &[f32; SUMS]) {
    for (sum, &value) in sums.iter_mut().zip(block) {
        *sum += f64::from(value);
    }
}

/// What a block's rows add to the scores and votes of remembered keys.
pub(super) struct Count<'a> {
    pub(super) score: &'a mut [f32],
    pub(super) votes: &'a mut [f32],
    /// Of each key.
    pub(super) mass: &'a [f32],
    /// What is left of what was counted before.
    pub(super) fade: f32,
    /// The sum of all row weights.
    pub(super) total: f32,
}

impl Count<'_> {
    /// Counts; returns the sum of the scores then.
    pub(super) fn done(self) -> f64 {
        on_widest_vectors(self)
    }
}

impl PlainWork for Count<'_> {
    type Out = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let Self { score, votes, mass, fade, total } = self;
        for (score, mass) in score.iter_mut().zip(mass) {
            *score = *score * fade + mass;
        }
        for votes in votes {
            *votes = *votes * fade + total;
        }
        Sum { values: score }.run()
    }
}

/// The rank of a key that no row to come sees, or of whose rank is no number.
pub(crate) const LOWEST: f32 = f32::NEG_INFINITY;

/// How keys rank for rows to come.
#[derive(Clone, Copy)]
pub(crate) struct Ranks<'a> {
    ranking: &'a Ranking,
    /// The first position that one of those rows sees.
    pub(crate) first_seen: u32,
}

impl<'a> Ranks<'a> {
    /// For rows at `end` and behind it.
    pub(crate) fn new(selection: &'a Selection, end: u32) -> Self {
        Self { ranking: &selection.ranking, first_seen: selection.first_seen(end) }
    }

    /// Of a key at `position`.
    pub(crate) fn of(&self, position: u32, score: f32, votes: f32) -> f32 {
        match position < self.first_seen {
            true => LOWEST,
            false => rank(score, votes, self.ranking),
        }
    }
}

/// How a key with so many votes ranks.
#[inline(always)]
fn rank(score: f32, votes: f32, ranking: &Ranking) -> f32 {
    let rank = if ranking.age_normalised { score / votes.max(1e-30) } else { score };
    // The sign of a NaN differs between processors; and +0 and -0 are one rank.
    if rank.is_nan() { LOWEST } else { rank + 0.0 }
}

/// Integers in the order of the ranks ([`f32::total_cmp`]), which vectors compare faster.
#[inline(always)]
pub(super) fn order(rank: f32) -> i32 {
    let bits = rank.to_bits() as i32;
    bits ^ ((bits >> 31) as u32 >> 1) as i32
}

/// Index and [`order`] of the last key of the lowest rank; `(0, i32::MAX)` where there is no key.
pub(super) fn last_of_worst(score: &[f32], votes: &[f32], ranking: &Ranking) -> (usize, i32) {
    on_widest_vectors(Worst { score, votes, ranking })
}

struct Worst<'a> {
    score: &'a [f32],
    votes: &'a [f32],
    ranking: &'a Ranking,
}

impl PlainWork for Worst<'_> {
    type Out = (usize, i32);

    #[inline(always)]
    fn run(self) -> (usize, i32) {
        let Self { score, votes, ranking } = self;
        let (scores, last_scores) = score.as_chunks::<BLOCK>();
        let (blocks_of_votes, last_votes) = votes.as_chunks::<BLOCK>();
        let mut lowest = [i32::MAX; BLOCK];
        for (scores, votes) in scores.iter().zip(blocks_of_votes) {
            lower(&mut lowest, scores, votes, ranking);
        }
        lower(&mut lowest, last_scores, last_votes, ranking);
        let mut worst = i32::MAX;
        for order in lowest {
            worst = worst.min(order);
        }
        let is_worst = |(&score, &votes)| order(rank(score, votes, ranking)) == worst;
        if let Some(idx) = last_scores.iter().zip(last_votes).rposition(is_worst) {
            return (BLOCK * scores.len() + idx, worst);
        }
        // A block is asked at once, which vectors do, before its elements are.
        for (block, (scores, votes)) in scores.iter().zip(blocks_of_votes).enumerate().rev() {
            if scores.iter().zip(votes).fold(false, |found, key| found | is_worst(key)) {
                let idx = scores.iter().zip(votes).rposition(is_worst).expect("in this block");
                return (BLOCK * block + idx, worst);
            }
        }
        (0, worst)
    }
}

/// How many of ascending `positions` lie below either bound.
///
/// A search would look at fewer, but would wait for each of them where they lie in no cache, and
/// whoever asks reads them all.
pub(super) fn below(positions: &[u32], bounds: [u32; 2]) -> [usize; 2] {
    on_widest_vectors(Below { positions, bounds })
}

struct Below<'a> {
    positions: &'a [u32],
    bounds: [u32; 2],
}

impl PlainWork for Below<'_> {
    type Out = [usize; 2];

    #[inline(always)]
    fn run(self) -> [usize; 2] {
        let Self { positions, bounds } = self;
        let mut below = [0_u32; 2];
        for &position in positions {
            below[0] += u32::from(position < bounds[0]);
            below[1] += u32::from(position < bounds[1]);
        }
        below.map(|count| count as usize)
    }
}

#[inline(always)]
fn lower(lowest: &mut [i32; BLOCK], scores: &[f32], votes: &[f32], ranking: &Ranking) {
    for ((lowest, &score), &votes) in lowest.iter_mut().zip(scores).zip(votes) {
        *lowest = (*lowest).min(order(rank(score, votes, ranking)));
    }
}
