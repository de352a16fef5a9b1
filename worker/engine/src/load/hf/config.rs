//! config.json of transformers 4 and 5.

mod activation;
mod alibi;
mod cohere2_moe;
mod cohere_compass;
mod dbrx;
mod deepseek;
mod experts;
mod falcon_h1;
mod families;
mod gemma4;
mod inside;
mod latent;
mod layers;
mod llama4;
mod mamba2;
mod nemotron_h;
mod newer;
mod older;
mod phimoe;
mod quantized;
mod recurrent;
mod refused;
mod relatives;
mod ropes;
mod scales;
mod wrapped;

use std::path::Path;

use aqueduct_core::{ModelShape, Refusal, WideHeads, WindowedLayers};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use self::families::{FAMILIES, architecture_of, family_of};
pub(super) use self::quantized::{BITS, Quantized};
use super::rope::{self, RopeError, RopeFields};
use super::{CONFIG_BYTES_MAX, read_json};
use crate::error::LoadError;
use crate::load::decoder::{Decoder, Family, HeadOrder, QkNorm, STILL_LAYER_INTERVAL};

/// The fields that are read; what transformers does when one is absent stands beside it.
#[derive(Deserialize)]
struct Config {
    vocab_size: u32,
    hidden_size: u32,
    intermediate_size: u32,
    num_hidden_layers: u32,
    num_attention_heads: u32,
    /// Absent: as the family has it; null: as many as `num_attention_heads`.
    #[serde(default, deserialize_with = "present")]
    num_key_value_heads: Option<Option<u32>>,
    /// Absent: as the family has it; null: `hidden_size / num_attention_heads`.
    #[serde(default, deserialize_with = "present")]
    head_dim: Option<Option<u32>>,
    hidden_act: Option<String>,
    /// The same of Gemma 3.
    hidden_activation: Option<String>,
    max_position_embeddings: Option<u32>,
    /// Of Command R, which was made for more positions than the field above says. In others' files
    /// it is a tokenizer's, and may be any number.
    model_max_length: Option<Value>,
    rms_norm_eps: Option<f32>,
    layer_norm_eps: Option<f32>,
    /// The same of StarCoder 2.
    norm_epsilon: Option<f32>,
    /// The same of Nemotron.
    norm_eps: Option<f32>,
    attention_bias: Option<bool>,
    #[serde(default)]
    attention_out_bias: bool,
    mlp_bias: Option<bool>,
    /// Of every linear map (ERNIE, StarCoder 2).
    use_bias: Option<bool>,
    tie_word_embeddings: Option<bool>,
    layer_types: Option<Vec<String>>,
    /// Absent: as the family has it; null: none.
    #[serde(default, deserialize_with = "present")]
    sliding_window: Option<Option<u32>>,
    #[serde(default)]
    use_sliding_window: bool,
    max_window_layers: Option<u32>,
    /// Gemma 3 and EXAONE 4.
    sliding_window_pattern: Option<layers::Pattern>,
    /// What queries, keys and values are kept within (OLMo, OLMoE).
    clip_qkv: Option<f32>,
    /// Every layer sees what comes behind it (models of embeddings).
    use_bidirectional_attention: Option<bool>,
    is_causal: Option<bool>,
    /// What attention's dot products are divided by the square root of (Gemma 3).
    query_pre_attn_scalar: Option<f32>,
    /// Absent: as the family has it; null: none.
    #[serde(default, deserialize_with = "present")]
    attn_logit_softcapping: Option<Option<f32>>,
    #[serde(default, deserialize_with = "present")]
    final_logit_softcapping: Option<Option<f32>>,
    /// What a gate is multiplied by inside of the sigmoid, and what neither side may go beyond
    /// (gpt-oss).
    swiglu_alpha: Option<f32>,
    swiglu_limit: Option<f32>,
    /// Not 0 where a layer rotates (SmolLM3).
    no_rope_layers: Option<Vec<u32>>,
    #[serde(default = "default_interval")]
    no_rope_layer_interval: usize,
    /// What experts share (Granite).
    shared_intermediate_size: Option<u32>,
    /// How many experts, by the names that families have for it.
    num_local_experts: Option<u32>,
    num_experts: Option<u32>,
    n_routed_experts: Option<u32>,
    num_experts_per_tok: Option<u32>,
    moe_intermediate_size: Option<u32>,
    shared_expert_intermediate_size: Option<u32>,
    n_shared_experts: Option<u32>,
    norm_topk_prob: Option<bool>,
    routed_scaling_factor: Option<f32>,
    n_group: Option<u32>,
    /// The first layers have no experts (GLM).
    first_k_dense_replace: Option<usize>,
    /// Of so many layers one has experts, but for those named (Qwen).
    decoder_sparse_step: Option<usize>,
    mlp_only_layers: Option<Vec<usize>>,
    /// Which layers have experts (EXAONE).
    mlp_layer_types: Option<Vec<String>>,
    num_shared_experts: Option<u32>,
    /// LFM2.
    num_dense_layers: Option<usize>,
    use_expert_bias: Option<bool>,
    /// The same of ERNIE, which has names of its own for all.
    moe_num_experts: Option<u32>,
    moe_k: Option<u32>,
    moe_num_shared_experts: Option<u32>,
    moe_layer_start_index: Option<usize>,
    moe_layer_end_index: Option<i64>,
    moe_layer_interval: Option<usize>,
    qkv_bias: Option<bool>,
    use_qk_norm: Option<bool>,
    /// `rope`, or none at all (Granite 4).
    position_embedding_type: Option<String>,
    #[serde(default = "one")]
    embedding_multiplier: f32,
    #[serde(default = "one")]
    residual_multiplier: f32,
    attention_multiplier: Option<f32>,
    #[serde(default = "one")]
    logits_scaling: f32,
    /// What logits are multiplied by (Cohere).
    logit_scale: Option<f32>,
    #[serde(default)]
    use_qkv_bias: bool,
    #[serde(default)]
    qk_layernorm: bool,
    /// The feed-forward part takes what attention takes (Stable LM, GPT-NeoX).
    use_parallel_residual: Option<bool>,
    quantization_config: Option<Value>,
    #[serde(flatten)]
    alibi: alibi::AlibiFields,
    #[serde(flatten)]
    newer: newer::NewerFields,
    #[serde(flatten)]
    latent: latent::LatentFields,
    #[serde(flatten)]
    deepseek: deepseek::DeepSeekFields,
    #[serde(flatten)]
    recurrent: recurrent::RecurrentFields,
    #[serde(flatten)]
    nemotron_h: nemotron_h::NemotronHFields,
    #[serde(flatten)]
    falcon_h1: falcon_h1::FalconH1Fields,
    #[serde(flatten)]
    phimoe: phimoe::PhimoeFields,
    #[serde(flatten)]
    gemma4: gemma4::Gemma4Fields,
    #[serde(flatten)]
    llama4: llama4::Llama4Fields,
    #[serde(flatten)]
    rope: RopeFields,
}

/// Tells null (`Some(None)`) from absent (`None`, the default).
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    value: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(value).map(Some)
}

fn one() -> f32 {
    1.0
}

fn default_interval() -> usize {
    STILL_LAYER_INTERVAL
}

/// Reads and validates the configuration at `path`.
pub(crate) fn read(path: &Path) -> Result<(Decoder, Quantized), LoadError> {
    let value = wrapped::unwrapped(read_json(path, CONFIG_BYTES_MAX)?);
    let unsupported = |what, name: &str, supported| unsupported(path, what, name, supported);
    // First of all: other architectures' files have other fields.
    let architecture = architecture_of(&value).to_owned();
    let family = family_of(&architecture)
        .ok_or_else(|| unsupported("architecture", &architecture, FAMILIES))?;
    if quantized::is_mlx(&value) {
        return Err(unsupported("quantization", "MLX's", quantized::SUPPORTED));
    }
    let config = Config::from_value(value).map_err(|what| LoadError::malformed(path, what))?;
    let activation = config.activation(family);
    let activation = activation.map_err(|(name, want)| unsupported("hidden_act", name, want))?;
    let quantized = Quantized::of(config.quantization_config.as_ref(), family)
        .map_err(|name| unsupported("quantization", &name, quantized::SUPPORTED))?;
    let refused = |refusal| LoadError::refused(&path.display().to_string(), refusal);
    config.refuse(family).map_err(refused)?;
    let mut shape = config.shape(family).map_err(refused)?;
    let (found, window_rope) = config.ropes(family, &shape).map_err(|error| match error {
        RopeError::Type(name) => unsupported("rope type", &name, rope::TYPES),
        RopeError::Malformed(what) => LoadError::malformed(path, what),
        RopeError::Refused(refusal) => refused(refusal),
    })?;
    shape.max_positions = found.positions;
    let rotates = config.rotates(family).map_err(refused)?;
    let experts = config.experts(family).map_err(refused)?;
    let order = config.order(family, &shape, found.rotary_dim);
    let decoder = Decoder {
        family,
        norm_eps: config.norm_eps(family).map_err(refused)?,
        layer_norms: config.layer_norms(family),
        parallel: config.is_parallel(family),
        two_norms: family == Family::GptNeoX,
        activations: vec![activation; shape.layers as usize],
        window_rope: window_rope.filter(|rope| *rope != found.rope),
        norm_offset: family.norm_offset(),
        rope: found.rope,
        temperature: found.temperature,
        still_temperature: config.still_temperature(family).map_err(refused)?,
        in_blocks: family == Family::Llama4,
        unit_norms: config.unit_norms(family),
        windows: config.windows(family, &rotates).map_err(refused)?,
        rotates,
        scales: config.scales(family, &shape, found.sharper).map_err(refused)?,
        multipliers: config.multipliers(family).map_err(refused)?,
        biases: config.biases(family),
        recurrent: config.recurrents(family).map_err(refused)?,
        folded: config.folded(family).map_err(refused)?,
        gate: config.gate(family),
        expert_groups: config.expert_groups(family, experts.as_ref()).map_err(refused)?,
        experts,
        latent: config.latents(family, &shape, order).map_err(refused)?,
        order,
        shared_half: config.shares_half(family),
        expert_biases: family == Family::GptOss,
        softcaps: config.softcaps(family).map_err(refused)?,
        alibi: config.alibi(family),
        qk_norm: config.qk_norm(family),
        clip: config.clip_qkv.filter(|_| family.clips()),
        keys_are_values: config.keys_are_values(family),
        inputs: config.inputs(family).map_err(refused)?,
        double_ffn: config.double_ffn(family),
        tied: config.tie_word_embeddings.unwrap_or(family.is_tied()),
        head_bias: config.has_head_bias(family),
        head_rows: config.head_rows(family).map_err(refused)?,
        shape,
    };
    Ok((decoder.checked().map_err(refused)?, quantized))
}

fn unsupported(path: &Path, what: &'static str, name: &str, supported: &'static str) -> LoadError {
    let path = path.display().to_string();
    LoadError::Unsupported { path, what, name: name.to_owned(), supported }
}

impl Config {
    /// The text model's fields, with what files may leave out of them.
    fn from_value(value: Value) -> Result<Self, String> {
        let architecture = architecture_of(&value).to_owned();
        let fields = inside::text_fields(value, &architecture)?;
        let read = |fields| serde_json::from_value::<Self>(Value::Object(fields));
        read(fields.clone()).map_err(|error| {
            let error = error.to_string();
            // serde does not say of which field: the one without which it says something else.
            let is_about = |name: &&String| {
                let mut rest = fields.clone();
                rest.remove(*name);
                read(rest).err().is_none_or(|other| other.to_string() != error)
            };
            let is_missing = error.starts_with("missing field");
            match fields.keys().find(is_about).filter(|_| !is_missing) {
                Some(name) => format!("{name}: {error}"),
                None => error,
            }
        })
    }

    fn has_head_bias(&self, family: Family) -> bool {
        match family {
            Family::Phi | Family::GptJ => true,
            Family::Phimoe => self.phimoe.lm_head_bias.unwrap_or(false),
            _ => false,
        }
    }

    fn qk_norm(&self, family: Family) -> QkNorm {
        match family {
            Family::Glm4Moe if self.use_qk_norm == Some(true) => QkNorm::EachHead,
            Family::Cohere if self.use_qk_norm == Some(true) => QkNorm::HeadByHead,
            Family::StableLm if self.qk_layernorm => QkNorm::HeadByHead,
            family => family.qk_norm(),
        }
    }

    fn order(&self, family: Family, shape: &ModelShape, rotary_dim: u32) -> HeadOrder {
        HeadOrder {
            // Wide heads may be others, and no part of theirs stands elsewhere.
            rotary_dim: if shape.wide.layers > 0 { shape.head_dim } else { rotary_dim },
            neighbours: self.neighbours(family),
            by_head: match family {
                Family::GptBigCode => shape.kv_heads == shape.heads,
                Family::Bloom => true,
                _ => matches!(family, Family::GptNeoX | Family::Falcon | Family::InternLm2),
            },
        }
    }

    fn shape(&self, family: Family) -> Result<ModelShape, Refusal> {
        // A model whose file does not say how many there are takes any; none is a mistake.
        if self.max_position_embeddings == Some(0) {
            return Err(Refusal::new("max_position_embeddings", 0, "at least 1"));
        }
        let heads = self.num_attention_heads;
        let head_dim = match self.head_dim.unwrap_or(family.head_dim()) {
            _ if family.is_latent() => self.latent_head(family)?[0],
            Some(head_dim) => head_dim,
            None if heads == 0 || !self.hidden_size.is_multiple_of(heads) => {
                let bound = format!("a multiple of num_attention_heads = {heads}");
                return Err(Refusal::new("hidden_size", self.hidden_size, bound));
            }
            None => self.hidden_size / heads,
        };
        let mut shape = ModelShape {
            vocab: self.vocab_size,
            layers: self.num_hidden_layers,
            width: self.hidden_size,
            heads,
            kv_heads: match family {
                family if family.is_latent() => heads,
                Family::GptNeoX => heads, // whatever a file says
                _ => self.num_key_value_heads.unwrap_or(family.kv_heads()).unwrap_or(heads),
            },
            head_dim,
            ffn: match family {
                Family::Granite4 => self.granite4_shared(),
                Family::Lfm2 => self.lfm2_ffn()?,
                Family::Llama4 => self.llama4_ffn(),
                Family::Cohere2Moe => self.cohere2_moe_ffn(),
                _ => self.intermediate_size,
            },
            max_positions: match family {
                Family::Cohere => self.model_max_length()?.or(self.max_position_embeddings),
                _ => self.max_position_embeddings,
            }
            .unwrap_or(0),
            recurrent_layers: 0,
            state_bytes: 0,
            wide: WideHeads::NONE,
            kv_shared_layers: 0,
            windowed: WindowedLayers::NONE,
        };
        shape.validate()?;
        if family == Family::Gemma4 {
            shape.kv_shared_layers = self.shared_layers();
            shape.validate()?;
            shape.wide = self.wide_heads(&shape)?;
            shape.validate()?;
        }
        if let Some(recurrents) = self.recurrents(family)? {
            shape.recurrent_layers = recurrents.count();
            shape.state_bytes = recurrents.state_bytes(shape.width);
            shape.validate()?;
        }
        if let Some(folded) = self.folded(family)? {
            folded.add_still(&mut shape);
            shape.validate()?;
        }
        Ok(shape)
    }

    fn model_max_length(&self) -> Result<Option<u32>, Refusal> {
        let Some(given) = &self.model_max_length else { return Ok(None) };
        let positions = given.as_u64().and_then(|positions| u32::try_from(positions).ok());
        positions.map(Some).ok_or_else(|| {
            let bound = format!("a whole number from 0 to {}", u32::MAX);
            Refusal::new("model_max_length", given, bound)
        })
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_kernels::{Activation, Ungated};
    use serde_json::json;

    use super::*;
    use crate::load::decoder::{Scales, Softcaps};
    use crate::load::hf::config::ropes::LOCAL_THETA;
    use crate::rope::{Rope, Scaling, Temperature};

    pub(super) fn config(changes: Value) -> Config {
        let mut config = json!({
            "vocab_size": 32,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
        });
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        serde_json::from_value(config).unwrap()
    }

    #[test]
    fn caps_are_gemmas() {
        let check = |family, changes: Value, want: [Option<f32>; 2]| {
            let Softcaps { attention, tokens } = config(changes).softcaps(family).unwrap();
            assert_eq!([attention, tokens], want, "{family:?}");
        };
        check(Family::Gemma2, json!({}), [Some(50.0), Some(30.0)]);
        let some = json!({ "attn_logit_softcapping": null, "final_logit_softcapping": 7.0 });
        check(Family::Gemma2, some.clone(), [None, Some(7.0)]);
        check(Family::Gemma3, some, [None, Some(7.0)]);
        check(Family::Gemma3, json!({}), [None; 2]);
        check(Family::Gemma3, json!({ "attn_logit_softcapping": 50.0 }), [None; 2]);
        let zero = config(json!({ "attn_logit_softcapping": 0.0 }));
        assert_eq!(zero.softcaps(Family::Gemma2).unwrap_err().field, "attn_logit_softcapping");
    }

    #[test]
    fn other_gates_than_gpt_oss_are_refused() {
        let check = |changes: Value, field: Option<&str>| {
            let refused = config(changes).refuse_variants(Family::GptOss);
            assert_eq!(refused.err().as_ref().map(|it| it.field.as_str()), field);
        };
        check(json!({}), None);
        check(json!({ "swiglu_limit": 7.0, "swiglu_alpha": 1.702 }), None);
        check(json!({ "swiglu_limit": 8.0 }), Some("swiglu_limit"));
        check(json!({ "swiglu_alpha": 1.0 }), Some("swiglu_alpha"));
    }

    #[test]
    fn windows_are_those_of_each_family() {
        let check = |family, changes: Value, want: [Option<u32>; 3]| {
            let config = config(changes);
            let rotates = config.rotates(family).unwrap();
            assert_eq!(config.windows(family, &rotates).unwrap(), want, "{family:?}");
        };
        let (none, all) = ([None; 3], [Some(9); 3]);
        check(Family::Llama, json!({ "sliding_window": 9 }), none);
        check(Family::Mistral, json!({ "sliding_window": 9 }), all);
        check(Family::Mistral, json!({ "sliding_window": null }), none);
        check(Family::Mistral, json!({}), [Some(4096); 3]);
        check(Family::Qwen2, json!({ "sliding_window": 9 }), none);
        let used = json!({ "sliding_window": 9, "use_sliding_window": true });
        check(Family::Qwen2, used, none); // its first 28 layers see everything
        let from_1 = json!({
            "sliding_window": 9, "use_sliding_window": true, "max_window_layers": 1,
        });
        check(Family::Qwen2, from_1, [None, Some(9), Some(9)]);
        let named = json!({
            "sliding_window": 9, "use_sliding_window": true,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        });
        check(Family::Qwen3, named, [Some(9), None, Some(9)]);
        let types = json!(["sliding_attention", "full_attention", "sliding_attention"]);
        let named = json!({ "sliding_window": 9, "layer_types": types });
        check(Family::Mistral, named.clone(), [Some(9), None, Some(9)]);
        check(Family::Ministral, named, [Some(9), None, Some(9)]);
        check(Family::Mistral, json!({ "sliding_window": 9, "layer_types": null }), all);
        check(Family::Ministral, json!({}), [Some(4096); 3]);
        check(Family::Ministral3, json!({}), none);
        check(Family::Ministral3, json!({ "sliding_window": 9 }), all);
        check(Family::Gemma2, json!({}), [Some(4096), None, Some(4096)]);
        check(Family::GptOss, json!({}), [Some(128), None, Some(128)]);
        check(Family::Cwm, json!({}), [None, Some(8192), Some(8192)]);
        check(Family::Cwm, json!({ "sliding_window": 0 }), none);
        let from_2 = json!({ "sliding_window": 9, "max_window_layers": 2 });
        check(Family::Dots1, from_2.clone(), [None, None, Some(9)]);
        check(Family::Helium, from_2, none);
        check(Family::Phi3, json!({ "sliding_window": 9 }), all);
        check(Family::Phi3, json!({}), none);
        let still = json!({
            "sliding_window": 9, "use_sliding_window": true, "no_rope_layers": [1, 0, 1],
        });
        check(Family::SmolLm3, still, [None, Some(9), None]);
        check(Family::SmolLm3, json!({ "sliding_window": 9 }), none);
        let named = json!({
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        });
        check(Family::SmolLm3, named.clone(), [Some(9), None, None]);
        check(Family::Qwen2, named.clone(), none);
        check(Family::Gemma3, named, [Some(9), None, None]);
        check(Family::Gemma3, json!({}), [Some(4096); 3]); // the sixth would see everything
        let second = json!({ "sliding_window": 9, "sliding_window_pattern": 2 });
        check(Family::Gemma3, second, [Some(9), None, Some(9)]);
        check(Family::Gemma3, json!({ "sliding_window": null }), none);
        let four = |changes: Value| {
            let mut fields = json!({ "num_hidden_layers": 4, "sliding_window": 9 });
            fields.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            config(fields)
        };
        let slides = |family, changes: Value, want: [bool; 4]| {
            let windows = four(changes).windows(family, &[]).unwrap();
            assert_eq!(windows, want.map(|slides| slides.then_some(9)), "{family:?}");
        };
        let fourth = [true, true, true, false];
        slides(Family::Olmo3, json!({}), fourth);
        slides(Family::Exaone4, json!({}), fourth);
        slides(Family::Exaone4, json!({ "sliding_window_pattern": "LLLG" }), fourth);
        let letters = json!({ "sliding_window_pattern": "GL" });
        slides(Family::Exaone4, letters.clone(), [false, true, false, true]);
        let rotates = |changes| four(changes).rotates(Family::Exaone4).unwrap();
        assert_eq!(rotates(letters), [false, true, false, true]);
        assert_eq!(rotates(json!({ "sliding_window": null })), [true; 4]);
        for pattern in [json!(0), json!(""), json!("LLX")] {
            let config = four(json!({ "sliding_window_pattern": pattern }));
            let refusal = config.windows(Family::Exaone4, &[]).unwrap_err();
            assert_eq!(refusal.field, "sliding_window_pattern", "{pattern}");
        }
    }

    #[test]
    fn some_layers_do_not_rotate() {
        let check = |family, changes: Value, want: &[bool]| {
            assert_eq!(config(changes).rotates(family).unwrap(), want, "{family:?}");
        };
        let (named, third) =
            (json!({ "no_rope_layers": [0, 1, 0] }), json!({ "no_rope_layer_interval": 3 }));
        check(Family::SmolLm3, json!({ "num_hidden_layers": 5 }), &[true, true, true, false, true]);
        check(Family::SmolLm3, third, &[true, true, false]);
        check(Family::SmolLm3, named.clone(), &[false, true, false]);
        check(Family::Llama, named, &[true; 3]);
        let longer = json!({ "no_rope_layers": [1, 0, 0, 1, 1] });
        check(Family::SmolLm3, longer, &[true, false, false]);
        for (changes, field) in [
            (json!({ "no_rope_layers": [1] }), "no_rope_layers count"),
            (json!({ "no_rope_layer_interval": 0 }), "no_rope_layer_interval"),
        ] {
            let refusal = config(changes).rotates(Family::SmolLm3).unwrap_err();
            assert_eq!(refusal.field, field);
        }
    }

    #[test]
    fn granite_4_may_be_attention_alone() {
        let granite = |changes: Value| {
            let mut all = json!({
                "num_local_experts": 0, "layer_types": ["attention", "attention", "attention"],
                "shared_intermediate_size": 20, "position_embedding_type": "rope",
            });
            all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            config(all)
        };
        let plain = granite(json!({}));
        let shape = plain.shape(Family::Granite4).unwrap();
        assert_eq!((shape.ffn, shape.recurrent_layers, shape.state_bytes), (20, 0, 0));
        assert_eq!(plain.experts(Family::Granite4), Ok(None));
        assert_eq!(plain.rotates(Family::Granite4).unwrap(), [true; 3]);
        let still = granite(json!({ "position_embedding_type": "nope" }));
        assert_eq!(still.rotates(Family::Granite4).unwrap(), [false; 3]);
        let experts = granite(json!({ "num_local_experts": 4 })).experts(Family::Granite4);
        assert_eq!(experts.unwrap().unwrap().shared_ffn, Some(20));
        let mamba = json!({
            "layer_types": ["attention", "mamba", "mamba"], "mamba_n_heads": 8,
            "mamba_d_state": 16,
        });
        let shape = granite(mamba).shape(Family::Granite4).unwrap();
        let states = 4 * 2 * (3 * (64 + 2 * 16) + 8 * 8 * 16);
        assert_eq!((shape.recurrent_layers, shape.state_bytes), (2, states));
    }

    #[test]
    fn scales_that_make_nothing_finite_are_refused() {
        for (field, of) in [
            ("embedding_multiplier", "embedding scale"),
            ("residual_multiplier", "residual scale"),
            ("attention_multiplier", "attention scale"),
            ("logits_scaling", "logits scale"),
        ] {
            let config = config(json!({ field: 0.0 }));
            let shape = config.shape(Family::Granite).unwrap();
            assert_eq!(config.scales(Family::Granite, &shape, 1.0).unwrap_err().field, of);
            let usual = config.scales(Family::Llama, &shape, 1.0).unwrap();
            assert_eq!(usual, Scales::usual(8), "{field} is Granite's alone");
        }
    }

    #[test]
    fn gemma_3_may_stand_inside_a_larger_model() {
        let text = json!({ "hidden_size": 640, "sliding_window": 512, "vocab_size": null });
        let whole = json!({
            "architectures": [inside::GEMMA3], "text_config": text, "vision_config": {},
            "hidden_size": 7,
        });
        assert!(Config::from_value(whole.clone()).is_err(), "no vocabulary is null");
        let mut whole = whole;
        whole["text_config"].as_object_mut().unwrap().remove("vocab_size");
        let config = Config::from_value(whole).unwrap();
        assert_eq!(family_of(inside::GEMMA3), Some(Family::Gemma3));
        let shape = config.shape(Family::Gemma3).unwrap();
        assert_eq!((shape.vocab, shape.width, shape.layers), (262_208, 640, 26));
        assert_eq!((shape.heads, shape.kv_heads, shape.head_dim), (8, 4, 256));
        assert_eq!(shape.max_positions, 131_072);
        let quantised = json!({
            "architectures": [inside::GEMMA3], "text_config": {},
            "quantization_config": { "quant_method": "fp8" },
        });
        assert!(Config::from_value(quantised).unwrap().quantization_config.is_some());
        let llama = json!({ "architectures": ["LlamaForCausalLM"], "text_config": {} });
        assert!(Config::from_value(llama).is_err(), "others have nothing inside");
    }

    #[test]
    fn gemmas_that_are_other_models_are_refused() {
        let check = |family, changes: Value, field: &str| {
            let refusal = config(changes).refuse_variants(family).unwrap_err();
            assert_eq!(refusal.field, field);
        };
        check(Family::Gemma, json!({ "attn_logit_softcapping": 50.0 }), "attn_logit_softcapping");
        check(Family::Gemma, json!({ "final_logit_softcapping": 30.0 }), "final_logit_softcapping");
        let both_ways = json!({ "use_bidirectional_attention": true });
        check(Family::Gemma3, both_ways.clone(), "use_bidirectional_attention");
        assert_eq!(config(both_ways).refuse_variants(Family::Llama), Ok(()));
        check(Family::Llama, json!({ "is_causal": false }), "is_causal");
        check(Family::Olmoe, json!({ "clip_qkv": 0.0 }), "clip_qkv");
        check(Family::Llama, json!({ "clip_qkv": 8.0 }), "clip_qkv");
        let activation = |family, changes: Value| config(changes).activation(family).is_ok();
        assert!(activation(Family::Gemma, json!({ "hidden_act": "gelu" })));
        assert!(activation(
            Family::Gemma,
            json!({ "hidden_act": "gelu", "hidden_activation": "x" })
        ));
        assert!(!activation(Family::Gemma, json!({ "hidden_act": "silu" })));
        assert!(activation(Family::Gemma3, json!({ "hidden_act": "silu" })));
        assert!(!activation(Family::Gemma3, json!({ "hidden_activation": "gelu" })));
        assert!(!activation(Family::Llama, json!({ "hidden_act": "gelu_pytorch_tanh" })));
    }

    #[test]
    fn no_positions_are_refused() {
        let refusal = config(json!({ "max_position_embeddings": 0 })).shape(Family::Llama);
        assert_eq!(refusal.unwrap_err().field, "max_position_embeddings");
        assert_eq!(config(json!({})).shape(Family::Llama).unwrap().max_positions, 0, "unsaid");
    }

    #[test]
    fn what_stands_where_there_is_no_gate_is_what_the_file_says() {
        let check = |family, changes: Value, want: Result<Ungated, &str>| {
            let config = config(changes);
            let seen = config.activation(family).map_err(|(name, _)| name);
            assert_eq!(seen, want.map(Activation::Ungated), "{family:?}");
        };
        let act = |name: &str| json!({ "hidden_act": name });
        check(Family::GptNeoX, json!({}), Ok(Ungated::Gelu));
        check(Family::GptNeoX, json!({ "hidden_act": null }), Ok(Ungated::Gelu));
        check(Family::GptNeoX, act("gelu_fast"), Ok(Ungated::GeluTanh));
        check(Family::StarCoder2, json!({}), Ok(Ungated::GeluTanh));
        check(Family::StarCoder2, act("gelu"), Ok(Ungated::Gelu));
        check(Family::Phi, act("gelu_new"), Ok(Ungated::GeluTanh));
        check(Family::Nemotron, act("relu2"), Ok(Ungated::ReluSquared));
        check(Family::Opt, act("relu"), Ok(Ungated::Relu));
        for other in ["tanh", "silu", "quick_gelu", "xielu", "gelu_10"] {
            check(Family::Phi, act(other), Err(other));
        }
        for other in ["relu2", "silu", "gelu"] {
            check(Family::Apertus, act(other), Err(other));
        }
        let gated = config(act("relu2"));
        assert_eq!(gated.activation(Family::Llama), Err(("relu2", "silu")));
    }

    #[test]
    fn what_cannot_be_told_of_families_without_gates_is_refused() {
        let check = |family, changes: Value, field: Option<&str>| {
            let refused = config(changes).refuse_variants(family);
            assert_eq!(refused.err().as_ref().map(|it| it.field.as_str()), field, "{family:?}");
        };
        check(Family::Phi, json!({ "qk_layernorm": true }), Some("qk_layernorm"));
        check(Family::Phi, json!({ "qk_layernorm": false }), None);
        check(Family::Apertus, json!({}), Some("rope_parameters"));
        let linear = json!({ "rope_type": "linear", "factor": 2.0 });
        check(Family::Apertus, json!({ "rope_scaling": linear }), None);
        check(Family::Apertus, json!({ "rope_parameters": linear }), None);
    }

    #[test]
    fn gpt_neox_has_names_of_its_own_for_its_rotation() {
        let rope = |family: Family, changes: Value| {
            let mut fields = json!({ "max_position_embeddings": 512, "hidden_size": 64 });
            fields.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            let config = config(fields);
            let shape = config.shape(family).unwrap();
            let found = rope::rope(&config.rope, &shape, family.rope()).ok().unwrap();
            (found.rotary_dim, found.rope)
        };
        let turned = |theta, dim| (dim, Rope::scaled(theta, dim as usize, &Scaling::None).unwrap());
        let old = json!({ "rotary_emb_base": 1e5, "rotary_pct": 0.5 });
        assert_eq!(rope(Family::GptNeoX, old.clone()), turned(1e5, 8));
        assert_eq!(rope(Family::GptNeoX, json!({})), turned(1e4, 4));
        assert_eq!(rope(Family::Llama, old), turned(1e4, 16));
        let new = json!({ "rope_theta": 1e6, "partial_rotary_factor": 0.25 });
        let new = json!({ "rope_parameters": new, "rotary_pct": 0.5 });
        assert_eq!(rope(Family::GptNeoX, new), turned(1e6, 4));
    }

    #[test]
    fn command_r_was_made_for_more_positions_than_its_oldest_field_says() {
        let fields = || json!({ "max_position_embeddings": 8192, "model_max_length": 131_072 });
        let positions = |family| config(fields()).shape(family).unwrap().max_positions;
        assert_eq!([Family::Cohere, Family::Llama].map(positions), [131_072, 8192]);
        for odd in [json!(1e30), json!(512.5), json!(1_u64 << 32), json!(-1), json!("all")] {
            let fields = || json!({ "max_position_embeddings": 8192, "model_max_length": odd });
            let shape = |family| config(fields()).shape(family);
            assert_eq!(shape(Family::Llama).unwrap().max_positions, 8192, "{odd}");
            let refusal = shape(Family::Cohere).unwrap_err();
            assert_eq!(
                (refusal.field, refusal.value),
                ("model_max_length".into(), odd.to_string())
            );
        }
        let none = json!({ "max_position_embeddings": 8192, "model_max_length": null });
        assert_eq!(config(none).shape(Family::Cohere).unwrap().max_positions, 8192);
    }

    #[test]
    fn some_turn_their_windows_by_another_rope() {
        let ropes = |changes: Value| {
            let mut fields = json!({ "max_position_embeddings": 131_072, "head_dim": 16 });
            fields.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            let config = config(fields);
            let shape = config.shape(Family::Gemma3).unwrap();
            let defaults = Family::Gemma3.rope();
            let local_theta = Some(LOCAL_THETA);
            rope::ropes_by_layer_type(&config.rope, [&shape; 2], defaults, local_theta).ok()
        };
        let (found, local) = ropes(json!({})).unwrap();
        assert_eq!((&found.rope, &local), (&Rope::unscaled(1e6, 16), &Rope::unscaled(1e4, 16)));
        let old = json!({
            "rope_theta": 2e6, "rope_local_base_freq": 3e4,
            "rope_scaling": { "rope_type": "linear", "factor": 8.0 },
        });
        let new = json!({ "rope_parameters": {
            "full_attention": { "rope_type": "linear", "factor": 8.0, "rope_theta": 2e6 },
            "sliding_attention": { "rope_type": "default", "rope_theta": 3e4 },
        } });
        let (found, local) = ropes(old.clone()).unwrap();
        assert_eq!(found.rope.inv_freq[0], 1.0 / 8.0);
        assert_eq!(found.positions, 131_072, "as many as its file says");
        assert_eq!(local, Rope::unscaled(3e4, 16));
        assert_eq!(ropes(new.clone()), ropes(old));
        let olmo3 = |changes: Value| {
            let config = config(changes);
            let shape = config.shape(Family::Olmo3).unwrap();
            rope::ropes_by_layer_type(&config.rope, [&shape; 2], Family::Olmo3.rope(), None).ok()
        };
        let linear = json!({ "rope_type": "linear", "factor": 8.0 });
        let (found, local) = olmo3(json!({ "rope_theta": 2e6, "rope_scaling": linear })).unwrap();
        assert_eq!((found.rope.inv_freq[0], local), (1.0 / 8.0, Rope::unscaled(2e6, 8)));
        let (found, local) = olmo3(json!({})).unwrap();
        assert_eq!((found.rope, local), (Rope::unscaled(5e5, 8), Rope::unscaled(5e5, 8)));
        let mut both = new;
        both["rope_scaling"] = json!({ "factor": 4.0 });
        assert_eq!(ropes(both).unwrap().0.rope.inv_freq[0], 1.0 / 4.0);
    }

    #[test]
    fn alpha_stretches_theta_in_hunyuan() {
        let rope = |family: Family, alpha: Value| {
            let scaling = json!({ "type": "dynamic", "factor": 1.0, "alpha": alpha });
            let config = config(json!({
                "rope_scaling": scaling, "head_dim": 8, "max_position_embeddings": 64,
            }));
            let shape = config.shape(family).unwrap();
            let found = config.ropes(family, &shape).map(|(found, _)| found.rope);
            found.map_err(|error| match error {
                RopeError::Type(what) | RopeError::Malformed(what) => what,
                RopeError::Refused(refusal) => refusal.field,
            })
        };
        for family in [Family::HunYuan, Family::HunYuanMoe] {
            let theta = 1e4 * 1000_f64.powf(8.0 / 6.0);
            assert_eq!(rope(family, json!(1000.0)), Ok(Rope::unscaled(theta, 8)));
            assert_eq!(rope(family, json!(0.5)), Err("alpha".to_owned()));
            for none in [json!(null), json!(0.0)] {
                assert_eq!(rope(family, none), Ok(Rope::unscaled(1e4, 8)));
            }
        }
        assert_eq!(rope(Family::Llama, json!(1000.0)), Ok(Rope::unscaled(1e4, 8)));
        // Without it, it would be another rotation for every length above an unknown one.
        let scaling = json!({ "type": "dynamic", "factor": 2.0 });
        let config = config(json!({ "rope_scaling": scaling }));
        let shape = config.shape(Family::Llama).unwrap();
        match config.ropes(Family::Llama, &shape) {
            Err(RopeError::Refused(refusal)) => {
                assert_eq!(refusal.field, "max_position_embeddings");
            }
            other => panic!("{}", other.is_ok()),
        }
    }

    #[test]
    fn ministral_3_says_by_how_much_queries_grow() {
        let found = |changes: Value| {
            let whole = json!({ "architectures": ["Ministral3ForCausalLM"] });
            let Value::Object(mut whole) = whole else { unreachable!() };
            whole.extend(changes.as_object().unwrap().clone());
            let config = Config::from_value(Value::Object(whole)).unwrap();
            let shape = config.shape(Family::Ministral3).unwrap();
            let found = config.ropes(Family::Ministral3, &shape).map(|(found, _)| found);
            found.map_err(|error| match error {
                RopeError::Type(what) | RopeError::Malformed(what) => what,
                RopeError::Refused(refusal) => refusal.field,
            })
        };
        let published = found(json!({})).unwrap();
        let temperature = Temperature { beta: 0.1, every: 16_384 };
        assert_eq!(published.temperature, Some(temperature));
        assert_eq!((published.rope.attention_factor, published.positions), (1.0, 262_144));
        let yarn = json!({
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
        });
        let with = |field: &str, value: Value| {
            let mut yarn = yarn.clone();
            yarn[field] = value;
            found(json!({ "rope_parameters": yarn, "max_position_embeddings": 128 }))
        };
        let own = with("llama_4_scaling_beta", json!(0.25)).unwrap();
        assert_eq!(own.temperature, Some(Temperature { beta: 0.25, every: 32 }));
        let none = with("factor", json!(4.0)).unwrap_err();
        assert_eq!(none, "rope_parameters: llama_4_scaling_beta is missing");
        let odd = with("llama_4_scaling_beta", json!(-1.0)).unwrap_err();
        assert_eq!(odd, "attention temperature scale");
        // Others have the field in their files, and no use for it.
        let mut others = yarn.clone();
        others["llama_4_scaling_beta"] = json!(0.1);
        let others = json!({
            "rope_parameters": others, "max_position_embeddings": 128, "num_key_value_heads": 2,
        });
        let config = config(others);
        let shape = config.shape(Family::Mistral).unwrap();
        let (found, _) = config.ropes(Family::Mistral, &shape).ok().unwrap();
        assert_eq!(found.temperature, None);
    }

    #[test]
    fn flat_parameters_are_of_layers_that_see_all_positions() {
        let check = |family: Family, changes: Value, named: Value| {
            let ropes = |changes: Value| {
                let config = config(changes);
                let shape = config.shape(family).unwrap();
                let local_theta = (family == Family::Gemma3).then_some(LOCAL_THETA);
                rope::ropes_by_layer_type(&config.rope, [&shape; 2], family.rope(), local_theta)
                    .ok()
            };
            let want = ropes(json!({ "rope_parameters": named }));
            assert!(want.is_some(), "{named}");
            assert_eq!(ropes(changes), want, "{named}");
        };
        let flat = json!({ "rope_type": "linear", "factor": 8.0, "rope_theta": 2e6 });
        let named = |local: Value| json!({ "full_attention": flat, "sliding_attention": local });
        let by = |theta: f64| named(json!({ "rope_theta": theta }));
        check(Family::Olmo3, json!({ "rope_parameters": flat }), by(2e6));
        check(Family::Gemma3, json!({ "rope_parameters": flat }), by(1e4));
        let local = json!({ "rope_parameters": flat, "rope_local_base_freq": 3e4 });
        check(Family::Gemma3, local, by(3e4));
        let plain = json!({ "rope_type": "default", "rope_theta": 2e6 });
        let scaling = json!({ "rope_type": "linear", "factor": 8.0 });
        let beside = json!({ "rope_parameters": plain, "rope_scaling": scaling });
        check(Family::Olmo3, beside, by(2e6));
        let one = json!({ "rope_parameters": { "full_attention": flat, "rope_theta": 7.0 } });
        check(Family::Olmo3, one, by(5e5));
    }

    #[test]
    fn windows_that_make_no_sense_are_refused() {
        let check = |changes: Value, field: &str| {
            let refusal = config(changes).windows(Family::Qwen3, &[true; 3]).unwrap_err();
            assert_eq!(refusal.field, field);
        };
        check(json!({ "layer_types": ["full_attention"] }), "layer_types count");
        let odd = json!({ "layer_types": ["full_attention", "full_attention", "linear"] });
        check(odd, "layer_types");
        check(json!({ "sliding_window": 0, "use_sliding_window": true }), "sliding_window");
    }

    #[test]
    fn what_is_absent_is_what_transformers_takes() {
        let check = |family, changes: Value, want: (u32, u32)| {
            let shape = config(changes).shape(family).unwrap();
            assert_eq!((shape.kv_heads, shape.head_dim, shape.max_positions), (want.0, want.1, 0));
        };
        let (wide, null) = (
            json!({ "hidden_size": 256, "num_attention_heads": 64 }),
            json!({ "num_key_value_heads": null, "head_dim": null }),
        );
        check(Family::Llama, json!({}), (4, 8));
        check(Family::Mistral, wide.clone(), (8, 4));
        check(Family::Qwen2, wide.clone(), (32, 4));
        check(Family::Qwen3, wide, (32, 128));
        check(Family::Mistral, null.clone(), (4, 8));
        check(Family::Qwen3, null, (4, 8));
        let odd = config(json!({ "num_attention_heads": 5 })).shape(Family::Llama).unwrap_err();
        assert_eq!(odd.field, "hidden_size");
    }

    #[test]
    fn both_layouts_of_rope_are_read() {
        let rope = |changes: Value| {
            let config = config(changes);
            let shape = config.shape(Family::Llama).unwrap();
            rope::rope(&config.rope, &shape, Family::Llama.rope()).ok()
        };
        let old = rope(json!({
            "rope_theta": 5e5,
            "rope_scaling": { "rope_type": "linear", "type": "linear", "factor": 4.0 },
        }));
        let flat = json!({ "rope_theta": 5e5, "rope_type": "linear", "factor": 4.0 });
        let nested = json!({ "full_attention": flat, "sliding_attention": flat });
        assert!(old.is_some());
        assert_eq!(rope(json!({ "rope_parameters": flat })), old);
        assert_eq!(rope(json!({ "rope_parameters": nested })), old);
        let mut differing = nested;
        differing["sliding_attention"]["rope_theta"] = json!(1e4);
        assert_eq!(rope(json!({ "rope_parameters": differing })), None);
    }

    #[test]
    fn scaling_beside_parameters_leaves_what_it_does_not_say() {
        let scaling = json!({ "rope_type": "linear", "factor": 4.0 });
        let check = |changes: Value, (theta, rotary_dim): (f64, usize)| {
            let mut fields = json!({ "rope_scaling": scaling, "head_dim": 16 });
            fields.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            let config = config(fields.clone());
            let shape = config.shape(Family::Glm).unwrap();
            let found = rope::rope(&config.rope, &shape, Family::Glm.rope()).ok().unwrap();
            let want = Scaling::Linear { factor: 4.0 };
            let want = Rope::scaled(theta, rotary_dim, &want).unwrap();
            assert_eq!(found.rope, want, "{fields}");
        };
        let parameters = json!({ "rope_theta": 5e5, "partial_rotary_factor": 0.25 });
        check(json!({}), (1e4, 8));
        check(json!({ "rope_parameters": parameters }), (5e5, 4));
        check(json!({ "rope_parameters": parameters, "rope_theta": 2e6 }), (2e6, 4));
        let mut whole = scaling.clone();
        whole["rope_theta"] = json!(3e6);
        whole["partial_rotary_factor"] = json!(0.75);
        check(json!({ "rope_parameters": parameters, "rope_scaling": whole }), (3e6, 12));
    }

    #[test]
    fn yarn_says_by_how_much_it_stretches() {
        let refused = |changes: Value| {
            let mut fields = json!({ "max_position_embeddings": 32_768 });
            fields.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            let config = config(fields);
            let shape = config.shape(Family::Llama).unwrap();
            match rope::rope(&config.rope, &shape, Family::Llama.rope()) {
                Err(rope::RopeError::Malformed(what)) => what.contains("factor is missing"),
                _ => false,
            }
        };
        let original = "original_max_position_embeddings";
        let yarn = json!({ "rope_type": "yarn", "rope_theta": 1e6 });
        assert!(refused(json!({ "rope_scaling": yarn })));
        assert!(refused(json!({ "rope_parameters": yarn })));
        assert!(refused(json!({ "rope_parameters": { "rope_type": "yarn", original: 32_768 } })));
        assert!(!refused(json!({ "rope_parameters": { "rope_type": "yarn", original: 8192 } })));
    }

    #[test]
    fn bounds_of_yarn_that_are_0_are_the_usual_ones() {
        let yarn = |fast: Value, slow: Value| {
            let scaling = json!({
                "rope_type": "yarn", "factor": 4.0, "beta_fast": fast, "beta_slow": slow,
            });
            let changes = json!({
                "max_position_embeddings": 512, "head_dim": 64, "rope_scaling": scaling,
            });
            let config = config(changes);
            let shape = config.shape(Family::Llama).unwrap();
            rope::rope(&config.rope, &shape, Family::Llama.rope()).ok().unwrap()
        };
        let usual = yarn(json!(32), json!(1));
        assert_eq!(yarn(json!(0), json!(0.0)), usual);
        assert_eq!(yarn(Value::Null, Value::Null), usual);
        assert_ne!(yarn(json!(32), json!(2)), usual);
    }

    #[test]
    fn scaled_rotations_are_for_positions_that_are_told() {
        let check = |changes: Value, is_told: bool| {
            let config = config(changes);
            let shape = config.shape(Family::Llama).unwrap();
            match rope::rope(&config.rope, &shape, Family::Llama.rope()) {
                Err(rope::RopeError::Refused(refusal)) if !is_told => {
                    assert_eq!(refusal.field, "max_position_embeddings");
                    assert_eq!(refusal.value, "missing");
                }
                found => assert_eq!(found.is_ok(), is_told),
            }
        };
        let original = "original_max_position_embeddings";
        let yarn = json!({ "rope_type": "yarn", "factor": 4.0 });
        let llama3 = json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0 });
        for scaling in [yarn, llama3] {
            check(json!({ "rope_scaling": scaling }), false);
            check(json!({ "rope_parameters": scaling }), false);
            check(json!({ "rope_scaling": scaling, "max_position_embeddings": 512 }), true);
            check(json!({ "rope_scaling": scaling, original: 512 }), true);
        }
        let long = json!({ "rope_type": "longrope", "factor": 4.0, "short_factor": [1, 1, 1, 1],
            "long_factor": [2, 2, 2, 2] });
        check(json!({ "rope_scaling": long, original: 512 }), false);
        check(json!({ "rope_scaling": long, "max_position_embeddings": 512 }), true);
        check(json!({ "rope_scaling": { "rope_type": "linear", "factor": 4.0 } }), true);
    }

    #[test]
    fn scaled_rotations_are_for_more_positions() {
        let check = |scaling: Value, want: u32| {
            let changes = json!({ "max_position_embeddings": 32_768, "rope_scaling": scaling });
            let config = config(changes);
            let shape = config.shape(Family::Llama).unwrap();
            let found = rope::rope(&config.rope, &shape, Family::Llama.rope()).ok().unwrap();
            assert_eq!(found.positions, want, "{scaling}");
        };
        let original = "original_max_position_embeddings";
        check(Value::Null, 32_768);
        check(json!({ "type": "yarn", "factor": 4.0, original: 32_768 }), 131_072);
        check(json!({ "type": "yarn", "factor": 16.0, original: 8192 }), 131_072);
        check(json!({ "type": "yarn", "factor": 4.0, original: 8192 }), 32_768);
        check(json!({ "type": "yarn", "factor": 2.0 }), 65_536);
        check(json!({ "type": "linear", "factor": 2.5 }), 81_920);
        let llama3 = json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, original: 8192 });
        check(llama3, 32_768);
    }
}
