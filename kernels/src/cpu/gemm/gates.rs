//! What becomes of a feed-forward part's first product.

use std::ops::Range;

use super::argument::gated;
use super::result::{Finite, Outcome, neighbours};
use super::split::Tile;
use crate::cpu::curves::curved;
use crate::cpu::simd::{LANES, Level, Simd, load_front};
use crate::weights::{Activation, Ungated};

/// Where a task writes what stands between both products: a tile of `[rows, ffn]`.
pub(in crate::cpu) trait Gates {
    /// Rows of the argument.
    fn rows(&self) -> Range<usize>;

    /// Columns of the result.
    fn columns(&self) -> Range<usize>;

    /// Asks for `count` columns of some rows of the tile, to be written.
    fn ask(&self, rows: Range<usize>, column: usize, count: usize, level: Level);

    /// Takes what belongs to row `row` of the tile from `column` of the result on.
    fn write<S: Simd>(&mut self, simd: S, row: usize, column: usize, gates: S::V);
}

impl Gates for Tile<'_, f32> {
    #[inline(always)]
    fn rows(&self) -> Range<usize> {
        self.row..self.row + self.rows
    }

    #[inline(always)]
    fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    #[inline(always)]
    fn ask(&self, rows: Range<usize>, column: usize, count: usize, level: Level) {
        Tile::ask(self, rows, column, count, level);
    }

    #[inline(always)]
    fn write<S: Simd>(&mut self, simd: S, row: usize, column: usize, gates: S::V) {
        Tile::write(self, simd, row, column, &[[gates]]);
    }
}

/// activation(gate) * up of the sums of a stacked gate and up projection, `[rows, outputs / 2]`.
/// Every second slot is a panel of up, so that a register tile holds both sides of what it makes.
pub(super) struct Gated<'a, G> {
    tile: G,
    activation: Activation,
    /// Panels of gate, before those of up.
    panels: usize,
    bias: Option<&'a [f32]>,
    finite: Finite,
}

impl<'a, G: Gates> Gated<'a, G> {
    /// The tile must begin at a panel's first column; there are `panels` whole panels of gate.
    pub(super) fn new(
        tile: G,
        activation: Activation,
        panels: usize,
        bias: Option<&'a [f32]>,
    ) -> Self {
        Self { tile, activation, panels, bias, finite: Finite::default() }
    }
}

impl<G: Gates> Outcome for Gated<'_, G> {
    #[inline(always)]
    fn rows(&self) -> Range<usize> {
        self.tile.rows()
    }

    #[inline(always)]
    fn slots(&self) -> usize {
        2 * self.tile.columns().len().div_ceil(LANES)
    }

    /// The first half gate, the second half up.
    #[inline(always)]
    fn panels<const N: usize>(&self, slot: usize) -> [usize; N] {
        let mut panels = [self.tile.columns().start / LANES + slot / 2; N];
        for (j, panel) in panels.iter_mut().enumerate() {
            *panel += if j < N / 2 { j } else { self.panels + j - N / 2 };
        }
        panels
    }

    #[inline(always)]
    fn ask(&self, rows: Range<usize>, slot: usize, panels: usize, level: Level) {
        let (column, count) = (self.tile.columns().start + slot / 2 * LANES, panels / 2 * LANES);
        self.tile.ask(rows, column, count, level);
    }

    #[inline(always)]
    fn put<S: Simd, const M: usize, const N: usize>(
        &mut self,
        simd: S,
        sums: &mut [[S::V; N]; M],
        row: usize,
        slot: usize,
    ) {
        assert!(N.is_multiple_of(2), "a register tile needs both sides");
        if let Some(bias) = self.bias {
            for (j, panel) in self.panels::<N>(slot).into_iter().enumerate() {
                let bias = load_front(simd, &bias[panel * LANES..]);
                for sums in sums.iter_mut() {
                    sums[j] = sums[j] + bias;
                }
            }
        }
        self.finite.see(simd, sums);
        for j in 0..N / 2 {
            let column = self.tile.columns().start + (slot / 2 + j) * LANES;
            for (i, sums) in sums.iter().enumerate() {
                let gates = gated(simd, self.activation, sums[j], sums[N / 2 + j]);
                self.tile.write(simd, row + i, column, gates);
            }
        }
    }

    #[inline(always)]
    fn end<S: Simd>(&mut self, _simd: S) -> bool {
        self.finite.holds()
    }
}

/// What a curve makes of the sums of an up projection, `[rows, outputs]`.
pub(super) struct Curved<'a, G> {
    tile: G,
    ungated: Ungated,
    bias: Option<&'a [f32]>,
    finite: Finite,
}

impl<'a, G: Gates> Curved<'a, G> {
    /// The tile must begin at a panel's first column.
    pub(super) fn new(tile: G, ungated: Ungated, bias: Option<&'a [f32]>) -> Self {
        Self { tile, ungated, bias, finite: Finite::default() }
    }
}

impl<G: Gates> Outcome for Curved<'_, G> {
    #[inline(always)]
    fn rows(&self) -> Range<usize> {
        self.tile.rows()
    }

    #[inline(always)]
    fn slots(&self) -> usize {
        self.tile.columns().len().div_ceil(LANES)
    }

    #[inline(always)]
    fn panels<const N: usize>(&self, slot: usize) -> [usize; N] {
        neighbours(self.tile.columns().start / LANES + slot)
    }

    #[inline(always)]
    fn ask(&self, rows: Range<usize>, slot: usize, panels: usize, level: Level) {
        let column = self.tile.columns().start + slot * LANES;
        self.tile.ask(rows, column, panels * LANES, level);
    }

    #[inline(always)]
    fn put<S: Simd, const M: usize, const N: usize>(
        &mut self,
        simd: S,
        sums: &mut [[S::V; N]; M],
        row: usize,
        slot: usize,
    ) {
        let first = self.tile.columns().start + slot * LANES;
        if let Some(bias) = self.bias {
            for j in 0..N {
                let bias = load_front(simd, &bias[first + j * LANES..]);
                for sums in sums.iter_mut() {
                    sums[j] = sums[j] + bias;
                }
            }
        }
        self.finite.see(simd, sums);
        for (i, sums) in sums.iter().enumerate() {
            for (j, sum) in sums.iter().enumerate() {
                let curve = curved(simd, self.ungated, *sum);
                self.tile.write(simd, row + i, first + j * LANES, curve);
            }
        }
    }

    #[inline(always)]
    fn end<S: Simd>(&mut self, _simd: S) -> bool {
        self.finite.holds()
    }
}
