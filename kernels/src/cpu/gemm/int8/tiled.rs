//! Products with eight-bit weights on AMX: tiles sum the integers of a group, vectors scale them
//! and sum over groups. The same additions in the same order as everywhere else, so the same
//! bits.
//!
//! A group of 128 inputs is two steps of a pass: 2 products of whole tiles, 32 cycles. Its sixteen
//! vectors of sums take four instructions each on two ports, 32 cycles as well. The tiles of a
//! group come before the vectors of the second group before it, which wait for nothing. The sums
//! over groups stay in sixteen registers meanwhile.

use std::ops::Range;

use super::super::product::Product;
use super::super::result::{Outcome, put_rows};
use super::pack::Scale;
use super::{Int8Inputs, Int8Weight};
use crate::cpu::amx::{BLOCK_ROWS, Block, GROUPS_AHEAD as AHEAD, Groups, Reads, TILE_ROWS, Tiles};
use crate::cpu::simd::avx512::{Avx512, TilesKernel};
use crate::cpu::simd::{LANES, Level, Simd, Vector, fence_streams};

/// Rows from which on tiles are used: fewer are streamed through vectors as fast.
pub(in super::super) const LEAST_ROWS: usize = 8;

/// Groups that are multiplied before sums are put down: 32 KiB of a panel stay in a first level of
/// 48, which the argument does not pass through.
const GROUPS: usize = 16;
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

/// A part of the groups of N panels from a slot on.
struct Part {
    slot: usize,
    groups: Range<usize>,
}

impl<O: Outcome> TilesKernel for Product<Tiled<'_>, O> {
    type Out = bool;

    #[inline(always)]
    fn run(mut self, simd: Avx512) -> bool {
        let (rows, slots) = (self.outcome.rows().len(), self.outcome.slots());
        self.partial.resize(PANELS * rows);
        let mut tiles = Tiles::new(rows.clamp(1, TILE_ROWS));
        for slot in (0..slots).step_by(PANELS) {
            self.outcome.turn(simd, slot);
            match PANELS.min(slots - slot) {
                1 => self.all_groups::<1>(simd, &mut tiles, slot),
                _ => self.all_groups::<2>(simd, &mut tiles, slot),
            }
        }
        let finite = self.outcome.end(simd);
        fence_streams();
        finite
    }
}

impl<O: Outcome> Product<Tiled<'_>, O> {
    /// All rows of N panels, one panel after the other.
    #[inline(always)]
    fn all_groups<const N: usize>(&mut self, simd: Avx512, tiles: &mut Tiles, slot: usize) {
        let groups = self.factors.weight.groups();
        let mut first = 0;
        loop {
            let part = Part { slot, groups: first..groups.min(first + GROUPS) };
            for j in 0..N {
                self.rows_of::<N>(simd, tiles, &part, j);
            }
            if part.groups.end == groups {
                return;
            }
            first = part.groups.end;
        }
    }

    /// All rows of panel `j` of N; its sums are every Nth of `self.partial`. They are handed on
    /// with the last groups of the last panel.
    #[inline(always)]
    fn rows_of<const N: usize>(&mut self, simd: Avx512, tiles: &mut Tiles, part: &Part, j: usize) {
        let (task, slot) = (self.outcome.rows(), part.slot);
        let rows = task.len();
        let is_last = j + 1 == N && part.groups.end == self.factors.weight.groups();
        let panel = self.outcome.panels::<N>(slot)[j];
        let next = self.next::<N>(part, j);
        // Nobody asked for what a task begins with, nor for what a single block reads.
        let is_far = rows <= BLOCK_ROWS || (slot == 0 && j == 0 && part.groups.start == 0);
        for row in (0..rows).step_by(TILE_ROWS) {
            let count = TILE_ROWS.min(rows - row);
            if is_last {
                self.outcome.ask(row..row + count, slot, N, Level::First);
            }
            tiles.set_rows(count);
            let pass = Pass {
                block: task.start + row / BLOCK_ROWS * BLOCK_ROWS,
                half: row % BLOCK_ROWS,
                rows: count,
                panel,
                is_streamed: is_far && row == 0,
                ahead: next.wrapping_add(row / TILE_ROWS * PASS_AHEAD),
            };
            let all = &mut self.partial[row * N + j..(row + count) * N];
            self.factors.pass::<N>(simd, tiles, &pass, &part.groups, all);
            if is_last {
                let sums = &self.partial[row * N..(row + count) * N];
                put_rows::<_, N>(simd, &mut self.outcome, sums, (row, slot));
            }
        }
    }

    /// Where the runs are that are multiplied after those of panel `j` of a part.
    #[inline(always)]
    fn next<const N: usize>(&self, part: &Part, j: usize) -> *const u8 {
        let weight = self.factors.weight;
        let (first, end) = (part.groups.start, part.groups.end);
        let panels = self.outcome.panels::<N>(part.slot);
        let (panel, group) = match () {
            () if j + 1 < N => (panels[j + 1], first),
            () if end < weight.groups() => (panels[0], end),
            () => match self.outcome.slots() - (part.slot + N) {
                0 => (panels[j], first), // the task ends
                1 => (self.outcome.panels::<1>(part.slot + N)[0], 0),
                _ => (self.outcome.panels::<PANELS>(part.slot + N)[0], 0),
            },
        };
        let runs = weight.panel(panel).runs;
        runs[weight.runs(group).start.min(runs.len())..].as_ptr().cast()
    }
}

/// Bytes that a whole pass asks for ahead.
const PASS_AHEAD: usize = 2 * GROUPS * AHEAD;

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
