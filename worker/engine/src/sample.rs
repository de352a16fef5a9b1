//! Drawing the next token: a pure function of logits, sampling fields and token index.

use std::cmp::Ordering;

use aqueduct_core::work::TokenLogprob;
use aqueduct_core::{Refusal, Sampling, TokenId};

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
/// Temperature 0 takes the largest logit. Otherwise `top_k`, then `top_p` narrow the
/// candidates, in order of descending logit with ties to the smaller id, and one uniform
/// number made from (seed, token_idx) picks among them. Nothing else enters: no state, no
/// neighbour in a batch.
///
/// # Errors
/// Logits that are not numbers: a broken model, not a broken request.
pub fn sample(logits: &[f32], sampling: &Sampling, token_idx: u32) -> Result<Sampled, Refusal> {
    if let Some(token) = logits.iter().position(|z| z.is_nan() || *z == f32::INFINITY) {
        return Err(Refusal::new(format!("logits[{token}]"), logits[token], "a number"));
    }
    let top = sampling.logprobs.map(|count| best(logits, count as usize)).unwrap_or_default();
    let lse = log_sum_exp(logits);
    let token = if sampling.temperature == 0.0 {
        best(logits, 1).first().copied().unwrap_or(0)
    } else {
        draw(logits, sampling, uniform(sampling.seed, token_idx))
    };
    let with_logprob = |token: TokenId| TokenLogprob {
        token,
        logprob: (f64::from(logits[token as usize]) - lse) as f32,
    };
    Ok(Sampled { token: with_logprob(token), top: top.into_iter().map(with_logprob).collect() })
}

/// The log probability of `token` after these logits, and the `count` most likely tokens.
pub fn logprob_of(logits: &[f32], token: TokenId, count: u32) -> (TokenLogprob, Vec<TokenLogprob>) {
    let lse = log_sum_exp(logits);
    let with_logprob = |token: TokenId| TokenLogprob {
        token,
        logprob: (f64::from(logits[token as usize]) - lse) as f32,
    };
    (with_logprob(token), best(logits, count as usize).into_iter().map(with_logprob).collect())
}

/// ln sum exp of all logits, in f64 and in order of token id.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if !max.is_finite() {
        return f64::from(max);
    }
    let sum: f64 = logits.iter().map(|&z| (f64::from(z) - f64::from(max)).exp()).sum();
    f64::from(max) + sum.ln()
}

/// Larger logits first, the smaller id on a tie: a total order.
fn by_rank(logits: &[f32]) -> impl Fn(&TokenId, &TokenId) -> Ordering + '_ {
    |&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b))
}

/// The `count` largest logits in rank order.
fn best(logits: &[f32], count: usize) -> Vec<TokenId> {
    let mut ids: Vec<TokenId> = (0..logits.len() as TokenId).collect();
    let count = count.min(ids.len());
    if count == 0 {
        return Vec::new();
    }
    if count < ids.len() {
        ids.select_nth_unstable_by(count - 1, by_rank(logits));
        ids.truncate(count);
    }
    ids.sort_unstable_by(by_rank(logits));
    ids
}

/// Walks the candidates in rank order until `u` of their probability is spent.
fn draw(logits: &[f32], sampling: &Sampling, u: f64) -> TokenId {
    let count = match sampling.top_k {
        0 => logits.len(),
        k => k as usize,
    };
    let ids = best(logits, count);
    let max = f64::from(logits[ids[0] as usize]);
    let temperature = f64::from(sampling.temperature);
    let weight = |&id: &TokenId| ((f64::from(logits[id as usize]) - max) / temperature).exp();
    let weights: Vec<f64> = ids.iter().map(weight).collect();
    let total: f64 = weights.iter().sum();
    let nucleus = nucleus_len(&weights, total * f64::from(sampling.top_p));
    let mut left = u * weights[..nucleus].iter().sum::<f64>();
    for (id, weight) in ids[..nucleus].iter().zip(&weights) {
        left -= weight;
        if left < 0.0 {
            return *id;
        }
    }
    ids[nucleus - 1]
}

/// The fewest leading weights whose sum reaches `mass`; at least one.
fn nucleus_len(weights: &[f64], mass: f64) -> usize {
    let mut sum = 0.0;
    for (idx, weight) in weights.iter().enumerate() {
        sum += weight;
        if sum >= mass {
            return idx + 1;
        }
    }
    weights.len()
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token(logits: &[f32], sampling: Sampling, idx: u32) -> TokenId {
        sample(logits, &sampling, idx).unwrap().token.token
    }

    #[test]
    fn greedy_takes_the_smaller_id_on_a_tie() {
        assert_eq!(token(&[1.0, 3.0, 3.0], Sampling::greedy(), 0), 1);
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let logits = [0.0, 1.0, 2.0];
        let draws = 20_000;
        let mut seen = [0u32; 3];
        for idx in 0..draws {
            seen[token(&logits, Sampling { seed: 5, ..Sampling::default() }, idx) as usize] += 1;
        }
        let total: f64 = logits.iter().map(|&z| f64::from(z).exp()).sum();
        for (seen, z) in seen.iter().zip(logits) {
            let want = f64::from(z).exp() / total;
            assert!((f64::from(*seen) / f64::from(draws) - want).abs() < 0.015);
        }
    }

    #[test]
    fn top_p_and_top_k_narrow_the_choice() {
        let logits = [0.0, 5.0, 4.9, -3.0];
        for idx in 0..200 {
            let nucleus = Sampling { top_p: 0.5, ..Sampling::default() };
            assert_eq!(token(&logits, nucleus, idx), 1);
            let two = Sampling { top_k: 2, ..Sampling::default() };
            assert!([1, 2].contains(&token(&logits, two, idx)));
        }
    }

    #[test]
    fn logprobs_are_of_the_unmodified_logits() {
        let sampling = Sampling { temperature: 0.1, logprobs: Some(2), ..Sampling::default() };
        let got = sample(&[0.0, 2.0, 1.0], &sampling, 0).unwrap();
        let total: f64 = [0.0f64, 2.0, 1.0].iter().map(|z| z.exp()).sum();
        assert_eq!(got.top.iter().map(|top| top.token).collect::<Vec<_>>(), [1, 2]);
        assert!((f64::from(got.top[0].logprob) - (2.0 - total.ln())).abs() < 1e-6);
        assert_eq!(logprob_of(&[0.0, 2.0, 1.0], 2, 0).0, got.top[1]);
    }

    #[test]
    fn refuses_logits_that_are_not_numbers() {
        let refusal = sample(&[0.0, f32::NAN], &Sampling::greedy(), 0).unwrap_err();
        assert_eq!(refusal.to_string(), "logits[1] = NaN: must be a number");
    }

    proptest! {
        #[test]
        fn depends_on_seed_and_index_alone(
            logits in proptest::collection::vec(-9f32..9.0, 1..50), seed: u64, idx: u32,
        ) {
            let sampling = Sampling { seed, top_p: 0.9, top_k: 20, ..Sampling::default() };
            let first = sample(&logits, &sampling, idx).unwrap();
            prop_assert_eq!(&first, &sample(&logits, &sampling, idx).unwrap());
            prop_assert!((first.token.token as usize) < logits.len());
            prop_assert!(first.token.logprob <= 0.0);
        }
    }
}
