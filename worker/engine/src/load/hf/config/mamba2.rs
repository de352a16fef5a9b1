//! Mamba 2 alone: Nemotron-H of which every part remembers in a state.

use aqueduct_core::limits;
use serde_json::{Map, Value, json};

use super::nemotron_h;
use super::older::{fill, move_to, put};

pub(super) const MAMBA2: &str = "Mamba2ForCausalLM";

/// Gives fields the names that Nemotron-H has.
///
/// # Errors
/// Heads that are not as wide together as the file says, or no number of layers.
pub(super) fn rename(fields: &mut Map<String, Value>) -> Result<(), String> {
    let others = [
        ("num_heads", "mamba_num_heads"),
        ("head_dim", "mamba_head_dim"),
        ("state_size", "ssm_state_size"),
        ("hidden_act", "mamba_hidden_act"),
    ];
    move_to(fields, others);
    let unsaid = json!({
        "vocab_size": 32_768, "hidden_size": 4096, "num_hidden_layers": 64,
        "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
        "conv_kernel": 4, "expand": 2, "use_conv_bias": true, "use_bias": false,
        "layer_norm_epsilon": 1e-5,
    });
    fill(fields, unsaid);
    let number = |name: &str| fields.get(name).and_then(Value::as_u64);
    let product = |one: &str, other: &str| number(one)?.checked_mul(number(other)?);
    let (inner, wide) =
        (product("mamba_num_heads", "mamba_head_dim"), product("hidden_size", "expand"));
    if inner.is_none() || inner != wide {
        return Err("num_heads times head_dim must be hidden_size times expand".to_owned());
    }
    let most = u64::from(limits::LAYERS_MAX);
    let layers = number("num_hidden_layers").filter(|layers| (1..=most).contains(layers));
    let Some(layers) = layers else {
        return Err(format!("num_hidden_layers must be a whole number from 1 to {most}"));
    };
    let letters = "M".repeat(layers as usize);
    for name in ["layers_block_type", "layer_types"] {
        fields.remove(name);
    }
    // There is no attention and no feed-forward part: nothing is of these sizes.
    let made = json!({
        "hybrid_override_pattern": letters, "num_attention_heads": 1, "num_key_value_heads": 1,
        "attention_head_dim": 64, "intermediate_size": 1, "mlp_hidden_act": "relu2",
        "attention_bias": false, "mlp_bias": false,
    });
    put(fields, made);
    nemotron_h::rename(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_remembers_in_a_state() {
        let read = |config: Value| {
            let Value::Object(mut fields) = config else { unreachable!() };
            rename(&mut fields).map(|()| Value::Object(fields))
        };
        let made = read(json!({ "num_hidden_layers": 3 })).unwrap();
        let seen = ["hybrid_override_pattern", "mamba_n_heads", "mamba_d_head", "head_dim"];
        let want = [json!("MMM"), json!(128), json!(64), json!(64)];
        assert_eq!(seen.map(|name| made[name].clone()), want);
        let wide = "num_heads times head_dim must be hidden_size times expand";
        assert_eq!(read(json!({ "num_heads": 64 })), Err(wide.to_owned()));
        let none = read(json!({ "num_hidden_layers": 0 })).unwrap_err();
        assert!(none.starts_with("num_hidden_layers must be"), "{none}");
    }
}
