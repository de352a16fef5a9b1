//! Tokens in order of rank without sorting them all: they are counted in buckets of nearly
//! equal logits, and only the buckets in which somebody stops are sorted.

use aqueduct_core::TokenId;
use aqueduct_kernels::cpu::{PlainWork, on_widest_vectors};

use super::weight::{BLOCK, exp};

/// Buckets to a factor of e in weight.
const PER_UNIT: f32 = 8.0;
/// Beyond the last one, weights are 0.
const BUCKETS: usize = 1024;
/// Sums of a bucket that are kept apart while tokens are counted.
const TURNS: usize = 4;

/// All tokens by descending logit, ties to the smaller id, weighed by exp((z - max) / T).
pub(super) struct Ranked<'a> {
    logits: &'a [f32],
    max: f32,
    /// 1 / T.
    sharpness: f32,
    buckets: Vec<Bucket>,
}

#[derive(Clone, Copy, Default)]
struct Bucket {
    tokens: usize,
    weight: f64,
}

/// The first tokens by rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Prefix {
    /// How many.
    pub(super) tokens: usize,
    /// Sum of their weights.
    pub(super) weight: f64,
    /// The last of them.
    pub(super) last: TokenId,
}

impl<'a> Ranked<'a> {
    /// `max` is the largest of `logits`, `temperature` is above 0.
    pub(super) fn new(logits: &'a [f32], max: f32, temperature: f32) -> Self {
        let sharpness = (1.0 / temperature).min(f32::MAX);
        let turns = on_widest_vectors(Count { logits, max, sharpness });
        let buckets = turns.iter().map(|turns| Bucket {
            tokens: turns.iter().map(|bucket| bucket.tokens).sum(),
            weight: turns.iter().map(|bucket| bucket.weight).sum(),
        });
        Self { logits, max, sharpness, buckets: buckets.collect() }
    }

    /// How many tokens there are, those that are barred (logit -inf) aside, and the sum of their
    /// weights.
    pub(super) fn all(&self) -> (usize, f64) {
        let possible = self.logits.iter().filter(|z| **z > f32::NEG_INFINITY).count();
        (possible.max(1), self.buckets.iter().map(|bucket| bucket.weight).sum())
    }

    /// How many tokens weigh at least `weight`.
    pub(super) fn at_least(&self, weight: f32) -> usize {
        let enough = |z: &&f32| exp(-(self.max - **z) * self.sharpness) >= weight;
        self.logits.iter().filter(enough).count().max(1)
    }

    /// The fewest first tokens that are `enough`, told by number and weight; all if none are.
    pub(super) fn prefix(&self, enough: impl Fn(usize, f64) -> bool) -> Prefix {
        let mut prefix = Prefix { tokens: 0, weight: 0.0, last: 0 };
        for (idx, bucket) in self.buckets.iter().enumerate().filter(|(_, some)| some.tokens > 0) {
            let (tokens, weight) = (prefix.tokens + bucket.tokens, prefix.weight + bucket.weight);
            if tokens == self.logits.len() || enough(tokens, weight) {
                return self.prefix_within(idx, prefix, enough);
            }
            (prefix.tokens, prefix.weight) = (tokens, weight);
        }
        prefix
    }

    /// Goes on from `prefix`, which ends where bucket `idx` begins.
    fn prefix_within(
        &self,
        idx: usize,
        mut prefix: Prefix,
        enough: impl Fn(usize, f64) -> bool,
    ) -> Prefix {
        let mut members = self.members(idx as i32);
        members.sort_unstable_by(super::by_rank(self.logits));
        for token in members {
            let below = (self.max - self.logits[token as usize]) * self.sharpness;
            prefix.tokens += 1;
            prefix.weight += f64::from(exp(-below));
            prefix.last = token;
            if enough(prefix.tokens, prefix.weight) {
                break;
            }
        }
        prefix
    }

    /// Tokens of bucket `idx`.
    fn members(&self, idx: i32) -> Vec<TokenId> {
        let mut members = Vec::with_capacity(self.buckets[idx as usize].tokens);
        for (block_idx, block) in self.logits.chunks(BLOCK).enumerate() {
            let mut is_member = [false; BLOCK];
            for (is_member, &z) in is_member.iter_mut().zip(block) {
                *is_member = bucket_of((self.max - z) * self.sharpness) == idx;
            }
            if is_member.contains(&true) {
                let first = block_idx * BLOCK;
                let found = (0..block.len()).filter(|&i| is_member[i]);
                members.extend(found.map(|i| (first + i) as TokenId));
            }
        }
        members
    }
}

/// Counts all tokens: of each bucket, [`TURNS`] parts.
struct Count<'a> {
    logits: &'a [f32],
    max: f32,
    sharpness: f32,
}

impl PlainWork for Count<'_> {
    type Out = Vec<[Bucket; TURNS]>;

    #[inline(always)]
    fn run(self) -> Self::Out {
        let Self { logits, max, sharpness } = self;
        // Neighbours often share a bucket: in turns, so that no sum waits for the one before.
        let mut turns = vec![[Bucket::default(); TURNS]; BUCKETS];
        for block in logits.chunks(BLOCK) {
            let (mut places, mut weights) = ([0; BLOCK], [0.0; BLOCK]);
            for ((place, weight), &z) in places.iter_mut().zip(&mut weights).zip(block) {
                let below = (max - z) * sharpness;
                (*place, *weight) = (bucket_of(below), exp(-below));
            }
            let found = places.iter().zip(&weights).take(block.len());
            for (i, (&idx, &weight)) in found.enumerate() {
                let bucket = &mut turns[idx as usize][i % TURNS];
                bucket.tokens += 1;
                bucket.weight += f64::from(weight);
            }
        }
        turns
    }
}

/// The bucket of a logit that lies `below` the largest, in units of temperature: larger logits
/// are never in a later one.
#[inline(always)]
fn bucket_of(below: f32) -> i32 {
    let last = (BUCKETS - 1) as f32;
    let place = below * PER_UNIT;
    // Written so that NaN (an infinite logit's distance from an infinite maximum) is last.
    let place = if place < last { place } else { last };
    // Rounded to a whole number, which the sum's low bits then hold.
    (place + 8_388_608.0).to_bits() as i32 & (BUCKETS as i32 - 1)
}
