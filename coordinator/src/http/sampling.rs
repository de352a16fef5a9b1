//! How the next token is drawn, as a caller says it.

use std::collections::BTreeMap;

use aqueduct_core::{Refusal, Sampling, Steering, limits};

use super::error::ApiError;
use super::fields::Fields;

/// All but the seed and the log probabilities, which the two endpoints have in different ways.
/// What the caller does not say is `default`'s.
pub(super) fn take_sampling(
    fields: &mut Fields<'_>,
    default: Sampling,
) -> Result<Sampling, ApiError> {
    // -1 is how others write "all".
    let top_k = match fields.take::<i64>("top_k")? {
        None => default.top_k,
        Some(-1) => 0,
        Some(top_k) => u32::try_from(top_k)
            .map_err(|_| Refusal::new("top_k", top_k, "-1, 0 or a number of tokens"))?,
    };
    let sampling = Sampling {
        temperature: fields.take_or("temperature", default.temperature)?,
        top_p: fields.take_or("top_p", default.top_p)?,
        top_k,
        min_p: fields.take_or("min_p", default.min_p)?,
        presence_penalty: fields.take_or("presence_penalty", default.presence_penalty)?,
        frequency_penalty: fields.take_or("frequency_penalty", default.frequency_penalty)?,
        repetition_penalty: fields.take_or("repetition_penalty", default.repetition_penalty)?,
        min_tokens: fields.take_or("min_tokens", default.min_tokens)?,
        ..default
    };
    sampling.validate()?;
    Ok(sampling)
}

/// The vocabulary is known later, and with it whether tokens are in it.
pub(super) fn take_steering(fields: &mut Fields<'_>) -> Result<Steering, ApiError> {
    let bias: BTreeMap<String, f32> = fields.take_or("logit_bias", BTreeMap::new())?;
    let entry = |(token, bias): (String, f32)| {
        let id = token.parse().map_err(|_| Refusal::new("logit_bias", token, "token ids"));
        id.map(|id| (id, bias))
    };
    let bias = bias.into_iter().map(entry).collect::<Result<Vec<_>, _>>()?;
    let steering = Steering::by_bias(bias);
    steering.validate(limits::VOCAB_MAX)?;
    Ok(steering)
}
