//! What keys of a model look like, against which those of peers are checked.

use std::sync::Arc;

use aqueduct_core::Refusal;
use aqueduct_engine::Model;
use aqueduct_kernels::{KvDtype, LayerSpec, SetShape, Shard};

/// The shape that every set must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fit {
    /// Of every layer.
    pub layers: Arc<[LayerFit]>,
    /// Storage.
    pub kv: KvDtype,
}

/// The same of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerFit {
    /// Elements of its state; 0 where it remembers keys.
    pub state: u32,
    /// G.
    pub kv_heads: usize,
    /// D.
    pub head_dim: usize,
}

impl Fit {
    /// What sets of `model` look like.
    pub fn of(model: &Model) -> Self {
        let layer = |idx| {
            let LayerSpec { kv_heads, head_dim, .. } = model.spec_of(idx)?;
            Some(LayerFit { state: model.state_len(idx) as u32, kv_heads, head_dim })
        };
        Self { layers: (0..model.memory_layers()).map_while(layer).collect(), kv: model.kv() }
    }

    /// Layers of the model that remember something.
    pub fn layers(&self) -> u32 {
        self.layers.len() as u32
    }

    /// What sets of `layer` look like.
    ///
    /// # Errors
    /// There is no such layer.
    pub(crate) fn of_layer(&self, layer: u32) -> Result<LayerFit, Refusal> {
        Refusal::unless_within("layer", layer, 0, self.layers().saturating_sub(1))?;
        let fit = self.layers.get(layer as usize).copied();
        fit.ok_or_else(|| Refusal::new("layer", layer, "one of the model's"))
    }

    /// Checks a set that is handed off, which some token is before: a layer has keys or a state.
    pub(crate) fn check(&self, layer: u32, set: &SetShape) -> Result<(), Refusal> {
        let fit = self.of_layer(layer)?;
        self.check_keys(fit, (set.kv_heads, set.head_dim), set.kv)?;
        let state = fit.state as usize;
        Refusal::unless_within("state", set.state, state, state)?;
        let keys = if state == 0 { usize::MAX } else { 0 };
        Refusal::unless_within("keys", set.keys, 0, keys).map(drop)
    }

    /// Checks a shard of `layer` that came from a peer.
    ///
    /// # Errors
    /// One of another shape.
    pub(crate) fn check_shard(&self, layer: u32, shard: &Shard) -> Result<(), Refusal> {
        let (fit, kv_heads) = (self.of_layer(layer)?, shard.kv_heads());
        shard.parts().iter().map(|part| &part.keys).try_for_each(|keys| {
            self.check_keys(fit, (kv_heads, keys.k.head_dim), keys.k.dtype())?;
            self.check_keys(fit, (kv_heads, keys.v.head_dim), keys.v.dtype())
        })
    }

    fn check_keys(
        &self,
        fit: LayerFit,
        (kv_heads, head_dim): (usize, usize),
        kv: KvDtype,
    ) -> Result<(), Refusal> {
        Refusal::unless_within("kv_heads", kv_heads, fit.kv_heads, fit.kv_heads)?;
        Refusal::unless_within("head_dim", head_dim, fit.head_dim, fit.head_dim)?;
        match kv == self.kv {
            true => Ok(()),
            false => Err(Refusal::new("kv", format!("{kv:?}"), format!("{:?}", self.kv))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::conformance::{LAYER, RECURRENT, fit, hybrid_fit, set, state};

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
            let got = fit.check_shard(0, &shard(parts)).map_err(|refusal| refusal.field).err();
            assert_eq!(got.as_deref().unwrap_or_default(), want);
        };
        check(fit(), 1, "");
        check(fit(), 2, "kv_heads");
        let of = |layer| Fit { layers: [layer, LAYER].into(), ..fit() };
        check(of(LayerFit { head_dim: 4, ..LAYER }), 1, "head_dim");
        check(of(LayerFit { kv_heads: 4, ..LAYER }), 1, "kv_heads");
        check(of(LayerFit { kv_heads: 4, ..LAYER }), 2, "");
        check(Fit { layers: [].into(), ..fit() }, 1, "layer");
        check(Fit { kv: KvDtype::F32, ..fit() }, 1, "kv");
    }
}
