//! Rows of one KV head's query heads, stacked: lanes are rows.
//!
//! Keys and values are then read as they lie in memory, one element against a vector of rows,
//! and maxima and sums over keys need no reduction across lanes.

use std::ops::Range;

use crate::cpu::lines::Lines;
use crate::cpu::simd::{LANES, Simd};

/// Sixteen rows' numbers.
pub(super) type Lanes = [f32; LANES];

/// Rows of a tile, where a group of heads does not ask for more: four vectors.
const ROWS: usize = 64;

/// Some tokens' rows of all R heads that share KV head `g`; row r * tokens + i is token i of
/// the group's head r.
#[derive(Debug, Clone)]
pub(super) struct RowTile {
    /// KV head.
    pub(super) g: usize,
    /// Tokens of the block.
    pub(super) tokens: Range<usize>,
    /// R.
    pub(super) group: usize,
}

/// Tokens of a tile: as many as fill it with `group` heads each.
pub(super) fn tile_tokens(group: usize) -> usize {
    (ROWS / group).max(1)
}

impl RowTile {
    /// The tiles that it is cut into.
    pub(super) fn tiles(&self) -> impl Iterator<Item = Self> + use<> {
        let Self { g, group, .. } = *self;
        let (end, step) = (self.tokens.end, tile_tokens(group));
        let tile = move |start: usize| Self { g, tokens: start..end.min(start + step), group };
        self.tokens.clone().step_by(step).map(tile)
    }

    /// Rows.
    pub(super) fn len(&self) -> usize {
        self.tokens.len() * self.group
    }

    /// Vectors that the rows fill.
    pub(super) fn panels(&self) -> usize {
        self.len().div_ceil(LANES)
    }

    /// Query head and token of row `row`.
    pub(super) fn origin(&self, row: usize) -> (usize, usize) {
        let tokens = self.tokens.len();
        (self.g * self.group + row / tokens, self.tokens.start + row % tokens)
    }

    /// A number of each row by query head and token, in lanes; `none` in lanes without a row.
    pub(super) fn lanes(&self, none: f32, of: impl Fn(usize, usize) -> f32) -> Vec<Lanes> {
        let mut lanes = vec![[none; LANES]; self.panels()];
        for row in 0..self.len() {
            let (head, t) = self.origin(row);
            lanes[row / LANES][row % LANES] = of(head, t);
        }
        lanes
    }
}

/// The rows of panel `panel` of `o` (`[head_dim, panels, 16]`), turned to `[16, width]` in
/// `rows`; returns the width, D rounded up to lanes.
#[inline(always)]
pub(super) fn turn<S: Simd>(
    simd: S,
    o: &[Lanes],
    (panel, panels): (usize, usize),
    rows: &mut Lines<f32>,
) -> usize {
    let steps = (o.len() / panels).div_ceil(LANES);
    rows.resize(LANES * steps);
    for (step, columns) in o.chunks(LANES * panels).enumerate() {
        let mut block = [[0.0; LANES]; LANES];
        for (to, from) in block.iter_mut().zip(columns[panel..].iter().step_by(panels)) {
            *to = *from;
        }
        simd.transpose(&mut block);
        for (lane, row) in block.iter().enumerate() {
            rows[lane * steps + step] = *row;
        }
    }
    steps * LANES
}
