//! y = x Wᵀ + bias + residual, on packed weights.

mod argument;
mod pack;
mod split;

use std::sync::atomic::{AtomicBool, Ordering};

pub(super) use self::argument::{Argument, Prepare, norm_row};
use self::pack::PackedRows;
pub(super) use self::pack::{PackedWeight, pack, packed_weight};
use self::split::{Tile, split};
use super::isa::Isa;
use super::simd::{Element, Kernel, LANES, Simd, Vector, load_front, store_front};
use super::threads::Crew;
use super::tile::{Block, Panels, multiply, sweep};
use crate::backend::BackendError;
use crate::tensor::Rows;
use crate::weights::Linear;

/// Inputs that are multiplied before the accumulators are put down: two panels of f32 fill
/// 32 KiB, two thirds of a first-level cache.
const INPUTS_BLOCK: usize = 256;
/// Rows of a task: over one block of inputs its argument fills 96 KiB of the second level.
/// A multiple of every register tile's rows.
const ROWS_BLOCK: usize = 96;
/// Columns of a task.
const COLUMNS_BLOCK: usize = 256;

/// Where a product is computed.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) isa: Isa,
    pub(super) crew: Crew,
}

/// `x` through `weight`, plus `residual` (`[rows, outputs]`) where there is one.
///
/// # Errors
/// A weight that another backend packed, a result that is not finite; both name `op`.
pub(super) fn linear(
    op: &'static str,
    place: Place,
    x: Argument<'_>,
    weight: &Linear,
    residual: Option<&Rows>,
) -> Result<Rows, BackendError> {
    let packed = packed_weight(op, weight)?;
    let x = PackedRows::new(place, x);
    let mut y = Rows::zeros(x.rows, weight.outputs);
    let finite = AtomicBool::new(true);
    let tiles = split(y.data_mut(), weight.outputs, block(x.rows, place.crew, weight.outputs));
    place.crew.map(tiles, |tile| {
        let addends = Addends { bias: weight.bias.as_deref(), residual };
        let is_finite = match packed {
            PackedWeight::F32(panels) => place.isa.run(Product { x: &x, panels, tile, addends }),
            PackedWeight::Bf16(panels) => place.isa.run(Product { x: &x, panels, tile, addends }),
        };
        finite.fetch_and(is_finite, Ordering::Relaxed);
    });
    if finite.into_inner() {
        Ok(y)
    } else {
        Err(BackendError::NotFinite { op, what: "the result of a linear map" })
    }
}

/// Rows and columns of a task: fewer columns where there would be too few tasks.
fn block(rows: usize, crew: Crew, outputs: usize) -> (usize, usize) {
    let mut columns = COLUMNS_BLOCK;
    let tasks = |columns| rows.div_ceil(ROWS_BLOCK) * outputs.div_ceil(columns);
    while columns > 4 * LANES && tasks(columns) < 4 * crew.threads {
        columns /= 2;
    }
    (ROWS_BLOCK, columns)
}

/// What is added to a finished sum.
#[derive(Clone, Copy)]
struct Addends<'a> {
    bias: Option<&'a [f32]>,
    residual: Option<&'a Rows>,
}

/// One task: a tile of the result over all inputs. Returns whether the tile is finite.
struct Product<'a, 'y, B> {
    x: &'a PackedRows,
    panels: &'a [[B; LANES]],
    tile: Tile<'y>,
    addends: Addends<'a>,
}

impl<B: Element> Kernel for Product<'_, '_, B> {
    type Out = bool;

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) -> bool {
        let inputs = self.x.inputs;
        let (rows, panels) = (self.tile.rows.len(), self.tile.columns.div_ceil(LANES));
        for first in (0..inputs).step_by(INPUTS_BLOCK) {
            let last = (first + INPUTS_BLOCK).min(inputs);
            let mut step = Step { product: &mut self, first, last };
            sweep(simd, rows, panels, &mut step);
        }
        self.tile.rows.iter().all(|row| is_finite(simd, row))
    }
}

/// A task's tile over some of the inputs.
struct Step<'s, 'a, 'y, B> {
    product: &'s mut Product<'a, 'y, B>,
    first: usize,
    last: usize,
}

impl<B: Element> Block for Step<'_, '_, '_, B> {
    #[inline(always)]
    fn run<S: Simd, const M: usize, const N: usize>(&mut self, simd: S, row: usize, panel: usize) {
        let Product { x, panels, tile, addends } = &mut *self.product;
        let left = x.group(tile.row + row, M, self.first);
        let skipped = (tile.column / LANES + panel) * x.inputs + self.first;
        let right = Panels { data: &panels[skipped..], stride: x.inputs };
        let mut acc = [[simd.splat(0.0); N]; M];
        if self.first > 0 {
            for (i, acc) in acc.iter_mut().enumerate() {
                for (j, acc) in acc.iter_mut().enumerate() {
                    *acc = load_front(simd, &tile.rows[row + i][(panel + j) * LANES..]);
                }
            }
        }
        multiply(simd, &mut acc, left, right, self.last - self.first);
        let done = self.last == x.inputs;
        for (i, acc) in acc.iter().enumerate() {
            for (j, &acc) in acc.iter().enumerate() {
                let column = (panel + j) * LANES;
                let mut sum = acc;
                if done {
                    sum = addends.add(simd, sum, tile.row + row + i, tile.column + column);
                }
                let end = (column + LANES).min(tile.columns);
                store_front(sum, &mut tile.rows[row + i][column..end]);
            }
        }
    }
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

/// Whether no element is infinite or NaN: 0 x is 0 then, and NaN otherwise.
#[inline(always)]
pub(super) fn is_finite<S: Simd>(simd: S, values: &[f32]) -> bool {
    let zero = simd.splat(0.0);
    let mut zeros = zero;
    for part in values.chunks(LANES) {
        zeros = load_front(simd, part).fma(zero, zeros);
    }
    super::simd::sum(zeros) == 0.0
}
