//! What a decoder is, whichever file said so.

mod experts;
mod intervals;
mod latents;
mod lenders;
mod recurrents;
mod scales;
mod wide;

use aqueduct_core::{ModelShape, Refusal};
use aqueduct_kernels::experts::Groups;
use aqueduct_kernels::{Activation, Ungated, Xielu};

pub(crate) use self::experts::ManyExperts;
pub(crate) use self::intervals::{
    ALTERNATE_LAYERS, FULL_LAYER_INTERVAL, OLMO3_FULL_LAYER_INTERVAL, STILL_LAYER_INTERVAL,
    all_but_every,
};
pub(crate) use self::latents::{LATENT_EPS, Latents};
pub(crate) use self::recurrents::{Columns, Gate, Recurrents, RuleShape};
pub(crate) use self::scales::{Scales, Softcaps};
use super::folded::Folded;
use crate::rope::{Rope, Temperature};

/// Decoder families that are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    Llama,
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
    /// Phi 3, 3.5, 4 and 4 mini.
    Phi3,
    /// Granite 3.
    Granite,
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
    /// Gemma 3, of which what reads pictures is left out.
    Gemma3,
    /// Gemma 4: 31B, 26B A4B, E4B and E2B.
    Gemma4,
    Mixtral,
    Qwen2Moe,
    Qwen3Moe,
    /// Granite 3 with experts.
    GraniteMoe,
    /// GLM 4.5 and 4.6.
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
    /// V3, V3.1 and R1; Kimi K2 too.
    DeepSeekV3,
    /// GLM 4.7 Flash.
    Glm4MoeLite,
    /// DeepSeek V3 without experts.
    Youtu,
    MiniCpm3,
    /// Hunyuan 0.5B to 7B, dense.
    HunYuan,
    /// Hunyuan A13B.
    HunYuanMoe,
    /// 7B, 40B, 180B and 2 11B, with one norm for both parts or one for each.
    Falcon,
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
    Lfm2,
    /// LFM2 with experts.
    Lfm2Moe,
    Lfm3,
    Bamba,
    /// OLMo 2 with layers that are no attention, which have norms where most have them.
    OlmoHybrid,
    /// Nemotron-H, Nano 2 and, with experts, 3 Nano: files number parts of layers.
    NemotronH,
}

/// What the RMS norms of queries and keys are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum QkNorm {
    /// There are none.
    Nothing,
    EachHead,
    /// All heads of a token together.
    AllHeads,
}

/// What the norms of the stream are, where they take its mean away first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LayerNorms {
    /// Files have weights of theirs; else these are one.
    pub(crate) weights: bool,
    pub(crate) biases: bool,
}

impl Family {
    /// `None`: the stream's norms are RMS norms.
    pub(crate) fn layer_norms(self) -> Option<LayerNorms> {
        match self {
            Self::Cohere | Self::Cohere2 => Some(LayerNorms { weights: true, biases: false }),
            Self::Olmo => Some(LayerNorms { weights: false, biases: false }),
            Self::StableLm | Self::StarCoder2 | Self::GptNeoX | Self::Phi => {
                Some(LayerNorms { weights: true, biases: true })
            }
            Self::Nemotron | Self::Jais2 | Self::Falcon | Self::GptJ => {
                Some(LayerNorms { weights: true, biases: true })
            }
            _ => None,
        }
    }

    pub(crate) fn qk_norm(self) -> QkNorm {
        match self {
            Self::Qwen3 | Self::Qwen3Moe | Self::Gemma3 | Self::Dots1 => QkNorm::EachHead,
            Self::Gemma4 => QkNorm::EachHead,
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

    /// Norms of queries and keys are behind their rotation.
    pub(crate) fn norms_last(self) -> bool {
        matches!(self, Self::HunYuan | Self::HunYuanMoe | Self::Llama4)
    }

    /// Elements that are rotated together stand beside each other in transformers' files.
    pub(crate) fn neighbours(self) -> bool {
        let ernie = matches!(self, Self::Ernie45 | Self::Ernie45Moe);
        let cohere = matches!(self, Self::Cohere | Self::Cohere2);
        let deepseek = matches!(self, Self::DeepSeekV2 | Self::DeepSeekV3 | Self::Glm4MoeLite);
        let glm = matches!(self, Self::Glm | Self::Glm4);
        let others = matches!(self, Self::Helium | Self::Youtu | Self::GptJ | Self::Mistral4);
        ernie || cohere || deepseek || glm || others || self == Self::Llama4
    }

    /// Keys and values come of a few numbers that heads share.
    pub(crate) fn is_latent(self) -> bool {
        let deepseek = matches!(self, Self::DeepSeekV2 | Self::DeepSeekV3 | Self::Glm4MoeLite);
        deepseek || matches!(self, Self::Youtu | Self::MiniCpm3 | Self::Mistral4)
    }

    /// RMS norm of what attention and feed-forward part give, before it is added to the stream.
    pub(crate) fn post_norms(self) -> bool {
        let all = matches!(self, Self::Glm4 | Self::Gemma2 | Self::Gemma3 | Self::Lfm3);
        all || self == Self::Gemma4 || !self.pre_norms()
    }

    /// RMS norm of what attention and feed-forward part are given.
    pub(crate) fn pre_norms(self) -> bool {
        let olmo = matches!(self, Self::Olmo2 | Self::Olmo3 | Self::FlexOlmo | Self::OlmoHybrid);
        !olmo && self != Self::Exaone4
    }

    /// Rows see something besides keys.
    pub(crate) fn sinks(self) -> bool {
        self == Self::GptOss
    }

    /// Of the feed-forward parts, where a file does not say another one.
    pub(crate) fn activation(self) -> Activation {
        match self {
            Self::Gemma | Self::Gemma2 | Self::Gemma3 | Self::Gemma4 => Activation::GeluTanh,
            Self::GptOss => Activation::ClampedSilu,
            Self::StarCoder2 | Self::Phi | Self::GptJ => Activation::Ungated(Ungated::GeluTanh),
            Self::GptNeoX | Self::Falcon => Activation::Ungated(Ungated::Gelu),
            Self::Nemotron | Self::Arcee | Self::Jais2 => Activation::Ungated(Ungated::ReluSquared),
            Self::NemotronH => Activation::Ungated(Ungated::ReluSquared),
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

/// How a query or key head's elements stand in the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct HeadOrder {
    /// How many of a head's elements are rotated: its first ones, an even number.
    pub(crate) rotary_dim: u32,
    /// Rotated elements stand beside each other in pairs; else their halves do.
    pub(crate) neighbours: bool,
    /// Where queries, keys and values are in one tensor, those of a head stand together.
    pub(crate) by_head: bool,
}

/// Which linear maps add a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Biases {
    pub(crate) qkv: bool,
    pub(crate) out: bool,
    pub(crate) gate_up: bool,
    pub(crate) down: bool,
}

/// A decoder's description, validated: counts within limits, rope finite.
#[derive(Debug, Clone)]
pub(crate) struct Decoder {
    pub(crate) family: Family,
    pub(crate) shape: ModelShape,
    pub(crate) norm_eps: f32,
    pub(crate) layer_norms: Option<LayerNorms>,
    /// The feed-forward part takes what attention takes.
    pub(crate) parallel: bool,
    /// Through a norm of its own; else by the same.
    pub(crate) two_norms: bool,
    /// `[layers]`, all gated or none.
    pub(crate) activations: Vec<Activation>,
    pub(crate) rope: Rope,
    /// `[layers]`: whether queries and keys are rotated.
    pub(crate) rotates: Vec<bool>,
    /// Of layers with a window, if it is another one.
    pub(crate) window_rope: Option<Rope>,
    /// What queries are multiplied by where they stand, if anything.
    pub(crate) temperature: Option<Temperature>,
    /// The same in layers that do not rotate, by positions counted from 1.
    pub(crate) still_temperature: Option<Temperature>,
    /// Added to the weights of norms.
    pub(crate) norm_offset: f32,
    pub(crate) order: HeadOrder,
    pub(crate) scales: Scales,
    /// `[layers]`.
    pub(crate) windows: Vec<Option<u32>>,
    /// These are blocks of positions, and else the last ones.
    pub(crate) in_blocks: bool,
    pub(crate) biases: Biases,
    pub(crate) experts: Option<ManyExperts>,
    /// Their router and their parts add biases.
    pub(crate) expert_biases: bool,
    /// Groups of which a token may go to a few alone.
    pub(crate) expert_groups: Option<Groups>,
    /// Of what keys and values come, if not of the stream.
    pub(crate) latent: Option<Latents>,
    /// Layers that remember in a state, if there are any.
    pub(crate) recurrent: Option<Recurrents>,
    /// Which parts each layer has, where files number parts.
    pub(crate) folded: Option<Folded>,
    /// What attention gives is multiplied by the sigmoid of something, if it is.
    pub(crate) gate: Option<Gate>,
    pub(crate) softcaps: Softcaps,
    pub(crate) qk_norm: QkNorm,
    /// Layers that rotate have norms of each head of queries and keys, without weights.
    pub(crate) unit_norms: bool,
    /// Of layers whose heads are those of [`ModelShape::wide`]: values are keys before their norm
    /// and rotation.
    pub(crate) keys_are_values: bool,
    /// So many numbers of each token are a layer's own, if layers take such.
    pub(crate) inputs: Option<u32>,
    /// Layers without keys of their own have feed-forward parts of twice the width.
    pub(crate) double_ffn: bool,
    /// Logits come from the embedding.
    pub(crate) tied: bool,
    /// They have a bias.
    pub(crate) head_bias: bool,
}

impl Decoder {
    /// Takes this if what stands behind its rotation takes what was rotated and nothing more, and
    /// layers without keys have others to attend to.
    pub(crate) fn checked(self) -> Result<Self, Refusal> {
        self.check_lenders()?;
        let factor = [Some(&self.rope), self.window_rope.as_ref()]
            .into_iter()
            .flatten()
            .map(|rope| rope.attention_factor)
            .find(|&factor| factor != 1.0);
        match factor.filter(|_| self.family.norms_last()) {
            Some(factor) => {
                let bound = "1, where norms are behind the rotation";
                Err(Refusal::new("rope attention_factor", factor, bound))
            }
            None => Ok(self),
        }
    }

    /// Layer `idx` remembers in a state.
    pub(crate) fn is_recurrent(&self, idx: usize) -> bool {
        self.recurrent.as_ref().is_some_and(|recurrent| recurrent.layers[idx])
    }

    /// Layer `idx` has something that mixes tokens.
    pub(crate) fn has_mixer(&self, idx: usize) -> bool {
        self.folded.as_ref().is_none_or(|folded| folded.layers[idx].mixer.is_some())
    }

    /// Layer `idx` has a feed-forward part.
    pub(crate) fn has_feed(&self, idx: usize) -> bool {
        self.folded.as_ref().is_none_or(|folded| folded.layers[idx].feed.is_some())
    }

    /// Layer `idx` has norms before its parts. Where a family has none, it has in layers that
    /// remember in a state.
    pub(crate) fn pre_norms(&self, idx: usize) -> bool {
        self.family.pre_norms() || self.is_recurrent(idx)
    }

    /// Layer `idx` has norms behind its parts.
    pub(crate) fn post_norms(&self, idx: usize) -> bool {
        self.family.post_norms() && (self.family.pre_norms() || !self.is_recurrent(idx))
    }

    /// One norm is of what attention and what the feed-forward part takes.
    pub(crate) fn shares_norm(&self) -> bool {
        self.parallel && !self.two_norms
    }

    /// Feed-forward parts have gates.
    pub(crate) fn is_gated(&self) -> bool {
        self.activations.iter().all(|activation| activation.projections() == 2)
    }

    /// `[layers]`: each layer's rotation.
    pub(crate) fn ropes(&self) -> Vec<Rope> {
        let of_layer = |(&rotates, window): (&bool, &Option<u32>)| match (rotates, window) {
            (false, _) => Rope::NONE,
            (true, Some(_)) => self.window_rope.clone().unwrap_or_else(|| self.rope.clone()),
            (true, None) => self.rope.clone(),
        };
        self.rotates.iter().zip(&self.windows).map(of_layer).collect()
    }
}
