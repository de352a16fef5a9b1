//! What keys of a model look like, against which those of peers are checked.

use std::sync::Arc;

use aqueduct_core::Refusal;
use aqueduct_engine::Model;
use aqueduct_kernels::{KvDtype, SetShape, Shard};

/// The shape that every set must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fit {
    /// `[layers]`: elements of each layer's state; 0 of those that remember keys.
    pub states: Arc<[u32]>,
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
            states: (0..model.layers()).map(|layer| model.state_len(layer) as u32).collect(),
            kv_heads: shape.kv_heads as usize,
            head_dim: shape.head_dim as usize,
            kv: model.kv(),
        }
    }

    /// Layers of the model.
    pub fn layers(&self) -> u32 {
        self.states.len() as u32
    }

    /// Elements of the state of `layer`, if there is such a layer.
    pub fn state_len(&self, layer: u32) -> u32 {
        self.states.get(layer as usize).copied().unwrap_or_default()
    }

    /// Checks a set that is handed off, which some token is before: a layer has keys or a state.
    pub(crate) fn check(&self, layer: u32, set: &SetShape) -> Result<(), Refusal> {
        Refusal::unless_within("layer", layer, 0, self.layers().saturating_sub(1))?;
        self.check_keys(set.kv_heads, set.head_dim, set.kv)?;
        let state = self.state_len(layer) as usize;
        Refusal::unless_within("state", set.state, state, state)?;
        let keys = if state == 0 { usize::MAX } else { 0 };
        Refusal::unless_within("keys", set.keys, 0, keys).map(drop)
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
    use crate::link::conformance::{RECURRENT, fit, hybrid_fit, set, state};

    #[test]
    fn a_layer_has_keys_or_a_state() {
        let check = |layer: u32, set: SetShape, want: &str| {
            let got = hybrid_fit().check(layer, &set).map_err(|refusal| refusal.field).err();
            assert_eq!(got.as_deref().unwrap_or_default(), want);
        };
        let (keys, state) = (SetShape::of(&set(3, 0)), SetShape::of(&state(0)));
        check(0, keys, "");
        check(RECURRENT, state, "");
        check(RECURRENT + 1, state, "layer");
        check(0, state, "state");
        check(RECURRENT, SetShape { state: state.state - 1, ..state }, "state");
        check(RECURRENT, SetShape { state: 0, ..state }, "state");
        check(RECURRENT, keys, "state");
        check(RECURRENT, SetShape { state: state.state, ..keys }, "keys");
        check(RECURRENT, SetShape { head_dim: 4, ..state }, "head_dim");
    }

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
