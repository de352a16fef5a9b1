//! Numbers of a token that are a layer's own, for models whose layers take such.

use std::ops::Range;
use std::sync::Arc;

use aqueduct_core::{Refusal, TokenId};
use aqueduct_kernels::{Backend, LayerWeights, Linear, Rows};

use crate::error::EngineError;

/// What inputs of layers are made of  (Google 2025, Gemma 3n: per-layer embeddings). For each layer
/// it is the token's row of a table, plus the RMS norm of what a linear map makes of its embedding.
pub struct TokenInputs {
    /// `[vocab, layers * inputs]`: what each layer takes of a token.
    pub table: Linear,
    /// Multiplies its rows.
    pub scale: f32,
    /// `[layers * inputs, width]`, of the embedding as the first layer takes it.
    pub projection: Linear,
    /// `[inputs]`: RMS norm of what comes of that, for each layer by itself. What a model
    /// multiplies it by besides is in it.
    pub norm: Arc<[f32]>,
    /// Added to the mean square there.
    pub norm_eps: f32,
}

impl TokenInputs {
    /// Refuses parts that do not fit together, or not these layers.
    pub(crate) fn check(
        &self,
        vocab: u32,
        width: u32,
        layers: &[LayerWeights],
    ) -> Result<(), Refusal> {
        let same = |field: &str, seen: usize, want: usize| {
            Refusal::unless_within(field, seen, want, want).map(drop)
        };
        let inputs = self.norm.len();
        Refusal::unless_within("inputs", inputs, 1, usize::MAX)?;
        same("inputs.table.outputs", self.table.outputs, vocab as usize)?;
        same("inputs.table.inputs", self.table.inputs, layers.len() * inputs)?;
        same("inputs.projection.outputs", self.projection.outputs, layers.len() * inputs)?;
        same("inputs.projection.inputs", self.projection.inputs, width as usize)?;
        for (idx, layer) in layers.iter().enumerate() {
            let own = layer.input.as_ref().map_or(0, |own| own.gate.outputs);
            same(&format!("layers[{idx}].input"), own, inputs)?;
        }
        Ok(())
    }

    /// Those of tokens whose embedding is `x`, `[tokens, width]`.
    pub(crate) fn of(
        &self,
        backend: &dyn Backend,
        tokens: &[TokenId],
        x: &Rows,
    ) -> Result<LayerInputs, EngineError> {
        let (inputs, columns) = (self.norm.len(), self.projection.outputs);
        let projected = backend.linear(x, &self.projection)?;
        projected.array().host()?;
        let each = Rows::from_vec(tokens.len() * columns / inputs, inputs, projected.into_vec());
        let normed = backend.norm(&each, &self.norm, self.norm_eps);
        let table = backend.embed(&self.table, tokens, self.scale)?;
        let (normed, table) = (normed.array().host()?, table.array().host()?);
        let all = normed.iter().zip(table).map(|(projected, own)| projected + own).collect();
        Ok(LayerInputs { all: Rows::from_vec(tokens.len(), columns, all), inputs })
    }
}

/// What layers take of some tokens.
pub(crate) struct LayerInputs {
    /// `[tokens, layers * inputs]`.
    all: Rows,
    inputs: usize,
}

impl LayerInputs {
    /// What layer `idx` takes of some of the tokens, `[rows, inputs]`.
    pub(crate) fn of_layer(&self, idx: usize, rows: Range<usize>) -> Rows {
        let columns = idx * self.inputs..(idx + 1) * self.inputs;
        let count = rows.len();
        let of = rows.flat_map(|row| &self.all.row(row)[columns.clone()]).copied().collect();
        Rows::from_vec(count, self.inputs, of)
    }

    /// The same of the last `count` tokens.
    pub(crate) fn of_last(&self, idx: usize, count: usize) -> Rows {
        self.of_layer(idx, self.all.rows() - count..self.all.rows())
    }

    /// Those of the tokens of all `parts`, in this order.
    pub(crate) fn stack(parts: Vec<Self>) -> Option<Self> {
        let (inputs, columns) = parts.first().map(|part| (part.inputs, part.all.cols()))?;
        let all = parts.into_iter().map(|part| part.all).collect();
        Some(Self { all: Rows::stack(columns, all), inputs })
    }

    /// Those of tokens that stay.
    pub(crate) fn kept(&self, stays: &[bool]) -> Self {
        Self { all: self.all.kept(stays), inputs: self.inputs }
    }
}
