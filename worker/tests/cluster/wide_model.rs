//! A model some of whose layers have heads of another shape.

use std::sync::Arc;

use aqueduct_core::WideHeads;
use aqueduct_engine::{Model, Rope};
use aqueduct_kernels::{KvDtype, Reference};

use crate::tiny_model::{Weights, parts};

/// The tiny model with two layers whose heads are twice as wide, half as many of keys, with a norm
/// of values; these multiply the stream.
pub(crate) fn wide(kv: KvDtype) -> Arc<Model> {
    let mut parts = parts(("wide", 8), kv, Arc::new(Reference), |_, _| None);
    let mut weights = Weights::new(parts.backend.clone(), 7);
    parts.shape.wide = WideHeads { layers: 2, kv_heads: 1, head_dim: 16 };
    for idx in [3, 7] {
        let layer = &mut parts.layers[idx];
        (layer.spec.kv_heads, layer.spec.head_dim) = (1, 16);
        layer.qkv = weights.linear(4 * 16 + 2 * 16, 24, 0.5);
        layer.out = weights.linear(24, 4 * 16, 0.3);
        layer.v_norm = Some(vec![1.0; 16].into());
        layer.scale = Some(0.9);
        parts.ropes[idx] = Rope::unscaled(10_000.0, 16);
    }
    Arc::new(Model::new(parts).unwrap())
}
