//! What a decoder is, whichever file said so.

use aqueduct_core::ModelShape;

use crate::rope::Rope;

/// Decoder families that are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
}

impl Family {
    /// RMS norm of every query and key head before rotation.
    pub(crate) fn qk_norm(self) -> bool {
        self == Self::Qwen3
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
    /// `[layers]`.
    pub(crate) windows: Vec<Option<u32>>,
    pub(crate) biases: Biases,
    /// Logits come from the embedding.
    pub(crate) tied: bool,
}
