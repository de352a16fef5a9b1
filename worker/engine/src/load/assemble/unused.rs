//! Tensors that are in files and of no use.

/// What modules may have that computes nothing here, or that was read with something else: tables
/// that can be computed, masks, what activations and keys would be rounded by, parameters of
/// activations (Apertus).
const KNOWN: [&str; 11] = [
    "inv_freq",
    "rope_freqs.weight",
    "bias_mask",
    "masked_bias",
    "attention.bias",
    "causal_mask",
    "k_scale",
    "v_scale",
    "input_scale",
    "input_global_scale",
    "activation_scale",
];
const OF_ACTIVATIONS: &str = ".act_fn.";
/// GPT-2's mask, which is called as a bias would be.
const MASK: &str = "attn.bias";

/// Whether a tensor that nothing was read of may be what answers need: it is in a layer that is
/// `read`, behind `prefix` and the layer's number, and nothing that is known.
pub(super) fn is_strange(read: impl Fn(usize) -> bool, prefix: &str, name: &str) -> bool {
    let rest = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('.'));
    let Some((number, part)) = rest.and_then(|rest| rest.split_once('.')) else { return false };
    let Ok(idx) = number.parse() else { return false };
    let is_known = KNOWN.iter().any(|known| part.ends_with(known));
    read(idx) && !is_known && part != MASK && !part.contains(OF_ACTIVATIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_layers_have_is_used_or_known() {
        let check = |name: &str, want: bool| {
            assert_eq!(is_strange(|idx| idx < 2, "model.layers", name), want, "{name}");
        };
        check("model.layers.1.self_attn.lora_a.weight", true);
        check("model.layers.0.mlp.act.scales", true);
        check("model.layers.2.eh_proj.weight", false);
        check("model.layers.0.self_attn.rotary_emb.inv_freq", false);
        check("model.layers.0.self_attn.k_proj.k_scale", false);
        check("model.layers.0.mlp.down_proj.input_scale", false);
        check("model.layers.0.mlp.experts.down_proj_activation_scale", false);
        check("model.layers.0.mlp.act_fn.alpha_n", false);
        check("model.layers.0.attn.bias", false);
        check("model.layers.0.attn.c_attn.bias", true);
        check("vision.layers.0.mlp.weight", false);
        check("model.layers.norm.weight", false);
        check("model.layersx.0.weight", false);
    }
}
