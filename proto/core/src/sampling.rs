//! How the next token is drawn from its logits.

use crate::{Refusal, limits};

/// Sampling of one request. The drawn token is a function of the logits, these fields and the
/// index of the token, so a request reproduces exactly wherever and beside whatever it runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// 0 is greedy: the largest logit, the smaller token id on a tie.
    pub temperature: f32,
    /// Keep the smallest set of most likely tokens whose probability reaches `top_p`.
    pub top_p: f32,
    /// Keep the `top_k` most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep tokens that are at least this fraction as likely as the most likely one.
    pub min_p: f32,
    /// Taken off the logits of tokens that the completion has.
    pub presence_penalty: f32,
    /// Taken off the logits of tokens that the completion has, as often as it has them.
    pub frequency_penalty: f32,
    /// What positive logits of tokens of the prompt and the completion are divided by, and
    /// others multiplied; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Tokens that a completion has before an end token may be drawn.
    pub min_tokens: u32,
    /// Seed of the request's random numbers.
    pub seed: u64,
    /// Alternatives to report for each token, with log probabilities; `None` reports none.
    pub logprobs: Option<u32>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            min_tokens: 0,
            seed: 0,
            logprobs: None,
        }
    }
}

impl Sampling {
    /// The most likely token each time.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Whether tokens lose or gain by having been said.
    pub fn penalises(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0 || self.repeats_differ()
    }

    /// Whether tokens of the prompt count too.
    pub fn repeats_differ(&self) -> bool {
        self.repetition_penalty != 1.0
    }

    /// Checks every field against its bound.
    ///
    /// # Errors
    /// The first field that is out of bounds.
    pub fn validate(&self) -> Result<(), Refusal> {
        Refusal::unless_within("temperature", self.temperature, 0.0, 2.0)?;
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(Refusal::new("top_p", self.top_p, "above 0 and at most 1"));
        }
        Refusal::unless_within("top_k", self.top_k, 0, limits::VOCAB_MAX)?;
        Refusal::unless_within("min_p", self.min_p, 0.0, 1.0)?;
        let most = limits::PENALTY_MOST;
        Refusal::unless_within("presence_penalty", self.presence_penalty, -most, most)?;
        Refusal::unless_within("frequency_penalty", self.frequency_penalty, -most, most)?;
        let (least, most) = (limits::REPETITION_PENALTY_MIN, limits::REPETITION_PENALTY_MAX);
        Refusal::unless_within("repetition_penalty", self.repetition_penalty, least, most)?;
        Refusal::unless_within("min_tokens", self.min_tokens, 0, limits::OUTPUT_TOKENS_MAX)?;
        Refusal::unless_within(
            "logprobs",
            self.logprobs.unwrap_or(0),
            0,
            limits::TOP_LOGPROBS_MAX,
        )?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_by_field() {
        let check = |bad: Sampling, field: &str| {
            assert_eq!(bad.validate().unwrap_err().field, field);
        };
        let good = Sampling::default();
        assert_eq!(good.validate(), Ok(()));
        assert_eq!(Sampling::greedy().validate(), Ok(()));
        check(Sampling { temperature: -0.1, ..good }, "temperature");
        check(Sampling { temperature: f32::NAN, ..good }, "temperature");
        check(Sampling { top_p: 0.0, ..good }, "top_p");
        check(Sampling { min_p: 1.5, ..good }, "min_p");
        check(Sampling { presence_penalty: 2.5, ..good }, "presence_penalty");
        check(Sampling { frequency_penalty: f32::NAN, ..good }, "frequency_penalty");
        check(Sampling { repetition_penalty: 0.009, ..good }, "repetition_penalty");
        check(Sampling { repetition_penalty: f32::INFINITY, ..good }, "repetition_penalty");
        check(Sampling { min_tokens: u32::MAX, ..good }, "min_tokens");
        check(Sampling { logprobs: Some(21), ..good }, "logprobs");
    }
}
