//! config.json of transformers 4 and 5.

use std::path::Path;

use aqueduct_core::{ModelShape, Refusal};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::rope::{self, RopeDefaults, RopeFields};
use super::{CONFIG_BYTES_MAX, read_json};
use crate::error::LoadError;
use crate::load::decoder::{
    Biases, Decoder, Family, HeadOrder, STILL_LAYER_INTERVAL, Scales, all_but_every,
};

const FAMILIES: &str = "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, \
     Qwen3ForCausalLM, Phi3ForCausalLM, GraniteForCausalLM, SmolLM3ForCausalLM, \
     GraniteMoeHybridForCausalLM (without experts), SeedOssForCausalLM, \
     Ernie4_5ForCausalLM, GlmForCausalLM";

/// The fields that are read; what transformers does when one is absent stands beside it.
#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    architectures: Vec<String>,
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
    #[serde(default = "silu")]
    hidden_act: String,
    #[serde(default)]
    max_position_embeddings: u32,
    rms_norm_eps: Option<f32>,
    attention_bias: Option<bool>,
    #[serde(default)]
    attention_out_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    /// Of every linear map (ERNIE).
    use_bias: Option<bool>,
    tie_word_embeddings: Option<bool>,
    layer_types: Option<Vec<String>>,
    /// Absent: as the family has it; null: none.
    #[serde(default, deserialize_with = "present")]
    sliding_window: Option<Option<u32>>,
    #[serde(default)]
    use_sliding_window: bool,
    max_window_layers: Option<u32>,
    /// Not 0 where a layer rotates (SmolLM3).
    no_rope_layers: Option<Vec<u32>>,
    #[serde(default = "default_interval")]
    no_rope_layer_interval: usize,
    /// What experts would share (Granite 4).
    #[serde(default = "default_shared")]
    shared_intermediate_size: u32,
    #[serde(default = "default_experts")]
    num_local_experts: u32,
    /// `rope`, or none at all (Granite 4).
    position_embedding_type: Option<String>,
    #[serde(default = "one")]
    embedding_multiplier: f32,
    #[serde(default = "one")]
    residual_multiplier: f32,
    #[serde(default = "one")]
    attention_multiplier: f32,
    #[serde(default = "one")]
    logits_scaling: f32,
    quantization_config: Option<Value>,
    #[serde(flatten)]
    rope: RopeFields,
}

/// Tells null (`Some(None)`) from absent (`None`, the default).
fn present<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Option<u32>>, D::Error> {
    Option::deserialize(value).map(Some)
}

fn silu() -> String {
    "silu".to_owned()
}

fn one() -> f32 {
    1.0
}

fn default_interval() -> usize {
    STILL_LAYER_INTERVAL
}

fn default_shared() -> u32 {
    1024
}

fn default_experts() -> u32 {
    8
}

/// Reads and validates the configuration at `path`.
pub(crate) fn read(path: &Path) -> Result<Decoder, LoadError> {
    let config: Config = read_json(path, CONFIG_BYTES_MAX)?;
    let unsupported = |what, name: &str, supported| LoadError::Unsupported {
        path: path.display().to_string(),
        what,
        name: name.to_owned(),
        supported,
    };
    let family = config.family().map_err(|name| unsupported("architecture", name, FAMILIES))?;
    if config.hidden_act != "silu" {
        return Err(unsupported("hidden_act", &config.hidden_act, "silu"));
    }
    if let Some(quantization) = &config.quantization_config {
        let name = quantization.get("quant_method").and_then(Value::as_str).unwrap_or("unnamed");
        return Err(unsupported("quantization", name, "none (f32, f16 or bf16 weights)"));
    }
    let refused = |refusal| LoadError::refused(&path.display().to_string(), refusal);
    config.refuse_hybrids(family).map_err(refused)?;
    let mut shape = config.shape(family).map_err(refused)?;
    let found = rope::rope(&config.rope, &shape, family.rope()).map_err(|error| match error {
        rope::RopeError::Type(name) => unsupported("rope type", &name, rope::TYPES),
        rope::RopeError::Malformed(what) => LoadError::malformed(path, what),
        rope::RopeError::Refused(refusal) => refused(refusal),
    })?;
    shape.max_positions = found.positions;
    let rotates = config.rotates(family).map_err(refused)?;
    Ok(Decoder {
        family,
        norm_eps: config.norm_eps(family).map_err(refused)?,
        rope: found.rope,
        windows: config.windows(family, &rotates).map_err(refused)?,
        rotates,
        order: HeadOrder {
            rotary_dim: found.rotary_dim,
            neighbours: matches!(family, Family::Ernie45 | Family::Glm),
        },
        scales: config.scales(family, &shape).map_err(refused)?,
        biases: config.biases(family),
        tied: config.tie_word_embeddings.unwrap_or(family.is_tied()),
        shape,
    })
}

/// What transformers' configurations of a family take where a file does not say.
impl Family {
    fn rope(self) -> RopeDefaults {
        RopeDefaults {
            theta: match self {
                Self::SmolLm3 => 2e6,
                Self::Ernie45 => 5e5,
                _ => 1e4,
            },
            partial: match self {
                Self::Glm => Some(0.5),
                Self::Phi3 => Some(1.0),
                _ => None,
            },
            original_positions: (self == Self::Phi3).then_some(4096.0),
            only_longrope: self == Self::Phi3,
        }
    }

    /// `None`: as many as there are query heads.
    fn kv_heads(self) -> Option<u32> {
        match self {
            Self::Llama | Self::Phi3 | Self::Granite | Self::Granite4 => None,
            Self::Ernie45 | Self::Glm => Some(2),
            Self::SmolLm3 => Some(4),
            Self::Mistral | Self::SeedOss => Some(8),
            Self::Qwen2 | Self::Qwen3 => Some(32),
        }
    }

    /// `None`: the width divided among the query heads.
    fn head_dim(self) -> Option<u32> {
        let has_own = matches!(self, Self::Qwen3 | Self::SeedOss | Self::Ernie45 | Self::Glm);
        has_own.then_some(128)
    }

    fn norm_eps(self) -> f32 {
        match self {
            Self::Phi3 | Self::Ernie45 => 1e-5,
            Self::Glm => 1.5625e-7,
            _ => 1e-6,
        }
    }

    fn is_tied(self) -> bool {
        matches!(self, Self::SmolLm3 | Self::Ernie45)
    }
}

impl Config {
    /// The family, or the name that is none.
    fn family(&self) -> Result<Family, &str> {
        match self.architectures.first().map_or("none", String::as_str) {
            "LlamaForCausalLM" => Ok(Family::Llama),
            "MistralForCausalLM" => Ok(Family::Mistral),
            "Qwen2ForCausalLM" => Ok(Family::Qwen2),
            "Qwen3ForCausalLM" => Ok(Family::Qwen3),
            "Phi3ForCausalLM" => Ok(Family::Phi3),
            "GraniteForCausalLM" => Ok(Family::Granite),
            "GraniteMoeHybridForCausalLM" => Ok(Family::Granite4),
            "SmolLM3ForCausalLM" => Ok(Family::SmolLm3),
            "SeedOssForCausalLM" => Ok(Family::SeedOss),
            "Ernie4_5ForCausalLM" | "Ernie4_5_ForCausalLM" => Ok(Family::Ernie45),
            "GlmForCausalLM" => Ok(Family::Glm),
            name => Err(name),
        }
    }

    /// Granite 4 has models of attention alone, and others.
    fn refuse_hybrids(&self, family: Family) -> Result<(), Refusal> {
        if family != Family::Granite4 {
            return Ok(());
        }
        Refusal::unless_within("num_local_experts", self.num_local_experts, 0, 0)?;
        let layers = self.num_hidden_layers as usize;
        let types = self.layer_types.as_deref().unwrap_or_default();
        Refusal::unless_within("layer_types count", types.len(), layers, layers)?;
        let is_attention = |name: &&String| matches!(name.as_str(), "attention" | "full_attention");
        match types.iter().find(|name| !is_attention(name)) {
            Some(name) => Err(Refusal::new("layer_types", name, "attention, in every layer")),
            None => Ok(()),
        }
    }

    fn shape(&self, family: Family) -> Result<ModelShape, Refusal> {
        let heads = self.num_attention_heads;
        let head_dim = match self.head_dim.unwrap_or(family.head_dim()) {
            Some(head_dim) => head_dim,
            None if heads == 0 || !self.hidden_size.is_multiple_of(heads) => {
                let bound = format!("a multiple of num_attention_heads = {heads}");
                return Err(Refusal::new("hidden_size", self.hidden_size, bound));
            }
            None => self.hidden_size / heads,
        };
        let shape = ModelShape {
            vocab: self.vocab_size,
            layers: self.num_hidden_layers,
            width: self.hidden_size,
            heads,
            kv_heads: self.num_key_value_heads.unwrap_or(family.kv_heads()).unwrap_or(heads),
            head_dim,
            ffn: match family {
                Family::Granite4 => self.shared_intermediate_size,
                _ => self.intermediate_size,
            },
            max_positions: self.max_position_embeddings,
        };
        shape.validate()?;
        Ok(shape)
    }

    fn norm_eps(&self, family: Family) -> Result<f32, Refusal> {
        let norm_eps = self.rms_norm_eps.unwrap_or(family.norm_eps());
        Refusal::unless_within("rms_norm_eps", norm_eps, 0.0, 1.0)
    }

    fn scales(&self, family: Family, shape: &ModelShape) -> Result<Scales, Refusal> {
        match family {
            Family::Granite | Family::Granite4 => Scales {
                embed: self.embedding_multiplier,
                residual: self.residual_multiplier,
                attention: self.attention_multiplier,
                logits: self.logits_scaling,
            }
            .checked(),
            _ => Ok(Scales::usual(shape.head_dim)),
        }
    }

    /// Per layer: whether it rotates.
    fn rotates(&self, family: Family) -> Result<Vec<bool>, Refusal> {
        let layers = self.num_hidden_layers as usize;
        match (family, &self.no_rope_layers) {
            (Family::SmolLm3, Some(rotates)) => {
                let count = rotates.len();
                Refusal::unless_within("no_rope_layers count", count, layers, usize::MAX)?;
                Ok(rotates.iter().take(layers).map(|&rotates| rotates != 0).collect())
            }
            (Family::SmolLm3, None) => {
                let most = u32::MAX as usize;
                let interval = self.no_rope_layer_interval;
                Refusal::unless_within("no_rope_layer_interval", interval, 1, most)?;
                Ok(all_but_every(interval, self.num_hidden_layers))
            }
            (Family::Granite4, _) => {
                let rotates = self.position_embedding_type.as_deref() == Some("rope");
                Ok(vec![rotates; layers])
            }
            _ => Ok(vec![true; layers]),
        }
    }

    fn biases(&self, family: Family) -> Biases {
        let attention = self.attention_bias;
        let is_biased = attention.unwrap_or(false);
        let both =
            |attention, mlp| Biases { qkv: attention, out: attention, gate_up: mlp, down: mlp };
        match family {
            Family::Llama | Family::Granite | Family::SmolLm3 => both(is_biased, self.mlp_bias),
            Family::Granite4 => both(is_biased, false),
            Family::Mistral | Family::Phi3 => Biases::default(),
            Family::Qwen2 => Biases { qkv: true, ..Biases::default() },
            Family::Qwen3 => both(is_biased, false),
            Family::SeedOss => Biases {
                qkv: attention.unwrap_or(true),
                out: self.attention_out_bias,
                ..both(false, self.mlp_bias)
            },
            Family::Ernie45 => {
                let is_biased = self.use_bias.unwrap_or(false);
                both(is_biased, is_biased)
            }
            Family::Glm => Biases { qkv: attention.unwrap_or(true), ..Biases::default() },
        }
    }

    /// Per layer, as each family's modelling code decides it.
    fn windows(&self, family: Family, rotates: &[bool]) -> Result<Vec<Option<u32>>, Refusal> {
        let given = self.sliding_window;
        let window = match family {
            Family::Mistral => given.unwrap_or(Some(4096)),
            Family::Phi3 => given.flatten(),
            Family::Qwen2 | Family::Qwen3 => {
                given.unwrap_or(Some(4096)).filter(|_| self.use_sliding_window)
            }
            // Named layers slide whether the window is used or not.
            Family::SmolLm3 => {
                given.flatten().filter(|_| self.use_sliding_window || self.layer_types.is_some())
            }
            Family::Llama | Family::Granite | Family::Granite4 => None,
            Family::SeedOss | Family::Ernie45 | Family::Glm => None,
        };
        if window == Some(0) {
            return Err(Refusal::new("sliding_window", 0, "null or at least 1"));
        }
        let layers = self.num_hidden_layers as usize;
        let slides = match (family, &self.layer_types) {
            (Family::SmolLm3, None) => rotates.iter().map(|rotates| !rotates).collect(),
            (Family::Qwen2 | Family::Qwen3, None) => (0..layers)
                .map(|idx| idx >= self.max_window_layers.unwrap_or(28) as usize)
                .collect(),
            (Family::Qwen2 | Family::Qwen3 | Family::SmolLm3, Some(types)) => {
                Refusal::unless_within("layer_types count", types.len(), layers, layers)?;
                types.iter().map(|name| slides(name)).collect::<Result<_, _>>()?
            }
            _ => vec![true; layers],
        };
        Ok(slides.into_iter().map(|slides| window.filter(|_| slides)).collect())
    }
}

fn slides(layer_type: &str) -> Result<bool, Refusal> {
    match layer_type {
        "full_attention" => Ok(false),
        "sliding_attention" => Ok(true),
        name => Err(Refusal::new("layer_types", name, "full_attention or sliding_attention")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(changes: Value) -> Config {
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
        check(Family::Qwen2, named, none);
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
    fn granite_4_is_served_where_it_is_attention_alone() {
        let granite = |changes: Value| {
            let mut all = json!({
                "num_local_experts": 0, "layer_types": ["attention", "attention", "attention"],
                "shared_intermediate_size": 20, "position_embedding_type": "rope",
            });
            all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            config(all)
        };
        let plain = granite(json!({}));
        assert_eq!(plain.refuse_hybrids(Family::Granite4), Ok(()));
        assert_eq!(plain.shape(Family::Granite4).unwrap().ffn, 20);
        assert_eq!(plain.rotates(Family::Granite4).unwrap(), [true; 3]);
        let still = granite(json!({ "position_embedding_type": "nope" }));
        assert_eq!(still.rotates(Family::Granite4).unwrap(), [false; 3]);
        for (changes, field) in [
            (json!({ "num_local_experts": 4 }), "num_local_experts"),
            (json!({ "layer_types": ["attention", "mamba", "attention"] }), "layer_types"),
            (json!({ "layer_types": null }), "layer_types count"),
        ] {
            let refusal = granite(changes).refuse_hybrids(Family::Granite4).unwrap_err();
            assert_eq!(refusal.field, field);
        }
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
            assert_eq!(config.scales(Family::Granite, &shape).unwrap_err().field, of);
            let usual = config.scales(Family::Llama, &shape).unwrap();
            assert_eq!(usual, Scales::usual(8), "{field} is Granite's alone");
        }
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
