//! Factors in the order in which the inner loop reads them.

use half::bf16;

use super::argument::{Argument, Prepare};
use super::{Place, ROWS_BLOCK};
use crate::backend::BackendError;
use crate::cpu::simd::{Element, Kernel, LANES, Simd};
use crate::cpu::threads::Crew;
use crate::cpu::tile::{ByColumn, largest};
use crate::weights::{Linear, Matrix, MatrixData};

/// A weight as `[outputs / 16, inputs, 16]`, padded with zeros, in the dtype that it came in.
pub(in crate::cpu) enum PackedWeight {
    F32(Vec<[f32; LANES]>),
    Bf16(Vec<[bf16; LANES]>),
}

/// `weight` in panels of sixteen outputs.
pub(in crate::cpu) fn pack(crew: Crew, weight: &Matrix) -> PackedWeight {
    match &weight.data {
        MatrixData::F32(data) => PackedWeight::F32(panels(crew, data, weight.inputs)),
        MatrixData::Bf16(data) => PackedWeight::Bf16(panels(crew, data, weight.inputs)),
    }
}

fn panels<B: Element>(crew: Crew, data: &[B], inputs: usize) -> Vec<[B; LANES]> {
    let panels = (data.len() / inputs.max(1)).div_ceil(LANES);
    let mut packed = vec![[B::default(); LANES]; panels * inputs];
    let from = data.chunks(LANES * inputs.max(1));
    let tasks = packed.chunks_mut(inputs.max(1)).zip(from).collect();
    crew.map(tasks, |(panel, rows): (&mut [[B; LANES]], &[B])| {
        for (i, row) in rows.chunks_exact(inputs).enumerate() {
            for (to, &from) in panel.iter_mut().zip(row) {
                to[i] = from;
            }
        }
    });
    packed
}

/// The packed form of `weight`.
pub(in crate::cpu) fn packed_weight<'a>(
    op: &'static str,
    weight: &'a Linear,
) -> Result<&'a PackedWeight, BackendError> {
    weight.packed.downcast_ref().ok_or(BackendError::ForeignWeight { op })
}

impl PackedWeight {
    /// Bytes of all panels.
    pub(in crate::cpu) fn bytes(&self) -> usize {
        match self {
            Self::F32(data) => size_of_val(data.as_slice()),
            Self::Bf16(data) => size_of_val(data.as_slice()),
        }
    }

    /// Row `output` of the weight, widened.
    pub(in crate::cpu) fn row(&self, output: usize, to: &mut [f32]) {
        match self {
            Self::F32(data) => row(data, output, to),
            Self::Bf16(data) => row(data, output, to),
        }
    }
}

fn row<B: Element>(panels: &[[B; LANES]], output: usize, to: &mut [f32]) {
    let panel = &panels[output / LANES * to.len()..][..to.len()];
    for (to, from) in to.iter_mut().zip(panel) {
        *to = from[output % LANES].widen();
    }
}

/// Rows that a task packs: whole register tiles of every height.
const PACK_ROWS: usize = 24;
const _: () = assert!(ROWS_BLOCK.is_multiple_of(PACK_ROWS));

/// An argument as register tiles read it: groups of M rows, each `[inputs, M]`, where M is
/// what [`sweep`](crate::cpu::tile::sweep) takes of the rows that are left in a task.
pub(super) struct PackedRows {
    pub(super) rows: usize,
    pub(super) inputs: usize,
    data: Vec<f32>,
}

impl PackedRows {
    pub(super) fn new(place: Place, x: Argument<'_>) -> Self {
        let (rows, inputs) = (x.rows.rows(), x.inputs());
        let mut data = vec![0.0; rows * inputs];
        let from = x.rows.data().chunks(PACK_ROWS * x.rows.cols().max(1));
        let tasks = data.chunks_mut(PACK_ROWS * inputs.max(1)).zip(from).collect();
        let prepare = x.prepare;
        place.crew.map(tasks, |(to, from)| place.isa.run(PackBlock { to, from, inputs, prepare }));
        Self { rows, inputs, data }
    }

    /// The group of `rows` rows at `row`, from input `first` on.
    #[inline(always)]
    pub(super) fn group(&self, row: usize, rows: usize, first: usize) -> ByColumn<'_> {
        ByColumn { data: &self.data[row * self.inputs + first * rows..], stride: rows }
    }
}

/// The rows of one task.
struct PackBlock<'a> {
    /// `[rows, inputs]`, in groups.
    to: &'a mut [f32],
    /// `[rows, cols]`.
    from: &'a [f32],
    inputs: usize,
    prepare: Prepare<'a>,
}

impl Kernel for PackBlock<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { mut to, mut from, inputs, prepare } = self;
        let cols = from.len() / (to.len() / inputs);
        let mut prepared = Vec::new();
        while !from.is_empty() {
            let rows = largest::<S>(from.len() / cols);
            let (group, to_rest) = to.split_at_mut(rows * inputs);
            let (source, from_rest) = from.split_at(rows * cols);
            let source = match prepare {
                Prepare::Nothing => source,
                _ => {
                    prepared.resize(rows * inputs, 0.0);
                    let pairs = source.chunks_exact(cols).zip(prepared.chunks_exact_mut(inputs));
                    pairs.for_each(|(from, to)| prepare.row(simd, from, to));
                    &prepared
                }
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
