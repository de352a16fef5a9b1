//! Llama 4's experts: all of a layer in one tensor, as columns.

use super::super::checkpoint::Checkpoint;
use super::super::decoder::Decoder;
use super::gpt_oss;
use crate::error::LoadError;

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
        for part in ["gate_up_proj", "down_proj"] {
            let name = format!("model.layers.{layer}.feed_forward.experts.{part}");
            gpt_oss::columns(checkpoint, &name, experts)?;
        }
    }
    Ok(())
}
