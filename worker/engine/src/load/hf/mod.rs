//! A Hugging Face folder: config.json, and one or several files of safetensors or of PyTorch.

mod apertus;
mod aria;
mod codegen;
mod config;
mod dbrx;
mod eight_bits;
mod four_bits;
mod gpt2;
mod gpt_oss;
mod llama4;
mod olmo_hybrid;
mod packed;
mod phi4;
mod qwen3_vl;
mod rope;
mod safetensors;
mod shards;
mod ternary;
mod torch;

use std::path::Path;

use aqueduct_core::plain_json;

use super::assemble::{Sources, assemble};
use super::checkpoint::Checkpoint;
use super::decoder::{Decoder, Family};
use super::names::Names;
use super::{LoadOptions, LoadProgress, folded, names};
use crate::error::LoadError;
use crate::model::Model;

/// What makes a folder one of these.
const CONFIG: &str = "config.json";
/// More than any configuration has.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// What stands before the names of a text model inside of another.
const WRAPPED: [(&str, &str); 8] = [
    ("language_model.", ""),
    ("model.language_model.", "model."),
    ("model.text_model.", "model."),             // SmolVLM's
    ("llm.", ""),                                // Ovis'
    ("thinker.model.language_model.", "model."), // that of Qwen Omni
    ("thinker.language_model.", ""),
    ("thinker.model.", "model."),
    ("thinker.lm_head.", "lm_head."),
];

/// Loads the model in `folder`.
pub(crate) fn load(
    folder: &Path,
    options: &LoadOptions,
    report: &mut dyn FnMut(LoadProgress),
) -> Result<Model, LoadError> {
    let config = folder.join(CONFIG);
    if !config.is_file() {
        let what = "not a model: looked for config.json with weights, and for a .gguf file";
        return Err(LoadError::malformed(folder, what));
    }
    let (mut decoder, quantized) = config::read(&config)?;
    let shards = shards::Shards::open(folder)?;
    let mut checkpoint = shards.checkpoint()?;
    checkpoint.lift(&WRAPPED);
    lift_base(&mut checkpoint);
    if decoder.family == Family::Gemma4 {
        checkpoint.open("moe"); // as some quantised files have it
    }
    if decoder.family == Family::Phi3 {
        phi4::leave_adapters(&mut checkpoint);
    }
    ternary::join(&mut checkpoint, quantized)?;
    four_bits::join(&mut checkpoint)?;
    packed::join(&mut checkpoint, quantized)?;
    eight_bits::join(&mut checkpoint, quantized)?;
    if decoder.family == Family::GptOss {
        gpt_oss::take_apart(&mut checkpoint, &decoder)?;
    }
    if decoder.family == Family::Llama4 {
        llama4::take_apart(&mut checkpoint, &decoder)?;
    }
    if decoder.family == Family::Qwen3Moe {
        qwen3_vl::take_apart(&mut checkpoint, &decoder)?;
    }
    if let (Family::AxK1, Some(experts)) = (decoder.family, &mut decoder.experts) {
        experts.bias = checkpoint.has_some(names::HF_AX_K1.experts.bias);
    }
    if decoder.family == Family::Aria {
        aria::take_apart(&mut checkpoint, &decoder)?;
    }
    if decoder.family == Family::Dbrx {
        dbrx::take_apart(&mut checkpoint, &decoder)?;
    }
    if decoder.family == Family::GptJ {
        codegen::take_apart(&mut checkpoint, &decoder)?;
    }
    if decoder.family == Family::GptNeoX {
        checkpoint.lift(&[("embed_out.", "lm_head.")]);
    }
    if decoder.family == Family::Falcon {
        decoder.two_norms = checkpoint.has_some(names::FALCON_FFN_NORM);
    }
    if decoder.family == Family::Gpt2 {
        gpt2::turn(&mut checkpoint);
    }
    if decoder.family == Family::Apertus {
        apertus::activations(&checkpoint, &mut decoder)?;
    }
    if let (Family::OlmoHybrid, Some(recurrents)) = (decoder.family, &decoder.recurrent) {
        olmo_hybrid::name_norms(&mut checkpoint, recurrents);
    }
    if decoder.family == Family::FalconH1 {
        folded::part_sides(&mut checkpoint, "model.layers", ["input_layernorm.weight", "mamba."]);
    } else if let Some(folded) = &decoder.folded {
        checkpoint.lift(&[("backbone.", ""), ("model.", "")]); // as NVIDIA and transformers say
        folded.number(&mut checkpoint, "layers", ["norm.weight", "feed_norm.weight"]);
    }
    let names = names_of(&decoder, &checkpoint);
    assemble(&Sources::new(decoder, checkpoint, names)?, options, report)
}

/// What its tensors are called.
fn names_of(decoder: &Decoder, checkpoint: &Checkpoint<'_>) -> &'static Names {
    match decoder.family {
        Family::StableLm => &names::HF_STABLELM,
        Family::StarCoder2 => &names::HF_STARCODER2,
        Family::GptNeoX => &names::HF_GPT_NEOX,
        Family::Falcon if decoder.two_norms => &names::HF_FALCON_TWO,
        Family::Falcon => &names::HF_FALCON,
        Family::GptJ => &names::HF_GPTJ,
        Family::Gpt2 | Family::GptBigCode => &names::HF_GPT2,
        Family::GptNeo => &names::HF_GPT_NEO,
        Family::Opt => &names::HF_OPT,
        Family::Bloom => &names::HF_BLOOM,
        Family::Mpt => &names::HF_MPT,
        Family::Exaone => &names::HF_EXAONE,
        Family::InternLm2 => &names::HF_INTERNLM2,
        Family::Llama4 => &names::HF_LLAMA4,
        Family::Phi => &names::HF_PHI,
        Family::Apertus => &names::HF_APERTUS,
        Family::Granite4 => &names::HF_GRANITE4,
        Family::HyperClovaX => &names::HF_HYPERCLOVAX,
        Family::VaultGemma => &names::HF_VAULTGEMMA,
        Family::Flint => &names::HF_FLINT,
        Family::NanoChat => &names::HF_NANOCHAT,
        Family::Aria => &names::HF_ARIA,
        Family::HyV3 => &names::HF_HY_V3,
        Family::AxK1 => &names::HF_AX_K1,
        Family::Afmoe => &names::HF_AFMOE,
        Family::GraniteMoeShared => &names::HF_GRANITE4,
        Family::GraniteMoeSwa => &names::HF_GRANITE_MOE_SWA,
        Family::Qwen3Next => &names::HF_QWEN3_NEXT,
        Family::Qwen35 | Family::Qwen35Moe => &names::HF_QWEN35,
        Family::LaraMini => &names::HF_LARA_MINI,
        Family::Lfm2 | Family::Lfm2Moe => &names::HF_LFM2,
        Family::Lfm3 => &names::HF_LFM3,
        Family::Bamba | Family::FalconH1 => &names::HF_BAMBA,
        Family::OlmoHybrid => &names::HF_OLMO_HYBRID,
        Family::NemotronH => &names::HF_NEMOTRON_H,
        Family::Glm4 => &names::HF_GLM4,
        Family::Gemma2 | Family::Gemma3 => &names::HF_GEMMA3,
        Family::Gemma4 => &names::HF_GEMMA4,
        Family::GptOss => &names::HF_GPT_OSS,
        Family::Olmo2 | Family::Olmo3 | Family::FlexOlmo | Family::Exaone4 => &names::HF_OLMO2,
        // Else as its modules are called today.
        Family::Mixtral if checkpoint.has_some("block_sparse_moe") => &names::HF_MIXTRAL,
        Family::Phimoe if checkpoint.has_some("block_sparse_moe") => &names::HF_MIXTRAL,
        Family::Phimoe => &names::HF_GPT_OSS, // whose router is called so
        Family::Dbrx => &names::HF_DBRX,
        Family::BitNet => &names::HF_BITNET,
        Family::MiniMaxM2 if checkpoint.has_some("block_sparse_moe") => &names::HF_MINIMAX_M2,
        Family::MiniMaxM2 | Family::ExaoneMoe => &names::HF_EXAONE_MOE,
        Family::Ernie45Moe => &names::HF_ERNIE45_MOE,
        Family::HunYuan | Family::HunYuanMoe => &names::HF_HUNYUAN,
        Family::GraniteMoe => &names::HF_GRANITE_MOE,
        Family::Glm4Moe if checkpoint.has_some("attention.query_key_value") => &names::HF_SARVAM,
        Family::Glm4Moe | Family::Dots1 | Family::SolarOpen => &names::HF_GLM4_MOE,
        Family::DeepSeekV2 | Family::DeepSeekV3 | Family::Glm4MoeLite => &names::HF_GLM4_MOE,
        Family::Mistral4 | Family::Cohere2Moe => &names::HF_GLM4_MOE,
        _ => &names::HF,
    }
}

/// Base classes are saved without the name under which a head has them: `model` in most families,
/// `transformer` where GPT-2's names are. GPT-NeoX's is served with its head alone.
fn lift_base(checkpoint: &mut Checkpoint<'_>) {
    let has = |name: &str| checkpoint.tensors.contains_key(name);
    let names: &[_] = if has("embed_tokens.weight") && !has("model.embed_tokens.weight") {
        &[
            ("embed_tokens.", "model.embed_tokens."),
            ("layers.", "model.layers."),
            ("norm.", "model.norm."),
            ("final_layernorm.", "model.final_layernorm."), // Phi's
            ("embedding_norm.", "model.embedding_norm."),   // LFM2's
        ]
    } else if has("wte.weight") {
        &[
            ("wte.", "transformer.wte."),
            ("wpe.", "transformer.wpe."),
            ("h.", "transformer.h."),
            ("ln_f.", "transformer.ln_f."),
            ("blocks.", "transformer.blocks."), // MPT's
            ("norm_f.", "transformer.norm_f."),
        ]
    } else if has("word_embeddings_layernorm.weight") {
        &[
            ("word_embeddings.", "transformer.word_embeddings."),
            ("word_embeddings_layernorm.", "transformer.word_embeddings_layernorm."),
            ("h.", "transformer.h."),
            ("ln_f.", "transformer.ln_f."),
        ]
    } else if has("decoder.embed_tokens.weight") {
        &[("decoder.", "model.decoder.")] // OPT's
    } else {
        &[]
    };
    checkpoint.lift(names);
}

/// A JSON file of at most `bytes_max` bytes.
fn read_json<T: serde::de::DeserializeOwned>(path: &Path, bytes_max: u64) -> Result<T, LoadError> {
    let io = |err| LoadError::io(path, err);
    let bytes = std::fs::metadata(path).map_err(io)?.len();
    if bytes > bytes_max {
        let what = format!("{bytes} bytes: must be at most {bytes_max}");
        return Err(LoadError::malformed(path, what));
    }
    let text = std::fs::read(path).map_err(io)?;
    serde_json::from_slice(&plain_json(&text))
        .map_err(|err| LoadError::malformed(path, err.to_string()))
}
