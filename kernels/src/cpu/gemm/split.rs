//! The result of a product, cut into tiles that tasks own.

use std::marker::PhantomData;
use std::ops::Range;

use crate::cpu::simd::{LANES, Level, Simd, Vector, prefetch_to_write};

/// A part of a `[rows, width]` array that is being written.
pub(super) struct Tile<'y, T> {
    /// Its first row.
    pub(super) row: usize,
    /// How many rows it has.
    pub(super) rows: usize,
    /// Its columns.
    pub(super) columns: Range<usize>,
    /// Whether it is written past the caches.
    pub(super) streams: bool,
    /// Element 0 of its first row.
    data: *mut T,
    width: usize,
    owner: PhantomData<&'y mut [T]>,
}

// SAFETY: a tile is an exclusive borrow of its elements.
unsafe impl<T: Send> Send for Tile<'_, T> {}

impl Tile<'_, f32> {
    /// Writes a register tile to row `row` of the tile and from `column` of the array on; what
    /// is beyond the tile's columns falls away.
    #[inline(always)]
    pub(super) fn write<S: Simd, const M: usize, const N: usize>(
        &mut self,
        simd: S,
        row: usize,
        column: usize,
        values: &[[S::V; N]; M],
    ) {
        assert!(row + M <= self.rows);
        assert!(self.columns.start <= column && column <= self.columns.end);
        let count = self.columns.end - column;
        // SAFETY: rows `row..row + M` and columns `column..column + count` are inside the tile,
        // which `split` cut from an array that is borrowed for as long as the tile lives.
        unsafe {
            let to = self.data.add(row * self.width + column);
            for (i, values) in values.iter().enumerate() {
                for (j, value) in values.iter().enumerate() {
                    let (at, to) = (j * LANES, to.add(i * self.width + j * LANES));
                    if at + LANES <= count {
                        match self.streams {
                            true => simd.stream(*value, &mut *to.cast()),
                            false => value.store(&mut *to.cast()),
                        }
                    } else if at < count {
                        let mut lanes = [0.0; LANES];
                        value.store(&mut lanes);
                        std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, count - at);
                    }
                }
            }
        }
    }
}

impl<T> Tile<'_, T> {
    /// Asks for `count` elements of some rows of the tile, from `column` of the array on, to be
    /// written.
    #[inline(always)]
    pub(super) fn ask(&self, rows: Range<usize>, column: usize, count: usize, level: Level) {
        for row in rows {
            let at = self.data.wrapping_add(row * self.width + column);
            prefetch_to_write(at, count * size_of::<T>(), level);
        }
    }
}

/// How an array is cut.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Block {
    pub(in crate::cpu) rows: usize,
    pub(in crate::cpu) columns: usize,
}

/// Cuts `data`, rows of `width` elements, into tiles of at most a block. Tiles of the same
/// columns stand together.
pub(super) fn split<T>(
    data: &mut [std::mem::MaybeUninit<T>],
    width: usize,
    block: Block,
) -> Vec<Tile<'_, T>> {
    let rows = data.len() / width.max(1);
    let base: *mut T = data.as_mut_ptr().cast();
    let mut tiles = Vec::with_capacity(rows.div_ceil(block.rows) * width.div_ceil(block.columns));
    for column in (0..width).step_by(block.columns) {
        for row in (0..rows).step_by(block.rows) {
            tiles.push(Tile {
                row,
                rows: block.rows.min(rows - row),
                columns: column..width.min(column + block.columns),
                streams: false,
                data: base.wrapping_add(row * width),
                width,
                owner: PhantomData,
            });
        }
    }
    tiles
}
