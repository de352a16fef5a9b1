//! Models without a rotation, whose logits fall with distance.

use aqueduct_core::Refusal;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Config;
use super::families::Tabled;
use super::older::{fill, move_to, must_be, put};
use crate::load::decoder::{Alibi, Family, Scales};

pub(super) const BLOOM: &str = "BloomForCausalLM";
pub(super) const MPT: &str = "MptForCausalLM";
/// The same as its first files call it.
pub(super) const FIRST_MPT: &str = "MPTForCausalLM";

pub(super) const FAMILIES: [Tabled; 3] =
    [("bloom", BLOOM, Family::Bloom), ("mpt", MPT, Family::Mpt), ("mpt", FIRST_MPT, Family::Mpt)];

/// Fields of these alone.
#[derive(Deserialize)]
pub(super) struct AlibiFields {
    /// Some of Falcon's have it.
    alibi: Option<bool>,
    /// Of MPT: StoryWriter's is 16. Absent it is 8.
    alibi_bias_max: Option<f32>,
}

impl Config {
    /// `None` where rows see as much of what is far as of what is near.
    pub(super) fn alibi(&self, family: Family) -> Option<Alibi> {
        match family {
            Family::Bloom => Some(Alibi::USUAL),
            Family::Mpt => Some(Alibi {
                most: self.alibi.alibi_bias_max.unwrap_or(Alibi::USUAL.most),
                ..Alibi::USUAL
            }),
            Family::Falcon if self.alibi.alibi == Some(true) => {
                Some(Alibi { of_products: true, ..Alibi::USUAL })
            }
            _ => None,
        }
    }

    /// Of MPT, which calls it `softmax_scale`.
    ///
    /// # Errors
    /// One that is out of all bounds.
    pub(super) fn mpt_scales(&self, head_dim: u32) -> Result<Scales, Refusal> {
        let usual = Scales::usual(head_dim);
        let attention = self.attention_multiplier.unwrap_or(usual.attention);
        Scales { attention, ..usual }.checked()
    }
}

/// Gives Bloom's fields the names that others have.
///
/// # Errors
/// A variant that is not served.
pub(super) fn bloom(fields: &mut Map<String, Value>) -> Result<(), String> {
    let others = [
        ("n_embed", "hidden_size"),
        ("n_head", "num_attention_heads"),
        ("n_layer", "num_hidden_layers"),
        ("layer_norm_epsilon", "layer_norm_eps"),
    ];
    move_to(fields, others);
    must_be(fields, [("apply_residual_connection_post_layernorm", false)])?;
    let unsaid = json!({
        "vocab_size": 250_880, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
    });
    fill(fields, unsaid);
    add_sizes(fields);
    Ok(())
}

/// The same of MPT's, whose attention has fields of its own.
///
/// # Errors
/// Those of [`bloom`].
pub(super) fn mpt(fields: &mut Map<String, Value>) -> Result<(), String> {
    let others = [
        ("d_model", "hidden_size"),
        ("n_heads", "num_attention_heads"),
        ("n_layers", "num_hidden_layers"),
        ("max_seq_len", "max_position_embeddings"),
        ("layer_norm_epsilon", "layer_norm_eps"),
    ];
    move_to(fields, others);
    must_be(fields, [("no_bias", true)])?;
    const NORMS: [&str; 2] = ["low_precision_layernorm", "layernorm"];
    must_say(fields, "norm_type", |value| value.as_str().is_some_and(|it| NORMS.contains(&it)))?;
    must_say(fields, "expansion_ratio", |value| value.as_f64() == Some(4.0))?;
    must_say(fields, "logit_scale", Value::is_null)?;
    let unsaid = json!({
        "vocab_size": 50_368, "hidden_size": 2048, "num_hidden_layers": 24,
        "num_attention_heads": 16, "max_position_embeddings": 2048,
    });
    fill(fields, unsaid);
    if let Some(Value::Object(mut attention)) = fields.remove("attn_config") {
        let served = [
            ("alibi", true),
            ("prefix_lm", false),
            ("qk_ln", false),
            ("qk_gn", false),
            ("attn_uses_sequence_id", false),
        ];
        let within = |what| format!("attn_config.{what}");
        must_be(&attention, served).map_err(within)?;
        let is_multihead = |value: &Value| value == "multihead_attention";
        must_say(&attention, "attn_type", is_multihead).map_err(within)?;
        let is_fall =
            |value: &Value| value.as_f64().is_some_and(|most| (1e-3..=1e3).contains(&most));
        must_say(&attention, "alibi_bias_max", is_fall).map_err(within)?;
        move_to(&mut attention, [("softmax_scale", "attention_multiplier")]);
        for name in ["attention_multiplier", "clip_qkv", "alibi_bias_max"] {
            let given = attention.remove(name).filter(|value| !value.is_null());
            put(fields, json!({ name: given }));
        }
    }
    add_sizes(fields);
    Ok(())
}

/// Refuses a field that is there and not as it is served.
fn must_say(
    fields: &Map<String, Value>,
    name: &str,
    is_served: impl Fn(&Value) -> bool,
) -> Result<(), String> {
    match fields.get(name).filter(|value| !is_served(value)) {
        Some(value) => Err(format!("{name} = {value}: is not served")),
        None => Ok(()),
    }
}

/// What files do not say, as it follows from what they do.
fn add_sizes(fields: &mut Map<String, Value>) {
    let number = |name: &str| fields.get(name).and_then(Value::as_u64);
    let ffn = number("hidden_size").and_then(|width| width.checked_mul(4));
    let heads = number("num_attention_heads");
    put(fields, json!({ "num_key_value_heads": heads, "intermediate_size": ffn }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renamed(
        config: &Value,
        rename: fn(&mut Map<String, Value>) -> Result<(), String>,
    ) -> Result<Value, String> {
        let Value::Object(mut fields) = config.clone() else { unreachable!() };
        rename(&mut fields).map(|()| Value::Object(fields))
    }

    #[test]
    fn bloom_and_mpt_have_names_of_their_own() {
        let own = json!({ "n_embed": 64, "n_head": 4, "n_layer": 3, "layer_norm_epsilon": 1e-6 });
        let seen = renamed(&own, bloom).unwrap();
        for (name, want) in [
            ("hidden_size", json!(64)),
            ("num_attention_heads", json!(4)),
            ("num_key_value_heads", json!(4)),
            ("num_hidden_layers", json!(3)),
            ("intermediate_size", json!(256)),
            ("layer_norm_eps", json!(1e-6)),
        ] {
            assert_eq!(seen[name], want, "{name}");
        }
        let attention = json!({ "clip_qkv": 6, "softmax_scale": null, "alibi_bias_max": 16 });
        let own = json!({ "d_model": 64, "n_heads": 4, "max_seq_len": 99, "attn_config": attention,
            "norm_type": "low_precision_layernorm", "expansion_ratio": 4, "logit_scale": null });
        let seen = renamed(&own, mpt).unwrap();
        assert_eq!((&seen["clip_qkv"], &seen["attention_multiplier"]), (&json!(6), &Value::Null));
        assert_eq!(seen["alibi_bias_max"], 16);
        assert_eq!(seen["max_position_embeddings"], 99);
        assert_eq!(seen["intermediate_size"], 256);
    }

    #[test]
    fn variants_are_refused_by_name() {
        let behind = json!({ "apply_residual_connection_post_layernorm": true });
        let refused = renamed(&behind, bloom).unwrap_err();
        assert_eq!(refused, "apply_residual_connection_post_layernorm = true: must be false");
        let check = |config: Value, want: &str| {
            assert_eq!(renamed(&config, mpt).unwrap_err(), want);
        };
        check(json!({ "no_bias": false }), "no_bias = false: must be true");
        check(json!({ "norm_type": "rmsnorm" }), "norm_type = \"rmsnorm\": is not served");
        check(json!({ "expansion_ratio": 3 }), "expansion_ratio = 3: is not served");
        check(json!({ "logit_scale": 2.0 }), "logit_scale = 2.0: is not served");
        let attention = |fields: Value, want: &str| check(json!({ "attn_config": fields }), want);
        attention(json!({ "alibi": false }), "attn_config.alibi = false: must be true");
        attention(json!({ "qk_ln": true }), "attn_config.qk_ln = true: must be false");
        let one = json!({ "attn_type": "multiquery_attention" });
        attention(one, "attn_config.attn_type = \"multiquery_attention\": is not served");
        let flat = json!({ "alibi_bias_max": 0 });
        attention(flat, "attn_config.alibi_bias_max = 0: is not served");
    }
}
