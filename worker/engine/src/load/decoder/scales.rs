//! What multiplies numbers of a decoder beside its weights, and what keeps them within bounds.

use aqueduct_core::Refusal;

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

    /// What Gemma has: its embedding is multiplied by the root of the width, and `divisor` is what
    /// dot products are divided by the root of.
    pub(crate) fn gemma(width: u32, divisor: f32) -> Self {
        let embed = (width as f32).sqrt();
        Self { embed, residual: 1.0, attention: 1.0 / divisor.sqrt(), logits: 1.0 }
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

/// What logits are brought within, by [`aqueduct_kernels::Queries::softcap`]'s formula.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Softcaps {
    /// Attention's.
    pub(crate) attention: Option<f32>,
    /// Those of tokens.
    pub(crate) tokens: Option<f32>,
}

impl Softcaps {
    /// Takes these if something finite comes of them.
    pub(crate) fn checked(self) -> Result<Self, Refusal> {
        let Self { attention, tokens } = self;
        for (field, cap) in
            [("attn_logit_softcapping", attention), ("final_logit_softcapping", tokens)]
        {
            cap.map_or(Ok(1.0), |cap| Refusal::unless_within(field, cap, 1e-3, 1e6))?;
        }
        Ok(self)
    }
}
