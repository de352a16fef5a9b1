//! Integers in the order in which the inner loop reads them.

use std::mem::MaybeUninit;

use bytemuck::{Pod, Zeroable};

use super::super::Place;
use super::super::argument::{Argument, Prepare};
use super::super::huge::HugeArray;
use crate::cpu::simd::LANES;
use crate::cpu::simd::int8::{Int8, Int8Kernel, QUAD, Step};
use crate::cpu::threads::Crew;
use crate::cpu::unwritten::{unwritten, written};
use crate::int8::{GROUP, Int8Rows, quantise_group};

/// Steps of a run: rows are padded to whole runs of 64 inputs, half a group.
pub(super) const STEPS: usize = 16;
const RUN: usize = STEPS * QUAD;
const RUNS_OF_GROUP: usize = GROUP / RUN;
const _: () = assert!(GROUP.is_multiple_of(RUN));

/// What is added to a weight so that it is a byte without sign.
const OFFSET: u8 = 128;

/// A weight as `[outputs / 16, inputs / 4, 16, 4]`, 128 added to every integer; what is
/// padded stands for zero.
pub(in crate::cpu) struct Int8Weight {
    /// Runs of a panel.
    runs: usize,
    /// `[panels, runs, 16]`.
    steps: HugeArray<[Step; STEPS]>,
    /// `[panels, groups]`.
    scales: Vec<[f32; LANES]>,
}

impl Int8Weight {
    pub(in crate::cpu) fn new(crew: Crew, data: &Int8Rows, inputs: usize) -> Self {
        let (runs, groups) = (inputs.div_ceil(RUN), inputs.div_ceil(GROUP));
        let panels = (data.q.len() / inputs.max(1)).div_ceil(LANES);
        let mut steps = HugeArray::<[Step; STEPS]>::zeroed(panels * runs);
        steps.fill([Step([[OFFSET; QUAD]; LANES]); STEPS]);
        let mut scales = vec![[0.0; LANES]; panels * groups];
        let q = data.q.chunks(LANES * inputs.max(1)).zip(data.scales.chunks(LANES * groups.max(1)));
        let packed = steps.chunks_mut(runs.max(1)).zip(scales.chunks_mut(groups.max(1)));
        crew.map(packed.zip(q).collect(), |((steps, scales), (q, q_scales))| {
            for (i, (q, q_scales)) in q.chunks(inputs).zip(q_scales.chunks(groups)).enumerate() {
                for (step, q) in steps.as_flattened_mut().iter_mut().zip(q.chunks(QUAD)) {
                    let bytes = step.0[i].iter_mut().zip(q);
                    bytes.for_each(|(to, &q)| *to = q.wrapping_add(i8::MIN) as u8);
                }
                scales.iter_mut().zip(q_scales).for_each(|(to, &scale)| to[i] = scale);
            }
        });
        Self { runs, steps, scales }
    }

    /// Row `output` of the weight, multiplied out.
    pub(in crate::cpu) fn row(&self, output: usize, to: &mut [f32]) {
        let (panel, lane) = (self.panel(output / LANES), output % LANES);
        let steps = panel.runs.as_flattened();
        for (i, to) in to.iter_mut().enumerate() {
            let q = steps[i / QUAD].0[lane][i % QUAD].wrapping_sub(OFFSET) as i8;
            *to = f32::from(q) * panel.scales[i / GROUP][lane];
        }
    }

    /// Bytes of integers and scales.
    pub(in crate::cpu) fn bytes(&self) -> usize {
        size_of_val(&*self.steps) + size_of_val(self.scales.as_slice())
    }

    /// Inputs with those that are padded.
    #[inline(always)]
    pub(super) fn inputs(&self) -> usize {
        self.runs * RUN
    }

    /// Groups of a row.
    #[inline(always)]
    pub(super) fn groups(&self) -> usize {
        self.runs.div_ceil(RUNS_OF_GROUP)
    }

    /// The runs of a group; the last group may have fewer.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn runs(&self, group: usize) -> std::ops::Range<usize> {
        RUNS_OF_GROUP * group..self.runs.min(RUNS_OF_GROUP * (group + 1))
    }

    /// All runs of a panel, each an AMX tile, and the scales of its groups.
    #[inline(always)]
    pub(super) fn panel(&self, panel: usize) -> Panel<'_> {
        let groups = self.groups();
        Panel {
            runs: &self.steps[panel * self.runs..][..self.runs],
            scales: &self.scales[panel * groups..][..groups],
        }
    }
}

/// Sixteen outputs of a weight.
#[derive(Clone, Copy)]
pub(super) struct Panel<'a> {
    /// `[runs]`.
    pub(super) runs: &'a [[Step; STEPS]],
    /// `[groups]`.
    pub(super) scales: &'a [[f32; LANES]],
}

/// Rows as integers, padded with zeros.
pub(in crate::cpu) struct Int8Inputs {
    /// Of a row.
    runs: usize,
    /// Lines of a row: a run is one line of bytes, or two of integers of sixteen bits.
    lines: usize,
    /// Of a row.
    groups: usize,
    /// Rows of a block.
    block_rows: usize,
    /// Of each block of rows, `[lines, rows]`.
    steps: Vec<Line>,
    /// Of each block of rows, `[groups, rows]`.
    scales: Vec<Scale>,
}

/// Quads of one row, as the instruction set has them packed: sixteen of bytes.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
pub(super) struct Line([u8; 64]);

/// What belongs to a group of one row: the offset, -128 times the sum of the group, takes away
/// what the weights' offset adds.
#[derive(Clone, Copy)]
#[repr(C)]
pub(in crate::cpu) struct Scale {
    pub(in crate::cpu) scale: f32,
    pub(in crate::cpu) offset: i32,
}

/// Neighbouring rows of an argument.
#[derive(Clone, Copy)]
pub(super) struct RowsAt<'a, Q> {
    /// `[rows, quads]`.
    data: &'a [Q],
    /// Of a row.
    quads: usize,
    /// `[rows, groups]`.
    scales: &'a [Scale],
    /// Of a row.
    groups: usize,
}

impl<Q: Pod> RowsAt<'_, Q> {
    /// Quad `k` of row `i`.
    ///
    /// # Safety
    /// The row must be one of these, and have the quad.
    #[inline(always)]
    pub(super) unsafe fn quad(&self, i: usize, k: usize) -> &Q {
        // SAFETY: the caller's.
        unsafe { self.data.get_unchecked(i * self.quads + k) }
    }

    /// What belongs to a group of row `i`.
    ///
    /// # Safety
    /// The row must be one of these, and have the group.
    #[inline(always)]
    pub(super) unsafe fn scale(&self, i: usize, group: usize) -> Scale {
        // SAFETY: the caller's.
        unsafe { *self.scales.get_unchecked(i * self.groups + group) }
    }
}

/// Rows that a task packs.
const PACK_ROWS: usize = 16;

impl Int8Inputs {
    /// `x` in blocks of so many rows.
    pub(in crate::cpu) fn new(place: Place, x: Argument<'_>, block_rows: usize) -> Self {
        let (rows, inputs) = (x.rows.rows(), x.inputs());
        let (runs, groups) = (inputs.div_ceil(RUN), inputs.div_ceil(GROUP));
        let lines = runs * place.isa.run_int8(RunLines);
        let mut steps = unwritten(rows * lines);
        let mut scales = unwritten(rows * groups);
        let task_rows = PACK_ROWS.next_multiple_of(block_rows);
        let from = x.rows.data().chunks(task_rows * x.rows.cols().max(1));
        let to = steps
            .chunks_mut(task_rows * lines.max(1))
            .zip(scales.chunks_mut(task_rows * groups.max(1)));
        let prepare = x.prepare;
        place.crew.map(from.zip(to).collect(), |(from, (steps, scales))| {
            let cols = x.rows.cols();
            place.isa.run_int8(PackRows { steps, scales, from, cols, inputs, prepare, block_rows });
        });
        // SAFETY: the tasks wrote every line and every scale of their rows.
        let (steps, scales) = unsafe { (written(steps), written(scales)) };
        Self { runs, lines, groups, block_rows, steps, scales }
    }

    /// `count` rows, packed for products that read such quads; blocks must be rows.
    #[inline(always)]
    pub(super) fn rows<Q: Pod>(&self, row: usize, count: usize) -> RowsAt<'_, Q> {
        debug_assert_eq!(self.block_rows, 1);
        let lines = &self.steps[row * self.lines..(row + count) * self.lines];
        let scales = &self.scales[row * self.groups..(row + count) * self.groups];
        let (data, quads) = (bytemuck::cast_slice(lines), self.runs * STEPS);
        assert_eq!(data.len(), count * quads, "rows are packed for other products");
        RowsAt { data, quads, scales, groups: self.groups }
    }

    /// Inputs of a row with those that are padded.
    #[inline(always)]
    pub(super) fn inputs(&self) -> usize {
        self.runs * RUN
    }

    /// These runs of the block that begins at `row`, `[runs, rows]`, and its rows.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn block(&self, row: usize, runs: std::ops::Range<usize>) -> (&[Line], usize) {
        debug_assert!(row.is_multiple_of(self.block_rows) && self.lines == self.runs);
        let rest = &self.steps[row * self.runs..];
        let rows = self.block_rows(row);
        (&rest[runs.start * rows..runs.end * rows], rows)
    }

    /// What belongs to a group of some rows of the block that begins at `row`.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn scales(
        &self,
        row: usize,
        rows: std::ops::Range<usize>,
        group: usize,
    ) -> &[Scale] {
        let first = row * self.groups + group * self.block_rows(row);
        &self.scales[first + rows.start..first + rows.end]
    }

    /// Rows of the block that begins at `row`.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn block_rows(&self, row: usize) -> usize {
        self.block_rows.min(self.scales.len() / self.groups - row)
    }
}

/// Lines of a run.
struct RunLines;

impl Int8Kernel for RunLines {
    type Out = usize;

    #[inline(always)]
    fn run<I: Int8>(self, _int8: I) -> usize {
        STEPS * size_of::<I::Quad>() / size_of::<Line>()
    }
}

/// The rows of one task.
struct PackRows<'a> {
    steps: &'a mut [MaybeUninit<Line>],
    scales: &'a mut [MaybeUninit<Scale>],
    /// `[rows, cols]`.
    from: &'a [f32],
    cols: usize,
    inputs: usize,
    prepare: Prepare<'a>,
    block_rows: usize,
}

impl Int8Kernel for PackRows<'_> {
    type Out = ();

    #[inline(always)]
    fn run<I: Int8>(self, int8: I) {
        let Self { steps, scales, from, cols, inputs, prepare, block_rows } = self;
        let rows = from.len() / cols;
        let (lines, groups) = (steps.len() / rows, scales.len() / rows);
        let line_quads = size_of::<Line>() / size_of::<I::Quad>();
        let mut prepared = Vec::new();
        let mut q = vec![0; lines * line_quads * QUAD];
        let blocks =
            steps.chunks_mut(block_rows * lines).zip(scales.chunks_mut(block_rows * groups));
        for (from, (steps, scales)) in from.chunks(block_rows * cols).zip(blocks) {
            let rows = from.len() / cols;
            for (i, from) in from.chunks_exact(cols).enumerate() {
                let row = match prepare {
                    Prepare::Nothing => from,
                    _ => {
                        prepared.resize(inputs, 0.0);
                        prepare.row(int8.simd(), from, &mut prepared);
                        &prepared
                    }
                };
                quantise(row, &mut q, scales[i..].iter_mut().step_by(rows));
                let lines = q.as_chunks::<QUAD>().0.chunks_exact(line_quads);
                for (to, quads) in steps[i..].iter_mut().step_by(rows).zip(lines) {
                    let mut line = Line::zeroed();
                    let packed = bytemuck::cast_slice_mut::<_, I::Quad>(&mut line.0);
                    packed.iter_mut().zip(quads).for_each(|(to, &quad)| *to = quad.into());
                    to.write(line);
                }
            }
        }
    }
}

/// One row; what is behind its end in `q` is left alone.
#[inline(always)]
fn quantise<'s>(
    row: &[f32],
    q: &mut [i8],
    scales: impl Iterator<Item = &'s mut MaybeUninit<Scale>>,
) {
    for ((group, q), to) in row.chunks(GROUP).zip(q.chunks_mut(GROUP)).zip(scales) {
        let q = &mut q[..group.len()];
        let scale = quantise_group(group, q);
        let sum: i32 = q.iter().map(|&q| i32::from(q)).sum();
        to.write(Scale { scale, offset: -i32::from(OFFSET) * sum });
    }
}
