//! What is drawn, and that it is drawn alike for ever.

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

/// What is drawn by sorting everything, in f64.
fn by_sorting(logits: &[f32], sampling: &Sampling, idx: u32) -> TokenId {
    let mut ids: Vec<TokenId> = (0..logits.len() as TokenId).collect();
    ids.sort_by(by_rank(logits));
    if sampling.temperature == 0.0 {
        return ids[0];
    }
    let max = f64::from(logits[ids[0] as usize]);
    let temperature = f64::from(sampling.temperature);
    let weight = |&id: &TokenId| ((f64::from(logits[id as usize]) - max) / temperature).exp();
    ids.retain(|id| weight(id) >= f64::from(sampling.min_p));
    if sampling.top_k > 0 {
        ids.truncate(sampling.top_k as usize);
    }
    let weights: Vec<f64> = ids.iter().map(weight).collect();
    let first = |enough: &dyn Fn(f64) -> bool, count: usize| {
        let mut sum = 0.0;
        let sums = weights[..count].iter().map(|weight| {
            sum += weight;
            sum
        });
        sums.enumerate().find(|&(_, sum)| enough(sum)).unwrap_or((count - 1, 1.0))
    };
    let mass = weights.iter().sum::<f64>() * f64::from(sampling.top_p);
    let (last, nucleus) = first(&|sum| sum >= mass, weights.len());
    let spent = uniform(sampling.seed, idx) * nucleus;
    ids[first(&|sum| sum > spent, last + 1).0]
}

/// Peaked, flat, tied and hopeless logits; a sum that differs in its last bits would show in
/// one draw of a million.
#[test]
fn draws_what_sorting_everything_draws() {
    let flat: Vec<f32> = (0..5000).map(|i| (i as f32 * 12.9898).sin()).collect();
    let peaked: Vec<f32> = flat.iter().map(|z| 12.0 * z * z * z).collect();
    let tied: Vec<f32> = flat.iter().map(|z| (3.0 * z).round()).collect();
    let mut barred = peaked.clone();
    barred.iter_mut().step_by(3).for_each(|z| *z = f32::NEG_INFINITY);
    for logits in [flat, peaked, tied, barred, vec![-0.0, 0.0, -0.0]] {
        for (temperature, top_k, top_p) in [
            (1.0, 0, 1.0),
            (0.7, 0, 0.95),
            (1.3, 40, 1.0),
            (0.2, 7, 0.5),
            (1.0, 1, 1.0),
            (1.0, 0, 1e-6),
            (100.0, 4000, 0.9),
            (0.01, 0, 0.99),
            (0.0, 0, 1.0),
        ] {
            let sampling = Sampling { temperature, top_k, top_p, ..Sampling::default() };
            for idx in 0..40 {
                for min_p in [0.0, 0.07, 0.9] {
                    let sampling = Sampling { min_p, ..sampling };
                    let want = by_sorting(&logits, &sampling, idx);
                    assert_eq!(token(&logits, sampling, idx), want, "{sampling:?}, token {idx}");
                }
            }
        }
    }
}

/// Drawn once and for ever: a resumed request goes on with the tokens that it would have had.
#[test]
fn seeded_draws_do_not_change_between_versions() {
    let logits: Vec<f32> = (0..1000).map(|i| 4.0 * (i as f32 * 0.37).cos()).collect();
    let sampling = Sampling { temperature: 0.8, top_p: 0.95, seed: 42, ..Sampling::default() };
    let drawn: Vec<TokenId> = (0..8).map(|idx| token(&logits, sampling, idx)).collect();
    assert_eq!(drawn, GOLDEN);
    let sorted: Vec<TokenId> = (0..8).map(|idx| by_sorting(&logits, &sampling, idx)).collect();
    assert_eq!(sorted, GOLDEN);
}

/// By sorting everything in f64, as the first version did.
const GOLDEN: [TokenId; 8] = [441, 763, 511, 781, 223, 341, 985, 576];

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
