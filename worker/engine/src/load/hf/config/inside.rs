//! Text models that stand inside of larger ones, and what files leave out of them.

use serde_json::{Map, Value, json};

use super::{cohere_compass, newer, older, relatives};

/// Models that read more than text, of which what reads text is served.
pub(super) const ARIA: &str = "AriaForConditionalGeneration";
/// What stands inside of Aria.
pub(super) const ARIA_TEXT: &str = "AriaTextForCausalLM";
pub(super) const GEMMA3: &str = "Gemma3ForConditionalGeneration";
pub(super) const GEMMA4: &str = "Gemma4ForConditionalGeneration";
/// What stands inside of Gemma 4.
pub(super) const GEMMA4_TEXT: &str = "Gemma4ForCausalLM";
/// Gemma 4 12B, which reads pictures and sound without models of their own.
pub(super) const GEMMA4_UNIFIED: &str = "Gemma4UnifiedForConditionalGeneration";
/// What stands inside of that.
pub(super) const GEMMA4_UNIFIED_TEXT: &str = "Gemma4UnifiedForCausalLM";
pub(super) const APERTUS15: &str = "Apertus1p5ForConditionalGeneration";
/// What stands inside of Apertus 1.5.
pub(super) const APERTUS15_TEXT: &str = "Apertus1p5TextForCausalLM";
pub(super) const LLAMA4: &str = "Llama4ForConditionalGeneration";
/// What stands inside of Llama 4.
pub(super) const LLAMA4_TEXT: &str = "Llama4ForCausalLM";
pub(super) const MISTRAL3: &str = "Mistral3ForConditionalGeneration";
/// The same with Ministral 3 or Mistral 4 inside, which no file calls so.
pub(super) const MINISTRAL3: &str = "Mistral3ForConditionalGeneration of ministral3";
pub(super) const MISTRAL4: &str = "Mistral3ForConditionalGeneration of mistral4";
/// What has fields that may be lists, and means none of them or the same in all layers.
const HUNYUAN: &str = "HunYuanDenseV1ForCausalLM";
const HUNYUAN_MOE: &str = "HunYuanMoEV1ForCausalLM";
const PER_LAYER: [&str; 4] =
    ["moe_topk", "moe_intermediate_size", "num_shared_expert", "num_experts"];
pub(super) const QWEN2_VL: &str = "Qwen2VLForConditionalGeneration";
pub(super) const QWEN2_5_VL: &str = "Qwen2_5_VLForConditionalGeneration";
pub(super) const QWEN3_VL: &str = "Qwen3VLForConditionalGeneration";
pub(super) const QWEN35: &str = "Qwen3_5ForConditionalGeneration";
pub(super) const QWEN35_MOE: &str = "Qwen3_5MoeForConditionalGeneration";
pub(super) const LARA_MINI: &str = "LaraMiniForCausalLM";
pub(super) const LFM3: &str = "Lfm3ForCausalLM";
const OLMO_HYBRID: &str = "OlmoHybridForCausalLM";
const QWEN3_NEXT: &str = "Qwen3NextForCausalLM";
/// What stands inside of Qwen3.5, and of the same with experts.
const QWEN35_TEXT: &str = "Qwen3_5ForCausalLM";
pub(super) const QWEN35_MOE_TEXT: &str = "Qwen3_5MoeForCausalLM";

/// The fields of the text model in `config`, which may be the whole of it.
///
/// # Errors
/// One that is no object, or has another text model inside than its architecture is served with.
pub(super) fn text_fields(config: Value, architecture: &str) -> Result<Map<String, Value>, String> {
    let whole = match config {
        Value::Object(fields) => fields,
        other => return Err(format!("{other} is not an object")),
    };
    let mut fields = match architecture {
        GEMMA3 | MISTRAL3 | MINISTRAL3 | MISTRAL4 => lifted(whole, architecture),
        GEMMA4 | GEMMA4_TEXT | LLAMA4 | LLAMA4_TEXT => lifted(whole, architecture),
        GEMMA4_UNIFIED | GEMMA4_UNIFIED_TEXT | ARIA | ARIA_TEXT => lifted(whole, architecture),
        APERTUS15 | APERTUS15_TEXT => lifted(whole, architecture),
        cohere_compass::TEXT | cohere_compass::WHOLE => lifted(whole, architecture),
        QWEN2_VL | QWEN2_5_VL | QWEN3_VL | QWEN35 | QWEN35_MOE => lifted(whole, architecture),
        // Some who take the text model out leave the whole one's file as it was.
        QWEN3_NEXT | QWEN35_TEXT | QWEN35_MOE_TEXT => lifted(whole, architecture),
        _ => whole,
    };
    let inside = fields.get("model_type").and_then(Value::as_str).unwrap_or_default();
    if architecture == MISTRAL3 && !["", "mistral", "mistral3"].contains(&inside) {
        let bound = "must be mistral, ministral3 or mistral4";
        return Err(format!("text_config.model_type = {inside}: {bound}"));
    }
    if architecture == GEMMA3 {
        // It is the head's that reads text alone, and the larger model's head has none.
        fields.remove("final_logit_softcapping");
    }
    if let (
        GEMMA4 | GEMMA4_TEXT | GEMMA4_UNIFIED | GEMMA4_UNIFIED_TEXT,
        Some(Value::String(what)),
    ) = (architecture, fields.get("use_bidirectional_attention"))
    {
        // Of pictures, where it is not of all.
        let is_of_all = what != "vision";
        fields.insert("use_bidirectional_attention".to_owned(), is_of_all.into());
    }
    older::rename(&mut fields, architecture)?;
    relatives::rename(&mut fields, architecture)?;
    if let Some(Value::Object(rope)) = fields.get_mut("rope_parameters")
        && matches!(architecture, MISTRAL4 | "Mistral4ForCausalLM")
    {
        // The share of a whole head, which other fields say in numbers.
        rope.remove("partial_rotary_factor");
    }
    match architecture {
        HUNYUAN => PER_LAYER.iter().for_each(|name| drop(fields.remove(*name))),
        HUNYUAN_MOE => same_in_all_layers(&mut fields)?,
        _ => {}
    }
    if architecture == MISTRAL3 {
        // They count for a Mistral that stands alone.
        fields.remove("layer_types");
    }
    if architecture == OLMO_HYBRID {
        spell_no_rotation(&mut fields);
    }
    fields.retain(|name, value| !(value.is_null() && name.starts_with("rope_")));
    if let Value::Object(defaults) = defaults(architecture, &fields) {
        for (name, default) in defaults {
            fields.entry(name).or_insert(default);
        }
    }
    Ok(fields)
}

/// Has OLMo Hybrid say in one way that no head turns. Its files have null for the base, the type or
/// all of a rotation, which others take for what is not said.
fn spell_no_rotation(fields: &mut Map<String, Value>) {
    let is_null = |value: Option<&Value>| value.is_some_and(Value::is_null);
    let (whole, base) = (fields.get("rope_parameters"), fields.get("rope_theta"));
    let inside = |name: &str| whole.and_then(|whole| whole.get(name));
    let is_said = inside("rope_theta").is_some() || base.is_some_and(|base| !base.is_null());
    let has_null = is_null(whole) || is_null(base) || is_null(inside("rope_type"));
    if is_said || !has_null {
        return;
    }
    if base.is_none() {
        tracing::warn!("rope_parameters without a base: no head turns; transformers takes 10000");
    }
    fields.insert("rope_parameters".to_owned(), json!({ "rope_theta": null }));
}

/// Makes numbers of lists of them, of which there is one for each layer, and calls the experts of a
/// token as others do.
fn same_in_all_layers(fields: &mut Map<String, Value>) -> Result<(), String> {
    for name in PER_LAYER {
        let Some(Value::Array(each)) = fields.get(name) else { continue };
        let Some(first) = each.first().filter(|first| each.iter().all(|one| one == *first)) else {
            return Err(format!("{name} differs between layers, which is not supported"));
        };
        let first = first.clone();
        fields.insert(name.to_owned(), first);
    }
    if let Some(chosen) = fields.remove("moe_topk") {
        fields.entry("num_experts_per_tok").or_insert(chosen);
    }
    Ok(())
}

/// What stands inside, if anything does: Qwen2-VL's first files have the text model's fields
/// beside the others.
fn lifted(mut whole: Map<String, Value>, architecture: &str) -> Map<String, Value> {
    let Some(Value::Object(mut text)) = whole.remove("text_config") else { return whole };
    text.extend(whole.remove_entry("quantization_config"));
    if architecture != GEMMA3 {
        // The head is the whole model's.
        text.extend(whole.remove_entry("tie_word_embeddings"));
    }
    text
}

/// What transformers takes for fields that are absent, where it is not the family's.
fn defaults(architecture: &str, fields: &Map<String, Value>) -> Value {
    match architecture {
        GEMMA3 | "Gemma3ForCausalLM" => json!({
            "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216,
            "num_hidden_layers": 26, "num_attention_heads": 8, "max_position_embeddings": 131_072,
        }),
        GEMMA4 | GEMMA4_TEXT => super::gemma4::defaults(fields),
        GEMMA4_UNIFIED | GEMMA4_UNIFIED_TEXT => super::gemma4::unified_defaults(fields),
        LLAMA4 | LLAMA4_TEXT => super::llama4::defaults(),
        QWEN2_VL | QWEN2_5_VL => json!({
            "vocab_size": 152_064, "hidden_size": 8192, "intermediate_size": 29_568,
            "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
            "max_position_embeddings": 32_768, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
            "max_window_layers": 80,
        }),
        QWEN3_VL => json!({
            "vocab_size": 151_936, "hidden_size": 4096, "intermediate_size": 22_016,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
            "max_position_embeddings": 128_000, "rope_theta": 5e5,
        }),
        MINISTRAL3 | "Ministral3ForCausalLM" => {
            let mut all = json!({
                "vocab_size": 131_072, "hidden_size": 4096, "intermediate_size": 14_336,
                "num_hidden_layers": 34, "num_attention_heads": 32,
                "max_position_embeddings": 262_144,
            });
            if !fields.contains_key("rope_scaling") {
                all["rope_parameters"] = growing(1e6, 16.0, 16_384);
            }
            all
        }
        MISTRAL4 | "Mistral4ForCausalLM" => {
            let mut all = json!({
                "vocab_size": 131_072, "hidden_size": 4096, "intermediate_size": 12_288,
                "num_hidden_layers": 36, "num_attention_heads": 32,
                "max_position_embeddings": 1_048_576,
            });
            if !fields.contains_key("rope_scaling") {
                all["rope_parameters"] = growing(1e4, 128.0, 8192);
            }
            all
        }
        // All its layers have experts.
        "SolarOpenForCausalLM" | QWEN35_MOE | QWEN35_MOE_TEXT => json!({ "intermediate_size": 1 }),
        LFM3 if !fields.contains_key("rope_parameters") => lfm3_rope(),
        "CwmForCausalLM" if !fields.contains_key("rope_parameters") => json!({
            "rope_scaling": {
                "rope_type": "llama3", "rope_theta": 1e6, "factor": 16.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
            },
        }),
        "GptOssForCausalLM" if !fields.contains_key("rope_scaling") => json!({
            "rope_parameters": {
                "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                "truncate": false, "original_max_position_embeddings": 4096,
            },
        }),
        // As NVIDIA's own files call them.
        "NemotronForCausalLM" => {
            let named = |names: &[&str]| names.iter().find_map(|name| fields.get(*name));
            let own = [
                ("head_dim", named(&["kv_channels"])),
                ("partial_rotary_factor", named(&["rope_percent", "rope_percentage", "rope_pct"])),
            ];
            let given = own.into_iter().filter_map(|(name, own)| Some((name.into(), own?.clone())));
            Value::Object(given.collect())
        }
        _ => newer::defaults(architecture),
    }
}

/// What LFM3 turns by where a file says nothing.
fn lfm3_rope() -> Value {
    json!({
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5,
            },
            "sliding_attention": { "rope_type": "default", "rope_theta": 1e4 },
        },
    })
}

/// What Ministral 3 and Mistral 4 turn by where a file says nothing.
fn growing(theta: f64, factor: f64, original: u32) -> Value {
    json!({
        "rope_type": "yarn", "rope_theta": theta, "factor": factor, "beta_fast": 32.0,
        "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
        "original_max_position_embeddings": original,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reads_text_is_lifted_out() {
        let whole = |text: Value| {
            json!({
                "model_type": "whole", "text_config": text, "vision_config": {}, "hidden_size": 7,
                "tie_word_embeddings": true, "quantization_config": { "quant_method": "fp8" },
            })
        };
        let check = |architecture: &str, config: Value, want: Value| {
            let fields = Value::Object(text_fields(config, architecture).unwrap());
            for (name, want) in want.as_object().unwrap() {
                assert_eq!(fields[name], *want, "{architecture}, {name}");
            }
        };
        let fp8 = json!({ "quant_method": "fp8" });
        let text = json!({ "hidden_size": 640, "tie_word_embeddings": false });
        let of_text = json!({ "tie_word_embeddings": false, "quantization_config": fp8 });
        check(GEMMA3, whole(text.clone()), of_text);
        check(MISTRAL3, whole(text.clone()), json!({ "tie_word_embeddings": true }));
        let capped = json!({ "final_logit_softcapping": 30.0 });
        let fields = text_fields(whole(capped.clone()), GEMMA3).unwrap();
        assert_eq!(fields.get("final_logit_softcapping"), None);
        check("Gemma3ForCausalLM", capped.clone(), capped);
        let qwen = json!({ "hidden_size": 640, "num_key_value_heads": 8, "vision_config": null });
        check(QWEN2_5_VL, whole(text.clone()), qwen);
        check(QWEN2_VL, json!({ "hidden_size": 640 }), json!({ "hidden_size": 640 }));
        check(QWEN3_VL, whole(text.clone()), json!({ "rope_theta": 5e5, "hidden_size": 640 }));
        check(QWEN35, whole(text.clone()), json!({ "hidden_size": 640 }));
        check(QWEN35_MOE, whole(text.clone()), json!({ "intermediate_size": 1 }));
        for alone in [QWEN3_NEXT, QWEN35_TEXT, QWEN35_MOE_TEXT] {
            let lifted = json!({ "hidden_size": 640, "tie_word_embeddings": true });
            check(alone, whole(text.clone()), lifted);
            check(alone, text.clone(), text.clone());
        }
        let named = json!({ "sliding_window": 9, "layer_types": ["full_attention"] });
        let fields = text_fields(whole(named.clone()), MISTRAL3).unwrap();
        assert_eq!(
            [fields.get("sliding_window"), fields.get("layer_types")],
            [Some(&json!(9)), None]
        );
        check("MistralForCausalLM", named.clone(), named);
        // Others have nothing inside.
        check("LlamaForCausalLM", whole(json!({})), json!({ "hidden_size": 7 }));
        let another = whole(json!({ "model_type": "qwen3" }));
        let refused = text_fields(another, MISTRAL3).unwrap_err();
        let bound = "must be mistral, ministral3 or mistral4";
        assert_eq!(refused, format!("text_config.model_type = qwen3: {bound}"));
        let text = json!({ "model_type": "ministral3", "hidden_size": 640 });
        let lifted = json!({ "tie_word_embeddings": true, "hidden_size": 640 });
        check(MINISTRAL3, whole(text), lifted);
    }

    #[test]
    fn olmo_hybrid_has_several_words_for_no_rotation() {
        let rope = |architecture: &str, config: Value| {
            text_fields(config, architecture).unwrap().get("rope_parameters").cloned()
        };
        let none = json!({ "rope_theta": null });
        for said in [
            json!({ "rope_theta": null }),
            json!({ "rope_parameters": null }),
            json!({ "rope_parameters": null, "rope_theta": null }),
            json!({ "rope_parameters": { "rope_type": null } }),
            json!({ "rope_parameters": { "rope_theta": null } }),
            json!({ "rope_parameters": { "rope_type": "default" }, "rope_theta": null }),
        ] {
            assert_eq!(rope(OLMO_HYBRID, said.clone()), Some(none.clone()), "{said}");
        }
        assert_eq!(rope(OLMO_HYBRID, json!({})), None);
        assert_eq!(rope("LlamaForCausalLM", json!({ "rope_parameters": null })), None);
        // A base counts for more.
        let beside = json!({ "rope_parameters": null, "rope_theta": 5e5 });
        assert_eq!(rope(OLMO_HYBRID, beside), None);
        let turned = json!({ "rope_type": null, "rope_theta": 5e5 });
        let both = json!({ "rope_parameters": turned, "rope_theta": null });
        assert_eq!(rope(OLMO_HYBRID, both), Some(turned));
    }

    #[test]
    fn lists_of_hunyuan_say_one_number() {
        let read = |architecture, config: Value| text_fields(config, architecture);
        let whole = |chosen: Value| {
            let ffn = [48, 48];
            json!({ "moe_topk": chosen, "moe_intermediate_size": ffn, "num_experts": 64 })
        };
        let check = |chosen: Value| {
            let fields = Value::Object(read(HUNYUAN_MOE, whole(chosen)).unwrap());
            let want = json!({
                "num_experts_per_tok": 8, "moe_intermediate_size": 48, "num_experts": 64,
            });
            assert_eq!(fields, want);
        };
        check(json!([8, 8, 8]));
        check(json!(8));
        for odd in [json!([8, 4]), json!([])] {
            let refused = read(HUNYUAN_MOE, whole(odd)).unwrap_err();
            assert_eq!(refused, "moe_topk differs between layers, which is not supported");
        }
        assert_eq!(read(HUNYUAN, whole(json!([8, 4]))).unwrap(), Map::new());
    }

    #[test]
    fn what_nvidia_calls_otherwise_is_read() {
        let read = |config: Value| {
            let fields = text_fields(config, "NemotronForCausalLM").unwrap();
            ["head_dim", "partial_rotary_factor"].map(|name| fields.get(name).cloned())
        };
        let (own, factor) = (json!({ "kv_channels": 128, "rope_percent": 0.25 }), json!(0.25));
        assert_eq!(read(own), [Some(json!(128)), Some(factor)]);
        let both = json!({ "kv_channels": 128, "head_dim": 64 });
        assert_eq!(read(both), [Some(json!(64)), None]);
    }

    #[test]
    fn a_rope_that_is_not_said_is_the_families() {
        let kind = |config: Value| {
            text_fields(config, "CwmForCausalLM").unwrap().get("rope_scaling").cloned()
        };
        let of_cwm = kind(json!({ "rope_scaling": null })).unwrap();
        assert_eq!((&of_cwm["rope_type"], &of_cwm["factor"]), (&json!("llama3"), &json!(16.0)));
        assert_eq!(kind(json!({ "rope_scaling": { "factor": 2 } })), Some(json!({ "factor": 2 })));
        assert_eq!(kind(json!({ "rope_parameters": {} })), None);
        let lfm3 = text_fields(json!({ "rope_parameters": null }), LFM3).unwrap();
        let kind = &lfm3["rope_parameters"]["full_attention"]["rope_type"];
        assert_eq!(kind, "proportional");
    }
}
