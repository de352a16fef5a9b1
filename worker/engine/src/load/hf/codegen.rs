//! CodeGen's attention, in one tensor of four parts, as it was trained on four devices.

use super::super::checkpoint::{Checkpoint, Picked};
use super::super::decoder::Decoder;
use crate::error::LoadError;

/// What each part has, one after the other.
const IN_ORDER: [&str; 3] = ["q_proj", "v_proj", "k_proj"];
const PARTS: usize = 4;

/// Makes queries, keys and values of it, as GPT-J has them.
///
/// # Errors
/// A tensor that has no such parts.
pub(super) fn take_apart(
    checkpoint: &mut Checkpoint<'_>,
    decoder: &Decoder,
) -> Result<(), LoadError> {
    let width = decoder.shape.width as usize;
    let (rows, count) = (3 * width, width / PARTS);
    for layer in 0..decoder.shape.layers {
        let prefix = format!("transformer.h.{layer}.attn");
        let name = format!("{prefix}.qkv_proj.weight");
        let Some(whole) = checkpoint.tensors.remove(&name) else { continue };
        if whole.shape.first() != Some(&rows) || !width.is_multiple_of(PARTS) {
            let what = format!("shape {:?}, should be {PARTS} parts of {rows} rows", whole.shape);
            return Err(LoadError::tensor(whole.path, &name, what));
        }
        for (idx, part) in IN_ORDER.iter().enumerate() {
            let mut some = whole.clone();
            some.shape[0] = width;
            let of_every = count * IN_ORDER.len();
            some.picked = Some(Picked { rows, of_every, first: idx * count, count });
            checkpoint.tensors.insert(format!("{prefix}.{part}.weight"), some);
        }
    }
    Ok(())
}
