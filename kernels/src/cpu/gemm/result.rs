//! What becomes of finished sums.

use std::ops::Range;

use super::split::Tile;
use crate::cpu::simd::{LANES, Simd, Vector, load_front};
use crate::tensor::Rows;

/// Where a task's sums go. A slot is a panel of sixteen outputs that the task multiplies.
pub(super) trait Outcome {
    /// Rows of the argument.
    fn rows(&self) -> Range<usize>;

    /// How many panels.
    fn slots(&self) -> usize;

    /// The panels of the weight in the register tile at `slot`.
    fn panels<const N: usize>(&self, slot: usize) -> [usize; N];

    /// Takes the sums of the register tile at row `row` of the task and at `slot`.
    fn put<S: Simd, const M: usize, const N: usize>(
        &mut self,
        simd: S,
        sums: &[[S::V; N]; M],
        row: usize,
        slot: usize,
    );

    /// Whether all sums were finite.
    fn is_finite<S: Simd>(&self, simd: S) -> bool;
}

/// What is added to a finished sum.
#[derive(Clone, Copy)]
pub(super) struct Addends<'a> {
    pub(super) bias: Option<&'a [f32]>,
    pub(super) residual: Option<&'a Rows>,
}

impl Addends<'_> {
    #[inline(always)]
    fn add<S: Simd>(&self, simd: S, mut sum: S::V, row: usize, column: usize) -> S::V {
        if let Some(bias) = self.bias {
            sum = sum + load_front(simd, &bias[column..]);
        }
        if let Some(residual) = self.residual {
            sum = sum + load_front(simd, &residual.row(row)[column..]);
        }
        sum
    }
}

/// Sums with their addends, f32.
pub(super) struct Sums<'a, 'y> {
    tile: Tile<'y, f32>,
    addends: Addends<'a>,
    finite: Finite,
}

impl<'a, 'y> Sums<'a, 'y> {
    /// The tile must begin at a panel's first column.
    pub(super) fn new(tile: Tile<'y, f32>, addends: Addends<'a>) -> Self {
        Self { tile, addends, finite: Finite::default() }
    }
}

impl Outcome for Sums<'_, '_> {
    #[inline(always)]
    fn rows(&self) -> Range<usize> {
        self.tile.row..self.tile.row + self.tile.rows
    }

    #[inline(always)]
    fn slots(&self) -> usize {
        self.tile.columns.len().div_ceil(LANES)
    }

    #[inline(always)]
    fn panels<const N: usize>(&self, slot: usize) -> [usize; N] {
        std::array::from_fn(|j| self.tile.columns.start / LANES + slot + j)
    }

    #[inline(always)]
    fn put<S: Simd, const M: usize, const N: usize>(
        &mut self,
        simd: S,
        sums: &[[S::V; N]; M],
        row: usize,
        slot: usize,
    ) {
        for (i, sums) in sums.iter().enumerate() {
            for (j, &sum) in sums.iter().enumerate() {
                let column = self.tile.columns.start + (slot + j) * LANES;
                let sum = self.addends.add(simd, sum, self.tile.row + row + i, column);
                self.finite.see(simd, sum);
                let mut lanes = [0.0; LANES];
                sum.store(&mut lanes);
                self.tile.write(row + i, column, &lanes);
            }
        }
    }

    #[inline(always)]
    fn is_finite<S: Simd>(&self, simd: S) -> bool {
        self.finite.holds(simd)
    }
}

/// Whether nothing infinite and no NaN was seen: 0 x is 0 then, and NaN otherwise.
#[derive(Default)]
pub(super) struct Finite {
    zeros: [f32; LANES],
}

impl Finite {
    #[inline(always)]
    pub(super) fn see<S: Simd>(&mut self, simd: S, x: S::V) {
        x.fma(simd.splat(0.0), simd.load(&self.zeros)).store(&mut self.zeros);
    }

    #[inline(always)]
    pub(super) fn holds<S: Simd>(&self, _simd: S) -> bool {
        self.zeros.iter().all(|&zero| zero == 0.0)
    }
}
