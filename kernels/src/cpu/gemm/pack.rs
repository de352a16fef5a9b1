//! Weights in the order in which the inner loops read them.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use half::bf16;

use super::huge::HugeArray;
use super::int8::Int8Weight;
use crate::backend::BackendError;
use crate::cpu::simd::{LANES, Pair};
use crate::cpu::threads::Crew;
use crate::weights::{Linear, Matrix, MatrixData};

/// Inputs in a row of an AMX tile: what the inputs of a bf16 product are padded to.
pub(super) const TILE_INPUTS: usize = 32;

/// A line of the cache: two neighbouring inputs of sixteen outputs, or 32 inputs of one row.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [Pair; LANES]);

/// A weight in panels of sixteen outputs, padded with zeros, in the dtype that it came in.
pub(in crate::cpu) enum PackedWeight {
    /// `[outputs / 16, inputs, 16]`.
    F32(HugeArray<[f32; LANES]>),
    /// `[outputs / 16, inputs / 2, 16, 2]`, inputs padded to whole tiles. One panel is a stack
    /// of AMX tiles (sixteen lines each), of operands of bf16 dot products (a line each), and
    /// of even and odd inputs for those that have neither.
    Bf16(PairPanels),
    /// `[outputs / 16, inputs / 4, 16, 4]`, inputs padded to whole tiles, and scales.
    Int8(Int8Weight),
}

/// See [`PackedWeight::Bf16`].
pub(in crate::cpu) struct PairPanels {
    lines: HugeArray<Line>,
    /// Lines of one panel.
    pairs: usize,
}

/// `weight` in panels of sixteen outputs.
pub(in crate::cpu) fn pack(crew: Crew, weight: &Matrix) -> PackedWeight {
    match &weight.data {
        MatrixData::F32(data) => PackedWeight::F32(panels(crew, data, weight.inputs)),
        MatrixData::Bf16(data) => PackedWeight::Bf16(PairPanels::new(crew, data, weight.inputs)),
        MatrixData::Int8(data) => PackedWeight::Int8(Int8Weight::new(crew, data, weight.inputs)),
    }
}

fn panels(crew: Crew, data: &[f32], inputs: usize) -> HugeArray<[f32; LANES]> {
    let panels = (data.len() / inputs.max(1)).div_ceil(LANES);
    let mut packed = HugeArray::<[f32; LANES]>::zeroed(panels * inputs);
    let from = data.chunks(LANES * inputs.max(1));
    let tasks = packed.chunks_mut(inputs.max(1)).zip(from).collect();
    crew.map(tasks, |(panel, rows): (&mut [[f32; LANES]], &[f32])| {
        for (i, row) in rows.chunks_exact(inputs).enumerate() {
            for (to, &from) in panel.iter_mut().zip(row) {
                to[i] = from;
            }
        }
    });
    packed
}

impl PairPanels {
    fn new(crew: Crew, data: &[bf16], inputs: usize) -> Self {
        let panels = (data.len() / inputs.max(1)).div_ceil(LANES);
        let pairs = inputs.next_multiple_of(TILE_INPUTS) / 2;
        let mut lines = HugeArray::<Line>::zeroed(panels * pairs);
        let from = data.chunks(LANES * inputs.max(1));
        let tasks = lines.chunks_mut(pairs.max(1)).zip(from).collect();
        crew.map(tasks, |(panel, rows): (&mut [Line], &[bf16])| {
            for (i, row) in rows.chunks_exact(inputs).enumerate() {
                for (line, pair) in panel.iter_mut().zip(row.chunks(2)) {
                    line.0[i][..pair.len()].copy_from_slice(pair);
                }
            }
        });
        Self { lines, pairs }
    }

    /// Pairs of inputs: whole tiles of them.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn pairs(&self) -> usize {
        self.pairs
    }

    /// `pairs` of inputs of a panel.
    #[inline(always)]
    pub(super) fn panel(&self, panel: usize, pairs: Range<usize>) -> &[Line] {
        &self.lines[panel * self.pairs..][..self.pairs][pairs]
    }
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
            Self::F32(data) => size_of_val(&**data),
            Self::Bf16(panels) => size_of_val(&*panels.lines),
            Self::Int8(weight) => weight.bytes(),
        }
    }

    /// Row `output` of the weight, widened.
    pub(in crate::cpu) fn row(&self, output: usize, to: &mut [f32]) {
        let (panel, lane) = (output / LANES, output % LANES);
        match self {
            Self::F32(data) => {
                let panel = &data[panel * to.len()..][..to.len()];
                to.iter_mut().zip(panel).for_each(|(to, from)| *to = from[lane]);
            }
            Self::Bf16(PairPanels { lines, pairs }) => {
                let panel = &lines[panel * pairs..][..*pairs];
                let row = panel.iter().flat_map(|line| line.0[lane]);
                to.iter_mut().zip(row).for_each(|(to, from)| *to = from.to_f32());
            }
            Self::Int8(weight) => weight.row(output, to),
        }
    }
}
