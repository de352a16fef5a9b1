//! What stands beside attention, or instead of it.

use super::{Checked, ensure, linear, same};
use crate::array::Array;
use crate::recurrent::{Recurrent, Rule};
use crate::tensor::Rows;
use crate::weights::{FeedForward, LayerInput, LayerSpec, LayerWeights};

/// `x` before a recurrent layer.
pub(crate) fn mixing(layer: &LayerWeights, x: &Rows) -> Checked {
    const OP: &str = "mix";
    let norm = layer.attn_norm.as_ref();
    norm.map_or(Ok(()), |norm| same(OP, "attn_norm", norm.len(), x.cols()))?;
    linear(OP, x, &layer.qkv)
}

/// Rows of a recurrent layer and the state before them.
pub(crate) fn recurring(recurrent: &Recurrent, columns: &Rows, state: &Array<f32>) -> Checked {
    const OP: &str = "recur";
    self::recurrent(recurrent)?;
    same(OP, "columns", columns.cols(), recurrent.columns())?;
    match state.len() {
        0 => Ok(()),
        elements => same(OP, "state elements", elements, recurrent.state_len()),
    }
}

/// A recurrent layer by itself.
pub(crate) fn recurrent(recurrent: &Recurrent) -> Checked {
    const OP: &str = "recur";
    let conv = &recurrent.conv;
    let some = |name: &str, count: usize| {
        ensure(OP, count > 0, || format!("{name} is 0, must be at least 1"))
    };
    some("conv.taps", conv.taps)?;
    let channels = recurrent.channels();
    some("channels", channels)?;
    same(OP, "conv.weights", conv.weights.len(), conv.taps * channels)?;
    conv.bias.as_ref().map_or(Ok(()), |bias| same(OP, "conv.bias", bias.len(), channels))?;
    match &recurrent.rule {
        Rule::Gated => Ok(()),
        Rule::Delta(delta) => {
            let heads = delta.value_heads;
            some("key_dim", delta.key_dim)?;
            some("value_dim", delta.value_dim)?;
            shared(OP, heads, "key heads", delta.key_heads)?;
            some("value heads", heads)?;
            same(OP, "channels", channels, delta.channels())?;
            same(OP, "rate", delta.rate.len(), heads)?;
            same(OP, "shift", delta.shift.len(), heads)?;
            same(OP, "norm", delta.norm.len(), delta.value_dim)
        }
        Rule::Scan(scan) => {
            some("state_dim", scan.state_dim)?;
            some("head_dim", scan.head_dim)?;
            shared(OP, scan.heads, "groups", scan.groups)?;
            some("heads", scan.heads)?;
            same(OP, "channels", channels, scan.channels())?;
            for (name, numbers) in
                [("rate", &scan.rate), ("shift", &scan.shift), ("skip", &scan.skip)]
            {
                same(OP, name, numbers.len(), scan.heads)?;
            }
            let Some(norm) = &scan.norm else { return Ok(()) };
            same(OP, "norm", norm.weights.len(), scan.outputs())?;
            shared(OP, scan.outputs(), "groups of the norm", norm.groups)
        }
    }
}

/// A layer of queries alone.
pub(crate) fn borrowing(layer: &LayerWeights) -> Checked {
    const OP: &str = "project";
    let of_keys = layer.latent.is_some() || layer.k_norm.is_some() || layer.v_norm.is_some();
    ensure(OP, !of_keys, || "something is done to keys of another layer".to_owned())?;
    same(OP, "qkv.outputs", layer.qkv.outputs, layer.spec.heads * layer.spec.head_dim)
}

/// Norms behind what mixes tokens, of the stream and of what stands inside of a dense part, which
/// nothing else has.
pub(super) fn norms_behind(layer: &LayerWeights, x: &Rows) -> Checked {
    const OP: &str = "finish";
    for (name, norm) in [
        ("attn_post_norm", &layer.attn_post_norm),
        ("ffn_norm", &layer.ffn_norm),
        ("ffn_post_norm", &layer.ffn_post_norm),
    ] {
        norm.as_ref().map_or(Ok(()), |norm| same(OP, name, norm.len(), x.cols()))?;
    }
    match (&layer.hidden_norm, &layer.ffn) {
        (None, _) => Ok(()),
        (Some(norm), FeedForward::Dense(dense)) => {
            same(OP, "hidden_norm", norm.len(), dense.down.inputs)
        }
        (Some(_), _) => ensure(OP, false, || "a norm inside of no dense part".to_owned()),
    }
}

/// `x` and the layer's own numbers, of the same tokens.
pub(crate) fn taking(own: &LayerInput, x: &Rows, input: &Rows) -> Checked {
    const OP: &str = "take";
    same(OP, "input.rows", input.rows(), x.rows())?;
    linear(OP, x, &own.gate)?;
    same(OP, "input.cols", input.cols(), own.gate.outputs)?;
    linear(OP, input, &own.up)?;
    same(OP, "up.outputs", own.up.outputs, x.cols())?;
    same(OP, "norm", own.norm.len(), x.cols())
}

/// `heads` of which equally many belong to each of `groups`.
fn shared(op: &'static str, heads: usize, name: &str, groups: usize) -> Checked {
    ensure(op, groups > 0 && heads.is_multiple_of(groups), || {
        format!("{heads} cannot share {groups} {name}")
    })
}

/// `x` and `attention` before a layer's gate.
pub(crate) fn gating(layer: &LayerWeights, x: &Rows, attention: &Rows) -> Checked {
    const OP: &str = "gate";
    let Some(gate) = &layer.gate else { return Ok(()) };
    let LayerSpec { heads, head_dim, .. } = layer.spec;
    same(OP, "attention.rows", attention.rows(), x.rows())?;
    same(OP, "attention.cols", attention.cols(), heads * head_dim)?;
    let norm = layer.attn_norm.as_ref();
    norm.map_or(Ok(()), |norm| same(OP, "attn_norm", norm.len(), x.cols()))?;
    linear(OP, x, gate)?;
    ensure(OP, [heads, heads * head_dim].contains(&gate.outputs), || {
        format!("gate.outputs is {}, must be {heads} or {}", gate.outputs, heads * head_dim)
    })
}
