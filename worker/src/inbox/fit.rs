//! What keys of a model look like, against which those of peers are checked.

use aqueduct_core::Refusal;
use aqueduct_engine::Model;
use aqueduct_kernels::{KvDtype, SetShape, Shard};

/// The shape that every set must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fit {
    /// Layers of the model.
    pub layers: u32,
    /// G.
    pub kv_heads: usize,
    /// D.
    pub head_dim: usize,
    /// Storage.
    pub kv: KvDtype,
}

impl Fit {
    /// What sets of `model` look like.
    pub fn of(model: &Model) -> Self {
        let shape = model.shape();
        Self {
            layers: shape.layers,
            kv_heads: shape.kv_heads as usize,
            head_dim: shape.head_dim as usize,
            kv: model.kv(),
        }
    }

    pub(super) fn check(&self, layer: u32, set: &SetShape) -> Result<(), Refusal> {
        Refusal::unless_within("layer", layer, 0, self.layers - 1)?;
        self.check_keys(set.kv_heads, set.head_dim, set.kv)
    }

    /// Checks a shard that came from a peer.
    ///
    /// # Errors
    /// One of another shape.
    pub(crate) fn check_shard(&self, shard: &Shard) -> Result<(), Refusal> {
        let kv_heads = shard.kv_heads();
        shard.parts().iter().map(|part| &part.keys).try_for_each(|keys| {
            self.check_keys(kv_heads, keys.k.head_dim, keys.k.dtype())?;
            self.check_keys(kv_heads, keys.v.head_dim, keys.v.dtype())
        })
    }

    fn check_keys(&self, kv_heads: usize, head_dim: usize, kv: KvDtype) -> Result<(), Refusal> {
        Refusal::unless_within("kv_heads", kv_heads, self.kv_heads, self.kv_heads)?;
        Refusal::unless_within("head_dim", head_dim, self.head_dim, self.head_dim)?;
        match kv == self.kv {
            true => Ok(()),
            false => Err(Refusal::new("kv", format!("{kv:?}"), format!("{:?}", self.kv))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::conformance::{fit, set};

    #[test]
    fn shards_are_those_of_the_model() {
        let shard = |parts: u32| {
            let parts = (0..parts).map(|seed| set(3, seed)).collect();
            Shard::of_parts(parts, 9)
        };
        let check = |fit: Fit, parts: u32, want: &str| {
            let got = fit.check_shard(&shard(parts)).map_err(|refusal| refusal.field).err();
            assert_eq!(got.as_deref().unwrap_or_default(), want);
        };
        check(fit(), 1, "");
        check(fit(), 2, "kv_heads");
        check(Fit { head_dim: 4, ..fit() }, 1, "head_dim");
        check(Fit { kv_heads: 4, ..fit() }, 1, "kv_heads");
        check(Fit { kv_heads: 4, ..fit() }, 2, "");
        check(Fit { kv: KvDtype::F32, ..fit() }, 1, "kv");
    }
}
