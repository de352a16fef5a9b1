//! The argument of bf16 dot products and of AMX tiles: rows rounded to bf16.

use std::mem::MaybeUninit;

use bytemuck::Zeroable;

use super::Place;
use super::argument::{Argument, Prepare};
use super::pack::{Line, TILE_INPUTS};
use crate::cpu::simd::{Kernel, LANES, Simd, load_front, store_front_bf16};
use crate::cpu::unwritten::{unwritten, written};

/// Rows that a task packs: whole blocks of every layout.
const PACK_ROWS: usize = 32;

/// An argument rounded to bf16 in lines of 32 inputs, the last one padded with zeros.
///
/// `[rows / block, lines of a row, block, 32]`: row-major where a block is one row. The last
/// block has the rows that are left.
pub(in crate::cpu) struct RoundedRows {
    rows: usize,
    block: usize,
    /// Lines of a row.
    stride: usize,
    lines: Vec<Line>,
}

impl RoundedRows {
    /// Row by row, as broadcasts read it: an odd number of lines, so that neighbouring rows do
    /// not fall into the same sets of a cache.
    pub(super) fn by_row(place: Place, x: Argument<'_>) -> Self {
        Self::new(place, x, 1, x.inputs().div_ceil(TILE_INPUTS) | 1)
    }

    /// Cut into blocks of `block` rows (a divisor of 32), as tiles read it: one stream.
    pub(super) fn in_blocks(place: Place, x: Argument<'_>, block: usize) -> Self {
        Self::new(place, x, block, x.inputs().div_ceil(TILE_INPUTS))
    }

    fn new(place: Place, x: Argument<'_>, block: usize, stride: usize) -> Self {
        assert!(
            PACK_ROWS.is_multiple_of(block),
            "{block} rows of a block: a divisor of {PACK_ROWS}"
        );
        let rows = x.rows.rows();
        let mut lines = unwritten(rows * stride);
        if x.inputs() == 0 {
            lines.fill(MaybeUninit::new(Line::zeroed())); // rows of nothing make no tasks
        }
        let from = x.rows.data().chunks(PACK_ROWS * x.rows.cols().max(1));
        let tasks = lines.chunks_mut(PACK_ROWS * stride.max(1)).zip(from).collect();
        place.crew.map(tasks, |(to, from)| place.isa.run(Round { to, from, x, block, stride }));
        // SAFETY: the tasks wrote every line of their rows.
        let lines = unsafe { written(lines) };
        Self { rows, block, stride, lines }
    }

    /// Lines of rows `row..row + rows`, row-major, and how many a row has.
    #[inline(always)]
    pub(super) fn row_major(&self, row: usize, rows: usize) -> (&[Line], usize) {
        assert!(self.block == 1);
        (&self.lines[row * self.stride..(row + rows) * self.stride], self.stride)
    }

    /// The block that begins at `row` from line `first` of its rows on, and its rows.
    pub(super) fn block(&self, row: usize, first: usize) -> (&[Line], usize) {
        assert!(row.is_multiple_of(self.block) && first <= self.stride);
        let rows = self.block.min(self.rows - row);
        (&self.lines[row * self.stride..][first * rows..self.stride * rows], rows)
    }
}

/// The rows of one task.
struct Round<'a> {
    /// Whole blocks.
    to: &'a mut [MaybeUninit<Line>],
    /// `[rows, cols]`.
    from: &'a [f32],
    x: Argument<'a>,
    block: usize,
    stride: usize,
}

impl Kernel for Round<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { to, from, x, block, stride } = self;
        let (cols, inputs) = (x.rows.cols(), x.inputs());
        let mut prepared = Vec::new();
        let blocks = to.chunks_mut(block * stride).zip(from.chunks(block * cols));
        for (to, from) in blocks {
            let rows = from.len() / cols;
            for (i, from) in from.chunks_exact(cols).enumerate() {
                let row = match x.prepare {
                    Prepare::Nothing => from,
                    _ => {
                        prepared.resize(inputs, 0.0);
                        x.prepare.row(simd, from, &mut prepared);
                        &prepared
                    }
                };
                let mut parts = row.chunks(TILE_INPUTS);
                for to in to[i..].iter_mut().step_by(rows) {
                    round_line(simd, to.write(Line::zeroed()), parts.next().unwrap_or(&[]));
                }
            }
        }
    }
}

/// Up to a line of inputs.
#[inline(always)]
fn round_line<S: Simd>(simd: S, to: &mut Line, from: &[f32]) {
    let to = &mut to.0.as_flattened_mut()[..from.len()];
    for (to, from) in to.chunks_mut(LANES).zip(from.chunks(LANES)) {
        store_front_bf16(load_front(simd, from), to);
    }
}
