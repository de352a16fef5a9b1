//! Aria's experts: all of a layer in one tensor, as columns.

use super::super::checkpoint::Checkpoint;
use super::super::decoder::Decoder;
use super::gpt_oss;
use crate::error::LoadError;

/// What its files call them, and what its modules do.
const PARTS: [(&str, &str); 2] = [("fc1.weight", "gate_up_proj"), ("fc2.weight", "down_proj")];

/// Takes the experts apart and tells how they lie, so that they are what other models' are.
///
/// # Errors
/// Tensors of another shape than the configuration's.
pub(super) fn take_apart(
    checkpoint: &mut Checkpoint<'_>,
    decoder: &Decoder,
) -> Result<(), LoadError> {
    let Some(experts) = &decoder.experts else { return Ok(()) };
    for layer in 0..decoder.shape.layers {
        for (own, part) in PARTS {
            let [own, part] =
                [own, part].map(|it| format!("model.layers.{layer}.mlp.experts.{it}"));
            if let Some(stack) = checkpoint.tensors.remove(&own) {
                checkpoint.tensors.entry(part.clone()).or_insert(stack);
            }
            gpt_oss::columns(checkpoint, &part, experts)?;
        }
    }
    Ok(())
}
