//! What a decoder is, whichever file said so.

use aqueduct_core::{ModelShape, Refusal};

use crate::rope::Rope;

/// Decoder families that are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    /// Phi 3, 3.5, 4 and 4 mini.
    Phi3,
    /// Granite 3.
    Granite,
    /// Granite 4, where it has neither experts nor layers that are no attention.
    Granite4,
    SmolLm3,
    SeedOss,
    /// ERNIE 4.5, dense.
    Ernie45,
    /// GLM 4 as it was before its norms behind the layers.
    Glm,
}

impl Family {
    /// RMS norm of every query and key head before rotation.
    pub(crate) fn qk_norm(self) -> bool {
        self == Self::Qwen3
    }
}

/// SmolLM3: of so many layers one does not rotate, unless a file says otherwise.
pub(crate) const STILL_LAYER_INTERVAL: usize = 4;

/// Which of so many layers rotate, if every `interval`th does not.
pub(crate) fn all_but_every(interval: usize, layers: u32) -> Vec<bool> {
    (1..=layers as usize).map(|layer| !layer.is_multiple_of(interval)).collect()
}

/// How a query or key head's elements stand in the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct HeadOrder {
    /// How many of a head's elements are rotated: its first ones, an even number.
    pub(crate) rotary_dim: u32,
    /// Rotated elements stand beside each other in pairs; else their halves do.
    pub(crate) neighbours: bool,
}

/// What multiplies what, beside weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scales {
    /// The embedding's rows.
    pub(crate) embed: f32,
    /// What attention and feed-forward part add to the stream.
    pub(crate) residual: f32,
    /// Attention's dot products.
    pub(crate) attention: f32,
    /// What logits are divided by.
    pub(crate) logits: f32,
}

impl Scales {
    /// What most models have.
    pub(crate) fn usual(head_dim: u32) -> Self {
        Self { embed: 1.0, residual: 1.0, attention: 1.0 / (head_dim as f32).sqrt(), logits: 1.0 }
    }

    /// Takes these if something finite comes of them.
    pub(crate) fn checked(self) -> Result<Self, Refusal> {
        let Self { embed, residual, attention, logits } = self;
        for (field, scale) in [
            ("embedding scale", embed),
            ("residual scale", residual),
            ("attention scale", attention),
            ("logits scale", logits),
        ] {
            Refusal::unless_within(field, scale, 1e-6, 1e6)?;
        }
        Ok(self)
    }
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
    pub(crate) rope: Rope,
    /// `[layers]`: whether queries and keys are rotated.
    pub(crate) rotates: Vec<bool>,
    pub(crate) order: HeadOrder,
    pub(crate) scales: Scales,
    /// `[layers]`.
    pub(crate) windows: Vec<Option<u32>>,
    pub(crate) biases: Biases,
    /// Logits come from the embedding.
    pub(crate) tied: bool,
}
