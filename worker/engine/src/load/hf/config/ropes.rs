//! Which rotation each layer has.

use aqueduct_core::ModelShape;

use super::Config;
use crate::load::decoder::Family;
use crate::load::hf::rope::{self, Found, RopeError};
use crate::rope::Rope;

/// The base of layers with a window in Gemma 3, LFM3 and Mellum.
pub(super) const LOCAL_THETA: f64 = 1e4;

impl Config {
    /// The rotation of most layers, and that of layers with a window where it may be another one.
    pub(super) fn ropes(
        &self,
        family: Family,
        shape: &ModelShape,
    ) -> Result<(Found, Option<Rope>), RopeError> {
        let defaults = family.rope();
        let gemma = matches!(family, Family::Gemma3 | Family::Gemma4);
        if gemma || matches!(family, Family::Olmo3 | Family::Lfm3 | Family::Mellum) {
            let local_theta = (family != Family::Olmo3).then_some(LOCAL_THETA);
            let wide = ModelShape { head_dim: shape.wide.head_dim, ..shape.clone() };
            let shapes = [if shape.wide.layers > 0 { &wide } else { shape }, shape];
            let both = rope::ropes_by_layer_type(&self.rope, shapes, defaults, local_theta)?;
            return Ok((both.0, Some(both.1)));
        }
        if matches!(family, Family::GraniteSwa | Family::GraniteMoeSwa) {
            let [full, local] = self.granite_ropes(family)?;
            let local = rope::rope(&local, shape, defaults)?;
            return Ok((rope::rope(&full, shape, defaults)?, Some(local.rope)));
        }
        let mut rotated = shape.clone();
        if family.is_latent() {
            [_, rotated.head_dim] = self.latent_head(family)?;
        }
        let mut found = rope::rope(&self.rope, &rotated, defaults)?;
        if family == Family::NanoChat {
            // Its second elements turn into its first, as angles below 0 would have it.
            found.rope.inv_freq.iter_mut().for_each(|freq| *freq = -*freq);
        }
        Ok((found, None))
    }
}
