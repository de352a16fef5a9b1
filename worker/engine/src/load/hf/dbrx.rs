//! DBRX's experts: all of a layer in one matrix, one below the other, the last map as columns.

use super::super::checkpoint::{Checkpoint, Laid};
use super::super::decoder::Decoder;
use super::gpt_oss;
use crate::error::LoadError;

/// Gives the experts a dimension of their own and tells how they lie.
///
/// # Errors
/// Tensors of another shape than the configuration's.
pub(super) fn take_apart(
    checkpoint: &mut Checkpoint<'_>,
    decoder: &Decoder,
) -> Result<(), LoadError> {
    let Some(experts) = &decoder.experts else { return Ok(()) };
    let (count, ffn) = (experts.count as usize, experts.ffn as usize);
    for layer in 0..decoder.shape.layers {
        let name = |part: &str| format!("transformer.blocks.{layer}.ffn.experts.mlp.{part}");
        for part in ["w1", "v1", "w2"] {
            let Some(tensor) = checkpoint.tensors.get_mut(&name(part)) else { continue };
            if let [rows, width] = *tensor.shape
                && tensor.laid == Laid::Rows
                && count.checked_mul(ffn) == Some(rows)
            {
                tensor.shape = vec![count, ffn, width];
            }
        }
        gpt_oss::columns(checkpoint, &name("w2"), experts)?;
    }
    Ok(())
}
