//! Models without a rotation, whose logits fall with distance.

use aqueduct_core::Refusal;
use aqueduct_gguf::Field;

use super::config::{Architecture, Config, Keys};
use crate::error::LoadError;
use crate::load::checkpoint::Checkpoint;
use crate::load::decoder::Alibi;

/// How steep the least steep head is, of MPT alone.
const MOST: &str = "attention.max_alibi_bias";
/// Tensors of older members of MPT: what positions add, and biases of norms.
const OLDER: [&str; 2] = ["position_embd.weight", "blk.0.attn_norm.bias"];

impl Config<'_, '_> {
    /// `None` where rows see as much of what is far as of what is near.
    pub(super) fn alibi(
        &self,
        keys: &Keys<'_, '_>,
        checkpoint: &Checkpoint<'_>,
    ) -> Result<Option<Alibi>, LoadError> {
        let refused = |refusal| LoadError::refused(self.path, refusal);
        match keys.architecture {
            Architecture::Bloom => Ok(Some(Alibi::USUAL)), // no key says it
            Architecture::Mpt => {
                let is_there = |name: &&str| checkpoint.tensors.contains_key(*name);
                if let Some(name) = OLDER.into_iter().find(is_there) {
                    return Err(refused(Refusal::new("tensor", name, "absent")));
                }
                let most = keys.required(MOST).and_then(Field::f32);
                let most = most.map_err(|err| self.malformed(err))?;
                let most = Refusal::unless_within(MOST, most, 1e-3, 1e3).map_err(refused)?;
                Ok(Some(Alibi { most, ..Alibi::USUAL }))
            }
            _ => Ok(None),
        }
    }
}
