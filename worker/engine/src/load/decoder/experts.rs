//! Feed-forward parts of which a token goes through a few.

use aqueduct_core::Refusal;
use aqueduct_kernels::experts::{Groups, Scoring};

/// Layers whose feed-forward part is many, of which a token goes through a few.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ManyExperts {
    /// How many.
    pub(crate) count: u32,
    /// Through how many of them a token goes.
    pub(crate) chosen: u32,
    /// Rows of the gate of each.
    pub(crate) ffn: u32,
    /// The same of what all tokens go through besides, if there is any.
    pub(crate) shared_ffn: Option<u32>,
    /// A gate of one row multiplies that.
    pub(crate) shared_gate: bool,
    pub(crate) scoring: Scoring,
    /// Scores have a bias where experts are chosen.
    pub(crate) bias: bool,
    /// Weights of a token's experts are divided by their sum.
    pub(crate) normalises: bool,
    /// Multiplies weights.
    pub(crate) scale: f32,
    /// `[layers]`: which layers have experts; the others have one part.
    pub(crate) layers: Vec<bool>,
}

impl ManyExperts {
    /// Takes `groups`, of which there is more than one, if as many experts are in each and enough
    /// in those that are chosen.
    pub(crate) fn grouped(&self, groups: Groups) -> Result<Option<Groups>, Refusal> {
        let (count, chosen) = (self.count as usize, self.chosen as usize);
        if groups.count <= 1 {
            return Ok(None);
        }
        if !count.is_multiple_of(groups.count) || count / groups.count < groups.summed {
            let bound = format!("a divisor of {count}, with {} experts in each", groups.summed);
            return Err(Refusal::new("n_group", groups.count, bound));
        }
        let least = chosen.div_ceil(count / groups.count);
        Refusal::unless_within("topk_group", groups.chosen, least, groups.count)?;
        Ok(Some(groups))
    }

    /// Takes these if there are so many layers and enough experts.
    pub(crate) fn checked(self) -> Result<Self, Refusal> {
        const EXPERTS_MAX: u32 = 4096;
        Refusal::unless_within("experts", self.count, 1, EXPERTS_MAX)?;
        Refusal::unless_within("experts per token", self.chosen, 1, self.count)?;
        Refusal::unless_within("expert feed-forward size", self.ffn, 1, 1 << 20)?;
        if let Some(shared) = self.shared_ffn {
            Refusal::unless_within("shared expert feed-forward size", shared, 1, 1 << 20)?;
        }
        Refusal::unless_within("experts' scale", self.scale, 1e-6, 1e6)?;
        Ok(self)
    }
}
