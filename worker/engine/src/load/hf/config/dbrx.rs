//! DBRX, whose fields have names of their own and stand in two groups.

use serde_json::{Map, Value, json};

use super::older::{fill, move_to};

pub(super) const DBRX: &str = "DbrxForCausalLM";

/// Gives the fields the names that others have.
///
/// # Errors
/// A variant that is not served.
pub(super) fn rename(fields: &mut Map<String, Value>) -> Result<(), String> {
    move_to(
        fields,
        [
            ("d_model", "hidden_size"),
            ("n_heads", "num_attention_heads"),
            ("n_layers", "num_hidden_layers"),
            ("max_seq_len", "max_position_embeddings"),
        ],
    );
    let [attention, feed] = ["attn_config", "ffn_config"].map(|group| match fields.remove(group) {
        Some(Value::Object(of)) => of,
        _ => Map::new(),
    });
    let kept = |of: &Map<String, Value>, names: &[(&str, &str)]| -> Vec<(String, Value)> {
        let one = |&(own, name): &(&str, &str)| {
            let given = of.get(own).filter(|value| !value.is_null())?;
            Some((name.to_owned(), given.clone()))
        };
        names.iter().filter_map(one).collect()
    };
    let mut said = kept(&attention, &[("clip_qkv", "clip_qkv"), ("kv_n_heads", KV_HEADS)]);
    if !fields.contains_key("rope_parameters") {
        said.extend(kept(&attention, &[("rope_theta", "rope_theta")]));
    }
    let names = [
        ("ffn_hidden_size", "intermediate_size"),
        ("moe_num_experts", "num_local_experts"),
        ("moe_top_k", "num_experts_per_tok"),
    ];
    said.extend(kept(&feed, &names));
    fields.extend(said);
    if let Some(name) = feed.get("ffn_act_fn").and_then(|curve| curve.get("name")) {
        fields.insert("hidden_act".to_owned(), name.clone());
    }
    // By which norm weights are divided: their sum, or none.
    const NORM: &str = "moe_normalize_expert_weights";
    let normalises = match feed.get(NORM).map(|norm| (norm.is_null(), norm.as_f64())) {
        None | Some((_, Some(1.0))) => true,
        Some((true, _)) => false,
        Some(_) => return Err(format!("{NORM} = {}: must be 1 or null", feed[NORM])),
    };
    fields.insert("norm_topk_prob".to_owned(), normalises.into());
    fill(
        fields,
        json!({
            "vocab_size": 32_000, "hidden_size": 2048, "intermediate_size": 3584,
            "num_hidden_layers": 24, "num_attention_heads": 16, KV_HEADS: 1,
            "max_position_embeddings": 2048, "num_local_experts": 4, "num_experts_per_tok": 1,
        }),
    );
    Ok(())
}

const KV_HEADS: &str = "num_key_value_heads";

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;
    use crate::load::decoder::Family;

    const FAMILY: Family = Family::Dbrx;

    fn config(attention: Value, feed: Value) -> Result<Config, String> {
        Config::from_value(json!({
            "architectures": [DBRX], "d_model": 32, "n_heads": 4, "n_layers": 3,
            "max_seq_len": 64, "vocab_size": 32, "attn_config": attention, "ffn_config": feed,
        }))
    }

    #[test]
    fn fields_have_other_names() {
        let attention = json!({ "kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 5e5 });
        let feed = json!({
            "ffn_hidden_size": 48, "moe_num_experts": 6, "moe_top_k": 3,
            "moe_normalize_expert_weights": 1, "ffn_act_fn": { "name": "silu" },
        });
        let config = config(attention, feed).unwrap();
        let shape = config.shape(FAMILY).unwrap();
        let seen = (shape.width, shape.layers, shape.kv_heads, shape.ffn, shape.max_positions);
        assert_eq!(seen, (32, 3, 2, 48, 64));
        assert_eq!(config.clip_qkv, Some(8.0));
        let experts = config.experts(FAMILY).unwrap().unwrap();
        assert_eq!((experts.count, experts.chosen, experts.normalises), (6, 3, true));
        assert!(config.activation(FAMILY).is_ok());
        assert_eq!(config.norm_eps(FAMILY), Ok(1e-5));
    }

    #[test]
    fn weights_are_divided_by_their_sum_or_not() {
        let normalises = |norm: Value| {
            let config = config(json!({}), json!({ "moe_normalize_expert_weights": norm }))?;
            Ok::<_, String>(config.experts(FAMILY).unwrap().unwrap().normalises)
        };
        assert_eq!(normalises(json!(1.0)), Ok(true));
        assert_eq!(normalises(json!(null)), Ok(false));
        let other = normalises(json!(2.0)).unwrap_err();
        assert_eq!(other, "moe_normalize_expert_weights = 2.0: must be 1 or null");
    }
}
