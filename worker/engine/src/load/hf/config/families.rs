//! What transformers' configurations of a family take where a file does not say.

use serde_json::Value;

use super::{
    alibi, cohere_compass, falcon_h1, inside, mamba2, nemotron_h, newer, older, relatives,
};
use crate::load::decoder::Family;
use crate::load::hf::rope::RopeDefaults;

pub(super) const FAMILIES: &str = "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, \
     Qwen3ForCausalLM, Phi3ForCausalLM, GraniteForCausalLM, SmolLM3ForCausalLM, \
     GraniteMoeHybridForCausalLM, SeedOssForCausalLM, Ernie4_5ForCausalLM, GlmForCausalLM, \
     Glm4ForCausalLM, GemmaForCausalLM, Gemma3ForCausalLM, Gemma4ForCausalLM, \
     Gemma4UnifiedForCausalLM, VaultGemmaForCausalLM, HyperCLOVAXForCausalLM, \
     GraniteMoeSharedForCausalLM, GraniteSWAForCausalLM, GraniteMoeSWAForCausalLM, \
     MellumForCausalLM, FlintForCausalLM, AfmoeForCausalLM, HYV3ForCausalLM, MixtralForCausalLM, \
     Qwen2MoeForCausalLM, Qwen3MoeForCausalLM, GraniteMoeForCausalLM, Glm4MoeForCausalLM, \
     MinistralForCausalLM, CwmForCausalLM, HeliumForCausalLM, Dots1ForCausalLM, \
     SolarOpenForCausalLM, Olmo2ForCausalLM, Olmo3ForCausalLM, OlmoeForCausalLM, \
     FlexOlmoForCausalLM, Exaone4ForCausalLM, ExaoneMoeForCausalLM, Ernie4_5_MoeForCausalLM, \
     MiniMaxM2ForCausalLM, Gemma2ForCausalLM, GptOssForCausalLM, CohereForCausalLM, \
     Cohere2ForCausalLM, Cohere2MoeForCausalLM, OlmoForCausalLM, StableLmForCausalLM, \
     Starcoder2ForCausalLM, GPTNeoXForCausalLM, PhiForCausalLM, NemotronForCausalLM, \
     ArceeForCausalLM, ApertusForCausalLM, Jais2ForCausalLM, DeepseekV2ForCausalLM, \
     DeepseekV3ForCausalLM (Kimi K2 too), AXK1ForCausalLM, Glm4MoeLiteForCausalLM, \
     YoutuForCausalLM, MiniCPM3ForCausalLM, Ministral3ForCausalLM, NanoChatForCausalLM, \
     HunYuanDenseV1ForCausalLM, HunYuanMoEV1ForCausalLM, FalconForCausalLM, \
     GPTJForCausalLM, CodeGenForCausalLM, AriaTextForCausalLM, Llama4ForCausalLM, \
     Mistral4ForCausalLM, InternLM3ForCausalLM, IQuestCoderForCausalLM, GPT2LMHeadModel, \
     GPTBigCodeForCausalLM, GPTNeoForCausalLM, OPTForCausalLM, BloomForCausalLM, \
     MptForCausalLM, ExaoneForCausalLM, \
     InternLM2ForCausalLM, MiniCPMForCausalLM, Qwen3NextForCausalLM, Qwen3_5ForCausalLM, \
     Qwen3_5MoeForCausalLM, LaraMiniForCausalLM, Lfm2ForCausalLM, Lfm2MoeForCausalLM, \
     Lfm3ForCausalLM, BambaForCausalLM, FalconH1ForCausalLM, OlmoHybridForCausalLM, \
     NemotronHForCausalLM, Mamba2ForCausalLM, PhimoeForCausalLM, DbrxForCausalLM, \
     BitNetForCausalLM, \
     SarvamMoEForCausalLM, SarvamMLAForCausalLM, Phi4MultimodalForCausalLM, Phi4MMForCausalLM, \
     Apertus1p5TextForCausalLM, CohereCompassForCausalLM, \
     and what reads text of Apertus1p5ForConditionalGeneration, AriaForConditionalGeneration, \
     CohereCompassForConditionalGeneration, \
     Gemma3ForConditionalGeneration, Gemma4ForConditionalGeneration, \
     Gemma4UnifiedForConditionalGeneration, Llama4ForConditionalGeneration, \
     Mistral3ForConditionalGeneration (Ministral 3 and Mistral 4 too), \
     Qwen2VLForConditionalGeneration, Qwen2_5_VLForConditionalGeneration, \
     Qwen3VLForConditionalGeneration, Qwen3_5ForConditionalGeneration, \
     Qwen3_5MoeForConditionalGeneration, and of others, where the text model inside is one of \
     these: AyaVision, Cohere2Vision, DeepseekVL, DeepseekVLHybrid, Exaone4_5_, FastVlm, Glm46V, \
     Glm4v, Glm4vMoe, Idefics2, Idefics3, InternVL, Janus, KimiK25, Lfm2Vl, Llava, LlavaNext, \
     LlavaNextVideo, LlavaOnevision, Ovis2, PerceptionLM, Qwen2Audio, Qwen3OmniMoe, Qwen3VLMoe, \
     SmolVLM, VideoLlama3, VideoLlava, VipLlava, Voxtral (all ForConditionalGeneration), \
     InternVLChatModel, Qwen2_5OmniModel";

/// The architecture of a model: which its file says, or where that is none, or one without a head,
/// what transformers makes of models of its type.
pub(super) fn architecture_of(config: &Value) -> &str {
    let said = config["architectures"][0].as_str();
    // Others end so that have a head of another kind.
    let is_base = |name: &&str| name.ends_with("Model") && !name.contains("For");
    let whole = said.filter(|name| !is_base(name));
    let model_type = config["model_type"].as_str();
    let by_type = || of_type(model_type?);
    let architecture = whole.or_else(by_type).or(said).or(model_type).unwrap_or("none");
    match (architecture, config["text_config"]["model_type"].as_str()) {
        (inside::MISTRAL3, Some("ministral3")) => inside::MINISTRAL3,
        (inside::MISTRAL3, Some("mistral4")) => inside::MISTRAL4,
        ("LFM2ForCausalLM", _) => older::LFM2, // as its first files call it
        _ => relatives::by_type(architecture, model_type).unwrap_or(architecture),
    }
}

fn of_type(model_type: &str) -> Option<&'static str> {
    Some(match model_type {
        "llama" => "LlamaForCausalLM",
        "mistral" => "MistralForCausalLM",
        "ministral" => "MinistralForCausalLM",
        "ministral3" => "Ministral3ForCausalLM",
        "mistral4" => "Mistral4ForCausalLM",
        "internlm3" => older::INTERNLM3,
        "iquestcoder" => older::IQUEST_CODER,
        "cwm" => "CwmForCausalLM",
        "helium" => "HeliumForCausalLM",
        "qwen2" => "Qwen2ForCausalLM",
        "qwen3" => "Qwen3ForCausalLM",
        "phi3" => "Phi3ForCausalLM",
        "granite" => "GraniteForCausalLM",
        "granitemoehybrid" => "GraniteMoeHybridForCausalLM",
        "smollm3" => "SmolLM3ForCausalLM",
        "seed_oss" => "SeedOssForCausalLM",
        "ernie4_5" => "Ernie4_5ForCausalLM",
        "glm" => "GlmForCausalLM",
        "glm4" => "Glm4ForCausalLM",
        "gemma" => "GemmaForCausalLM",
        "gemma2" => "Gemma2ForCausalLM",
        "gemma3_text" => "Gemma3ForCausalLM",
        "mixtral" => "MixtralForCausalLM",
        "qwen2_moe" => "Qwen2MoeForCausalLM",
        "qwen3_moe" => "Qwen3MoeForCausalLM",
        "granitemoe" => "GraniteMoeForCausalLM",
        "glm4_moe" => "Glm4MoeForCausalLM",
        "dots1" => "Dots1ForCausalLM",
        "solar_open" => "SolarOpenForCausalLM",
        "olmo2" => "Olmo2ForCausalLM",
        "olmo3" => "Olmo3ForCausalLM",
        "olmoe" => "OlmoeForCausalLM",
        "flex_olmo" => "FlexOlmoForCausalLM",
        "exaone4" => "Exaone4ForCausalLM",
        "exaone_moe" => "ExaoneMoeForCausalLM",
        "ernie4_5_moe" => "Ernie4_5_MoeForCausalLM",
        "minimax_m2" => "MiniMaxM2ForCausalLM",
        "gpt_oss" => "GptOssForCausalLM",
        "cohere" => "CohereForCausalLM",
        "cohere2" => "Cohere2ForCausalLM",
        "olmo" => "OlmoForCausalLM",
        "stablelm" => "StableLmForCausalLM",
        "starcoder2" => "Starcoder2ForCausalLM",
        "deepseek_v2" => "DeepseekV2ForCausalLM",
        "deepseek_v3" | "kimi_k2" => "DeepseekV3ForCausalLM",
        "axk1" => "AXK1ForCausalLM",
        "glm4_moe_lite" => "Glm4MoeLiteForCausalLM",
        "youtu" => "YoutuForCausalLM",
        "minicpm3" => "MiniCPM3ForCausalLM",
        "gpt_neox" => "GPTNeoXForCausalLM",
        "phi" => "PhiForCausalLM",
        "nemotron" => "NemotronForCausalLM",
        "arcee" => "ArceeForCausalLM",
        "apertus" => "ApertusForCausalLM",
        "jais2" => "Jais2ForCausalLM",
        "hunyuan_v1_dense" => "HunYuanDenseV1ForCausalLM",
        "hunyuan_v1_moe" => "HunYuanMoEV1ForCausalLM",
        "falcon" => older::FALCON,
        "gptj" => older::GPTJ,
        _ => {
            let whole = INSIDE.iter().find(|of| of.0 == model_type).map(|of| of.1);
            return whole.or_else(|| tabled().find(|of| of.0 == model_type).map(|of| of.1));
        }
    })
}

/// Types and architectures of models inside of which, or by themselves, is what reads text.
const INSIDE: [(&str, &str); 17] = [
    ("cohere_compass_text", cohere_compass::TEXT),
    ("cohere_compass", cohere_compass::WHOLE),
    ("apertus1p5_text", inside::APERTUS15_TEXT),
    ("apertus1p5", inside::APERTUS15),
    ("aria_text", inside::ARIA_TEXT),
    ("aria", inside::ARIA),
    ("gemma4_text", inside::GEMMA4_TEXT),
    ("gemma4", inside::GEMMA4),
    ("gemma4_unified_text", inside::GEMMA4_UNIFIED_TEXT),
    ("gemma4_unified", inside::GEMMA4_UNIFIED),
    ("gemma3", inside::GEMMA3),
    ("mistral3", inside::MISTRAL3),
    ("llama4", inside::LLAMA4),
    ("llama4_text", inside::LLAMA4_TEXT),
    ("qwen2_vl", inside::QWEN2_VL),
    ("qwen2_5_vl", inside::QWEN2_5_VL),
    ("qwen3_vl", inside::QWEN3_VL),
];

/// The family of an architecture, if it is served.
pub(super) fn family_of(architecture: &str) -> Option<Family> {
    Some(match architecture {
        "LlamaForCausalLM" | "LLaMAForCausalLM" => Family::Llama,
        "MistralForCausalLM" | inside::MISTRAL3 => Family::Mistral,
        "MinistralForCausalLM" => Family::Ministral,
        "Ministral3ForCausalLM" | inside::MINISTRAL3 => Family::Ministral3,
        "Mistral4ForCausalLM" | inside::MISTRAL4 => Family::Mistral4,
        older::INTERNLM3 | older::IQUEST_CODER => Family::Llama,
        "CwmForCausalLM" => Family::Cwm,
        "HeliumForCausalLM" => Family::Helium,
        "Qwen2ForCausalLM" | inside::QWEN2_VL | inside::QWEN2_5_VL => Family::Qwen2,
        "Qwen3ForCausalLM" | inside::QWEN3_VL => Family::Qwen3,
        "Phi3ForCausalLM" => Family::Phi3,
        "GraniteForCausalLM" => Family::Granite,
        "GraniteMoeHybridForCausalLM" => Family::Granite4,
        "SmolLM3ForCausalLM" => Family::SmolLm3,
        "SeedOssForCausalLM" => Family::SeedOss,
        "Ernie4_5ForCausalLM" | "Ernie4_5_ForCausalLM" => Family::Ernie45,
        "GlmForCausalLM" => Family::Glm,
        "Glm4ForCausalLM" => Family::Glm4,
        "GemmaForCausalLM" => Family::Gemma,
        "Gemma2ForCausalLM" => Family::Gemma2,
        "Gemma3ForCausalLM" | inside::GEMMA3 => Family::Gemma3,
        inside::GEMMA4_TEXT | inside::GEMMA4 => Family::Gemma4,
        inside::GEMMA4_UNIFIED_TEXT | inside::GEMMA4_UNIFIED => Family::Gemma4,
        inside::ARIA_TEXT | inside::ARIA => Family::Aria,
        "MixtralForCausalLM" => Family::Mixtral,
        "Qwen2MoeForCausalLM" => Family::Qwen2Moe,
        "Qwen3MoeForCausalLM" => Family::Qwen3Moe,
        "GraniteMoeForCausalLM" => Family::GraniteMoe,
        "Glm4MoeForCausalLM" => Family::Glm4Moe,
        "Dots1ForCausalLM" => Family::Dots1,
        "SolarOpenForCausalLM" => Family::SolarOpen,
        "Olmo2ForCausalLM" => Family::Olmo2,
        "Olmo3ForCausalLM" => Family::Olmo3,
        "OlmoeForCausalLM" => Family::Olmoe,
        "FlexOlmoForCausalLM" => Family::FlexOlmo,
        "Exaone4ForCausalLM" => Family::Exaone4,
        "ExaoneMoeForCausalLM" | "ExaoneMoEForCausalLM" => Family::ExaoneMoe,
        "Ernie4_5_MoeForCausalLM" => Family::Ernie45Moe,
        "MiniMaxM2ForCausalLM" => Family::MiniMaxM2,
        "GptOssForCausalLM" => Family::GptOss,
        "CohereForCausalLM" => Family::Cohere,
        "Cohere2ForCausalLM" => Family::Cohere2,
        cohere_compass::TEXT | cohere_compass::WHOLE => Family::CohereCompass,
        "OlmoForCausalLM" => Family::Olmo,
        "StableLmForCausalLM" => Family::StableLm,
        "Starcoder2ForCausalLM" => Family::StarCoder2,
        "GPTNeoXForCausalLM" => Family::GptNeoX,
        "PhiForCausalLM" => Family::Phi,
        "NemotronForCausalLM" => Family::Nemotron,
        "ArceeForCausalLM" => Family::Arcee,
        "ApertusForCausalLM" => Family::Apertus,
        inside::APERTUS15_TEXT | inside::APERTUS15 => Family::Apertus,
        "Jais2ForCausalLM" => Family::Jais2,
        "DeepseekV2ForCausalLM" => Family::DeepSeekV2,
        "DeepseekV3ForCausalLM" => Family::DeepSeekV3,
        "AXK1ForCausalLM" => Family::AxK1,
        "Glm4MoeLiteForCausalLM" => Family::Glm4MoeLite,
        "YoutuForCausalLM" => Family::Youtu,
        "MiniCPM3ForCausalLM" => Family::MiniCpm3,
        "HunYuanDenseV1ForCausalLM" => Family::HunYuan,
        "HunYuanMoEV1ForCausalLM" => Family::HunYuanMoe,
        older::FALCON => Family::Falcon,
        older::GPTJ => Family::GptJ,
        inside::LLAMA4_TEXT | inside::LLAMA4 => Family::Llama4,
        _ => return tabled().find(|of| of.1 == architecture).map(|of| of.2),
    })
}

/// A type, an architecture and the family that both are.
pub(super) type Tabled = (&'static str, &'static str, Family);

fn tabled() -> impl Iterator<Item = &'static Tabled> {
    let others = newer::FAMILIES.iter().chain(&older::FAMILIES).chain(&alibi::FAMILIES);
    HYBRIDS.iter().chain(others).chain(&relatives::FAMILIES)
}

/// Models some of whose layers remember in a state.
const HYBRIDS: [Tabled; 14] = [
    ("qwen3_next", "Qwen3NextForCausalLM", Family::Qwen3Next),
    ("qwen3_5_text", "Qwen3_5ForCausalLM", Family::Qwen35),
    ("qwen3_5", inside::QWEN35, Family::Qwen35),
    ("qwen3_5_moe_text", inside::QWEN35_MOE_TEXT, Family::Qwen35Moe),
    ("qwen3_5_moe", inside::QWEN35_MOE, Family::Qwen35Moe),
    ("lara_mini", inside::LARA_MINI, Family::LaraMini),
    ("lfm2", older::LFM2, Family::Lfm2),
    ("lfm2_moe", older::LFM2_MOE, Family::Lfm2Moe),
    ("lfm3", inside::LFM3, Family::Lfm3),
    ("bamba", "BambaForCausalLM", Family::Bamba),
    ("falcon_h1", falcon_h1::FALCON_H1, Family::FalconH1),
    ("olmo_hybrid", "OlmoHybridForCausalLM", Family::OlmoHybrid),
    ("nemotron_h", nemotron_h::NEMOTRON_H, Family::NemotronH),
    ("mamba2", mamba2::MAMBA2, Family::NemotronH),
];

impl Family {
    /// Added to the weights of norms.
    pub(super) fn norm_offset(self) -> f32 {
        match self {
            Self::Gemma | Self::Gemma2 | Self::Gemma3 | Self::Nemotron => 1.0,
            Self::VaultGemma => 1.0,
            Self::Qwen3Next | Self::Qwen35 | Self::Qwen35Moe => 1.0,
            _ => 0.0,
        }
    }

    pub(super) fn rope(self) -> RopeDefaults {
        RopeDefaults {
            theta: match self {
                Self::SmolLm3 => 2e6,
                Self::Ernie45 | Self::Ernie45Moe | Self::Olmo3 | Self::FlexOlmo => 5e5,
                Self::Cohere | Self::Llama4 | Self::Mellum => 5e5,
                Self::HyV3 => 11_158_840.0,
                Self::MiniMaxM2 => 5e6,
                Self::GptOss => 1.5e5,
                Self::Gemma3 | Self::Mixtral | Self::Cwm | Self::SolarOpen => 1e6,
                Self::Gemma4 => 1e6,
                Self::Lfm2 | Self::Lfm2Moe | Self::Lfm3 | Self::Phimoe => 1e6,
                Self::Helium => 1e5,
                Self::Apertus => 1.2e7,
                _ => 1e4,
            },
            partial: match self {
                Self::Glm | Self::Glm4 | Self::Glm4Moe => Some(0.5),
                Self::Phi3 | Self::MiniMaxM2 | Self::GptJ => Some(1.0),
                Self::StableLm | Self::GptNeoX => Some(0.25),
                Self::Qwen3Next | Self::Qwen35 | Self::Qwen35Moe => Some(0.25),
                Self::Phi | Self::Nemotron | Self::Bamba => Some(0.5),
                _ => None,
            },
            original_positions: (self == Self::Phi3).then_some(4096.0),
            only_longrope: self == Self::Phi3,
            positions_scaled: matches!(self, Self::Gemma3 | Self::GptOss),
            neox: self == Self::GptNeoX,
            temperature: matches!(self, Self::Ministral3 | Self::Mistral4),
            alpha: matches!(self, Self::HunYuan | Self::HunYuanMoe),
        }
    }

    /// `None`: as many as there are query heads.
    pub(super) fn kv_heads(self) -> Option<u32> {
        match self {
            Self::Llama | Self::Phi3 | Self::Granite | Self::Granite4 | Self::GraniteMoe => None,
            Self::Olmo2 | Self::Olmo3 | Self::Olmoe | Self::FlexOlmo => None,
            Self::Cohere | Self::Cohere2 | Self::Olmo | Self::GptNeoX | Self::Phi => None,
            Self::Cohere2Moe | Self::CohereCompass => None,
            Self::Nemotron | Self::Arcee | Self::Apertus | Self::Jais2 => None,
            Self::DeepSeekV2 | Self::DeepSeekV3 | Self::AxK1 | Self::Glm4MoeLite => None,
            Self::Youtu | Self::MiniCpm3 | Self::HunYuan | Self::HunYuanMoe => None,
            Self::Falcon | Self::GptJ | Self::Mistral4 | Self::HyperClovaX => None,
            Self::GraniteMoeShared | Self::GraniteMoeSwa | Self::Afmoe => None,
            Self::NanoChat => None,
            Self::Exaone | Self::InternLm2 | Self::MiniCpm => None,
            Self::Gpt2 | Self::GptBigCode | Self::GptNeo | Self::Opt | Self::Aria => None,
            Self::Bloom | Self::Mpt => None,
            Self::Ernie45 | Self::Glm | Self::Glm4 | Self::StarCoder2 => Some(2),
            Self::SmolLm3 | Self::Gemma2 | Self::Gemma3 | Self::Gemma4 => Some(4),
            Self::VaultGemma | Self::Mellum | Self::Flint | Self::GraniteSwa => Some(4),
            Self::Qwen3Moe | Self::Ernie45Moe => Some(4),
            Self::Mistral | Self::SeedOss | Self::Mixtral | Self::Glm4Moe => Some(8),
            Self::Ministral | Self::Ministral3 | Self::Cwm | Self::SolarOpen => Some(8),
            Self::MiniMaxM2 | Self::Llama4 | Self::HyV3 => Some(8),
            Self::GptOss => Some(8),
            Self::Helium => Some(20),
            Self::Gemma | Self::Qwen2Moe => Some(16),
            Self::Qwen2 | Self::Qwen3 | Self::Dots1 | Self::Exaone4 => Some(32),
            Self::ExaoneMoe | Self::StableLm => Some(32),
            Self::Qwen3Next | Self::Qwen35Moe => Some(2),
            Self::Qwen35 | Self::Lfm3 | Self::LaraMini => Some(4),
            Self::OlmoHybrid => None,
            Self::Lfm2 | Self::Lfm2Moe | Self::Bamba | Self::NemotronH => Some(8),
            Self::FalconH1 | Self::Phimoe => Some(8),
            Self::Dbrx => Some(1),
            Self::BitNet => Some(5),
        }
    }

    /// `None`: the width divided among the query heads.
    pub(super) fn head_dim(self) -> Option<u32> {
        match self {
            Self::Qwen3 | Self::SeedOss | Self::Ernie45 | Self::Glm | Self::Glm4 => Some(128),
            Self::Cwm | Self::Helium | Self::SolarOpen | Self::MiniMaxM2 => Some(128),
            Self::Llama4 | Self::Mellum | Self::Flint | Self::LaraMini => Some(128),
            Self::Afmoe | Self::HyV3 | Self::Cohere2Moe => Some(128),
            Self::VaultGemma => Some(256),
            Self::Ministral3 | Self::Lfm3 | Self::NemotronH => Some(128),
            Self::Gemma | Self::Gemma2 | Self::Gemma3 | Self::Gemma4 => Some(256),
            Self::Qwen3Next | Self::Qwen35 | Self::Qwen35Moe => Some(256),
            Self::GptOss => Some(64),
            _ => None,
        }
    }

    pub(super) fn norm_eps(self) -> f32 {
        match self {
            Self::Phi3 | Self::Ernie45 | Self::Mixtral | Self::Glm4Moe => 1e-5,
            Self::Cwm | Self::SolarOpen | Self::Olmo2 | Self::Olmo3 | Self::Olmoe => 1e-5,
            Self::Exaone4 | Self::ExaoneMoe | Self::Ernie45Moe | Self::GptOss => 1e-5,
            Self::Cohere | Self::Cohere2 | Self::Olmo | Self::StableLm => 1e-5,
            Self::Cohere2Moe | Self::CohereCompass => 1e-5,
            Self::StarCoder2 | Self::GptNeoX | Self::Phi | Self::Nemotron => 1e-5,
            Self::Arcee | Self::Apertus | Self::Jais2 | Self::Exaone => 1e-5,
            Self::Gpt2 | Self::GptBigCode | Self::GptNeo | Self::Opt => 1e-5,
            Self::Bloom | Self::Mpt => 1e-5,
            Self::Glm4MoeLite | Self::MiniCpm3 | Self::Ministral3 => 1e-5,
            Self::HunYuan | Self::HunYuanMoe | Self::Falcon | Self::GptJ => 1e-5,
            Self::Lfm2 | Self::Lfm2Moe | Self::Lfm3 | Self::Bamba | Self::FalconH1 => 1e-5,
            Self::GraniteSwa | Self::Afmoe | Self::HyV3 => 1e-5,
            Self::NemotronH | Self::Llama4 | Self::Phimoe | Self::Dbrx | Self::BitNet => 1e-5,
            Self::Helium => 1e-8,
            Self::Glm | Self::Glm4 => 1.5625e-7,
            _ => 1e-6,
        }
    }

    pub(super) fn is_tied(self) -> bool {
        let ernie = matches!(self, Self::Ernie45 | Self::Ernie45Moe);
        let gemma = matches!(self, Self::Gemma | Self::Gemma2 | Self::Gemma3 | Self::Gemma4);
        let cohere = matches!(self, Self::Cohere | Self::Cohere2 | Self::Cohere2Moe);
        let cohere = cohere || self == Self::CohereCompass;
        let latent = matches!(self, Self::Youtu | Self::MiniCpm3);
        let own_code = matches!(self, Self::Exaone | Self::MiniCpm);
        let trained = self.first_position().is_some();
        let others = matches!(self, Self::SmolLm3 | Self::StarCoder2 | Self::Falcon);
        let others = others || matches!(self, Self::VaultGemma | Self::GraniteSwa);
        let others = others || matches!(self, Self::LaraMini | Self::Bloom | Self::Mpt);
        let lfm = matches!(self, Self::Lfm2 | Self::Lfm2Moe | Self::Lfm3);
        ernie || gemma || cohere || latent || own_code || trained || others || lfm
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn models_without_an_architecture_are_those_of_their_type() {
        let check = |architectures: Value, model_type: Value, want: &str| {
            let config = json!({ "architectures": architectures, "model_type": model_type });
            assert_eq!(architecture_of(&config), want, "{config}");
        };
        check(Value::Null, json!("llama"), "LlamaForCausalLM");
        check(json!([]), json!("gemma3"), inside::GEMMA3);
        check(json!(["LlamaModel"]), json!("llama"), "LlamaForCausalLM");
        check(json!(["LlamaForCausalLM"]), json!("mistral"), "LlamaForCausalLM");
        check(json!(["LFM2ForCausalLM"]), json!("lfm2"), older::LFM2);
        check(json!(["GPT2LMHeadModel"]), json!("gpt2"), "GPT2LMHeadModel");
        check(Value::Null, json!("deepseek_v3"), "DeepseekV3ForCausalLM");
        check(Value::Null, json!("ministral3"), "Ministral3ForCausalLM");
        for other in ["LlamaForSequenceClassification", "Qwen2ForRewardModel"] {
            check(json!([other]), json!("qwen2"), other);
        }
        check(Value::Null, json!("bloom"), "BloomForCausalLM");
        check(json!(["MPTForCausalLM"]), json!("mpt"), "MPTForCausalLM");
        check(Value::Null, json!("t5"), "t5");
        check(Value::Null, json!("falcon"), older::FALCON);
        check(Value::Null, Value::Null, "none");
        assert_eq!(architecture_of(&json!({ "model_type": "phi3" })), "Phi3ForCausalLM");
        assert_eq!(family_of("LLaMAForCausalLM"), Some(Family::Llama));
        let inside = |text: &str| {
            let text = json!({ "model_type": text });
            let config = json!({ "architectures": [inside::MISTRAL3], "text_config": text });
            family_of(architecture_of(&config))
        };
        assert_eq!(inside("mistral"), Some(Family::Mistral));
        assert_eq!(inside("ministral3"), Some(Family::Ministral3));
        assert_eq!(inside("mistral4"), Some(Family::Mistral4));
    }

    #[test]
    fn what_types_make_is_served() {
        let types = ["llama", "gemma3", "ernie4_5", "minimax_m2", "gpt_neox", "qwen3_vl", "jais2"];
        let hybrids = HYBRIDS.iter().map(|of| of.0);
        let relatives = relatives::FAMILIES.iter().map(|of| of.0);
        let more =
            ["bloom", "mpt", "hunyuan_v1_dense", "hunyuan_v1_moe", "gpt-sw3", "gemma4_unified"];
        let more = more.into_iter().chain(hybrids).chain(relatives);
        for model_type in types.into_iter().chain(more) {
            assert!(of_type(model_type).and_then(family_of).is_some(), "{model_type}");
        }
    }
}
