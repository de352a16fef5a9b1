//! Experts of Qwen3-VL: all of a layer in one tensor, as columns.

use super::super::checkpoint::Checkpoint;
use super::super::decoder::Decoder;
use super::gpt_oss;
use crate::error::LoadError;

/// Takes the experts apart and tells how they lie, so that they are what other models' are. Those
/// of Qwen 3 that are in one tensor are rows: the shapes tell, as in transformers.
///
/// # Errors
/// Tensors of another shape than the configuration's.
pub(super) fn take_apart(
    checkpoint: &mut Checkpoint<'_>,
    decoder: &Decoder,
) -> Result<(), LoadError> {
    let Some(experts) = &decoder.experts else { return Ok(()) };
    let columns = [experts.count, decoder.shape.width, 2 * experts.ffn].map(|of| of as usize);
    let rows = [columns[0], columns[2], columns[1]];
    for layer in 0..decoder.shape.layers {
        let name = |part| format!("model.layers.{layer}.mlp.experts.{part}");
        let both = name("gate_up_proj");
        let shape = checkpoint.tensors.get(&both).map(|tensor| &tensor.shape[..]);
        if shape == Some(&columns) && shape != Some(&rows) {
            gpt_oss::columns(checkpoint, &both, experts)?;
            gpt_oss::columns(checkpoint, &name("down_proj"), experts)?;
        }
    }
    Ok(())
}
