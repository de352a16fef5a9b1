//! config.json of transformers 4 and 5.

use std::path::Path;

use aqueduct_core::{ModelShape, Refusal};
use serde::Deserialize;
use serde_json::Value;

use super::rope::{self, RopeFields};
use super::{CONFIG_BYTES_MAX, read_json};
use crate::error::LoadError;
use crate::load::decoder::{Biases, Decoder, Family};

const FAMILIES: &str = "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM";

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
    /// As many as `num_attention_heads`.
    num_key_value_heads: Option<u32>,
    /// `hidden_size / num_attention_heads`.
    head_dim: Option<u32>,
    #[serde(default = "silu")]
    hidden_act: String,
    #[serde(default)]
    max_position_embeddings: u32,
    #[serde(default = "default_eps")]
    rms_norm_eps: f32,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    tie_word_embeddings: bool,
    layer_types: Option<Vec<String>>,
    #[serde(default = "default_window")]
    sliding_window: Option<u32>,
    #[serde(default)]
    use_sliding_window: bool,
    #[serde(default = "default_window_layers")]
    max_window_layers: u32,
    quantization_config: Option<Value>,
    #[serde(flatten)]
    rope: RopeFields,
}

fn silu() -> String {
    "silu".to_owned()
}

fn default_eps() -> f32 {
    1e-6
}

fn default_window() -> Option<u32> {
    Some(4096)
}

fn default_window_layers() -> u32 {
    28
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
    let shape = config.shape().map_err(refused)?;
    let rope = rope::rope(&config.rope, &shape).map_err(|error| match error {
        rope::RopeError::Type(name) => unsupported("rope type", &name, rope::TYPES),
        rope::RopeError::Malformed(what) => LoadError::malformed(path, what),
        rope::RopeError::Refused(refusal) => refused(refusal),
    })?;
    Ok(Decoder {
        family,
        norm_eps: config.norm_eps().map_err(refused)?,
        rope,
        windows: config.windows(family).map_err(refused)?,
        biases: config.biases(family),
        tied: config.tie_word_embeddings,
        shape,
    })
}

impl Config {
    /// The family, or the name that is none.
    fn family(&self) -> Result<Family, &str> {
        match self.architectures.first().map_or("none", String::as_str) {
            "LlamaForCausalLM" => Ok(Family::Llama),
            "MistralForCausalLM" => Ok(Family::Mistral),
            "Qwen2ForCausalLM" => Ok(Family::Qwen2),
            "Qwen3ForCausalLM" => Ok(Family::Qwen3),
            name => Err(name),
        }
    }

    fn shape(&self) -> Result<ModelShape, Refusal> {
        let heads = self.num_attention_heads;
        let head_dim = match self.head_dim {
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
            kv_heads: self.num_key_value_heads.unwrap_or(heads),
            head_dim,
            ffn: self.intermediate_size,
            max_positions: self.max_position_embeddings,
        };
        shape.validate()?;
        Ok(shape)
    }

    fn norm_eps(&self) -> Result<f32, Refusal> {
        Refusal::unless_within("rms_norm_eps", self.rms_norm_eps, 0.0, 1.0)
    }

    fn biases(&self, family: Family) -> Biases {
        match family {
            Family::Llama => Biases {
                qkv: self.attention_bias,
                out: self.attention_bias,
                gate_up: self.mlp_bias,
                down: self.mlp_bias,
            },
            Family::Mistral => Biases::default(),
            Family::Qwen2 => Biases { qkv: true, ..Biases::default() },
            Family::Qwen3 => {
                let bias = self.attention_bias;
                Biases { qkv: bias, out: bias, ..Biases::default() }
            }
        }
    }

    /// Per layer, as each family's modelling code decides it.
    fn windows(&self, family: Family) -> Result<Vec<Option<u32>>, Refusal> {
        let window = match family {
            Family::Llama => None,
            Family::Mistral => self.sliding_window,
            Family::Qwen2 | Family::Qwen3 => {
                self.sliding_window.filter(|_| self.use_sliding_window)
            }
        };
        if window == Some(0) {
            return Err(Refusal::new("sliding_window", 0, "null or at least 1"));
        }
        let layers = self.num_hidden_layers as usize;
        let slides = match (family, &self.layer_types) {
            (Family::Llama | Family::Mistral, _) => vec![true; layers],
            (_, None) => (0..layers).map(|idx| idx >= self.max_window_layers as usize).collect(),
            (_, Some(types)) => {
                Refusal::unless_within("layer_types count", types.len(), layers, layers)?;
                types.iter().map(|name| slides(name)).collect::<Result<_, _>>()?
            }
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
