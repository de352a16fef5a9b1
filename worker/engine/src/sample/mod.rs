//! Drawing the next token: a pure function of logits, sampling fields and token index.

mod ranked;
mod sampler;
#[cfg(test)]
mod tests;
mod weight;

pub use sampler::Sampler;

use std::cmp::Ordering;

use aqueduct_core::work::TokenLogprob;
use aqueduct_core::{Refusal, Sampling, TokenId};

use self::ranked::{Prefix, Ranked};
use self::weight::{largest, log_sum_exp};

/// A drawn token with what was asked for about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The token, and its log probability under the unmodified logits.
    pub token: TokenLogprob,
    /// The most likely tokens, best first; empty unless `sampling.logprobs` asks for some.
    pub top: Vec<TokenLogprob>,
}

/// Draws token number `token_idx` of a completion from `logits` (`[vocab]`).
///
/// Temperature 0 takes the largest logit. Otherwise `min_p`, `top_k` and `top_p` narrow the
/// candidates, in order of descending logit with ties to the smaller id, and one uniform
/// number made from (seed, token_idx) picks among them. Nothing else enters: no state, no
/// neighbour in a batch.
///
/// # Errors
/// Logits that are not numbers: a broken model, not a broken request.
pub fn sample(logits: &[f32], sampling: &Sampling, token_idx: u32) -> Result<Sampled, Refusal> {
    let max = usable_max(logits)?;
    Ok(tell(logits, max, pick(logits, max, sampling, token_idx), sampling.logprobs))
}

/// The largest logit.
///
/// # Errors
/// Logits that are not numbers.
fn usable_max(logits: &[f32]) -> Result<f32, Refusal> {
    largest(logits).ok_or_else(|| {
        let broken = |z: &f32| z.is_nan() || *z == f32::INFINITY;
        let token = logits.iter().position(broken).unwrap_or(0);
        Refusal::new(format!("logits[{token}]"), logits[token], "a number")
    })
}

/// Draws a token; `max` is the largest logit.
fn pick(logits: &[f32], max: f32, sampling: &Sampling, token_idx: u32) -> TokenId {
    if sampling.temperature == 0.0 {
        return logits.iter().position(|z| z.to_bits() == max.to_bits()).unwrap_or(0) as TokenId;
    }
    let ranked = Ranked::new(logits, max, sampling.temperature);
    draw(&ranked, sampling, uniform(sampling.seed, token_idx))
}

/// What was asked for about a token, under the unmodified logits.
fn tell(logits: &[f32], max: f32, token: TokenId, top: Option<u32>) -> Sampled {
    let told = Told { logits, lse: log_sum_exp(logits, max) };
    let top = top.map(|count| told.best(count as usize)).unwrap_or_default();
    Sampled { token: told.logprob(token), top }
}

/// The log probability of `token` after these logits, and the `count` most likely tokens.
pub fn logprob_of(logits: &[f32], token: TokenId, count: u32) -> (TokenLogprob, Vec<TokenLogprob>) {
    let lse = largest(logits).map_or(f64::NAN, |max| log_sum_exp(logits, max));
    let told = Told { logits, lse };
    (told.logprob(token), told.best(count as usize))
}

/// Logits with what makes log probabilities of them.
struct Told<'a> {
    logits: &'a [f32],
    /// ln sum exp of all.
    lse: f64,
}

impl Told<'_> {
    fn logprob(&self, token: TokenId) -> TokenLogprob {
        let logprob = (f64::from(self.logits[token as usize]) - self.lse) as f32;
        TokenLogprob { token, logprob }
    }

    /// The `count` most likely tokens, best first.
    fn best(&self, count: usize) -> Vec<TokenLogprob> {
        best(self.logits, count).into_iter().map(|token| self.logprob(token)).collect()
    }
}

/// Larger logits first, the smaller id on a tie: a total order.
fn by_rank(logits: &[f32]) -> impl Fn(&TokenId, &TokenId) -> Ordering + '_ {
    |&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b))
}

/// The `count` largest logits in rank order: few, so a short list that is kept sorted.
fn best(logits: &[f32], count: usize) -> Vec<TokenId> {
    let by_rank = by_rank(logits);
    let mut best: Vec<TokenId> = Vec::with_capacity(count.min(logits.len()) + 1);
    for token in 0..logits.len() as TokenId {
        let is_behind = |other: &TokenId| by_rank(other, &token) == Ordering::Less;
        if best.len() == count && best.last().is_none_or(is_behind) {
            continue;
        }
        best.insert(best.partition_point(is_behind), token);
        best.truncate(count);
    }
    best
}

/// Walks the candidates in rank order until `u` of their probability is spent.
fn draw(ranked: &Ranked<'_>, sampling: &Sampling, u: f64) -> TokenId {
    let (mut count, mut mass) = ranked.all();
    let mut most = count;
    if sampling.min_p > 0.0 {
        most = most.min(ranked.at_least(sampling.min_p));
    }
    if sampling.top_k > 0 {
        most = most.min(sampling.top_k as usize);
    }
    if most < count {
        Prefix { tokens: count, weight: mass, .. } = ranked.prefix(|tokens, _| tokens >= most);
    }
    if sampling.top_p < 1.0 {
        let wanted = mass * f64::from(sampling.top_p);
        let enough = |tokens, weight| weight >= wanted || tokens >= count;
        Prefix { tokens: count, weight: mass, .. } = ranked.prefix(enough);
    }
    let spent = u * mass;
    ranked.prefix(|tokens, weight| weight > spent || tokens >= count).last
}

/// A number in [0, 1) made from the seed and the index of the token alone: two rounds of the
/// SplitMix64 finaliser (Steele, Lea and Flood 2014), so that any token can be drawn again
/// without the ones before it.
fn uniform(seed: u64, token_idx: u32) -> f64 {
    let mixed = mix(mix(seed) ^ u64::from(token_idx).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (mixed >> 11) as f64 / (1u64 << 53) as f64
}

fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
