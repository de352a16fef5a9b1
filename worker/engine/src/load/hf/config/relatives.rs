//! Models that are those of another family, with names and defaults of their own.

use serde_json::{Map, Value, json};

use super::families::Tabled;
use super::inside;
use super::older::{fill, move_to, must_be};
use crate::load::decoder::Family;

const SARVAM_MOE: &str = "SarvamMoEForCausalLM";
const SARVAM_MLA: &str = "SarvamMLAForCausalLM";
const PHI4_MM: &str = "Phi4MMForCausalLM";
/// The same as transformers calls it.
const PHI4_MULTIMODAL: &str = "Phi4MultimodalForCausalLM";

/// Which they are.
pub(super) const FAMILIES: [Tabled; 4] = [
    ("sarvam_moe", SARVAM_MOE, Family::Glm4Moe),
    ("sarvam_mla", SARVAM_MLA, Family::DeepSeekV3),
    ("phi4mm", PHI4_MM, Family::Phi3),
    ("phi4_multimodal", PHI4_MULTIMODAL, Family::Phi3),
];

/// The architecture of a file that transformers wrote, which calls some models by the class that it
/// has for the other family.
pub(super) fn by_type(architecture: &str, model_type: Option<&str>) -> Option<&'static str> {
    match (architecture, model_type?) {
        ("Glm4MoeForCausalLM", "sarvam_moe") => Some(SARVAM_MOE),
        ("DeepseekV3ForCausalLM", "sarvam_mla") => Some(SARVAM_MLA),
        _ => None,
    }
}

/// Gives the fields of `architecture` the names that the other family has, and says what it would
/// take otherwise where a file does not.
///
/// # Errors
/// A variant that is not served.
pub(super) fn rename(fields: &mut Map<String, Value>, architecture: &str) -> Result<(), String> {
    match architecture {
        SARVAM_MOE => sarvam_moe(fields),
        SARVAM_MLA => {
            sarvam_mla(fields);
            Ok(())
        }
        inside::ARIA | inside::ARIA_TEXT => aria(fields),
        PHI4_MM | PHI4_MULTIMODAL => {
            fill(
                fields,
                json!({
                    "vocab_size": 200_064, "hidden_size": 3072, "intermediate_size": 8192,
                    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
                    "max_position_embeddings": 131_072,
                }),
            );
            Ok(())
        }
        _ => Ok(()),
    }
}

/// What both of Sarvam's call otherwise.
const SARVAM_NAMES: [(&str, &str); 2] =
    [("num_experts", "n_routed_experts"), ("num_shared_experts", "n_shared_experts")];

/// Sarvam 30B: GLM 4.5 whose heads turn whole.
fn sarvam_moe(fields: &mut Map<String, Value>) -> Result<(), String> {
    move_to(fields, SARVAM_NAMES);
    move_to(fields, [("use_qkv_bias", "attention_bias")]);
    must_be(fields, [("use_bias", false)])?;
    if let Some(scores) = fields.get("score_function").filter(|scores| **scores != "sigmoid") {
        return Err(format!("score_function = {scores}: must be sigmoid"));
    }
    say_theta(fields, 8e6);
    let unsaid = json!({
        "vocab_size": 262_144, "hidden_size": 4096, "intermediate_size": 8192,
        "num_hidden_layers": 19, "num_attention_heads": 64, "num_key_value_heads": 4,
        "head_dim": 64, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-6,
        "moe_intermediate_size": 1024, "num_experts_per_tok": 6, "routed_scaling_factor": 2.5,
        "use_qk_norm": true, "partial_rotary_factor": 1.0,
    });
    fill(fields, unsaid);
    Ok(())
}

/// Sarvam 105B: DeepSeek V3 whose tokens go to experts of all groups.
fn sarvam_mla(fields: &mut Map<String, Value>) {
    move_to(fields, SARVAM_NAMES);
    if let Some(Value::Object(scaling)) = fields.get_mut("rope_scaling") {
        for name in ["type", "rope_type"] {
            if scaling.get(name).is_some_and(|given| given == "deepseek_yarn") {
                scaling.insert(name.to_owned(), json!("yarn"));
            }
        }
    }
    let unsaid = json!({
        "vocab_size": 262_144, "hidden_size": 4096, "intermediate_size": 16_384,
        "num_hidden_layers": 32, "num_attention_heads": 64, "max_position_embeddings": 4096,
        "n_routed_experts": 128, "q_lora_rank": null, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 1,
    });
    fill(fields, unsaid);
}

fn aria(fields: &mut Map<String, Value>) -> Result<(), String> {
    // Of what experts share, and not of these.
    must_be(fields, [("mlp_bias", false)])?;
    move_to(
        fields,
        [("moe_num_experts", "num_local_experts"), ("moe_topk", "num_experts_per_tok")],
    );
    let unsaid = json!({
        "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 4096,
        "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 2048,
    });
    fill(fields, unsaid);
    Ok(())
}

/// Says what a file turns by that does not say it.
fn say_theta(fields: &mut Map<String, Value>, theta: f64) {
    if fields.get("rope_theta").is_some_and(|given| !given.is_null()) {
        return;
    }
    let to = match fields.get_mut("rope_parameters") {
        Some(Value::Object(rope)) => rope,
        _ => fields,
    };
    fill(to, json!({ "rope_theta": theta }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::hf::config::families::{architecture_of, family_of};

    fn renamed(architecture: &str, config: Value) -> Result<Value, String> {
        let Value::Object(mut fields) = config else { unreachable!() };
        rename(&mut fields, architecture).map(|()| Value::Object(fields))
    }

    fn check(architecture: &str, config: Value, want: Value) {
        let fields = renamed(architecture, config).unwrap();
        for (name, want) in want.as_object().unwrap() {
            assert_eq!(fields[name], *want, "{architecture}, {name}");
        }
    }

    #[test]
    fn sarvams_models_are_glm_and_deepseek() {
        let own = json!({ "num_experts": 6, "num_shared_experts": 2, "use_qkv_bias": true });
        let want = json!({
            "n_routed_experts": 6, "n_shared_experts": 2, "attention_bias": true,
            "partial_rotary_factor": 1.0, "rope_theta": 8e6, "use_qk_norm": true,
        });
        check(SARVAM_MOE, own, want);
        let said = json!({ "rope_theta": 1e4, "rope_parameters": {} });
        check(SARVAM_MOE, said, json!({ "rope_theta": 1e4, "rope_parameters": {} }));
        let inside = json!({ "rope_parameters": { "rope_type": "default" } });
        let turned = json!({ "rope_type": "default", "rope_theta": 8e6 });
        check(SARVAM_MOE, inside, json!({ "rope_parameters": turned }));
        let scaling = |name: &str| json!({ "rope_scaling": { "type": name, "factor": 40 } });
        check(SARVAM_MLA, scaling("deepseek_yarn"), scaling("yarn"));
        check(SARVAM_MLA, json!({}), json!({ "q_lora_rank": null, "n_group": 1 }));
        for (class, model_type) in
            [("Glm4MoeForCausalLM", "sarvam_moe"), ("DeepseekV3ForCausalLM", "sarvam_mla")]
        {
            let config = json!({ "architectures": [class], "model_type": model_type });
            let own = architecture_of(&config);
            assert!(own.starts_with("Sarvam"), "{own}");
            assert_eq!(family_of(own), family_of(class));
        }
    }

    #[test]
    fn other_models_of_sarvam_are_refused() {
        let refused = |config| renamed(SARVAM_MOE, config).unwrap_err();
        assert_eq!(refused(json!({ "use_bias": true })), "use_bias = true: must be false");
        let softmax = refused(json!({ "score_function": "softmax" }));
        assert_eq!(softmax, "score_function = \"softmax\": must be sigmoid");
    }

    #[test]
    fn aria_calls_its_experts_otherwise() {
        let own = json!({ "moe_num_experts": 6, "moe_topk": 3 });
        check(inside::ARIA_TEXT, own, json!({ "num_local_experts": 6, "num_experts_per_tok": 3 }));
        let biased = renamed(inside::ARIA, json!({ "mlp_bias": true })).unwrap_err();
        assert_eq!(biased, "mlp_bias = true: must be false");
    }
}
