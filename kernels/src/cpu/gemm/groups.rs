//! The argument of an f32 inner loop: groups of rows, one element of each side by side.

use super::argument::{Argument, Prepare};
use super::{Place, ROWS_STEP};
use crate::cpu::simd::{Kernel, LANES, Simd, load_front, rounded, store_front};
use crate::cpu::tile::{ByColumn, largest};

/// Rows that a task packs: whole register tiles of every height.
const PACK_ROWS: usize = 24;
const _: () = assert!(ROWS_STEP.is_multiple_of(PACK_ROWS));

/// An argument as register tiles read it: groups of M rows, each `[inputs, M]`, where M is
/// what [`sweep`](super::product) takes of the rows that are left in a task.
pub(super) struct RowGroups {
    /// Padded with a zero input where the weight comes in pairs.
    pub(super) inputs: usize,
    data: Vec<f32>,
}

impl RowGroups {
    /// `x` for a weight of f32.
    pub(super) fn full(place: Place, x: Argument<'_>) -> Self {
        Self::new(place, x, x.inputs(), false)
    }

    /// `x` rounded to bf16, for a weight in pairs.
    pub(super) fn rounded(place: Place, x: Argument<'_>) -> Self {
        Self::new(place, x, x.inputs().next_multiple_of(2), true)
    }

    fn new(place: Place, x: Argument<'_>, inputs: usize, round: bool) -> Self {
        let mut data = vec![0.0; x.rows.rows() * inputs];
        let from = x.rows.data().chunks(PACK_ROWS * x.rows.cols().max(1));
        let tasks = data.chunks_mut(PACK_ROWS * inputs.max(1)).zip(from).collect();
        place.crew.map(tasks, |(to, from)| place.isa.run(Pack { to, from, x, inputs, round }));
        Self { inputs, data }
    }

    /// The group of `rows` rows at `row`, from input `first` on.
    #[inline(always)]
    pub(super) fn group(&self, row: usize, rows: usize, first: usize) -> ByColumn<'_> {
        ByColumn { data: &self.data[row * self.inputs + first * rows..], stride: rows }
    }
}

/// The rows of one task.
struct Pack<'a> {
    /// `[rows, inputs]`, in groups.
    to: &'a mut [f32],
    /// `[rows, cols]`.
    from: &'a [f32],
    x: Argument<'a>,
    inputs: usize,
    round: bool,
}

impl Kernel for Pack<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { mut to, mut from, x, inputs, round } = self;
        let (cols, used) = (x.rows.cols(), x.inputs());
        let as_is = !round && matches!(x.prepare, Prepare::Nothing);
        let mut prepared = Vec::new();
        while !from.is_empty() {
            let rows = largest::<S>(from.len() / cols);
            let (group, to_rest) = to.split_at_mut(rows * inputs);
            let (source, from_rest) = from.split_at(rows * cols);
            let source = if as_is {
                source
            } else {
                prepared.resize(rows * inputs, 0.0);
                let pairs = source.chunks_exact(cols).zip(prepared.chunks_exact_mut(inputs));
                for (from, to) in pairs {
                    let to = &mut to[..used];
                    x.prepare.row(simd, from, to);
                    if round {
                        round_row(simd, to);
                    }
                }
                &prepared
            };
            match rows {
                8 => interleave::<8>(group, source),
                6 => interleave::<6>(group, source),
                4 => interleave::<4>(group, source),
                2 => interleave::<2>(group, source),
                _ => group.copy_from_slice(source),
            }
            (to, from) = (to_rest, from_rest);
        }
    }
}

#[inline(always)]
fn round_row<S: Simd>(simd: S, row: &mut [f32]) {
    for part in row.chunks_mut(LANES) {
        store_front(rounded(simd, load_front(simd, part)), part);
    }
}

/// Columns that are interleaved in registers.
const STRIP: usize = 8;

/// `[M, inputs]` to `[inputs, M]`.
#[inline(always)]
fn interleave<const M: usize>(to: &mut [f32], from: &[f32]) {
    let inputs = from.len() / M;
    let (to, _) = to.as_chunks_mut::<M>();
    let mut k = 0;
    while let Some(to) = to[k..].first_chunk_mut::<STRIP>() {
        for i in 0..M {
            let from: &[f32; STRIP] = from[i * inputs + k..].first_chunk().expect("M rows");
            for (to, &from) in to.iter_mut().zip(from) {
                to[i] = from;
            }
        }
        k += STRIP;
    }
    for (k, to) in to.iter_mut().enumerate().skip(k) {
        for i in 0..M {
            to[i] = from[i * inputs + k];
        }
    }
}
