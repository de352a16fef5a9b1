//! Rows of one KV head's query heads, stacked and transposed: lanes are rows.
//!
//! Keys and values are then read as they lie in memory, one element against a vector of rows,
//! and maxima and sums over keys need no reduction across lanes.

use std::ops::Range;

use super::sight::{range_in_sight, within};
use super::simd::{LANES, Simd, Vector};
use super::tile::{Block, ByRow, Panels, multiply, sweep};
use crate::backend::Queries;
use crate::memory::Keys;

/// Rows of a tile, where a group of heads does not ask for more: four vectors.
const ROWS: usize = 64;

/// Some tokens' rows of all R heads that share KV head `g`; row r * tokens + i is token i of
/// the group's head r.
pub(super) struct QueryTile {
    /// KV head.
    pub(super) g: usize,
    /// Rows of the block.
    pub(super) tokens: Vec<usize>,
    /// R.
    pub(super) group: usize,
    /// D.
    pub(super) head_dim: usize,
    /// `[panels, head_dim, 16]`; lanes without a row are zero.
    pub(super) q: Vec<[f32; LANES]>,
    /// Per token: the keys it sees.
    pub(super) sight: Vec<Range<usize>>,
}

/// Tokens of a tile: as many as fill it with `group` heads each.
pub(super) fn tile_tokens(group: usize) -> usize {
    (ROWS / group).max(1)
}

/// Cuts `tokens` into tiles.
pub(super) fn token_tiles(tokens: &[usize], group: usize) -> impl Iterator<Item = &[usize]> {
    tokens.chunks(tile_tokens(group))
}

impl QueryTile {
    /// Gathers `tokens` of KV head `g`.
    pub(super) fn new(queries: &Queries<'_>, keys: &Keys, g: usize, tokens: &[usize]) -> Self {
        let (q, group) = (queries.q, queries.q.heads / keys.kv_heads());
        let positions = keys.head_positions(g);
        let sight = tokens.iter().map(|&t| range_in_sight(queries, t, positions)).collect();
        let mut tile =
            Self { g, tokens: tokens.to_vec(), group, head_dim: q.head_dim, q: Vec::new(), sight };
        tile.q = vec![[0.0; LANES]; tile.panels() * q.head_dim];
        for panel in 0..tile.panels() {
            let lanes = &mut tile.q[panel * q.head_dim..(panel + 1) * q.head_dim];
            for row in panel * LANES..((panel + 1) * LANES).min(group * tokens.len()) {
                let (head, t) = (g * group + row / tokens.len(), tokens[row % tokens.len()]);
                for (lanes, &q) in lanes.iter_mut().zip(q.row(head, t)) {
                    lanes[row % LANES] = q;
                }
            }
        }
        tile
    }

    /// Rows.
    pub(super) fn rows(&self) -> usize {
        self.tokens.len() * self.group
    }

    /// Vectors that the rows fill.
    pub(super) fn panels(&self) -> usize {
        self.rows().div_ceil(LANES)
    }

    /// Query head and row of the block of row `row`.
    pub(super) fn origin(&self, row: usize) -> (usize, usize) {
        let tokens = self.tokens.len();
        (self.g * self.group + row / tokens, self.tokens[row % tokens])
    }

    /// The keys that any row sees, all between the two ends.
    pub(super) fn reach(&self) -> Range<usize> {
        let seen = || self.sight.iter().filter(|range| !range.is_empty());
        let first = seen().map(|range| range.start).min().unwrap_or(0);
        first..seen().map(|range| range.end).max().unwrap_or(first)
    }

    /// What each lane sees of keys `first..last`; `None` where every row sees all of them.
    pub(super) fn mask(&self, first: usize, last: usize) -> Option<Vec<Bounds>> {
        if self.sight.iter().all(|range| range.start <= first && range.end >= last) {
            return None;
        }
        let mut bounds = vec![Bounds { low: [0.0; LANES], high: [0.0; LANES] }; self.panels()];
        for row in 0..self.rows() {
            let seen = within(&self.sight[row % self.tokens.len()], first, last);
            bounds[row / LANES].low[row % LANES] = seen.start as f32;
            bounds[row / LANES].high[row % LANES] = seen.end as f32;
        }
        Some(bounds)
    }
}

/// Per lane, the keys of a tile that it sees: those from `low` up to below `high`.
#[derive(Clone)]
pub(super) struct Bounds {
    low: [f32; LANES],
    high: [f32; LANES],
}

impl Bounds {
    /// `logit` of key `key` where it is in sight, else -inf.
    #[inline(always)]
    pub(super) fn apply<S: Simd>(&self, simd: S, key: usize, logit: S::V) -> S::V {
        let (key, unseen) = (simd.splat(key as f32), simd.splat(f32::NEG_INFINITY));
        let logit = key.below(simd.load(&self.high), logit, unseen);
        key.below(simd.load(&self.low), unseen, logit)
    }
}

/// Dot products of a tile's rows with keys: `[panels, keys, 16]`.
///
/// Attention and masses get them from here alone, so that the two see the same bits.
pub(super) struct Dots<'a> {
    pub(super) queries: &'a QueryTile,
    /// `[keys, head_dim]`.
    pub(super) keys: &'a [f32],
    /// `[panels, keys, 16]`.
    pub(super) out: &'a mut [[f32; LANES]],
}

impl Dots<'_> {
    /// Computes all of them.
    #[inline(always)]
    pub(super) fn compute<S: Simd>(mut self, simd: S) {
        let keys = self.keys.len() / self.queries.head_dim;
        sweep(simd, keys, self.queries.panels(), &mut self);
    }
}

impl Block for Dots<'_> {
    #[inline(always)]
    fn run<S: Simd, const M: usize, const N: usize>(&mut self, simd: S, row: usize, panel: usize) {
        let head_dim = self.queries.head_dim;
        let keys = self.keys.len() / head_dim;
        let left = ByRow { data: &self.keys[row * head_dim..], stride: head_dim };
        let right = Panels { data: &self.queries.q[panel * head_dim..], stride: head_dim };
        let mut acc = [[simd.splat(0.0); N]; M];
        multiply(simd, &mut acc, left, right, head_dim);
        for (i, acc) in acc.iter().enumerate() {
            for (j, &acc) in acc.iter().enumerate() {
                acc.store(&mut self.out[(panel + j) * keys + row + i]);
            }
        }
    }
}
