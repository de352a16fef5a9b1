//! The draws of one completion: what was asked and what was said so far bend the logits, then
//! a token is drawn.

use std::collections::HashMap;
use std::sync::Arc;

use aqueduct_core::work::DecodeSpec;
use aqueduct_core::{Refusal, Sampling, TokenId};
use aqueduct_grammar::Follower;

use super::{Sampled, pick, tell, usable_max};

/// Draws the tokens of one completion, one after another.
///
/// In this order, each in f32: tokens that the form does not allow are barred, end tokens
/// where the answer may not end among them, and before `min_tokens` anywhere; bias is added;
/// `repetition_penalty` divides positive logits of tokens of the prompt and of the completion
/// and multiplies others; `frequency_penalty` times the token's count in the completion is taken
/// off, then `presence_penalty` from those that it has; temperature, `min_p`, `top_k` and
/// `top_p` narrow what is drawn from. Log probabilities are of the logits as they came. A
/// completion's draws depend on the request, its index, and its logits alone.
pub struct Sampler {
    spec: Arc<DecodeSpec>,
    sampling: Sampling,
    /// Tokens of the completion, and how often it has each.
    counts: HashMap<TokenId, u32>,
    token_idx: u32,
    form: Option<Follower>,
}

impl Sampler {
    /// Of completion number `choice` of the request, which follows `form` from its beginning.
    pub fn new(spec: Arc<DecodeSpec>, choice: u32, form: Option<Follower>) -> Self {
        let seed = spec.sampling.seed.wrapping_add(choice.into());
        let sampling = Sampling { seed, ..spec.sampling };
        Self { spec, sampling, counts: HashMap::new(), token_idx: 0, form }
    }

    /// Tokens drawn so far.
    pub fn token_idx(&self) -> u32 {
        self.token_idx
    }

    /// Whether the form has come to its end: nothing may follow but the end.
    pub fn is_complete(&self) -> bool {
        self.form.as_ref().is_some_and(Follower::must_end)
    }

    /// Draws the next token from `logits` (`[vocab]`).
    ///
    /// # Errors
    /// Logits that are not numbers; a grammar that cannot go on.
    pub fn draw(&mut self, logits: &[f32]) -> Result<Sampled, Refusal> {
        let max = usable_max(logits)?;
        let token = match self.steered(logits)? {
            None => pick(logits, max, &self.sampling, self.token_idx),
            Some(steered) => {
                let max = usable_max(&steered)?;
                pick(&steered, max, &self.sampling, self.token_idx)
            }
        };
        self.follow(token)?;
        Ok(tell(logits, max, token, self.sampling.logprobs))
    }

    /// Goes on by `token`, the next one, as if it had just been drawn.
    ///
    /// # Errors
    /// A token that the form does not allow.
    pub fn follow(&mut self, token: TokenId) -> Result<(), Refusal> {
        self.token_idx += 1;
        if let Some(form) = self.form.as_mut().filter(|_| !self.spec.eos.contains(&token)) {
            form.take(token)?;
        }
        if self.sampling.penalises() {
            *self.counts.entry(token).or_default() += 1;
        }
        Ok(())
    }

    /// The logits that are drawn from; `None` where they are `logits`.
    fn steered(&mut self, logits: &[f32]) -> Result<Option<Vec<f32>>, Refusal> {
        let is_plain = self.spec.steering.bias.is_empty() && !self.sampling.penalises();
        let may_end = self.token_idx >= self.sampling.min_tokens || self.spec.eos.is_empty();
        let mask = self.form.as_mut().map(Follower::mask).transpose()?;
        let mask = mask.filter(|mask| !mask.is_any());
        if is_plain && may_end && mask.is_none() {
            return Ok(None);
        }
        let mut steered = logits.to_vec();
        if let Some(mask) = mask {
            mask.bar(&mut steered, &self.spec.eos);
        }
        if !may_end {
            let ends = self.spec.eos.iter();
            ends.for_each(|end| change(&mut steered, *end, |_| f32::NEG_INFINITY));
        }
        for (token, bias) in &self.spec.steering.bias {
            change(&mut steered, *token, |z| z + bias);
        }
        self.penalise(&mut steered);
        Ok(Some(steered))
    }

    fn penalise(&self, logits: &mut [f32]) {
        let Sampling { presence_penalty, frequency_penalty, repetition_penalty, .. } =
            self.sampling;
        if repetition_penalty != 1.0 {
            let prompt = &self.spec.prompt_vocabulary;
            let is_new = |token: &&TokenId| prompt.binary_search(token).is_err();
            for token in prompt.iter().chain(self.counts.keys().filter(is_new)) {
                let lessen =
                    |z| if z > 0.0 { z / repetition_penalty } else { z * repetition_penalty };
                change(logits, *token, lessen);
            }
        }
        for (token, count) in &self.counts {
            change(logits, *token, |z| z - frequency_penalty * *count as f32 - presence_penalty);
        }
    }
}

/// Tokens that the model does not have are nobody's.
fn change(logits: &mut [f32], token: TokenId, how: impl FnOnce(f32) -> f32) {
    if let Some(z) = logits.get_mut(token as usize) {
        *z = how(*z);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::sample;
    use aqueduct_core::{Grammar, RequestId, Steering, TokenBytes};
    use aqueduct_grammar::Vocabulary;
    use proptest::prelude::*;

    fn spec(sampling: Sampling, bias: &[(TokenId, f32)], prompt: &[TokenId]) -> DecodeSpec {
        DecodeSpec {
            request: RequestId(1),
            sampling,
            steering: Steering::by_bias(bias.iter().copied()),
            constraint: None,
            prompt_vocabulary: prompt.to_vec(),
            choices: 1,
            max_tokens: 100,
            eos: Vec::new(),
            begun: Vec::new(),
            keeps: false,
            trace: None,
            shows: false,
            handed_over: None,
            gathers: false,
        }
    }

    fn drawn(spec: DecodeSpec, logits: &[f32], tokens: usize) -> Vec<TokenId> {
        let mut sampler = Sampler::new(Arc::new(spec), 0, None);
        (0..tokens).map(|_| sampler.draw(logits).unwrap().token.token).collect()
    }

    #[test]
    fn what_was_said_is_said_less() {
        let greedy = Sampling::greedy();
        let check = |sampling: Sampling, prompt: &[TokenId], want: [TokenId; 4]| {
            assert_eq!(
                drawn(spec(sampling, &[], prompt), &[3.0, 2.5, -1.0], 4),
                want,
                "{sampling:?}"
            );
        };
        check(greedy, &[], [0, 0, 0, 0]);
        check(Sampling { presence_penalty: 1.0, ..greedy }, &[], [0, 1, 0, 0]);
        check(Sampling { frequency_penalty: 1.0, ..greedy }, &[], [0, 1, 0, 1]);
        check(Sampling { repetition_penalty: 1.5, ..greedy }, &[], [0, 1, 0, 0]);
        check(Sampling { repetition_penalty: 1.5, ..greedy }, &[0], [1, 0, 0, 0]);
        // What repeats is punished where it is unlikely, too: -1 becomes -10.
        check(Sampling { repetition_penalty: 10.0, ..greedy }, &[0, 1, 2], [0, 0, 0, 0]);
        check(Sampling { presence_penalty: -2.0, ..greedy }, &[1], [0, 0, 0, 0]);
    }

    #[test]
    fn bias_bars_and_forces() {
        let logits = [3.0, 2.5, -1.0];
        let hot = Sampling { temperature: 2.0, ..Sampling::default() };
        assert_eq!(drawn(spec(hot, &[(2, 100.0)], &[]), &logits, 20), [2; 20]);
        let rest = drawn(spec(hot, &[(0, -100.0), (9, 5.0)], &[]), &logits, 50);
        assert!(!rest.contains(&0) && rest.contains(&1) && rest.contains(&2));
    }

    #[test]
    fn log_probabilities_are_of_the_logits_as_they_came() {
        let sampling = Sampling { logprobs: Some(1), ..Sampling::greedy() };
        let spec = spec(sampling, &[(2, 100.0)], &[]);
        let got = Sampler::new(Arc::new(spec), 0, None).draw(&[1.0, 0.0, -1.0]).unwrap();
        let told = sample(&[1.0, 0.0, -1.0], &sampling, 0).unwrap();
        assert_eq!((got.token.token, got.top), (2, told.top));
        assert!(got.token.logprob < -2.0);
    }

    #[test]
    fn nothing_ends_before_it_may() {
        let check = |min_tokens: u32, eos: &[TokenId], want: &[TokenId]| {
            let sampling = Sampling { min_tokens, ..Sampling::greedy() };
            let spec = DecodeSpec { eos: eos.to_vec(), ..spec(sampling, &[(2, 50.0)], &[]) };
            assert_eq!(drawn(spec, &[1.0, 3.0, 9.0, 2.0], 4), want, "{min_tokens} {eos:?}");
        };
        check(0, &[2], &[2; 4]);
        check(2, &[2], &[1, 1, 2, 2]);
        check(3, &[2, 1, 77], &[3, 3, 3, 2]);
        check(3, &[], &[2; 4]);
    }

    /// One token a byte, then one that ends; the same if it goes on elsewhere from any token on.
    fn spelled(grammar: Grammar, temperature: f32, seed: u64) -> Vec<u8> {
        let bytes: Vec<u8> = (0..=255).collect();
        let vocabulary = TokenBytes::of(bytes.chunks(1));
        let follower =
            Vocabulary::new(&vocabulary).unwrap().compile("grammar", &grammar.into()).unwrap();
        let presence_penalty = 0.3;
        let sampling = Sampling { temperature, seed, presence_penalty, ..Sampling::default() };
        let spec = DecodeSpec { eos: vec![256], ..spec(sampling, &[(65, 3.0)], &[]) };
        let spec = Arc::new(spec);
        let sampler = || Sampler::new(spec.clone(), 0, Some(follower.clone()));
        let text = spelled_by(sampler(), Vec::new());
        for had in 0..=text.len() {
            let mut sampler = sampler();
            let begun = text[..had].to_vec();
            begun.iter().for_each(|byte| sampler.follow((*byte).into()).unwrap());
            assert_eq!(spelled_by(sampler, begun), text, "from token {had} on");
        }
        text
    }

    fn spelled_by(mut sampler: Sampler, mut text: Vec<u8>) -> Vec<u8> {
        let logits: Vec<f32> = (0..300).map(|i| (i as f32 * 0.7).sin()).collect();
        while text.len() < 200 && !sampler.is_complete() {
            match sampler.draw(&logits).unwrap().token.token {
                256 => break,
                byte => text.push(u8::try_from(byte).unwrap()),
            }
        }
        text
    }

    #[test]
    fn answers_follow_their_grammar() {
        for seed in 0..20 {
            let schema = r#"{"type": "object", "properties": {"a": {"type": "integer",
                "minimum": 0, "maximum": 99}, "b": {"type": "boolean"}}, "required": ["a", "b"],
                "additionalProperties": false}"#;
            for temperature in [0.0, 2.0] {
                let text = spelled(Grammar::JsonSchema(schema.into()), temperature, seed);
                let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
                assert!(json["a"].as_u64().unwrap() < 100 && json["b"].is_boolean(), "{json}");
            }
            // It may end after three, or go on to five.
            let text = spelled(Grammar::Regex("[ab]{3,5}".into()), 1.0, seed);
            assert!((3..=5).contains(&text.len()) && text.iter().all(|byte| b"ab".contains(byte)));
        }
    }

    /// The same in the plainest words.
    fn plainly(spec: &DecodeSpec, said: &[TokenId], logits: &[f32]) -> Vec<f32> {
        let Sampling { repetition_penalty, frequency_penalty, presence_penalty, .. } =
            spec.sampling;
        let one = |(token, &z): (usize, &f32)| {
            let token = token as TokenId;
            let count = said.iter().filter(|other| **other == token).count();
            let mut z = z;
            for (biased, bias) in &spec.steering.bias {
                z += if *biased == token { *bias } else { 0.0 };
            }
            if count > 0 || spec.prompt_vocabulary.contains(&token) {
                z = if z > 0.0 { z / repetition_penalty } else { z * repetition_penalty };
            }
            if count > 0 { z - frequency_penalty * count as f32 - presence_penalty } else { z }
        };
        logits.iter().enumerate().map(one).collect()
    }

    proptest! {
        #[test]
        fn draws_from_what_the_plain_words_give(
            logits in prop::collection::vec(-9f32..9.0, 4..40),
            bias in prop::collection::btree_map(0u32..50, -9f32..9.0, 0..5),
            prompt in prop::collection::btree_set(0u32..50, 0..9),
            penalties in (-2f32..2.0, -2f32..2.0, 0.5f32..2.0),
            seed: u64,
        ) {
            let sampling = Sampling {
                presence_penalty: penalties.0,
                frequency_penalty: penalties.1,
                repetition_penalty: penalties.2,
                top_p: 0.95,
                seed,
                ..Sampling::default()
            };
            let bias: Vec<_> = bias.into_iter().collect();
            let prompt: Vec<_> = prompt.into_iter().collect();
            let spec = spec(sampling, &bias, &prompt);
            let mut sampler = Sampler::new(Arc::new(spec.clone()), 0, None);
            let mut said = Vec::new();
            for idx in 0..12 {
                let want = sample(&plainly(&spec, &said, &logits), &sampling, idx).unwrap();
                let got = sampler.draw(&logits).unwrap();
                prop_assert_eq!(got.token.token, want.token.token);
                said.push(got.token.token);
            }
        }
    }
}
