//! What becomes of finished sums.

use std::ops::Range;

use super::split::Tile;
use crate::cpu::simd::{LANES, Level, Simd, Vector, load_front, prefetch_to_write};
use crate::tensor::Rows;

/// Where a task's sums go. A slot is a panel of sixteen outputs that the task multiplies.
pub(in crate::cpu) trait Outcome {
    /// Rows of the argument.
    fn rows(&self) -> Range<usize>;

    /// How many panels.
    fn slots(&self) -> usize;

    /// The panels of the weight in the register tile at `slot`.
    fn panels<const N: usize>(&self, slot: usize) -> [usize; N];

    /// Asks for the memory that the sums of some rows of the task and of so many panels will be
    /// written to, and for what is added to them: lines that first have to be fetched hold up all
    /// that comes after them.
    #[inline(always)]
    fn ask(&self, _rows: Range<usize>, _slot: usize, _panels: usize, _level: Level) {}

    /// Takes the sums of the register tile at row `row` of the task and at `slot`, and changes them
    /// as it likes.
    fn put<S: Simd, const M: usize, const N: usize>(
        &mut self,
        simd: S,
        sums: &mut [[S::V; N]; M],
        row: usize,
        slot: usize,
    );

    /// Told of slots, ascending, before any sum there is put and when all before were.
    #[inline(always)]
    fn turn<S: Simd>(&mut self, _simd: S, _slot: usize) {}

    /// What is left to do when all sums were put. Returns whether they were finite.
    fn end<S: Simd>(&mut self, simd: S) -> bool;
}

/// Hands on finished sums, `[rows, N]`, from row `row` of the task on and at `slot`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn put_rows<S: Simd, const N: usize>(
    simd: S,
    outcome: &mut impl Outcome,
    sums: &[[f32; LANES]],
    (row, slot): (usize, usize),
) {
    // Several rows at a time: where they go is found once for all of them.
    let (tiles, rest) = sums.as_chunks::<N>().0.as_chunks::<PUT_ROWS>();
    for (i, tile) in tiles.iter().enumerate() {
        put_tile::<_, PUT_ROWS, N>(simd, outcome, tile, (row + i * PUT_ROWS, slot));
    }
    let row = row + tiles.len() * PUT_ROWS;
    for (i, tile) in rest.as_chunks::<1>().0.iter().enumerate() {
        put_tile::<_, 1, N>(simd, outcome, tile, (row + i, slot));
    }
}

/// Rows that are handed on at once.
#[cfg(target_arch = "x86_64")]
const PUT_ROWS: usize = 4;

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn put_tile<S: Simd, const M: usize, const N: usize>(
    simd: S,
    outcome: &mut impl Outcome,
    sums: &[[[f32; LANES]; N]; M],
    (row, slot): (usize, usize),
) {
    let mut loaded = [[simd.splat(0.0); N]; M];
    for (to, sums) in loaded.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
        *to = simd.load(sums);
    }
    outcome.put(simd, &mut loaded, row, slot);
}

/// N panels from `first` on. A loop: from a closure the compiler makes a call for each.
#[inline(always)]
pub(in crate::cpu) fn neighbours<const N: usize>(first: usize) -> [usize; N] {
    let mut panels = [first; N];
    for (j, panel) in panels.iter_mut().enumerate() {
        *panel += j;
    }
    panels
}

/// What is added to a finished sum.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Addends<'a> {
    bias: Option<&'a [f32]>,
    residual: Option<Residual<'a>>,
}

/// An array like the result, `[rows, width]`.
#[derive(Clone, Copy)]
struct Residual<'a> {
    data: &'a [f32],
    width: usize,
}

impl<'a> Addends<'a> {
    pub(in crate::cpu) fn new(bias: Option<&'a [f32]>, residual: Option<&'a Rows>) -> Self {
        let residual = residual.map(|rows| Residual { data: rows.data(), width: rows.cols() });
        Self { bias, residual }
    }

    /// Asks for what is added to some rows of the result, to `count` columns from `column` on.
    #[inline(always)]
    fn ask(&self, rows: Range<usize>, column: usize, count: usize) {
        if let Some(Residual { data, width }) = self.residual {
            for row in rows {
                let from = data.as_ptr().wrapping_add(row * width + column);
                prefetch_to_write(from, count * size_of::<f32>(), Level::Second);
            }
        }
    }

    /// Adds them to a register tile at `row` and `column` of the result.
    #[inline(always)]
    pub(in crate::cpu) fn add<S: Simd, const M: usize, const N: usize>(
        &self,
        simd: S,
        sums: &mut [[S::V; N]; M],
        row: usize,
        column: usize,
    ) {
        if let Some(bias) = self.bias {
            for j in 0..N {
                let bias = load_front(simd, &bias[column + j * LANES..]);
                for sums in sums.iter_mut() {
                    sums[j] = sums[j] + bias;
                }
            }
        }
        if let Some(Residual { data, width }) = self.residual {
            for (i, sums) in sums.iter_mut().enumerate() {
                let residual = &data[(row + i) * width..][column..width];
                match residual.as_chunks().0.first_chunk::<N>() {
                    Some(residual) => {
                        for (sum, residual) in sums.iter_mut().zip(residual) {
                            *sum = *sum + simd.load(residual);
                        }
                    }
                    None => {
                        for (j, sum) in sums.iter_mut().enumerate() {
                            *sum = *sum + load_front(simd, &residual[j * LANES..]);
                        }
                    }
                }
            }
        }
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
        neighbours(self.tile.columns.start / LANES + slot)
    }

    #[inline(always)]
    fn ask(&self, rows: Range<usize>, slot: usize, panels: usize, level: Level) {
        let (column, count) = (self.tile.columns.start + slot * LANES, panels * LANES);
        let first = self.tile.row;
        self.addends.ask(first + rows.start..first + rows.end, column, count);
        if !self.tile.streams {
            self.tile.ask(rows, column, count, level);
        }
    }

    #[inline(always)]
    fn put<S: Simd, const M: usize, const N: usize>(
        &mut self,
        simd: S,
        sums: &mut [[S::V; N]; M],
        row: usize,
        slot: usize,
    ) {
        let column = self.tile.columns.start + slot * LANES;
        self.addends.add(simd, sums, self.tile.row + row, column);
        self.finite.see(simd, sums);
        self.tile.write(simd, row, column, sums);
    }

    #[inline(always)]
    fn end<S: Simd>(&mut self, _simd: S) -> bool {
        self.finite.holds()
    }
}

/// Independent chains of sums, where one alone would wait for every addition.
pub(super) const CHAINS: usize = 4;

/// Whether nothing infinite and no NaN was seen: 0 x is 0 then, and NaN otherwise.
#[derive(Default)]
pub(in crate::cpu) struct Finite {
    zeros: [[f32; LANES]; CHAINS],
}

impl Finite {
    #[inline(always)]
    pub(in crate::cpu) fn see<S: Simd, const M: usize, const N: usize>(
        &mut self,
        simd: S,
        sums: &[[S::V; N]; M],
    ) {
        let zero = simd.splat(0.0);
        let mut zeros = [zero; CHAINS];
        for (zeros, from) in zeros.iter_mut().zip(&self.zeros) {
            *zeros = simd.load(from);
        }
        for (i, sum) in sums.as_flattened().iter().enumerate() {
            zeros[i % CHAINS] = sum.fma(zero, zeros[i % CHAINS]);
        }
        for (zeros, to) in zeros.iter().zip(&mut self.zeros) {
            zeros.store(to);
        }
    }

    #[inline(always)]
    pub(in crate::cpu) fn holds(&self) -> bool {
        self.zeros.as_flattened().iter().all(|&zero| zero == 0.0)
    }
}
