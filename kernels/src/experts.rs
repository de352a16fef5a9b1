//! Which experts a token goes to, and how much each counts.

use std::sync::Arc;

use crate::backend::BackendError;
use crate::tensor::Rows;

/// What a router's logits become.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scoring {
    /// Their softmax over all experts (Mixtral, Qwen).
    Softmax,
    /// σ of each  (DeepSeek-AI 2024).
    Sigmoid,
    /// One expert after the other, each the best of those that are left: its weight is its share
    /// in the softmax over these, of which the ones count that are [`CLOSE`](Self::CLOSE) to it
    /// (Liu et al. 2024, SparseMixer v2; Microsoft 2024, Phi 3.5 MoE). Nothing else of a
    /// [`Routing`] changes weights then.
    Mixed,
}

impl Scoring {
    /// By how much a logit is below the best at most, of the larger of its size and the best's.
    pub const CLOSE: f64 = 0.02;
}

/// Experts next to each other, as many in each group, of which a token may go to those of a few
/// groups alone  (DeepSeek-AI 2024).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Groups {
    /// How many groups.
    pub count: usize,
    /// So many of them are open to a token: those with the greatest scores, of equal ones the
    /// first.
    pub chosen: usize,
    /// So many of a group's greatest scores, biased, are added up: 1 or 2.
    pub summed: usize,
}

impl Groups {
    /// Leaves out the experts of groups that are not open.
    fn close(self, fits: &[f64], order: &mut Vec<usize>) {
        let size = fits.len() / self.count;
        let best = |group: &[f64]| {
            let mut group = group.to_vec();
            group.sort_by(|a, b| b.total_cmp(a));
            group.iter().take(self.summed).sum::<f64>()
        };
        let scores: Vec<f64> = fits.chunks_exact(size).map(best).collect();
        let mut open: Vec<usize> = (0..self.count).collect();
        open.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
        open.truncate(self.chosen);
        order.retain(|expert| open.contains(&(expert / size)));
    }
}

/// How tokens are sent to experts.
#[derive(Debug, Clone, PartialEq)]
pub struct Routing {
    /// So many experts for each token: those with the greatest scores, of equal ones the first.
    pub chosen: usize,
    /// What scores are.
    pub scoring: Scoring,
    /// `[experts]`, added to scores where experts are chosen, and not where they are weighed.
    pub bias: Option<Arc<[f32]>>,
    /// Whether the weights of a token's experts are divided by their sum.
    pub normalises: bool,
    /// Multiplies all weights.
    pub scale: f32,
    /// Experts that a token may go to, if not all.
    pub groups: Option<Groups>,
    /// `[experts]`: what the weight of each is multiplied by at last, if the model has it. It
    /// chooses nothing, and no sum has it  (Google 2026, Gemma 4).
    pub factors: Option<Arc<[f32]>>,
    /// Weights multiply what experts are given, and not what they make of it
    /// (Meta 2025, Llama 4).
    pub before: bool,
}

/// What one expert is given, or what goes through a part besides.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sent {
    /// Rows, ascending.
    pub rows: Vec<u32>,
    /// How much each counts.
    pub weights: Vec<f32>,
}

impl Sent {
    /// What multiplies rows before their expert ([`Routing::before`]): what it makes of them then
    /// counts once.
    pub(crate) fn take_weights(&mut self) -> Vec<f32> {
        let once = vec![1.0; self.weights.len()];
        std::mem::replace(&mut self.weights, once)
    }
}

impl Routing {
    /// The rows of each expert, of the router's `[rows, experts]` logits. In f64 and on the host
    /// on every backend, so that equal logits send rows to the same experts everywhere.
    ///
    /// # Errors
    /// Logits that are not numbers, or that are not at hand.
    pub fn send(&self, logits: &Rows) -> Result<Vec<Sent>, BackendError> {
        logits.array().host()?;
        let experts = logits.cols();
        let mut sent = vec![Sent::default(); experts];
        let (mut scores, mut order) = (Vec::with_capacity(experts), Vec::with_capacity(experts));
        let mut fits = Vec::with_capacity(experts);
        for idx in 0..logits.rows() {
            self.score(logits.row(idx), &mut scores)?;
            if self.scoring == Scoring::Mixed {
                mix(&scores, self.chosen).for_each(|(expert, weight)| {
                    sent[expert].rows.push(idx as u32);
                    sent[expert].weights.push(weight as f32);
                });
                continue;
            }
            order.clear();
            order.extend(0..experts);
            let bias = |expert: usize| self.bias.as_ref().map_or(0.0, |all| f64::from(all[expert]));
            fits.clear();
            fits.extend((0..experts).map(|expert| scores[expert] + bias(expert)));
            if let Some(groups) = self.groups {
                groups.close(&fits, &mut order);
            }
            let better = |&a: &usize, &b: &usize| fits[b].total_cmp(&fits[a]).then(a.cmp(&b));
            if self.chosen < order.len() {
                order.select_nth_unstable_by(self.chosen, better);
                order.truncate(self.chosen);
            }
            // One order of summing, whatever the selection left behind.
            order.sort_unstable();
            let sum: f64 = order.iter().map(|&expert| scores[expert]).sum();
            let factor = f64::from(self.scale) / if self.normalises { sum.max(1e-20) } else { 1.0 };
            for &expert in &order {
                let own = self.factors.as_ref().map_or(1.0, |all| f64::from(all[expert]));
                sent[expert].rows.push(idx as u32);
                sent[expert].weights.push((scores[expert] * factor * own) as f32);
            }
        }
        Ok(sent)
    }

    fn score(&self, logits: &[f32], scores: &mut Vec<f64>) -> Result<(), BackendError> {
        if !logits.iter().all(|logit| logit.is_finite()) {
            return Err(BackendError::NotFinite { op: "finish", what: "a router's logit" });
        }
        let logits = logits.iter().copied().map(f64::from);
        scores.clear();
        match self.scoring {
            Scoring::Mixed => scores.extend(logits),
            Scoring::Sigmoid => scores.extend(logits.map(|logit| 1.0 / (1.0 + (-logit).exp()))),
            Scoring::Softmax => {
                let most = logits.clone().fold(f64::NEG_INFINITY, f64::max);
                scores.extend(logits.map(|logit| (logit - most).exp()));
                let sum: f64 = scores.iter().sum();
                scores.iter_mut().for_each(|score| *score /= sum);
            }
        }
        Ok(())
    }
}

/// So many experts and their weights, as [`Scoring::Mixed`] has it.
fn mix(logits: &[f64], chosen: usize) -> impl Iterator<Item = (usize, f64)> {
    let mut left: Vec<usize> = (0..logits.len()).collect();
    (0..chosen.min(logits.len())).map(move |_| {
        let better = |&a: &usize, &b: &usize| logits[a].total_cmp(&logits[b]).then(b.cmp(&a));
        let best = left.iter().copied().max_by(better).expect("one is left");
        let counts = |expert: &usize| {
            let (most, logit) = (logits[best], logits[*expert]);
            most - logit <= Scoring::CLOSE * logit.abs().max(most)
        };
        let close = left.iter().filter(|expert| counts(expert));
        let sum: f64 = close.map(|&expert| (logits[expert] - logits[best]).exp()).sum();
        left.retain(|&expert| expert != best);
        (best, 1.0 / sum)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routing(chosen: usize, scoring: Scoring) -> Routing {
        let (normalises, scale) = (false, 1.0);
        Routing {
            chosen,
            scoring,
            bias: None,
            normalises,
            scale,
            groups: None,
            factors: None,
            before: false,
        }
    }

    /// `want`: expert, row, weight.
    fn check(routing: &Routing, logits: &[&[f32]], want: &[(usize, u32, f64)]) {
        let rows = Rows::from_vec(logits.len(), logits[0].len(), logits.concat());
        let sent = routing.send(&rows).unwrap();
        let of_expert = |(expert, sent): (usize, &Sent)| {
            let each = sent.rows.iter().zip(&sent.weights);
            each.map(|(&row, &weight)| (expert, row, weight)).collect::<Vec<_>>()
        };
        let seen: Vec<_> = sent.iter().enumerate().flat_map(of_expert).collect();
        assert_eq!(seen.len(), want.len(), "{seen:?}");
        for (seen, want) in seen.iter().zip(want) {
            assert_eq!((seen.0, seen.1), (want.0, want.1), "{seen:?}");
            assert!((f64::from(seen.2) - want.2).abs() < 1e-6, "{seen:?} is not {want:?}");
        }
    }

    #[test]
    fn the_best_are_chosen_and_weighed() {
        let ln = |x: f32| x.ln();
        let logits: &[&[f32]] = &[&[ln(4.0), ln(1.0), ln(3.0), ln(2.0)], &[0.0, 0.0, 0.0, 0.0]];
        let both = [(0, 0, 0.4), (0, 1, 0.25), (1, 1, 0.25), (2, 0, 0.3)];
        check(&routing(2, Scoring::Softmax), logits, &both);
        let normalised = Routing { normalises: true, scale: 7.0, ..routing(2, Scoring::Softmax) };
        check(&normalised, logits, &[(0, 0, 4.0), (0, 1, 3.5), (1, 1, 3.5), (2, 0, 3.0)]);
        let all = [(0, 0, 0.4), (1, 0, 0.1), (2, 0, 0.3), (3, 0, 0.2)];
        check(&routing(4, Scoring::Softmax), &logits[..1], &all);
    }

    #[test]
    fn each_of_a_mix_is_weighed_among_those_close_to_it() {
        let logits: &[&[f32]] = &[&[-1.0, 2.0, 1.97, 1.0, 0.99], &[-4.0, -5.0, -4.05, -9.0, -8.0]];
        let share = |apart: f64| 1.0 / (1.0 + (-apart).exp());
        let want = [(0, 1, share(0.05)), (1, 0, share(0.03)), (2, 0, 1.0), (2, 1, 1.0)];
        check(&routing(2, Scoring::Mixed), logits, &want);
        let zeros: &[&[f32]] = &[&[0.0, 0.0, -1.0]];
        check(&routing(2, Scoring::Mixed), zeros, &[(0, 0, 0.5), (1, 0, 1.0)]);
    }

    #[test]
    fn a_bias_chooses_and_does_not_weigh() {
        let logits: &[&[f32]] = &[&[0.0, 3.0_f32.ln(), -1e4]];
        check(&routing(1, Scoring::Sigmoid), logits, &[(1, 0, 0.75)]);
        let bias = Some([0.5, 0.0, 0.1].into());
        let biased = Routing { bias, ..routing(1, Scoring::Sigmoid) };
        check(&biased, logits, &[(0, 0, 0.5)]);
    }

    #[test]
    fn factors_multiply_at_last_and_choose_nothing() {
        let ln = |x: f32| x.ln();
        let logits: &[&[f32]] = &[&[4.0, 1.0, 3.0, 2.0].map(ln), &[1.0, 1.0, 3.0, 2.0].map(ln)];
        let factors: Option<Arc<[f32]>> = Some([0.5, 100.0, -2.0, 0.0].into());
        let of = |normalises, scale| Routing {
            normalises,
            scale,
            factors: factors.clone(),
            ..routing(2, Scoring::Softmax)
        };
        let plain = [(0, 0, 0.2), (2, 0, -0.6), (2, 1, -6.0 / 7.0), (3, 1, 0.0)];
        check(&of(false, 1.0), logits, &plain);
        let normalised = [(0, 0, 2.0 / 7.0), (2, 0, -6.0 / 7.0), (2, 1, -1.2), (3, 1, 0.0)];
        check(&of(true, 1.0), logits, &normalised);
        check(&of(true, 3.0), logits, &normalised.map(|(expert, row, x)| (expert, row, 3.0 * x)));
    }

    #[test]
    fn factors_of_one_change_no_bit() {
        let logits = Rows::from_vec(2, 3, vec![0.3, -1.7, 0.9, 2.1, 0.2, -0.4]);
        let plain = Routing { normalises: true, scale: 1.5, ..routing(2, Scoring::Softmax) };
        let ones = Routing { factors: Some([1.0; 3].into()), ..plain.clone() };
        assert_eq!(ones.send(&logits).unwrap(), plain.send(&logits).unwrap());
    }

    #[test]
    fn groups_are_chosen_before_experts() {
        let ln = |x: f32| x.ln();
        // Of three groups the first has the best, and the last the best two.
        let logits: &[&[f32]] = &[&[5.0, 0.5, 1.0, 0.5, 4.0, 3.0].map(ln)];
        let of = |summed, chosen| {
            let groups = Some(Groups { count: 3, chosen, summed });
            Routing { groups, ..routing(2, Scoring::Softmax) }
        };
        check(&of(1, 1), logits, &[(0, 0, 5.0 / 14.0), (1, 0, 0.5 / 14.0)]);
        check(&of(2, 1), logits, &[(4, 0, 4.0 / 14.0), (5, 0, 3.0 / 14.0)]);
        let both = [(0, 0, 5.0 / 14.0), (4, 0, 4.0 / 14.0)];
        check(&of(1, 2), logits, &both);
        check(&of(2, 3), logits, &both);
        // Weights are of all scores, groups by those with a bias; of equal groups the first.
        let bias = Some([0.0, 0.0, 0.5, 0.5, 0.0, 0.0].into());
        check(&Routing { bias, ..of(2, 1) }, logits, &[(2, 0, 1.0 / 14.0), (3, 0, 0.5 / 14.0)]);
        check(&of(2, 1), &[&[0.0; 6]], &[(0, 0, 1.0 / 6.0), (1, 0, 1.0 / 6.0)]);
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for broken in [f32::NAN, f32::INFINITY] {
            let logits = Rows::from_vec(1, 2, vec![0.0, broken]);
            let refused = routing(1, Scoring::Softmax).send(&logits);
            assert!(matches!(refused, Err(BackendError::NotFinite { .. })), "{refused:?}");
        }
    }
}
