//! Sampling, complete, and tokens with their log probabilities.

use aqueduct_core::work::TokenLogprob;
use aqueduct_core::{Refusal, Sampling, limits};

use super::{bounded, required};
use crate::v1;

impl From<Sampling> for v1::Sampling {
    fn from(sampling: Sampling) -> Self {
        Self {
            temperature: Some(sampling.temperature),
            top_p: Some(sampling.top_p),
            top_k: Some(sampling.top_k),
            seed: Some(sampling.seed),
            min_p: Some(sampling.min_p),
            presence_penalty: Some(sampling.presence_penalty),
            frequency_penalty: Some(sampling.frequency_penalty),
            repetition_penalty: Some(sampling.repetition_penalty),
            min_tokens: Some(sampling.min_tokens),
            logprobs: sampling.logprobs,
        }
    }
}

impl TryFrom<v1::Sampling> for Sampling {
    type Error = Refusal;

    /// Every field but `logprobs` must be there: defaults belong to the API. `min_tokens` is
    /// younger than journals that may be read.
    fn try_from(wire: v1::Sampling) -> Result<Self, Refusal> {
        let sampling = Self {
            temperature: required("temperature", wire.temperature)?,
            top_p: required("top_p", wire.top_p)?,
            top_k: required("top_k", wire.top_k)?,
            seed: required("seed", wire.seed)?,
            logprobs: wire.logprobs,
            min_p: required("min_p", wire.min_p)?,
            presence_penalty: required("presence_penalty", wire.presence_penalty)?,
            frequency_penalty: required("frequency_penalty", wire.frequency_penalty)?,
            repetition_penalty: required("repetition_penalty", wire.repetition_penalty)?,
            min_tokens: wire.min_tokens.unwrap_or(0),
        };
        sampling.validate()?;
        Ok(sampling)
    }
}

impl From<TokenLogprob> for v1::TokenLogprob {
    fn from(token: TokenLogprob) -> Self {
        Self { token: token.token, logprob: token.logprob }
    }
}

impl TryFrom<v1::TokenLogprob> for TokenLogprob {
    type Error = Refusal;

    fn try_from(wire: v1::TokenLogprob) -> Result<Self, Refusal> {
        Ok(Self {
            token: Refusal::unless_within("token", wire.token, 0, limits::VOCAB_MAX - 1)?,
            logprob: logprob(wire.logprob)?,
        })
    }
}

/// A log probability: minus infinity is one, NaN is none.
pub(super) fn logprob(wire: f32) -> Result<f32, Refusal> {
    if wire.is_nan() { Err(Refusal::new("logprob", wire, "a number")) } else { Ok(wire) }
}

/// Alternatives of one token.
pub(super) fn top(wire: Vec<v1::TokenLogprob>) -> Result<Vec<TokenLogprob>, Refusal> {
    bounded("top", &wire, limits::TOP_LOGPROBS_MAX as usize)?;
    wire.into_iter().map(TokenLogprob::try_from).collect()
}

/// Alternatives of one token, for the wire.
pub(super) fn top_to_wire(top: Vec<TokenLogprob>) -> Vec<v1::TokenLogprob> {
    top.into_iter().map(Into::into).collect()
}

#[cfg(test)]
mod tests {
    use super::super::arbitrary;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn refuses_by_field() {
        let good = v1::Sampling::from(Sampling::default());
        let check = |bad: v1::Sampling, field: &str| {
            assert_eq!(Sampling::try_from(bad).unwrap_err().field, field);
        };
        check(v1::Sampling { seed: None, ..good }, "seed");
        check(v1::Sampling { top_p: Some(f32::NAN), ..good }, "top_p");
        check(v1::Sampling { logprobs: Some(1000), ..good }, "logprobs");
        check(v1::Sampling { min_p: None, ..good }, "min_p");
        check(v1::Sampling { repetition_penalty: Some(-1.0), ..good }, "repetition_penalty");
        let none = v1::TokenLogprob { token: 1, logprob: f32::NAN };
        assert_eq!(TokenLogprob::try_from(none).unwrap_err().field, "logprob");
    }

    proptest! {
        #[test]
        fn survives_the_wire(
            sampling in arbitrary::sampling(), token in arbitrary::token_logprob(),
        ) {
            prop_assert_eq!(Sampling::try_from(v1::Sampling::from(sampling)), Ok(sampling));
            prop_assert_eq!(TokenLogprob::try_from(v1::TokenLogprob::from(token)), Ok(token));
        }
    }
}
