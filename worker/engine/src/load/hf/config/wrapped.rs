//! Models that read more than text, around one that reads text and is also served alone. Here the
//! one takes the place of the other.

use serde_json::{Map, Value, json};

use super::older::{fill, put};

/// Its type and architecture, the type of what stands inside where a file does not say, and whether
/// logits come from the embedding where it does not say that.
type Wrapper = (&'static str, &'static str, &'static str, bool);

const WRAPPERS: [Wrapper; 31] = [
    ("llava", "LlavaForConditionalGeneration", "llama", false),
    ("llava_next", "LlavaNextForConditionalGeneration", "llama", false),
    ("llava_next_video", "LlavaNextVideoForConditionalGeneration", "llama", false),
    ("llava_onevision", "LlavaOnevisionForConditionalGeneration", "qwen2", false),
    ("vipllava", "VipLlavaForConditionalGeneration", "llama", false),
    ("video_llava", "VideoLlavaForConditionalGeneration", "llama", false),
    ("video_llama_3", "VideoLlama3ForConditionalGeneration", "qwen2", false),
    ("smolvlm", "SmolVLMForConditionalGeneration", "llama", false),
    ("idefics2", "Idefics2ForConditionalGeneration", "mistral", false),
    ("idefics3", "Idefics3ForConditionalGeneration", "llama", false),
    ("internvl", "InternVLForConditionalGeneration", "qwen2", true),
    ("internvl_chat", "InternVLChatModel", "", false),
    ("fast_vlm", "FastVlmForConditionalGeneration", "qwen2", false),
    ("perception_lm", "PerceptionLMForConditionalGeneration", "llama", false),
    ("ovis2", "Ovis2ForConditionalGeneration", "qwen2", true),
    ("janus", "JanusForConditionalGeneration", "llama", true),
    ("deepseek_vl", "DeepseekVLForConditionalGeneration", "llama", true),
    ("deepseek_vl_hybrid", "DeepseekVLHybridForConditionalGeneration", "llama", true),
    ("aya_vision", "AyaVisionForConditionalGeneration", "cohere2", true),
    ("cohere2_vision", "Cohere2VisionForConditionalGeneration", "cohere2", true),
    ("exaone4_5", "Exaone4_5_ForConditionalGeneration", "exaone4", false),
    ("lfm2_vl", "Lfm2VlForConditionalGeneration", "lfm2", true),
    ("kimi_k25", "KimiK25ForConditionalGeneration", "deepseek_v3", false),
    ("glm4v", "Glm4vForConditionalGeneration", "glm4v_text", false),
    ("glm4v_moe", "Glm4vMoeForConditionalGeneration", "glm4v_moe_text", false),
    ("glm46v", "Glm46VForConditionalGeneration", "glm4v_text", false),
    ("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe_text", false),
    ("qwen2_5_omni", "Qwen2_5OmniModel", "qwen2_5_omni_text", false),
    ("qwen3_omni_moe", "Qwen3OmniMoeForConditionalGeneration", "qwen3_omni_moe_text", false),
    ("qwen2_audio", "Qwen2AudioForConditionalGeneration", "qwen2", false),
    ("voxtral", "VoxtralForConditionalGeneration", "voxtral_text", false),
];

/// The same by other names.
const OTHER_NAMES: [(&str, &str); 4] = [
    ("Kimi_K25ForConditionalGeneration", "KimiK25ForConditionalGeneration"),
    ("Qwen2_5OmniForConditionalGeneration", "Qwen2_5OmniModel"),
    ("Qwen2_5OmniThinkerForConditionalGeneration", "Qwen2_5OmniModel"),
    ("Qwen3OmniMoeThinkerForConditionalGeneration", "Qwen3OmniMoeForConditionalGeneration"),
];

/// What files call that in which the text model's fields are.
const INSIDE: [&str; 2] = ["text_config", "llm_config"];

/// The configuration of the text model inside of `config` if it is one of these, and else `config`.
pub(super) fn unwrapped(config: Value) -> Value {
    let Some((_, _, of, tied)) = wrapper_of(&config) else { return config };
    let mut whole = match config {
        Value::Object(whole) => whole,
        other => return other,
    };
    let thinker = whole.remove("thinker_config");
    let mut outer = match thinker {
        Some(Value::Object(thinker)) => {
            let quantized = whole.remove_entry("quantization_config");
            thinker.into_iter().chain(quantized).collect()
        }
        _ => whole,
    };
    let text = INSIDE.iter().find_map(|name| outer.remove(*name));
    let mut text = match text {
        Some(Value::Object(text)) => text,
        _ => Map::new(),
    };
    let ties = |fields: &Map<String, Value>| fields.get("tie_word_embeddings")?.as_bool();
    // Its own counts where the whole says nothing: it was a model with a head once.
    let tied = ties(&outer).unwrap_or_else(|| ties(&text).unwrap_or(tied));
    text.remove("architectures");
    text.extend(outer.remove_entry("quantization_config"));
    let kind = text.get("model_type").and_then(Value::as_str).unwrap_or(of).to_owned();
    put(&mut text, json!({ "model_type": kind, "tie_word_embeddings": tied }));
    as_alone(&mut text, &kind);
    Value::Object(text)
}

fn wrapper_of(config: &Value) -> Option<Wrapper> {
    let said = config["architectures"][0].as_str();
    let said = said.map(|said| OTHER_NAMES.iter().find(|of| of.0 == said).map_or(said, |of| of.1));
    // Base classes are told by their types.
    let is_base = |name: &&str| name.ends_with("Model") && !name.contains("For");
    let kind = config["model_type"].as_str();
    let by_name = WRAPPERS.iter().find(|of| Some(of.1) == said);
    let by_type = || WRAPPERS.iter().find(|of| Some(of.0) == kind);
    by_name.or_else(|| said.is_none_or(|name| is_base(&name)).then(by_type)?).copied()
}

/// Calls what has a type of its own by that of models that are the same, and adds what files leave
/// out: transformers writes of a model inside what differs from its class alone.
fn as_alone(text: &mut Map<String, Value>, kind: &str) {
    let alone = match kind {
        "qwen2_5_omni_text" => "qwen2",
        "qwen3_omni_moe_text" | "qwen3_vl_moe_text" => "qwen3_moe",
        "glm4v_text" => "glm4",
        "glm4v_moe_text" => "glm4_moe",
        "voxtral_text" => "llama",
        kind => kind,
    };
    put(text, json!({ "model_type": alone }));
    if alone == "qwen3_moe" {
        // They are, whatever a file says.
        put(text, json!({ "norm_topk_prob": true }));
    }
    if kind == "glm4v_text" {
        // Whatever a file says.
        put(text, json!({ "attention_bias": true, "head_dim": null }));
    }
    fill(text, sizes(kind));
}

/// What classes have where files do not say.
fn sizes(kind: &str) -> Value {
    let of = |[vocab, width, ffn, layers, heads, kv_heads, positions]: [u32; 7]| {
        json!({
            "vocab_size": vocab, "hidden_size": width, "intermediate_size": ffn,
            "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "max_position_embeddings": positions,
        })
    };
    let with = |mut sizes: Value, more: Value| {
        let more = more.as_object().into_iter().flatten();
        more.for_each(|(name, value)| sizes[name] = value.clone());
        sizes
    };
    match kind {
        "llama" | "granite" => of([32_000, 4096, 11_008, 32, 32, 32, 2048]),
        "voxtral_text" => with(
            of([131_072, 3072, 8192, 30, 32, 8, 131_072]),
            json!({ "head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 1e8 }),
        ),
        "mistral" => of([32_000, 4096, 14_336, 32, 32, 8, 131_072]),
        "qwen2" | "qwen3" => of([151_936, 4096, 22_016, 32, 32, 32, 32_768]),
        "qwen2_5_omni_text" => of([152_064, 3584, 18_944, 28, 28, 4, 32_768]),
        "cohere" | "cohere2" => of([256_000, 8192, 22_528, 40, 64, 64, 8192]),
        "exaone4" => of([102_400, 4096, 16_384, 32, 32, 32, 2048]),
        "deepseek_v3" | "kimi_k2" => of([129_280, 7168, 18_432, 61, 128, 128, 4096]),
        "phi3" => of([32_064, 3072, 8192, 32, 32, 32, 4096]),
        "lfm2" => of([65_536, 2560, 12_288, 32, 32, 8, 128_000]),
        "qwen3_vl_moe_text" => of([151_936, 2048, 5632, 24, 16, 16, 128_000]),
        "glm4v_text" => with(
            of([151_552, 4096, 13_696, 40, 32, 2, 32_768]),
            json!({ "rms_norm_eps": 1e-5, "partial_rotary_factor": 1.0 }),
        ),
        "glm4v_moe_text" => {
            with(of([151_424, 4096, 10_944, 46, 96, 8, 65_536]), json!({ "attention_bias": true }))
        }
        _ => json!({}),
    }
}

#[cfg(test)]
mod tests {
    use super::super::families::{architecture_of, family_of};
    use super::*;

    #[test]
    fn what_stands_inside_is_served_alone() {
        for (model_type, architecture, inside, _) in WRAPPERS {
            let text = json!({ "model_type": inside });
            let text = if inside.is_empty() { json!({ "model_type": "qwen2" }) } else { text };
            let check = |name: &str, of: Value| {
                let config = json!({ name: of, "text_config": text, "vision_config": {} });
                let alone = unwrapped(config);
                assert_eq!(alone["vision_config"], Value::Null);
                assert!(family_of(architecture_of(&alone)).is_some(), "{model_type}");
                assert!(alone["hidden_size"].is_u64() || alone["model_type"] == "qwen3_moe");
            };
            check("model_type", json!(model_type));
            check("architectures", json!([architecture]));
        }
        let llama = json!({ "architectures": ["LlamaForCausalLM"], "text_config": {} });
        assert_eq!(unwrapped(llama.clone()), llama);
        let other = json!({ "architectures": ["OtherForSequenceClassification"] });
        assert_eq!(unwrapped(other.clone()), other);
    }

    #[test]
    fn a_whole_that_speaks_has_two_models_around_it() {
        let text = json!({ "model_type": "qwen2_5_omni_text", "tie_word_embeddings": true });
        let thinker = json!({ "text_config": text, "tie_word_embeddings": false });
        let alone = unwrapped(json!({
            "architectures": ["Qwen2_5OmniModel"], "thinker_config": thinker,
            "quantization_config": { "quant_method": "gptq" },
        }));
        assert_eq!((&alone["model_type"], &alone["hidden_size"]), (&json!("qwen2"), &json!(3584)));
        assert_eq!(alone["tie_word_embeddings"], false);
        assert_eq!(alone["quantization_config"]["quant_method"], "gptq");
    }

    #[test]
    fn files_of_others_have_other_names() {
        let inside =
            json!({ "architectures": ["InternLM2ForCausalLM"], "model_type": "internlm2" });
        let config = json!({ "architectures": ["InternVLChatModel"], "llm_config": inside });
        assert_eq!(architecture_of(&unwrapped(config)), "InternLM2ForCausalLM");
        // As LLaVA 1.5 leaves it: what its class has.
        let inside = json!({ "model_type": "llama", "vocab_size": 32_064 });
        let llava = ["LlavaForConditionalGeneration"];
        let alone = unwrapped(json!({ "architectures": llava, "text_config": inside }));
        assert_eq!((&alone["vocab_size"], &alone["hidden_size"]), (&json!(32_064), &json!(4096)));
        assert_eq!(alone["tie_word_embeddings"], false);
        let strange = json!({ "model_type": "opus" });
        let alone = unwrapped(json!({ "architectures": llava, "text_config": strange }));
        assert_eq!(architecture_of(&alone), "opus");
    }
}
