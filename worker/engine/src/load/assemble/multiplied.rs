//! Norms of the stream, with what multiplies what stands behind them.

use std::sync::Arc;

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
}

fn multiplied(norm: Arc<[f32]>, by: Option<f32>) -> Arc<[f32]> {
    match by {
        Some(by) => norm.iter().map(|weight| weight * by).collect(),
        None => norm,
    }
}
