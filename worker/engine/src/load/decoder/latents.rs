//! Keys and values of a few numbers (multi-head latent attention).

use aqueduct_core::Refusal;

/// Of what keys and values come, and queries perhaps; a key's rotated elements are those of all
/// heads, and stand last in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Latents {
    /// Numbers that queries come of, if they do not come of the stream.
    pub(crate) queries: Option<u32>,
    /// Numbers that keys and values come of.
    pub(crate) keys: u32,
    /// Elements of a value.
    pub(crate) value_dim: u32,
}

/// Added to the mean square of these numbers, whatever the model's other norms have: all that are
/// served were trained so, though some runtimes take the other one.
pub(crate) const LATENT_EPS: f32 = 1e-6;

impl Latents {
    /// Takes these if heads of `head_dim` elements, of which so many are rotated, can come of them.
    pub(crate) fn checked(self, head_dim: u32, rotary_dim: u32) -> Result<Self, Refusal> {
        for (field, rank) in [("q_lora_rank", self.queries), ("kv_lora_rank", Some(self.keys))] {
            rank.map_or(Ok(1), |rank| Refusal::unless_within(field, rank, 1, 1 << 20))?;
        }
        Refusal::unless_within("qk_rope_head_dim", rotary_dim, 2, head_dim.saturating_sub(2))?;
        Refusal::unless_within("v_head_dim", self.value_dim, 1, head_dim)?;
        Ok(self)
    }
}
