//! The rest of a layer after attention.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI};
use std::sync::Arc;

use super::erf::erf;
use super::linear::linear;
use super::norm::norm;
use crate::backend::BackendError;
use crate::experts::Sent;
use crate::shapes;
use crate::tensor::Rows;
use crate::weights::{
    Activation, Beside, Experts, FeedForward, Gated, LayerSpec, LayerWeights, Ungated, Xielu,
};

/// See [`crate::LayerOps::finish`].
pub(super) fn finish(
    layer: &LayerWeights,
    x: &Rows,
    attention: &Rows,
) -> Result<Rows, BackendError> {
    shapes::finishing(layer, x, attention)?;
    let mut y = unscaled(layer, x, attention)?;
    if let Some(scale) = layer.scale {
        y.data_mut().iter_mut().for_each(|x| *x *= scale);
    }
    Ok(y)
}

/// The same before the stream is multiplied.
fn unscaled(layer: &LayerWeights, x: &Rows, attention: &Rows) -> Result<Rows, BackendError> {
    let LayerSpec { norm_eps, activation, .. } = layer.spec;
    let behind = |y: Rows, weight: &Option<Arc<[f32]>>| match weight {
        Some(weight) => norm(&y, weight, norm_eps),
        None => y,
    };
    let latent = layer.latent.as_ref();
    let outputs = latent.map(|latent| latent.outputs(&layer.spec, attention));
    let attention = outputs.as_ref().unwrap_or(attention);
    let mut attended = x.clone();
    add(&mut attended, &behind(linear("finish", attention, &layer.out)?, &layer.attn_post_norm));
    let fed = if layer.parallel { x } else { &attended };
    let normed = layer.ffn_norm.as_ref().map(|weight| norm(fed, weight, norm_eps));
    let normed = normed.as_ref().unwrap_or(fed);
    let made = match &layer.ffn {
        FeedForward::Nothing => return Ok(attended),
        FeedForward::Dense(dense) => {
            let hidden = behind(hidden(dense, normed, activation)?, &layer.hidden_norm);
            linear("finish", &hidden, &dense.down)?
        }
        FeedForward::Experts(experts) => through_some(experts, [normed; 2], activation)?,
        FeedForward::Beside(both) => through_both(both, [normed, fed], &layer.spec)?,
    };
    add(&mut attended, &behind(made, &layer.ffn_post_norm));
    Ok(attended)
}

fn through(part: &Gated, x: &Rows, activation: Activation) -> Result<Rows, BackendError> {
    linear("finish", &hidden(part, x, activation)?, &part.down)
}

/// What stands between both products.
fn hidden(part: &Gated, x: &Rows, activation: Activation) -> Result<Rows, BackendError> {
    let mut hidden = linear("finish", x, &part.gate_up)?;
    match activation {
        Activation::Ungated(ungated) => {
            hidden.data_mut().iter_mut().for_each(|x| *x = curved(ungated, f64::from(*x)) as f32);
        }
        _ => {
            let (gate, up) = halves(&hidden);
            hidden = gated(&gate, &up, activation);
        }
    }
    Ok(hidden)
}

/// What a dense part makes of `normed`, plus what experts beside it make of `x`.
fn through_both(
    both: &Beside,
    [normed, x]: [&Rows; 2],
    spec: &LayerSpec,
) -> Result<Rows, BackendError> {
    let LayerSpec { norm_eps: eps, activation, .. } = *spec;
    let made = through(&both.dense, normed, activation)?;
    let mut y = norm(&made, &both.dense_post_norm, eps);
    let [given, routed] = [&both.experts_norm, &both.router_norm].map(|own| norm(x, own, eps));
    let made = through_some(&both.experts, [&given, &routed], activation)?;
    add(&mut y, &norm(&made, &both.experts_post_norm, eps));
    Ok(y)
}

/// What each expert makes of its rows of `x`, in the order of experts, and then what all rows go
/// through. The router takes `routed`.
fn through_some(
    experts: &Experts,
    [x, routed]: [&Rows; 2],
    activation: Activation,
) -> Result<Rows, BackendError> {
    let mut y = Rows::zeros(x.rows(), x.cols());
    let sent = experts.routing.send(&linear("finish", routed, &experts.router)?)?;
    for (part, Sent { rows, mut weights }) in experts.each.iter().zip(sent) {
        let some = rows.iter().flat_map(|&row| x.row(row as usize)).copied().collect();
        let mut some = Rows::from_vec(rows.len(), x.cols(), some);
        for (i, weight) in weights.iter_mut().enumerate().filter(|_| experts.routing.before) {
            some.row_mut(i).iter_mut().for_each(|x| *x *= *weight);
            *weight = 1.0;
        }
        let made = through(part, &some, activation)?;
        for (i, (&row, weight)) in rows.iter().zip(weights).enumerate() {
            add_weighed(y.row_mut(row as usize), made.row(i), weight.into());
        }
    }
    if let Some(shared) = &experts.shared {
        let made = through(shared, x, activation)?;
        let gates =
            experts.shared_gate.as_ref().map(|gate| linear("finish", x, gate)).transpose()?;
        for i in 0..x.rows() {
            let weight = gates.as_ref().map_or(1.0, |gates| sigmoid(gates.row(i)[0].into()));
            add_weighed(y.row_mut(i), made.row(i), weight);
        }
    }
    Ok(y)
}

fn add_weighed(y: &mut [f32], made: &[f32], weight: f64) {
    for (y, &made) in y.iter_mut().zip(made) {
        *y = (f64::from(*y) + weight * f64::from(made)) as f32;
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn add(x: &mut Rows, y: &Rows) {
    for (x, y) in x.data_mut().iter_mut().zip(y.data()) {
        *x += y;
    }
}

/// `[tokens, 2 ffn]` as gate and up.
fn halves(gate_up: &Rows) -> (Rows, Rows) {
    let (rows, ffn) = (gate_up.rows(), gate_up.cols() / 2);
    let half = |first: usize| {
        let half = (0..rows).flat_map(|i| &gate_up.row(i)[first..first + ffn]);
        Rows::from_vec(rows, ffn, half.copied().collect())
    };
    (half(0), half(ffn))
}

/// What the activation makes of gate and up, of one shape.
pub(crate) fn gated(gate: &Rows, up: &Rows, activation: Activation) -> Rows {
    let each = gate.data().iter().zip(up.data());
    let hidden = each.map(|(&gate, &up)| activated(activation, gate.into(), up.into()) as f32);
    Rows::from_vec(gate.rows(), gate.cols(), hidden.collect())
}

fn activated(activation: Activation, x: f64, up: f64) -> f64 {
    match activation {
        Activation::Silu => x * sigmoid(x) * up,
        Activation::ClampedSilu => {
            let [alpha, most] = Activation::CLAMPED.map(f64::from);
            let x = x.min(most);
            x * sigmoid(alpha * x) * (up.clamp(-most, most) + 1.0)
        }
        Activation::GeluTanh => gelu_tanh(x) * up,
        Activation::ReluSquared => x.max(0.0).powi(2) * up,
        Activation::Ungated(_) => unreachable!("there is no gate"),
    }
}

fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + (FRAC_2_PI.sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

/// What [`Ungated`] says.
pub(crate) fn curved(ungated: Ungated, x: f64) -> f64 {
    match ungated {
        Ungated::GeluTanh => gelu_tanh(x),
        Ungated::Gelu => 0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2)),
        Ungated::Relu => x.max(0.0),
        Ungated::ReluSquared => x.max(0.0).powi(2),
        Ungated::Xielu(Xielu { positive, negative, beta, eps }) => {
            let [positive, negative, beta, eps] = [positive, negative, beta, eps].map(f64::from);
            let bent = match x > 0.0 {
                true => positive * x * x,
                false => negative * (x.min(eps).exp_m1() - x),
            };
            bent + beta * x
        }
    }
}
