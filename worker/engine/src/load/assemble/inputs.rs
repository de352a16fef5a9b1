//! What layers take of a token besides the stream.

use std::sync::Arc;

use aqueduct_kernels::LayerInput;

use super::{Assembler, Stacked, norm_eps};
use crate::error::LoadError;
use crate::inputs::TokenInputs;

impl Assembler<'_, '_> {
    /// What inputs of layers are made of, if there are any. Models multiply the table's rows by
    /// sqrt(inputs), the projection by 1 / sqrt(width) before its norm, and the sum of both by
    /// 1 / sqrt 2 (Google 2025, Gemma 3n); the second of these is in the norm's epsilon here.
    pub(super) fn token_inputs(&mut self) -> Result<Option<TokenInputs>, LoadError> {
        let decoder = &self.sources.decoder;
        let Some(inputs) = decoder.inputs.map(|inputs| inputs as usize) else { return Ok(None) };
        let names = self.sources.names.beside.inputs;
        let (vocab, width) = (decoder.shape.vocab as usize, decoder.shape.width as usize);
        let all = decoder.shape.layers as usize * inputs;
        let table = self.table(names.table, vocab, all)?;
        let projection = self.table(names.projection, all, width)?;
        let mut norm = self.norm(&format!("{}.weight", names.norm), inputs)?;
        norm.iter_mut().for_each(|weight| *weight *= std::f32::consts::FRAC_1_SQRT_2);
        Ok(Some(TokenInputs {
            table,
            scale: (inputs as f64 / 2.0).sqrt() as f32,
            projection,
            norm: norm.into(),
            norm_eps: norm_eps(decoder) * width as f32,
        }))
    }

    /// What a layer makes of its own, where there are such; `scale` multiplies the stream then.
    pub(super) fn layer_input(
        &mut self,
        prefix: &str,
        scale: Option<f32>,
    ) -> Result<Option<LayerInput>, LoadError> {
        let decoder = &self.sources.decoder;
        let Some(inputs) = decoder.inputs.map(|inputs| inputs as usize) else { return Ok(None) };
        let (names, width) = (self.sources.names.beside.inputs, decoder.shape.width as usize);
        let mut linear = |name, outputs, inputs| {
            let parts = &[(name, outputs)];
            self.linear(prefix, Stacked { parts, inputs, bias: false, norm: None })
        };
        let (gate, up) = (linear(names.gate, inputs, width)?, linear(names.up, width, inputs)?);
        let norm = self.norm(&format!("{prefix}.{}.weight", names.post_norm), width)?;
        Ok(Some(LayerInput { gate, up, norm: Arc::from(norm), scale }))
    }
}
