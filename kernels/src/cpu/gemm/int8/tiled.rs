//! Products with eight-bit weights on AMX: tiles sum the integers of a group, vectors scale them
//! and sum over groups. The same additions in the same order as everywhere else, so the same
//! bits.
//!
//! A group of 128 inputs is two steps of a block: 8 products of whole tiles in 128 cycles. Its
//! 64 vectors of sums take four instructions each on two ports, 128 cycles as well. The tiles of
//! a group therefore come before the vectors of the group before it, which wait for nothing:
//! the processor runs both at once, at half of its peak at least.

use std::ops::Range;

use super::super::product::Product;
use super::super::result::Outcome;
use super::pack::Scale;
use super::{Int8Inputs, Int8Weight};
use crate::cpu::amx::{BLOCK_ROWS, Block, TILE_ROWS, Tiles};
use crate::cpu::simd::avx512::{Avx512, F32x16, TilesKernel};
use crate::cpu::simd::{LANES, Simd, Vector};

/// Rows from which on tiles are used: fewer are streamed through vectors as fast.
pub(in super::super) const LEAST_ROWS: usize = 8;

/// Groups that are multiplied before sums are put down. Between two uses of a line of the
/// panels, a block of as many groups of the argument passes: 16 KiB each and 12 KiB of sums fit
/// a first-level cache of 48 KiB that replaces the oldest.
const GROUPS: usize = 4;

/// A weight of integers and an argument made integers, cut into steps.
#[derive(Clone, Copy)]
pub(in super::super) struct Tiled<'a> {
    pub(in super::super) x: &'a Int8Inputs,
    pub(in super::super) weight: &'a Int8Weight,
}

/// Sums of a block over one group: `[rows, panels, 16]`.
#[repr(C, align(64))]
struct GroupSums([[i32; LANES]; 2 * BLOCK_ROWS]);

/// Of a group and of the one after it, by turns.
type TwoSums = [GroupSums; 2];

/// Rows and slots of a task.
#[derive(Clone, Copy)]
struct Area {
    row: usize,
    rows: usize,
    slot: usize,
}

impl<O: Outcome> TilesKernel for Product<'_, Tiled<'_>, O> {
    type Out = bool;

    #[inline(always)]
    fn run(mut self, simd: Avx512) -> bool {
        let (rows, slots) = (self.outcome.rows().len(), self.outcome.slots());
        let groups = self.factors.weight.groups();
        if groups > GROUPS && self.partial.len() < rows * slots {
            self.partial.resize(rows * slots, [0.0; LANES]);
        }
        let mut tiles = Tiles::new(rows.clamp(1, BLOCK_ROWS));
        let mut sums = [0; 2].map(|zero| GroupSums([[zero; LANES]; 2 * BLOCK_ROWS]));
        let most = if rows <= TILE_ROWS { 4 } else { 2 };
        let mut first = 0;
        loop {
            let part = first..groups.min(first + GROUPS);
            for slot in (0..slots).step_by(most) {
                for row in (0..rows).step_by(BLOCK_ROWS) {
                    let area = Area { row, rows: BLOCK_ROWS.min(rows - row), slot };
                    tiles.set_rows(area.rows);
                    match most.min(slots - slot) {
                        1 => self.block::<1>(simd, &mut tiles, area, &part, &mut sums),
                        2 => self.block::<2>(simd, &mut tiles, area, &part, &mut sums),
                        3 => self.block::<3>(simd, &mut tiles, area, &part, &mut sums),
                        _ => self.block::<4>(simd, &mut tiles, area, &part, &mut sums),
                    }
                }
            }
            if part.end == groups {
                return self.outcome.end(simd);
            }
            first = part.end;
        }
    }
}

impl<O: Outcome> Product<'_, Tiled<'_>, O> {
    /// Some groups of N panels and as many rows as tiles take.
    #[inline(always)]
    fn block<const N: usize>(
        &mut self,
        simd: Avx512,
        tiles: &mut Tiles,
        area: Area,
        groups: &Range<usize>,
        sums: &mut TwoSums,
    ) {
        let slots = self.outcome.slots();
        let place = |i: usize| (area.row + i) * slots + area.slot;
        let mut acc = [[simd.splat(0.0); N]; BLOCK_ROWS];
        let acc = &mut acc[..area.rows];
        if groups.start > 0 {
            for (i, acc) in acc.iter_mut().enumerate() {
                let partial = &self.partial[place(i)..][..N];
                acc.iter_mut().zip(partial).for_each(|(acc, from)| *acc = simd.load(from));
            }
        }
        let at = (self.outcome.rows().start + area.row, self.outcome.panels::<N>(area.slot));
        let is_streamed = area.row == 0;
        if !groups.is_empty() {
            self.factors.multiply(tiles, at, groups.start, is_streamed, &mut sums[0]);
        }
        for (i, group) in groups.clone().enumerate() {
            if group + 1 < groups.end {
                let next = &mut sums[(i + 1) % 2];
                self.factors.multiply(tiles, at, group + 1, is_streamed, next);
            }
            self.factors.scale(simd, acc, at, group, &sums[i % 2]);
        }
        for (i, acc) in acc.iter().enumerate() {
            if groups.end == self.factors.weight.groups() {
                self.outcome.put(simd, &[*acc], area.row + i, area.slot);
                continue;
            }
            let partial = &mut self.partial[place(i)..][..N];
            acc.iter().zip(partial).for_each(|(acc, to)| acc.store(to));
        }
    }
}

impl Tiled<'_> {
    /// Sums of integers over one group: `[tiles.rows(), N, 16]` of `sums`. The panels come from
    /// memory where `is_streamed`.
    fn multiply<const N: usize>(
        self,
        tiles: &mut Tiles,
        (row, panels): (usize, [usize; N]),
        group: usize,
        is_streamed: bool,
        sums: &mut GroupSums,
    ) {
        let Self { x, weight } = self;
        let runs = weight.runs(group);
        let a = x.block(row);
        assert_eq!(a.len(), tiles.rows() * weight.panel(panels[0]).runs.len());
        let mut b = [std::ptr::null(); 4];
        for (b, panel) in b.iter_mut().zip(panels) {
            *b = weight.panel(panel).runs[runs.clone()].as_ptr().cast();
        }
        let block = Block {
            a: a[runs.start * tiles.rows()..].as_ptr().cast(),
            a_stride: 64,
            a_step: 64 * tiles.rows(),
            b,
            panels: N,
            steps: runs.len(),
            is_streamed,
            ahead: [b[0]; 2],
            c: sums.0.as_mut_ptr().cast(),
            c_stride: 64 * N,
            accumulate: false,
        };
        // SAFETY: of the block of `x` there are as many rows and steps as is asserted; the slice
        // of each panel has the steps; `sums` has 64 lines, and N is at most 4 for up to 16
        // rows and 2 above, as the tiles see to.
        unsafe { tiles.int8(&block) }
    }

    /// Adds the sums of a group, as the numbers that they stand for.
    #[inline(always)]
    fn scale<const N: usize>(
        self,
        simd: Avx512,
        acc: &mut [[F32x16; N]],
        (row, panels): (usize, [usize; N]),
        group: usize,
        sums: &GroupSums,
    ) {
        let Self { x, weight } = self;
        let mut scales = [simd.splat(0.0); N];
        for (scales, panel) in scales.iter_mut().zip(panels) {
            *scales = simd.load(&weight.panel(panel).scales[group]);
        }
        for ((i, acc), sums) in acc.iter_mut().enumerate().zip(sums.0.as_chunks::<N>().0) {
            let Scale { scale: x_scale, offset } = x.scales(row + i)[group];
            let x_scale = simd.splat(x_scale);
            for ((acc, sums), scale) in acc.iter_mut().zip(sums).zip(scales) {
                *acc = simd.widen(sums, offset).fma(x_scale * scale, *acc);
            }
        }
    }
}
