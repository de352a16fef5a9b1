//! The readable implementation of every operation: the oracle that fast backends are held to.
//!
//! One operation a file, one thread, sums in f64.

mod attend;
mod embed;
pub(crate) mod erf;
mod finish;
mod linear;
mod logits;
mod norm;
mod project;
mod recur;
mod weigh;

use std::sync::Arc;

#[cfg(test)]
pub(crate) use self::finish::curved;
pub(crate) use self::finish::gated;
pub(crate) use self::recur::{gate, recur};

use crate::array::Array;
use crate::backend::{
    AttentionOps, Backend, BackendError, LayerOps, MixerOps, Op, Qkv, Queries, Selected,
    SelectionOps, StateOps,
};
use crate::memory::{Keys, MemorySet, Selection};
use crate::state::AttentionState;
use crate::tensor::Rows;
use crate::weights::{Angles, LayerWeights, Linear, Matrix};

/// The reference backend.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reference;

impl StateOps for Reference {}

impl AttentionOps for Reference {
    fn attend(&self, queries: Queries<'_>, keys: &Keys) -> Result<AttentionState, BackendError> {
        attend::attend(&queries, keys)
    }

    fn weigh(
        &self,
        queries: Queries<'_>,
        keys: &Keys,
        lse: &[f32],
        row_weights: &[f32],
    ) -> Result<Array<f32>, BackendError> {
        weigh::weigh(&queries, keys, lse, row_weights).map(Array::from)
    }
}

impl SelectionOps for Reference {
    fn select(
        &self,
        past: Arc<MemorySet>,
        own: &Keys,
        masses: (&Array<f32>, &Array<f32>),
        selection: &Selection,
    ) -> Result<Selected, BackendError> {
        crate::select::select(past, own, (masses.0, masses.1), selection)
    }
}

impl LayerOps for Reference {
    fn pack(&self, weight: Matrix, bias: Option<Vec<f32>>) -> Result<Linear, BackendError> {
        linear::pack(weight, bias)
    }

    fn linear(&self, x: &Rows, weight: &Linear) -> Result<Rows, BackendError> {
        linear::linear("linear", x, weight)
    }

    fn project(
        &self,
        layer: &LayerWeights,
        x: &Rows,
        at: (u32, &Angles),
        queries: usize,
    ) -> Result<Qkv, BackendError> {
        project::project(layer, x, at, queries)
    }

    fn finish(
        &self,
        layer: &LayerWeights,
        x: &Rows,
        attention: &Rows,
    ) -> Result<Rows, BackendError> {
        finish::finish(layer, x, attention)
    }

    fn embed(&self, table: &Linear, tokens: &[u32], scale: f32) -> Result<Rows, BackendError> {
        embed::embed(table, tokens, scale)
    }

    fn norm(&self, x: &Rows, weight: &Arc<[f32]>, eps: f32) -> Rows {
        norm::norm(x, weight, eps)
    }
}

impl MixerOps for Reference {}

impl Backend for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn supports(&self, op: Op) -> bool {
        match op {
            Op::Attention { head_dim, group, kv: _ } => head_dim > 0 && group > 0,
            Op::Layers | Op::Pages | Op::LastRows => true,
        }
    }
}
