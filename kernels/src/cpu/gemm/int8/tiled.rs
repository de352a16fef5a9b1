//! Products with eight-bit weights on AMX: tiles sum the integers of a group, vectors scale them
//! and sum over groups. The same additions in the same order as everywhere else, so the same
//! bits.
//!
//! A group of 128 inputs is two steps of a pass: 2 products of whole tiles, 32 cycles. Its sixteen
//! vectors of sums take four instructions each on two ports, 32 cycles as well. The tiles of a
//! group come before the vectors of the group before it, which wait for nothing, and both together
//! are fewer instructions than the processor looks ahead: so it runs both at once. The sums over
//! groups stay in sixteen registers meanwhile.

use std::ops::Range;

use super::super::product::Product;
use super::super::result::{Outcome, put_rows};
use super::pack::Scale;
use super::{Int8Inputs, Int8Weight};
use crate::cpu::amx::{BLOCK_ROWS, Block, GROUPS_AHEAD as AHEAD, Groups, Reads, TILE_ROWS, Tiles};
use crate::cpu::simd::avx512::{Avx512, TilesKernel};
use crate::cpu::simd::{LANES, Simd, Vector};

/// Rows from which on tiles are used: fewer are streamed through vectors as fast.
pub(in super::super) const LEAST_ROWS: usize = 8;

/// Groups that are multiplied before sums are put down. Between two uses of a line of the
/// panels, a block of as many groups of the argument passes: 16 KiB each and 4 KiB of sums fit
/// a first-level cache of 48 KiB that replaces the oldest.
const GROUPS: usize = 4;
/// Panels of a block.
const PANELS: usize = 2;

/// A weight of integers and an argument made integers, cut into steps.
#[derive(Clone, Copy)]
pub(in super::super) struct Tiled<'a> {
    pub(in super::super) x: &'a Int8Inputs,
    pub(in super::super) weight: &'a Int8Weight,
}

/// Sums of a pass over one group.
#[repr(C, align(64))]
struct GroupSums([[i32; LANES]; TILE_ROWS]);

/// Up to 32 rows of a task by up to two panels.
#[derive(Clone, Copy)]
struct Area {
    row: usize,
    rows: usize,
    slot: usize,
}

impl<O: Outcome> TilesKernel for Product<Tiled<'_>, O> {
    type Out = bool;

    #[inline(always)]
    fn run(mut self, simd: Avx512) -> bool {
        let (rows, slots) = (self.outcome.rows().len(), self.outcome.slots());
        let groups = self.factors.weight.groups();
        let blocks = slots.div_ceil(PANELS) * rows.div_ceil(BLOCK_ROWS);
        let size = PANELS * BLOCK_ROWS;
        self.partial.resize(blocks * size);
        let mut tiles = Tiles::new(rows.clamp(1, TILE_ROWS));
        let mut first = 0;
        loop {
            let part = first..groups.min(first + GROUPS);
            let mut from = (0..blocks).map(|block| block * size);
            for slot in (0..slots).step_by(PANELS) {
                for row in (0..rows).step_by(BLOCK_ROWS) {
                    let area = Area { row, rows: BLOCK_ROWS.min(rows - row), slot };
                    let from = from.next().expect("room for every block");
                    match PANELS.min(slots - slot) {
                        1 => self.block::<1>(simd, &mut tiles, (area, from), &part),
                        _ => self.block::<2>(simd, &mut tiles, (area, from), &part),
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

/// Bytes that a whole pass asks for ahead: sixteen rows pass two steps of each group.
const PASS_AHEAD: usize = 2 * GROUPS * AHEAD;

impl<O: Outcome> Product<Tiled<'_>, O> {
    /// The panels that are multiplied after those before `slot` and these groups, or any at the
    /// end of the task.
    #[inline(always)]
    fn next(&self, slot: usize, groups: &Range<usize>) -> [*const u8; PANELS] {
        let (weight, slots) = (self.factors.weight, self.outcome.slots());
        let (slot, group) = if slot < slots { (slot, groups.start) } else { (0, groups.end) };
        let runs = |panel: usize| {
            let runs = weight.panel(panel).runs;
            let first = weight.runs(group.min(weight.groups())).start.min(runs.len());
            runs[first..].as_ptr().cast()
        };
        match PANELS.min(slots - slot) {
            1 => [runs(self.outcome.panels::<1>(slot)[0]); PANELS],
            _ => self.outcome.panels::<PANELS>(slot).map(runs),
        }
    }

    /// Some groups of N panels and as many rows as blocks have; its sums are `[rows, N]` of
    /// `self.partial`, from `from` on.
    #[inline(always)]
    fn block<const N: usize>(
        &mut self,
        simd: Avx512,
        tiles: &mut Tiles,
        (area, from): (Area, usize),
        groups: &Range<usize>,
    ) {
        let Area { row, rows, slot } = area;
        let next = self.next(slot + N, groups);
        // A part of the block's rows for each part of the groups.
        let asked = |group: usize| row + rows * group / self.factors.weight.groups().max(1);
        self.outcome.ask(asked(groups.start)..asked(groups.end), slot, N);
        let all = &mut self.partial[from..from + rows * N];
        let block = self.outcome.rows().start + row;
        for half in (0..rows).step_by(TILE_ROWS) {
            let rows = TILE_ROWS.min(rows - half);
            tiles.set_rows(rows);
            for (j, panel) in self.outcome.panels::<N>(slot).into_iter().enumerate() {
                let ahead = next[j].wrapping_add((row + half) / TILE_ROWS * PASS_AHEAD);
                let pass = Pass { block, half, rows, panel, is_streamed: row + half == 0, ahead };
                let all = &mut all[half * N + j..];
                self.factors.pass::<N>(simd, tiles, &pass, groups, all);
            }
        }
        if groups.end == self.factors.weight.groups() {
            put_rows::<_, N>(simd, &mut self.outcome, all, (row, slot));
        }
    }
}

/// Up to sixteen rows by one panel.
struct Pass {
    /// First row of the argument's block.
    block: usize,
    /// First row of the pass within it.
    half: usize,
    rows: usize,
    panel: usize,
    /// Whether the panel comes from memory.
    is_streamed: bool,
    /// Where what comes next is asked for.
    ahead: *const u8,
}

impl Tiled<'_> {
    /// Some groups of a pass. Sums over groups are every Nth of `all`; those of the first groups
    /// take their place.
    #[inline(always)]
    fn pass<const N: usize>(
        self,
        simd: Avx512,
        tiles: &mut Tiles,
        pass: &Pass,
        groups: &Range<usize>,
        all: &mut [[f32; LANES]],
    ) {
        if groups.start == 0 {
            all.iter_mut().step_by(N).take(pass.rows).for_each(|sums| *sums = [0.0; LANES]);
        }
        match pass.rows {
            TILE_ROWS if !groups.is_empty() => self.whole_pass::<N>(tiles, pass, groups, all),
            _ => self.part_pass::<N>(simd, tiles, pass, groups, all),
        }
    }

    /// Of sixteen rows.
    #[inline(always)]
    fn whole_pass<const N: usize>(
        self,
        tiles: &mut Tiles,
        pass: &Pass,
        groups: &Range<usize>,
        all: &mut [[f32; LANES]],
    ) {
        let Self { x, weight } = self;
        let runs = weight.runs(groups.start).start..weight.runs(groups.end - 1).end;
        let (a, rows) = x.block(pass.block, runs.clone());
        let panel = weight.panel(pass.panel);
        let b = &panel.runs[runs.clone()];
        assert!(pass.half + TILE_ROWS <= rows && all.len() > (TILE_ROWS - 1) * N);
        let scales = |group| x.scales(pass.block, pass.half..pass.half + TILE_ROWS, group);
        let [a_scales, _] = [groups.start, groups.end - 1].map(scales);
        let groups = Groups {
            a: a.as_ptr().wrapping_add(pass.half).cast(),
            a_step: size_of_val(&a[..rows]),
            b: b.as_ptr().cast(),
            steps: runs.len(),
            a_scales: a_scales.as_ptr().cast(),
            a_scales_step: rows * size_of::<Scale>(),
            b_scales: panel.scales[groups.clone()].as_ptr(),
            c: all.as_mut_ptr(),
            is_streamed: pass.is_streamed,
            ahead: pass.ahead,
        };
        // SAFETY: a machine with tiles has AVX-512; the block of `x` has the rows, the steps and
        // the scales of the first and the last group, and so has the panel; C has the lines.
        unsafe { tiles.int8_groups::<N>(&groups) }
    }

    /// Of fewer rows.
    #[inline(always)]
    fn part_pass<const N: usize>(
        self,
        simd: Avx512,
        tiles: &mut Tiles,
        pass: &Pass,
        groups: &Range<usize>,
        all: &mut [[f32; LANES]],
    ) {
        let mut sums = GroupSums([[0; LANES]; TILE_ROWS]);
        for group in groups.clone() {
            self.multiply(tiles, pass, group, &mut sums);
            let scales = self.x.scales(pass.block, pass.half..pass.half + pass.rows, group);
            let w_scale = simd.load(&self.weight.panel(pass.panel).scales[group]);
            for ((all, sums), x) in all.iter_mut().step_by(N).zip(&sums.0).zip(scales) {
                let scale = simd.splat(x.scale) * w_scale;
                simd.widen(sums, x.offset).fma(scale, simd.load(all)).store(all);
            }
        }
    }

    /// Sums of integers over one group.
    #[inline(always)]
    fn multiply(self, tiles: &mut Tiles, pass: &Pass, group: usize, sums: &mut GroupSums) {
        let Self { x, weight } = self;
        let runs = weight.runs(group);
        let (a, a_rows) = x.block(pass.block, runs.clone());
        let b = weight.panel(pass.panel).runs[runs.clone()].as_ptr().cast();
        assert!(tiles.rows() == pass.rows && pass.half + pass.rows <= a_rows);
        let block = Block {
            a: a.as_ptr().wrapping_add(pass.half).cast(),
            a_stride: 64,
            a_step: 64 * a_rows,
            b: [b; 4],
            panels: 1,
            steps: runs.len(),
            reads: if pass.is_streamed { Reads::Streamed } else { Reads::Near },
            c: sums.0.as_mut_ptr().cast(),
            c_stride: 64,
            accumulate: false,
        };
        // SAFETY: the block of `x` has the rows and the steps, and so has the panel, as is
        // asserted and as the slices are cut; `sums` has a line for each of sixteen rows.
        unsafe { tiles.int8(&block) }
    }
}
