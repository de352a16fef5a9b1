//! Keys and values of a few numbers that heads share, in plain f64 loops.

use crate::backend::Backend;
use crate::latent::{Latent, Raised};
use crate::weights::LayerSpec;

use super::super::near::{Near, normed};
use super::super::scene::Random;
use super::{Look, Plain};

/// What heads share, of a key.
const SHARED: usize = 6;
/// What a value has less than a key.
const SHORTER: usize = 3;
const QUERIES_RANK: usize = 40;
const KEYS_RANK: usize = 24;
const EPS: f32 = 1e-3;

/// What comes of a few numbers.
struct PlainRaised {
    norm: Vec<f32>,
    up: Plain,
}

impl PlainRaised {
    fn new(random: &mut Random, (outputs, rank): (usize, usize), look: Look) -> Self {
        let norm = random.normals(rank).iter().map(|x| 1.0 + 0.1 * x).collect();
        Self { norm, up: Plain::new(random, (outputs, rank), Look { bias: false, ..look }) }
    }

    fn pack(&self, backend: &dyn Backend) -> Raised {
        Raised { norm: self.norm.as_slice().into(), up: self.up.pack(backend) }
    }

    fn apply(&self, x: &[Near]) -> Vec<Near> {
        self.up.apply(&normed(x, &self.norm, EPS.into()))
    }
}

/// A layer's [`Latent`] before it is packed.
pub(super) struct PlainLatent {
    queries: Option<PlainRaised>,
    keys: PlainRaised,
    value_dim: usize,
}

impl PlainLatent {
    /// With queries that come of a few numbers too, or as they are.
    pub(super) fn new(random: &mut Random, (heads, look): (usize, Look), queries: bool) -> Self {
        let (d, value_dim) = (look.head_dim, look.head_dim - SHORTER);
        let raised =
            |random: &mut Random, outputs| PlainRaised::new(random, (outputs, QUERIES_RANK), look);
        let queries = queries.then(|| raised(random, heads * d));
        let outputs = heads * (d - SHARED + value_dim);
        Self { queries, keys: PlainRaised::new(random, (outputs, KEYS_RANK), look), value_dim }
    }

    pub(super) fn pack(&self, backend: &dyn Backend) -> Latent {
        Latent {
            queries: self.queries.as_ref().map(|queries| queries.pack(backend)),
            keys: self.keys.pack(backend),
            shared: SHARED,
            value_dim: self.value_dim,
            norm_eps: EPS,
        }
    }

    /// Rows of the first product.
    pub(super) fn first(&self, all_queries: usize) -> usize {
        KEYS_RANK + SHARED + self.queries.as_ref().map_or(all_queries, |_| QUERIES_RANK)
    }

    /// Columns of the output projection.
    pub(super) fn outputs(&self, heads: usize) -> usize {
        heads * self.value_dim
    }

    /// Queries, keys and values before they are rotated, `[3 heads, head_dim]`.
    pub(super) fn stacked(&self, spec: &LayerSpec, made: &[Near]) -> Vec<Near> {
        let LayerSpec { heads, head_dim: d, .. } = *spec;
        let (rest, shared) = made.split_at(made.len() - SHARED);
        let (queries, few) = rest.split_at(rest.len() - KEYS_RANK);
        let of_queries = |raised: &PlainRaised| raised.apply(queries);
        let mut all = self.queries.as_ref().map_or_else(|| queries.to_vec(), of_queries);
        let kv = self.keys.apply(few);
        let (keys, values) = kv.split_at(heads * (d - SHARED));
        for own in keys.chunks(d - SHARED) {
            let (mut own, mut shared) = (own.iter(), shared.iter());
            let is_shared = |i: usize| i % (d / 2) < SHARED / 2;
            let of_either = |i| if is_shared(i) { shared.next() } else { own.next() };
            all.extend((0..d).filter_map(of_either));
        }
        for value in values.chunks(self.value_dim) {
            all.extend(value);
            all.resize(all.len() + SHORTER, Near::given(0.0));
        }
        all
    }

    /// What of attention's output is multiplied.
    pub(super) fn kept(&self, spec: &LayerSpec, attention: &[Near]) -> Vec<Near> {
        let heads = attention.chunks(spec.head_dim);
        heads.flat_map(|head| head[..self.value_dim].to_vec()).collect()
    }
}
