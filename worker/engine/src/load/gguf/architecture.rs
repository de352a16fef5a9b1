//! What llama.cpp calls the families.

use crate::load::decoder::Family;
use crate::load::names::{self, Names};

/// Architectures that are served, by the name in `general.architecture`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Architecture {
    /// Mistral too.
    Llama,
    /// What reads text of Mistral 3.
    Mistral3,
    Qwen2,
    Qwen3,
    Phi3,
    Granite,
    SmolLm3,
    SeedOss,
    Ernie45,
    /// GLM 4 as it was at first.
    ChatGlm,
    /// GLM 4 with norms behind its layers.
    Glm4,
    Gemma,
    Gemma2,
    Gemma3,
    Gemma4,
    /// Scout and Maverick.
    Llama4,
    Qwen2Moe,
    Qwen3Moe,
    GraniteMoe,
    /// GLM 4.5 and 4.6.
    Glm4Moe,
    /// OLMo 2 and 3.
    Olmo2,
    Olmoe,
    Exaone4,
    ExaoneMoe,
    Ernie45Moe,
    MiniMaxM2,
    GptOss,
    CommandR,
    /// Command R7B and what came after it.
    Cohere2,
    /// OLMo 1.
    Olmo,
    StableLm,
    StarCoder2,
    Gpt2,
    Bloom,
    Mpt,
    /// StarCoder 1 and SantaCoder.
    StarCoder,
    /// Pythia too.
    GptNeoX,
    /// Phi 1 and 1.5 too.
    Phi2,
    /// Minitron too.
    Nemotron,
    /// AFM.
    Arcee,
    Apertus,
    Jais2,
    /// V2, V3, Kimi K2, GLM 4.7 Flash, Youtu.
    DeepSeek2,
    MiniCpm3,
    HunYuanDense,
    HunYuanMoe,
    Falcon,
    Mistral4,
    /// dots.llm1.
    Dots1,
    Afmoe,
    /// EXAONE 3 and 3.5.
    Exaone,
    /// InternLM 2 and 2.5; InternLM 3 is called llama.
    InternLm2,
    /// MiniCPM 1, 2 and 4.
    MiniCpm,
    /// What reads text of Qwen2-VL and Qwen2.5-VL: three positions are one for text.
    Qwen2Vl,
    /// The same of Qwen3-VL.
    Qwen3Vl,
    Qwen3VlMoe,
    Qwen3Next,
    /// Qwen 3.6 too.
    Qwen35,
    Qwen35Moe,
    Lfm2,
    Lfm2Moe,
    /// Granite 4 with layers that remember in a state.
    GraniteHybrid,
    FalconH1,
    /// Nemotron Nano 2 too.
    NemotronH,
    /// Nemotron 3 Nano.
    NemotronHMoe,
}

pub(super) const ARCHITECTURES: &str = "llama (Mistral too), mistral3, qwen2, qwen3, phi3, \
     granite, smollm3, seed_oss, ernie4_5, chatglm, glm4, gemma, gemma2, gemma3, gemma4, llama4, \
     qwen2moe, qwen3moe, granitemoe, glm4moe, olmo2 (OLMo 3 too), olmoe, exaone4, exaone-moe, \
     ernie4_5-moe, minimax-m2, gpt-oss, command-r, cohere2, olmo, stablelm, starcoder2, gpt2, \
     bloom, mpt, starcoder, gptneox, phi2, nemotron, arcee, apertus, jais2, \
     deepseek2 (V3, Kimi K2 and GLM 4.7 Flash too), minicpm3, hunyuan-dense, hunyuan-moe, \
     falcon, mistral4, dots1, afmoe, exaone, internlm2, minicpm, qwen2vl, qwen3vl, qwen3vlmoe, \
     qwen3next, qwen35, qwen35moe, lfm2, lfm2moe, granitehybrid, falcon-h1, nemotron_h, \
     nemotron_h_moe";

impl Architecture {
    pub(super) const ALL: [Self; 65] = [
        Self::Llama,
        Self::Mistral3,
        Self::Qwen2,
        Self::Qwen3,
        Self::Phi3,
        Self::Granite,
        Self::SmolLm3,
        Self::SeedOss,
        Self::Ernie45,
        Self::ChatGlm,
        Self::Glm4,
        Self::Gemma,
        Self::Gemma2,
        Self::Gemma3,
        Self::Gemma4,
        Self::Llama4,
        Self::Qwen2Moe,
        Self::Qwen3Moe,
        Self::GraniteMoe,
        Self::Glm4Moe,
        Self::Olmo2,
        Self::Olmoe,
        Self::Exaone4,
        Self::ExaoneMoe,
        Self::Ernie45Moe,
        Self::MiniMaxM2,
        Self::GptOss,
        Self::CommandR,
        Self::Cohere2,
        Self::Olmo,
        Self::StableLm,
        Self::StarCoder2,
        Self::Gpt2,
        Self::Bloom,
        Self::Mpt,
        Self::StarCoder,
        Self::GptNeoX,
        Self::Phi2,
        Self::Nemotron,
        Self::Arcee,
        Self::Apertus,
        Self::Jais2,
        Self::DeepSeek2,
        Self::MiniCpm3,
        Self::HunYuanDense,
        Self::HunYuanMoe,
        Self::Falcon,
        Self::Mistral4,
        Self::Dots1,
        Self::Afmoe,
        Self::Exaone,
        Self::InternLm2,
        Self::MiniCpm,
        Self::Qwen2Vl,
        Self::Qwen3Vl,
        Self::Qwen3VlMoe,
        Self::Qwen3Next,
        Self::Qwen35,
        Self::Qwen35Moe,
        Self::Lfm2,
        Self::Lfm2Moe,
        Self::GraniteHybrid,
        Self::FalconH1,
        Self::NemotronH,
        Self::NemotronHMoe,
    ];

    /// Its name in files, the family that it is, and whether files have query and key rows in the
    /// order that rotates neighbours.
    fn known(self) -> (&'static str, Family, bool) {
        match self {
            Self::Llama => ("llama", Family::Llama, true),
            Self::Mistral3 => ("mistral3", Family::Llama, true),
            Self::Qwen2 => ("qwen2", Family::Qwen2, false),
            Self::Qwen3 => ("qwen3", Family::Qwen3, false),
            Self::Phi3 => ("phi3", Family::Phi3, false),
            Self::Granite => ("granite", Family::Granite, true),
            Self::SmolLm3 => ("smollm3", Family::SmolLm3, true),
            Self::SeedOss => ("seed_oss", Family::SeedOss, false),
            Self::Ernie45 => ("ernie4_5", Family::Ernie45, true),
            Self::ChatGlm => ("chatglm", Family::Glm, true),
            Self::Glm4 => ("glm4", Family::Glm4, true),
            Self::Gemma => ("gemma", Family::Gemma, false),
            Self::Gemma2 => ("gemma2", Family::Gemma2, false),
            Self::Gemma3 => ("gemma3", Family::Gemma3, false),
            Self::Gemma4 => ("gemma4", Family::Gemma4, false),
            Self::Llama4 => ("llama4", Family::Llama4, true),
            Self::Qwen2Moe => ("qwen2moe", Family::Qwen2Moe, false),
            Self::Qwen3Moe => ("qwen3moe", Family::Qwen3Moe, false),
            Self::GraniteMoe => ("granitemoe", Family::GraniteMoe, true),
            Self::Glm4Moe => ("glm4moe", Family::Glm4Moe, false),
            Self::Olmo2 => ("olmo2", Family::Olmo2, false),
            Self::Olmoe => ("olmoe", Family::Olmoe, false),
            Self::Exaone4 => ("exaone4", Family::Exaone4, false),
            Self::ExaoneMoe => ("exaone-moe", Family::ExaoneMoe, false),
            Self::Ernie45Moe => ("ernie4_5-moe", Family::Ernie45Moe, true),
            Self::MiniMaxM2 => ("minimax-m2", Family::MiniMaxM2, false),
            Self::GptOss => ("gpt-oss", Family::GptOss, false),
            Self::CommandR => ("command-r", Family::Cohere, true),
            Self::Cohere2 => ("cohere2", Family::Cohere2, true),
            Self::Olmo => ("olmo", Family::Olmo, true),
            Self::StableLm => ("stablelm", Family::StableLm, false),
            Self::StarCoder2 => ("starcoder2", Family::StarCoder2, false),
            Self::Gpt2 => ("gpt2", Family::Gpt2, false),
            Self::Bloom => ("bloom", Family::Bloom, false),
            Self::Mpt => ("mpt", Family::Mpt, false),
            Self::StarCoder => ("starcoder", Family::GptBigCode, false),
            Self::GptNeoX => ("gptneox", Family::GptNeoX, false),
            Self::Phi2 => ("phi2", Family::Phi, false),
            Self::Nemotron => ("nemotron", Family::Nemotron, false),
            Self::Arcee => ("arcee", Family::Arcee, true),
            Self::Apertus => ("apertus", Family::Apertus, false),
            Self::Jais2 => ("jais2", Family::Jais2, false),
            Self::DeepSeek2 => ("deepseek2", Family::DeepSeekV3, true),
            Self::MiniCpm3 => ("minicpm3", Family::MiniCpm3, false),
            Self::HunYuanDense => ("hunyuan-dense", Family::HunYuan, false),
            Self::HunYuanMoe => ("hunyuan-moe", Family::HunYuanMoe, false),
            Self::Falcon => ("falcon", Family::Falcon, false),
            Self::Mistral4 => ("mistral4", Family::Mistral4, true),
            Self::Dots1 => ("dots1", Family::Dots1, false),
            Self::Afmoe => ("afmoe", Family::Afmoe, false),
            Self::Exaone => ("exaone", Family::Llama, false),
            Self::InternLm2 => ("internlm2", Family::Llama, true),
            Self::MiniCpm => ("minicpm", Family::Granite, true),
            Self::Qwen2Vl => ("qwen2vl", Family::Qwen2, false),
            Self::Qwen3Vl => ("qwen3vl", Family::Qwen3, false),
            Self::Qwen3VlMoe => ("qwen3vlmoe", Family::Qwen3Moe, false),
            Self::Qwen3Next => ("qwen3next", Family::Qwen3Next, false),
            Self::Qwen35 => ("qwen35", Family::Qwen35, false),
            Self::Qwen35Moe => ("qwen35moe", Family::Qwen35Moe, false),
            Self::Lfm2 => ("lfm2", Family::Lfm2, false),
            Self::Lfm2Moe => ("lfm2moe", Family::Lfm2Moe, false),
            Self::GraniteHybrid => ("granitehybrid", Family::Granite4, true),
            Self::FalconH1 => ("falcon-h1", Family::FalconH1, false),
            Self::NemotronH => ("nemotron_h", Family::NemotronH, true),
            Self::NemotronHMoe => ("nemotron_h_moe", Family::NemotronH, true),
        }
    }

    /// Its files say what DeepSeek's do.
    pub(super) fn is_deepseek(self) -> bool {
        matches!(self, Self::DeepSeek2 | Self::Mistral4)
    }

    /// What its tensors are called.
    pub(crate) fn names(self) -> &'static Names {
        match self {
            Self::SeedOss | Self::Glm4Moe | Self::GptOss => &names::GGUF_POST_NORM,
            Self::Gemma4 => &names::GGUF_GEMMA4,
            Self::Afmoe => &names::GGUF_AFMOE,
            Self::Qwen3Next => &names::GGUF_QWEN3_NEXT,
            Self::Qwen35 | Self::Qwen35Moe => &names::GGUF_QWEN35,
            Self::Lfm2 | Self::Lfm2Moe => &names::GGUF_LFM2,
            Self::GraniteHybrid | Self::FalconH1 => &names::GGUF_GRANITE_HYBRID,
            Self::NemotronH | Self::NemotronHMoe => &names::GGUF_GRANITE_HYBRID,
            _ => &names::GGUF,
        }
    }

    pub(super) fn name(self) -> &'static str {
        self.known().0
    }

    pub(super) fn family(self) -> Family {
        self.known().1
    }

    pub(super) fn neighbours(self) -> bool {
        self.known().2
    }
}
