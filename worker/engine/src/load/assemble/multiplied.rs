//! Norms of the stream, with what multiplies what stands behind them, and norms inside of parts.

use std::sync::Arc;

use aqueduct_kernels::LayerSpec;

use super::{Assembler, Sources};
use crate::error::LoadError;

impl Assembler<'_, '_> {
    /// The norm of `len` before what mixes tokens in layer `idx`, if it has one.
    pub(super) fn norm_before_mixer(
        &mut self,
        prefix: &str,
        idx: usize,
        len: Option<usize>,
    ) -> Result<Option<Arc<[f32]>>, LoadError> {
        let Sources { decoder, names, .. } = self.sources;
        let norm = self.norm_of(prefix, names.attn_norm, len.filter(|_| decoder.has_mixer(idx)))?;
        let by = decoder.multipliers.map(|by| match decoder.is_recurrent(idx) {
            true => by.scan,
            false => by.attention,
        });
        Ok(norm.map(|norm| multiplied(norm, by)))
    }

    /// The same before its feed-forward part.
    pub(super) fn norm_before_feed(
        &mut self,
        prefix: &str,
        idx: usize,
        len: Option<usize>,
    ) -> Result<Option<Arc<[f32]>>, LoadError> {
        let Sources { decoder, names, .. } = self.sources;
        let norm = self.norm_of(prefix, names.ffn_norm, len.filter(|_| decoder.has_feed(idx)))?;
        Ok(norm.map(|norm| multiplied(norm, decoder.multipliers.map(|by| by.feed))))
    }

    /// What output projection and feed-forward part norm before their last products, if they do.
    pub(super) fn sub_norms(
        &mut self,
        prefix: &str,
        idx: usize,
        spec: &LayerSpec,
    ) -> Result<[Option<Arc<[f32]>>; 2], LoadError> {
        let Sources { decoder, names, .. } = self.sources;
        let lens = [spec.heads * spec.head_dim, decoder.ffn(idx)];
        let [out, hidden] = lens.map(|len| decoder.family.sub_norms().then_some(len));
        let out = self.norm_of(prefix, names.sub_norms[0], out)?;
        Ok([out, self.norm_of(prefix, names.sub_norms[1], hidden)?])
    }
}

fn multiplied(norm: Arc<[f32]>, by: Option<f32>) -> Arc<[f32]> {
    match by {
        Some(by) => norm.iter().map(|weight| weight * by).collect(),
        None => norm,
    }
}
