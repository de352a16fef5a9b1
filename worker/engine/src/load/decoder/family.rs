//! Families of decoders, and what all models of one have.

use aqueduct_kernels::{Activation, Ungated, Xielu};

use super::{LayerNorms, QkNorm};

/// Decoder families that are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    Llama,
    /// GPT-2, whose positions are trained.
    Gpt2,
    /// StarCoder 1 and SantaCoder: the same with one KV head.
    GptBigCode,
    /// GPT-2 with windows in every other layer, and attention that does not divide its scores.
    GptNeo,
    Opt,
    /// Bloom and Bloomz, whose embeddings have a norm behind them.
    Bloom,
    Mpt,
    /// EXAONE 3 and 3.5, which is Llama by other names.
    Exaone,
    /// InternLM 2 and 2.5: the same.
    InternLm2,
    /// MiniCPM 1, 2 and 4: the same with scales.
    MiniCpm,
    /// Mistral, and what reads text of Mistral 3.
    Mistral,
    /// Mistral with windows in some layers.
    Ministral,
    /// Mistral whose queries grow with their position; also inside what reads pictures.
    Ministral3,
    /// Llama with windows in three layers of four.
    Cwm,
    Helium,
    Qwen2,
    Qwen3,
    /// Phi 3, 3.5, 4 and 4 mini; 4 multimodal without what reads pictures and sound.
    Phi3,
    /// Granite 3.
    Granite,
    /// The same with norms behind its parts, whose logits are multiplied.
    HyperClovaX,
    /// Granite 3 with windows in three layers of four, and sinks.
    GraniteSwa,
    /// Granite 4, with and without experts, and layers that are no attention.
    Granite4,
    SmolLm3,
    SeedOss,
    /// ERNIE 4.5, dense.
    Ernie45,
    /// GLM 4 as it was before its norms behind the layers.
    Glm,
    /// GLM 4 of April 2025 and Z1.
    Glm4,
    /// Gemma 1.
    Gemma,
    Gemma2,
    /// Gemma 2 without norms behind its parts.
    VaultGemma,
    /// Gemma 3, of which what reads pictures is left out.
    Gemma3,
    /// Whose norms have no weights, and whose heads turn the other way round.
    NanoChat,
    /// Gemma 4: 31B, 26B A4B, 12B, E4B and E2B.
    Gemma4,
    Mixtral,
    /// BitNet b1.58: Llama with norms before its second products.
    BitNet,
    /// Phi 3.5 MoE.
    Phimoe,
    Dbrx,
    /// Llama with experts, all of a layer in one tensor, and what these share (Aria).
    Aria,
    Qwen2Moe,
    Qwen3Moe,
    /// Qwen 3's layers with windows that turn by a base of their own (Mellum 2).
    Mellum,
    /// Qwen 3's layers with windows, and sinks; those without a window do not turn.
    Flint,
    /// Granite 3 with experts.
    GraniteMoe,
    /// The same with a part for all tokens.
    GraniteMoeShared,
    /// The same with windows and sinks.
    GraniteMoeSwa,
    /// GLM 4.5 and 4.6; Sarvam 30B too.
    Glm4Moe,
    /// dots.llm1.
    Dots1,
    SolarOpen,
    Olmo2,
    /// OLMo 2 with windows in three layers of four.
    Olmo3,
    /// OLMo with experts, and norms where most have them.
    Olmoe,
    /// OLMo 2 with experts.
    FlexOlmo,
    Exaone4,
    /// EXAONE 4's attention in layers with norms before their parts, and experts (K-EXAONE).
    ExaoneMoe,
    /// ERNIE 4.5 with experts.
    Ernie45Moe,
    MiniMaxM2,
    GptOss,
    /// Command R, and Aya.
    Cohere,
    /// Command R7B, Command A and Tiny Aya: with windows in three layers of four.
    Cohere2,
    /// What reads text of Cohere's models that see: their files say which layers turn.
    CohereCompass,
    /// The same with experts, and windows in dense layers or none (Command A+).
    Cohere2Moe,
    /// OLMo 1.
    Olmo,
    /// Stable LM 2 and 3B.
    StableLm,
    StarCoder2,
    /// GPT-NeoX, Pythia and what was made like them.
    GptNeoX,
    /// Phi 1, 1.5 and 2.
    Phi,
    /// Nemotron 4 and Minitron.
    Nemotron,
    /// AFM.
    Arcee,
    Apertus,
    /// Jais 2.
    Jais2,
    /// V2, V2.5 and their lite models.
    DeepSeekV2,
    /// V3, V3.1 and R1; Kimi K2 and Sarvam 105B too.
    DeepSeekV3,
    /// The same with norms behind experts (A.X K1).
    AxK1,
    /// GLM 4.7 Flash.
    Glm4MoeLite,
    /// DeepSeek V3 without experts.
    Youtu,
    MiniCpm3,
    /// Hunyuan 0.5B to 7B, dense.
    HunYuan,
    /// Hunyuan A13B.
    HunYuanMoe,
    /// Hy 3.
    HyV3,
    /// Trinity.
    Afmoe,
    /// 7B, 40B, 180B and 2 11B, with one norm for both parts or one for each.
    Falcon,
    /// GPT-J, and CodeGen, which has queries, keys and values in one tensor.
    GptJ,
    /// Scout and Maverick.
    Llama4,
    /// DeepSeek V3's attention, whose queries grow with their position, and experts by the softmax.
    Mistral4,
    /// Qwen3 Next and Qwen3 Coder Next.
    Qwen3Next,
    /// Qwen3.5, of which what reads pictures is left out.
    Qwen35,
    /// The same with experts.
    Qwen35Moe,
    /// Layers of Qwen3.5 and of Qwen 3, with experts; those that see everything do not turn.
    LaraMini,
    Lfm2,
    /// LFM2 with experts.
    Lfm2Moe,
    Lfm3,
    Bamba,
    /// Attention and what remembers in a state side by side in each layer: two layers here.
    FalconH1,
    /// OLMo 2 with layers that are no attention, which have norms where most have them.
    OlmoHybrid,
    /// Nemotron-H, Nano 2 and, with experts, 3 Nano: files number parts of layers.
    NemotronH,
}

impl Family {
    /// `None`: the stream's norms are RMS norms.
    pub(crate) fn layer_norms(self) -> Option<LayerNorms> {
        match self {
            Self::Cohere | Self::Cohere2 | Self::Cohere2Moe | Self::CohereCompass => {
                Some(LayerNorms { weights: true, biases: false })
            }
            Self::Dbrx => Some(LayerNorms { weights: true, biases: false }),
            Self::Olmo => Some(LayerNorms { weights: false, biases: false }),
            Self::StableLm | Self::StarCoder2 | Self::GptNeoX | Self::Phi => {
                Some(LayerNorms { weights: true, biases: true })
            }
            Self::Gpt2 | Self::GptBigCode | Self::GptNeo | Self::Opt => {
                Some(LayerNorms { weights: true, biases: true })
            }
            Self::Mpt => Some(LayerNorms { weights: true, biases: false }),
            Self::Bloom | Self::Phimoe => Some(LayerNorms { weights: true, biases: true }),
            Self::Nemotron | Self::Jais2 | Self::Falcon | Self::GptJ => {
                Some(LayerNorms { weights: true, biases: true })
            }
            _ => None,
        }
    }

    pub(crate) fn qk_norm(self) -> QkNorm {
        match self {
            Self::Qwen3 | Self::Qwen3Moe | Self::Gemma3 | Self::Dots1 => QkNorm::EachHead,
            Self::Gemma4 | Self::Mellum | Self::Flint | Self::LaraMini => QkNorm::EachHead,
            Self::HyV3 | Self::Afmoe => QkNorm::EachHead,
            Self::Exaone4 | Self::ExaoneMoe | Self::Apertus => QkNorm::EachHead,
            Self::Olmo2 | Self::Olmo3 | Self::Olmoe | Self::FlexOlmo => QkNorm::AllHeads,
            Self::MiniMaxM2 => QkNorm::AllHeads,
            Self::HunYuan | Self::HunYuanMoe => QkNorm::EachHead,
            Self::Qwen3Next | Self::Qwen35 | Self::Qwen35Moe => QkNorm::EachHead,
            Self::Lfm2 | Self::Lfm2Moe | Self::Lfm3 => QkNorm::EachHead,
            Self::OlmoHybrid => QkNorm::AllHeads,
            _ => QkNorm::Nothing,
        }
    }

    /// Some members cut off what of queries, keys and values is far from 0.
    pub(crate) fn clips(self) -> bool {
        matches!(self, Self::Olmo | Self::Olmoe | Self::Mpt | Self::Dbrx)
    }

    /// A layer norm with weights and biases stands behind the embedding.
    pub(crate) fn embed_norm(self) -> bool {
        self == Self::Bloom
    }

    /// RMS norms of what output projections and the last products of feed-forward parts take.
    pub(crate) fn sub_norms(self) -> bool {
        self == Self::BitNet
    }

    /// RMS norms of the stream have no weights in files, and are of embeddings too.
    pub(crate) fn bare_norms(self) -> bool {
        self == Self::NanoChat
    }

    /// Norms of queries and keys are behind their rotation.
    pub(crate) fn norms_last(self) -> bool {
        matches!(self, Self::HunYuan | Self::HunYuanMoe | Self::Llama4 | Self::NanoChat)
    }

    /// Elements that are rotated together stand beside each other in transformers' files.
    pub(crate) fn neighbours(self) -> bool {
        let ernie = matches!(self, Self::Ernie45 | Self::Ernie45Moe);
        let cohere = matches!(self, Self::Cohere | Self::Cohere2 | Self::Cohere2Moe);
        let deepseek = matches!(self, Self::DeepSeekV2 | Self::DeepSeekV3 | Self::Glm4MoeLite);
        let glm = matches!(self, Self::Glm | Self::Glm4 | Self::AxK1);
        let others = matches!(self, Self::Helium | Self::Youtu | Self::GptJ | Self::Mistral4);
        ernie || cohere || deepseek || glm || others || self == Self::Llama4
    }

    /// Keys and values come of a few numbers that heads share.
    pub(crate) fn is_latent(self) -> bool {
        let deepseek = matches!(self, Self::DeepSeekV2 | Self::DeepSeekV3 | Self::Glm4MoeLite);
        deepseek || matches!(self, Self::AxK1 | Self::Youtu | Self::MiniCpm3 | Self::Mistral4)
    }

    /// RMS norm of what attention and feed-forward part give, before it is added to the stream.
    pub(crate) fn post_norms(self) -> bool {
        let all = matches!(self, Self::Glm4 | Self::Gemma2 | Self::Gemma3 | Self::Lfm3);
        let more = matches!(self, Self::Gemma4 | Self::HyperClovaX | Self::Afmoe);
        all || more || !self.pre_norms()
    }

    /// The same of what experts give together, alone.
    pub(crate) fn expert_norms(self) -> bool {
        self == Self::AxK1
    }

    /// RMS norm of what attention and feed-forward part are given.
    pub(crate) fn pre_norms(self) -> bool {
        let olmo = matches!(self, Self::Olmo2 | Self::Olmo3 | Self::FlexOlmo | Self::OlmoHybrid);
        !olmo && self != Self::Exaone4
    }

    /// Rows see something besides keys.
    pub(crate) fn sinks(self) -> bool {
        matches!(self, Self::GptOss | Self::GraniteSwa | Self::GraniteMoeSwa | Self::Flint)
    }

    /// Where positions add to embeddings, and nothing rotates: the row of the first of them.
    pub(crate) fn first_position(self) -> Option<u32> {
        match self {
            Self::Gpt2 | Self::GptBigCode | Self::GptNeo => Some(0),
            Self::Opt => Some(2),
            _ => None,
        }
    }

    /// Of the feed-forward parts, where a file does not say another one.
    pub(crate) fn activation(self) -> Activation {
        match self {
            Self::Gemma | Self::Gemma2 | Self::Gemma3 | Self::Gemma4 => Activation::GeluTanh,
            Self::VaultGemma => Activation::GeluTanh,
            Self::GptOss => Activation::ClampedSilu,
            Self::BitNet => Activation::ReluSquared,
            Self::StarCoder2 | Self::Phi | Self::GptJ => Activation::Ungated(Ungated::GeluTanh),
            Self::Gpt2 | Self::GptBigCode | Self::GptNeo => Activation::Ungated(Ungated::GeluTanh),
            Self::Bloom => Activation::Ungated(Ungated::GeluTanh),
            Self::Opt => Activation::Ungated(Ungated::Relu),
            Self::GptNeoX | Self::Falcon | Self::Mpt => Activation::Ungated(Ungated::Gelu),
            Self::Nemotron | Self::Arcee | Self::Jais2 => Activation::Ungated(Ungated::ReluSquared),
            Self::NemotronH | Self::NanoChat => Activation::Ungated(Ungated::ReluSquared),
            Self::Apertus => Activation::Ungated(Ungated::Xielu(XIELU)),
            _ => Activation::Silu,
        }
    }
}

/// What an Apertus begins its training with.
const XIELU: Xielu = Xielu { positive: 0.8, negative: 0.8, beta: 0.5, eps: -1e-6 };

/// xIELU of two trained parameters, α_p and α_n, which are what softplus is taken of.
pub(crate) fn xielu([positive, negative, beta, eps]: [f32; 4]) -> Activation {
    let softplus = |x: f32| f64::from(x).max(0.0) + (-f64::from(x).abs()).exp().ln_1p();
    let (positive, negative) = (softplus(positive) as f32, softplus(negative) + f64::from(beta));
    Activation::Ungated(Ungated::Xielu(Xielu { positive, negative: negative as f32, beta, eps }))
}
