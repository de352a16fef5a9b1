//! GPT-2's linear maps, of which files have the columns one after the other.

use super::super::checkpoint::{Checkpoint, Laid};

/// What they are called in a layer.
const MAPS: [&str; 4] =
    ["attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"];

/// Tells how they lie, so that they are what other models' are.
pub(super) fn turn(checkpoint: &mut Checkpoint<'_>) {
    let is_map = |name: &str| MAPS.iter().any(|map| name.ends_with(map));
    for (name, tensor) in &mut checkpoint.tensors {
        if is_map(name) && tensor.laid == Laid::Rows && tensor.shape.len() == 2 {
            tensor.laid = Laid::Columns;
            tensor.shape.reverse();
        }
    }
}
