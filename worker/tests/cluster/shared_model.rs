//! A model whose last layers attend to keys of earlier ones, and all of whose layers take inputs of
//! their own.

use std::sync::Arc;

use aqueduct_engine::{Model, TokenInputs};
use aqueduct_kernels::{KvDtype, LayerInput, Reference, Window};

use crate::tiny_model::{Weights, parts};

/// Numbers of a token that are a layer's.
const INPUTS: usize = 4;

/// The tiny model with windows in most layers, of which the last three attend to keys of the last
/// one before them that sees as far.
pub(crate) fn shared(kv: KvDtype) -> Arc<Model> {
    let mut parts = parts(("shared", 8), kv, Arc::new(Reference), |_, _| None);
    let mut weights = Weights::new(parts.backend.clone(), 9);
    parts.shape.kv_shared_layers = 3;
    for (idx, window) in parts.windows.iter_mut().enumerate() {
        *window = (idx % 4 != 3).then_some(Window::Last(11));
    }
    for (idx, lender) in [(5, 4), (6, 4), (7, 3)] {
        parts.layers[idx].keys_of = Some(lender);
        parts.layers[idx].qkv = weights.linear(4 * 8, 24, 0.5);
    }
    for layer in &mut parts.layers {
        let (gate, up) = (weights.linear(INPUTS, 24, 0.5), weights.linear(24, INPUTS, 0.5));
        let norm = weights.numbers(24);
        layer.input = Some(Box::new(LayerInput { gate, up, norm, scale: Some(0.9) }));
    }
    parts.inputs = Some(TokenInputs {
        table: weights.linear(61, 8 * INPUTS, 1.0),
        scale: 0.7,
        projection: weights.linear(8 * INPUTS, 24, 0.5),
        norm: weights.numbers(INPUTS),
        norm_eps: 1e-6,
    });
    Arc::new(Model::new(parts).unwrap())
}
