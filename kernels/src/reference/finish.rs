//! The rest of a layer after attention.

use std::f64::consts::FRAC_2_PI;
use std::sync::Arc;

use super::linear::linear;
use super::norm::norm;
use crate::backend::BackendError;
use crate::shapes;
use crate::tensor::Rows;
use crate::weights::{Activation, LayerSpec, LayerWeights};

/// See [`crate::LayerOps::finish`].
pub(super) fn finish(
    layer: &LayerWeights,
    x: &Rows,
    attention: &Rows,
) -> Result<Rows, BackendError> {
    shapes::finishing(layer, x, attention)?;
    let LayerSpec { norm_eps, activation, .. } = layer.spec;
    let behind = |y: Rows, weight: &Option<Arc<[f32]>>| match weight {
        Some(weight) => norm(&y, weight, norm_eps),
        None => y,
    };
    let mut x = x.clone();
    add(&mut x, &behind(linear("finish", attention, &layer.out)?, &layer.attn_post_norm));
    let normed = norm(&x, &layer.ffn_norm, norm_eps);
    let hidden = gated(&linear("finish", &normed, &layer.gate_up)?, activation);
    add(&mut x, &behind(linear("finish", &hidden, &layer.down)?, &layer.ffn_post_norm));
    Ok(x)
}

fn add(x: &mut Rows, y: &Rows) {
    for (x, y) in x.data_mut().iter_mut().zip(y.data()) {
        *x += y;
    }
}

/// `[tokens, 2 ffn]`, gate first, to activation(gate) * up.
fn gated(gate_up: &Rows, activation: Activation) -> Rows {
    let ffn = gate_up.cols() / 2;
    let mut hidden = Rows::zeros(gate_up.rows(), ffn);
    for i in 0..gate_up.rows() {
        let (gate, up) = gate_up.row(i).split_at(ffn);
        for (hidden, (&gate, &up)) in hidden.row_mut(i).iter_mut().zip(gate.iter().zip(up)) {
            let [gate, up] = [gate, up].map(f64::from);
            *hidden = (activate(gate, activation) * up) as f32;
        }
    }
    hidden
}

fn activate(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + (FRAC_2_PI.sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
    }
}
