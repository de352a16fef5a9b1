//! Attention whose keys and values come of a few numbers that all heads share  (DeepSeek-AI 2024,
//! multi-head latent attention), in its expanded form: every head has keys and values of its own.

use std::ops::Range;
use std::sync::Arc;

use crate::tensor::Rows;
use crate::weights::{LayerSpec, Linear};

/// What stands between a layer's first product and its heads, each of which is its own KV head.
///
/// The first product ([`LayerWeights::qkv`](crate::LayerWeights::qkv)) has what queries are made
/// of, or the queries themselves; then what keys and values are made of; then the elements that
/// all keys of a token share.
#[derive(Debug, Clone)]
pub struct Latent {
    /// What queries are made of: `[H D, rank]`. `None` where the first product has them.
    pub queries: Option<Raised>,
    /// What keys and values are made of: `[H (D - shared) + H value_dim, rank]`, keys of all heads
    /// first.
    pub keys: Raised,
    /// So many elements of a key are those of all heads, an even number: the ones that are
    /// rotated.
    pub shared: usize,
    /// Elements of a value, at most D; the others are zero, and no output's.
    pub value_dim: usize,
    /// Added to the mean square in the norms of what is raised.
    pub norm_eps: f32,
}

/// A map of a few numbers into many.
#[derive(Debug, Clone)]
pub struct Raised {
    /// `[rank]`: RMS norm of the few.
    pub norm: Arc<[f32]>,
    /// `[outputs, rank]`.
    pub up: Linear,
}

impl Latent {
    /// Columns of the first product: of queries, of keys and values, and those that keys share.
    pub(crate) fn columns(&self, spec: &LayerSpec) -> [Range<usize>; 3] {
        let all_queries = spec.heads * spec.head_dim;
        let queries = self.queries.as_ref().map_or(all_queries, |raised| raised.norm.len());
        let keys = queries + self.keys.norm.len();
        [0..queries, queries..keys, keys..keys + self.shared]
    }

    /// Elements of a key that its head has for itself.
    pub(crate) fn own(&self, spec: &LayerSpec) -> usize {
        spec.head_dim - self.shared
    }

    /// First column of what `keys` makes of head `head`: of its key, and of its value.
    pub(crate) fn columns_of(&self, spec: &LayerSpec, head: usize) -> [usize; 2] {
        let own = self.own(spec);
        [head * own, spec.heads * own + head * self.value_dim]
    }

    /// A key before it is rotated, half-split: in either half the shared elements come first.
    pub(crate) fn key(&self, own: &[f32], shared: &[f32], to: &mut [f32]) {
        let (shared, own) = (shared.split_at(shared.len() / 2), own.split_at(own.len() / 2));
        let (first, second) = to.split_at_mut(to.len() / 2);
        for (to, shared, own) in [(first, shared.0, own.0), (second, shared.1, own.1)] {
            to[..shared.len()].copy_from_slice(shared);
            to[shared.len()..].copy_from_slice(own);
        }
    }

    /// What attention gave, `[tokens, H D]`, without the elements that no value has.
    pub(crate) fn outputs(&self, spec: &LayerSpec, attention: &Rows) -> Rows {
        let (d, width) = (spec.head_dim, spec.heads * self.value_dim);
        let mut outputs = Vec::with_capacity(attention.rows() * width);
        for head in attention.data().chunks_exact(d) {
            outputs.extend_from_slice(&head[..self.value_dim]);
        }
        Rows::from_vec(attention.rows(), width, outputs)
    }
}
