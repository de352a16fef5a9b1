//! The argument of bf16 dot products and of AMX tiles: rows rounded to bf16.

use bytemuck::Zeroable;
use half::bf16;

use super::Place;
use super::argument::{Argument, Prepare};
use super::pack::{Line, TILE_INPUTS};
use crate::cpu::simd::{Kernel, LANES, Simd, load_front, store_front_bf16};

/// Rows that a task packs.
const PACK_ROWS: usize = 16;

/// An argument rounded to bf16: row-major, rows padded with zeros to whole lines.
pub(in crate::cpu) struct RoundedRows {
    /// Lines of a row: 32 inputs each.
    pub(super) stride: usize,
    pub(super) lines: Vec<Line>,
}

impl RoundedRows {
    /// `x`, prepared and rounded.
    pub(super) fn new(place: Place, x: Argument<'_>) -> Self {
        let (rows, inputs) = (x.rows.rows(), x.inputs());
        let stride = inputs.div_ceil(TILE_INPUTS);
        let mut lines = vec![Line::zeroed(); rows * stride];
        let from = x.rows.data().chunks(PACK_ROWS * x.rows.cols().max(1));
        let tasks = lines.chunks_mut(PACK_ROWS * stride.max(1)).zip(from).collect();
        place.crew.map(tasks, |(to, from)| place.isa.run(Round { to, from, x, stride }));
        Self { stride, lines }
    }
}

/// The rows of one task.
struct Round<'a> {
    /// `[rows, stride]`.
    to: &'a mut [Line],
    /// `[rows, cols]`.
    from: &'a [f32],
    x: Argument<'a>,
    stride: usize,
}

impl Kernel for Round<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { to, from, x, stride } = self;
        let (cols, inputs) = (x.rows.cols(), x.inputs());
        let mut prepared = Vec::new();
        for (to, from) in to.chunks_exact_mut(stride).zip(from.chunks_exact(cols)) {
            let row = match x.prepare {
                Prepare::Nothing => from,
                _ => {
                    prepared.resize(inputs, 0.0);
                    x.prepare.row(simd, from, &mut prepared);
                    &prepared
                }
            };
            let to: &mut [bf16] = &mut bytemuck::cast_slice_mut(to)[..inputs];
            for (to, from) in to.chunks_mut(LANES).zip(row.chunks(LANES)) {
                store_front_bf16(load_front(simd, from), to);
            }
        }
    }
}
