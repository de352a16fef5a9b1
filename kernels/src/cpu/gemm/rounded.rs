//! The argument of bf16 dot products and of AMX tiles: rows rounded to bf16.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

use bytemuck::Zeroable;
use half::bf16;

use super::Place;
use super::argument::{Argument, Prepare};
use super::gates::Gates;
use super::pack::{Line, TILE_INPUTS};
use super::split::Block;
use crate::array::{Array, Resident};
use crate::backend::BackendError;
use crate::cpu::amx::BLOCK_ROWS;
use crate::cpu::isa::{Isa, IsaLevel};
use crate::cpu::simd::{
    Kernel, LANES, Level, Simd, Vector, load_front, prefetch_to_write, store_front_bf16,
};
use crate::cpu::unwritten::{unwritten, written};
use crate::tensor::Rows;

/// Rows that a task packs: whole blocks of every layout.
const PACK_ROWS: usize = 32;

/// An argument rounded to bf16 in lines of 32 inputs, the last one padded with zeros.
///
/// `[rows / block, lines of a row, block, 32]`: row-major where a block is one row. The last
/// block has the rows that are left.
pub(in crate::cpu) struct RoundedRows {
    rows: usize,
    inputs: usize,
    block: usize,
    /// Lines of a row.
    stride: usize,
    lines: Vec<Line>,
}

impl RoundedRows {
    /// As products on this processor read them: taken as they are where somebody rounded them
    /// already.
    pub(super) fn of(place: Place, x: Argument<'_>) -> Arc<Self> {
        let block = rows_of_block(place.isa);
        if let Prepare::Nothing = x.prepare
            && let Some(rounded) = x.rows.array().resident::<Self>()
            && rounded.block == block
        {
            return rounded;
        }
        Arc::new(Self::new(place, x, block))
    }

    /// In blocks of `block` rows, a divisor of 32.
    fn new(place: Place, x: Argument<'_>, block: usize) -> Self {
        let stride = lines_of_row(x.inputs(), block);
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
        Self { rows, inputs: x.inputs(), block, stride, lines }
    }

    /// The same for whoever reads rows of f32.
    pub(in crate::cpu) fn into_rows(self) -> Rows {
        Rows::new(self.rows, self.inputs, Array::on_device(Arc::new(self)))
    }

    /// Rows of a block.
    pub(super) fn block_rows(&self) -> usize {
        self.block
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

impl Resident<f32> for RoundedRows {
    fn count(&self) -> usize {
        self.rows * self.inputs
    }

    fn fetch(&self) -> Result<Vec<f32>, BackendError> {
        let mut rows = Vec::with_capacity(self.count());
        for row in 0..self.rows {
            let line = |line| place(row, line, (self.rows, self.block, self.stride));
            let lines = (0..self.stride).flat_map(|at| self.lines[line(at)].0.as_flattened());
            rows.extend(lines.take(self.inputs).map(|x| x.to_f32()));
        }
        Ok(rows)
    }
}

/// Rows of a block of an argument on this processor: one where broadcasts read it, and as many as
/// tiles take in one stream.
fn rows_of_block(isa: Isa) -> usize {
    if isa.level() >= IsaLevel::Amx { BLOCK_ROWS } else { 1 }
}

/// Rounded rows that the tasks of something else write.
pub(in crate::cpu) struct Rounding {
    rows: usize,
    inputs: usize,
    block: usize,
    stride: usize,
    lines: Vec<MaybeUninit<Line>>,
}

impl Rounding {
    /// As [`RoundedRows::of`] would have made `[rows, inputs]`; none where products do not round,
    /// or no vectors fill a row.
    pub(in crate::cpu) fn of_argument(isa: Isa, (rows, inputs): (usize, usize)) -> Option<Self> {
        let rounds = isa.level() >= IsaLevel::Avx512Bf16 && inputs.is_multiple_of(LANES);
        rounds.then(|| Self::new((rows, rows_of_block(isa)), inputs))
    }

    /// So many rows in blocks of `block`; `inputs` is a multiple of sixteen.
    pub(super) fn new((rows, block): (usize, usize), inputs: usize) -> Self {
        assert!(inputs.is_multiple_of(LANES));
        let stride = lines_of_row(inputs, block);
        let mut rounding = Self { rows, inputs, block, stride, lines: unwritten(rows * stride) };
        // What no task writes.
        for row in 0..rows {
            for line in inputs / TILE_INPUTS..stride {
                let at = place(row, line, (rows, block, stride));
                rounding.lines[at].write(Line::zeroed());
            }
        }
        rounding
    }

    /// Of a row.
    pub(in crate::cpu) fn inputs(&self) -> usize {
        self.inputs
    }

    /// Tiles of at most a block; those of the same columns stand together.
    pub(in crate::cpu) fn split(&mut self, task: Block) -> Vec<RoundedTile<'_>> {
        assert!(task.columns.is_multiple_of(LANES));
        let Self { rows, inputs, block, stride, .. } = *self;
        let base: *mut Line = self.lines.as_mut_ptr().cast();
        let mut tiles = Vec::new();
        for column in (0..inputs).step_by(task.columns) {
            for row in (0..rows).step_by(task.rows) {
                tiles.push(RoundedTile {
                    rows: row..rows.min(row + task.rows),
                    columns: column..inputs.min(column + task.columns),
                    base,
                    shape: (rows, block, stride),
                    owner: PhantomData,
                });
            }
        }
        tiles
    }

    /// The rows, once they are written.
    ///
    /// # Safety
    /// Every element of every tile was written.
    pub(in crate::cpu) unsafe fn written(self) -> RoundedRows {
        let Self { rows, inputs, block, stride, lines } = self;
        // SAFETY: the tiles cover all lines but those that `new` wrote.
        RoundedRows { rows, inputs, block, stride, lines: unsafe { written(lines) } }
    }
}

/// Lines of a row. Where rows lie one by one the number is odd, so that neighbouring ones do not
/// fall into the same sets of a cache.
fn lines_of_row(inputs: usize, block: usize) -> usize {
    inputs.div_ceil(TILE_INPUTS) | usize::from(block == 1)
}

/// Where line `line` of row `row` is, of `rows` in blocks of `block` and lines of `stride` a row.
#[inline(always)]
fn place(row: usize, line: usize, (rows, block, stride): (usize, usize, usize)) -> usize {
    let first = row & !(block - 1); // a divisor of 32 is a power of two
    first * stride + line * block.min(rows - first) + (row - first)
}

/// A part of [`Rounding`] that one task writes.
pub(in crate::cpu) struct RoundedTile<'y> {
    rows: Range<usize>,
    columns: Range<usize>,
    base: *mut Line,
    /// Rows, of a block, lines of a row.
    shape: (usize, usize, usize),
    owner: PhantomData<&'y mut [Line]>,
}

// SAFETY: a tile is an exclusive borrow of its elements.
unsafe impl Send for RoundedTile<'_> {}

impl Gates for RoundedTile<'_> {
    #[inline(always)]
    fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    #[inline(always)]
    fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    #[inline(always)]
    fn ask(&self, rows: Range<usize>, column: usize, count: usize, level: Level) {
        for line in column / TILE_INPUTS..(column + count).div_ceil(TILE_INPUTS) {
            for row in rows.clone() {
                let at = place(self.rows.start + row, line, self.shape);
                prefetch_to_write(self.base.wrapping_add(at), size_of::<Line>(), level);
            }
        }
    }

    #[inline(always)]
    fn write<S: Simd>(&mut self, _simd: S, row: usize, column: usize, gates: S::V) {
        let row = self.rows.start + row;
        assert!(row < self.rows.end && column.is_multiple_of(LANES));
        assert!(self.columns.start <= column && column + LANES <= self.columns.end);
        let at = place(row, column / TILE_INPUTS, self.shape);
        // SAFETY: the row and the columns are inside the tile, which `split` cut from an array
        // that is borrowed for as long as the tile lives; half a line is sixteen elements.
        let half: &mut [bf16; LANES] =
            unsafe { &mut *self.base.add(at).cast::<bf16>().add(column % TILE_INPUTS).cast() };
        gates.store_bf16(half);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;
    use crate::cpu::threads::Threads;
    use crate::tensor::Rows;

    /// Writes all elements of a tile.
    struct Write<'a, 'y> {
        tile: RoundedTile<'y>,
        from: &'a Rows,
    }

    impl Kernel for Write<'_, '_> {
        type Out = ();

        #[inline(always)]
        fn run<S: Simd>(mut self, simd: S) {
            let (rows, columns) = (self.tile.rows(), self.tile.columns());
            self.tile.ask(0..rows.len(), columns.start, columns.len(), Level::First);
            for (i, row) in rows.enumerate() {
                for column in columns.clone().step_by(LANES) {
                    let from = load_front(simd, &self.from.row(row)[column..]);
                    self.tile.write(simd, i, column, from);
                }
            }
        }
    }

    #[test]
    fn what_tasks_write_is_what_is_packed() {
        let threads = Threads::new(2).unwrap();
        let isa = Isa::available().last().unwrap();
        let check = |rows: usize, inputs: usize, block: usize, task: Block| {
            let numbers = (0..rows * inputs).map(|i| (i as f32 * 0.37).sin() * 1e3).collect();
            let x = Rows::from_vec(rows, inputs, numbers);
            threads.enter(|crew| {
                let place = Place { isa, crew };
                let argument = Argument { rows: &x, prepare: Prepare::Nothing };
                let want = RoundedRows::new(place, argument, block);
                let mut rounding = Rounding::new((rows, block), inputs);
                for tile in rounding.split(task) {
                    isa.run(Write { tile, from: &x });
                }
                // SAFETY: all tiles were.
                let seen = unsafe { rounding.written() };
                let bits = |rounded: &RoundedRows| {
                    let lines: &[u16] = bytemuck::cast_slice(&rounded.lines);
                    lines.to_vec()
                };
                assert!(bits(&seen) == bits(&want), "{rows} x {inputs}, blocks of {block}");
                assert_eq!((seen.stride, seen.block), (want.stride, want.block));
                let rows = seen.into_rows();
                let rounded = x.data().iter().map(|&x| bf16::from_f32(x).to_f32());
                assert!(rows.data().iter().copied().eq(rounded), "{rows:?}");
                let argument = Argument { rows: &rows, prepare: Prepare::Nothing };
                let again = RoundedRows::of(place, argument);
                let there = rows.array().as_resident::<RoundedRows>().expect("nowhere else");
                assert_eq!(std::ptr::eq(&*again, there), block == rows_of_block(isa));
            });
        };
        for (rows, inputs) in [(1, 16), (33, 48), (64, 64), (70, 112), (0, 32)] {
            check(rows, inputs, 1, Block { rows: 96, columns: 32 });
            check(rows, inputs, 32, Block { rows: 32, columns: 16 });
            check(rows, inputs, 16, Block { rows: 96, columns: 48 });
        }
    }
}
