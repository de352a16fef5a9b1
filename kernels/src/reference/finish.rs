//! The rest of a layer after attention.

use super::linear::linear;
use super::norm::norm;
use crate::backend::BackendError;
use crate::shapes;
use crate::tensor::Rows;
use crate::weights::LayerWeights;

/// See [`crate::LayerOps::finish`].
pub(super) fn finish(
    layer: &LayerWeights,
    x: &Rows,
    attention: &Rows,
) -> Result<Rows, BackendError> {
    shapes::finishing(layer, x, attention)?;
    let mut x = x.clone();
    add(&mut x, &linear("finish", attention, &layer.out)?);
    let normed = norm(&x, &layer.ffn_norm, layer.spec.norm_eps);
    let hidden = swiglu(&linear("finish", &normed, &layer.gate_up)?);
    add(&mut x, &linear("finish", &hidden, &layer.down)?);
    Ok(x)
}

fn add(x: &mut Rows, y: &Rows) {
    for (x, y) in x.data_mut().iter_mut().zip(y.data()) {
        *x += y;
    }
}

/// `[tokens, 2 ffn]`, gate first, to silu(gate) * up  (Shazeer 2020).
fn swiglu(gate_up: &Rows) -> Rows {
    let ffn = gate_up.cols() / 2;
    let mut hidden = Rows::zeros(gate_up.rows(), ffn);
    for i in 0..gate_up.rows() {
        let (gate, up) = gate_up.row(i).split_at(ffn);
        for (hidden, (&gate, &up)) in hidden.row_mut(i).iter_mut().zip(gate.iter().zip(up)) {
            let [gate, up] = [gate, up].map(f64::from);
            *hidden = (gate / (1.0 + (-gate).exp()) * up) as f32;
        }
    }
    hidden
}
