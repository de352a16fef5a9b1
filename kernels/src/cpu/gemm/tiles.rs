//! Products by AMX tiles.

use std::ops::Range;

use super::pack::{Line, PairPanels, TILE_INPUTS};
use super::result::{Outcome, put_rows};
use super::rounded::RoundedRows;
use crate::cpu::amx::{AHEAD_A, AHEAD_B, BLOCK_ROWS, Block, Reads, TILE_ROWS, Tiles};
use crate::cpu::isa::Isa;
use crate::cpu::simd::{Kernel, LANES, Simd};

/// Pairs of inputs in a tile: its rows of a weight.
const TILE_PAIRS: usize = TILE_INPUTS / 2;
/// Panels of a block of so many rows, and of one that a single tile of rows serves.
const BLOCK_PANELS: usize = 2;
const FLAT_PANELS: usize = 4;
/// Tiles of inputs in a chain. Between two uses of a line of the panels, a block of as many
/// lines of the argument passes: 16 KiB each and the sums' 4 KiB, twice, fit a first-level
/// cache of 48 KiB that replaces the oldest.
const STEPS: usize = 8;

/// A weight of bf16 in pairs and an argument rounded to bf16, in blocks of [`BLOCK_ROWS`].
#[derive(Clone, Copy)]
pub(super) struct Tiled<'a> {
    pub(super) x: &'a RoundedRows,
    pub(super) weight: &'a PairPanels,
}

impl Tiled<'_> {
    /// One task, which must begin at a block of the argument. Returns whether all sums are
    /// finite. `partial` holds blocks of sums: its content is left over from others.
    pub(super) fn multiply<O: Outcome>(
        self,
        isa: Isa,
        mut outcome: O,
        partial: &mut Vec<[f32; LANES]>,
    ) -> bool {
        let (rows, slots, steps) =
            (outcome.rows(), outcome.slots(), self.weight.pairs() / TILE_PAIRS);
        if rows.is_empty() || slots == 0 {
            return true;
        }
        let blocks = rows.len().div_ceil(BLOCK_ROWS);
        let room = slots.div_ceil(BLOCK_PANELS) * blocks * BLOCK_ROWS * BLOCK_PANELS;
        if partial.len() < room {
            partial.resize(room, [0.0; LANES]);
        }
        let most = if rows.len() <= TILE_ROWS { FLAT_PANELS } else { BLOCK_PANELS };
        // Nothing of a panel is used twice by a single block: it streams through at once.
        let chain = if blocks == 1 { steps.max(1) } else { STEPS };
        let mut tiles = Tiles::new(rows.len().min(BLOCK_ROWS));
        let mut first = 0;
        loop {
            let last = steps.min(first + chain);
            let mut sums = partial.chunks_mut(BLOCK_ROWS * BLOCK_PANELS);
            let mut slot = 0;
            while slot < slots {
                let panels = match slots - slot {
                    left if left >= most => most,
                    left if left >= 2 => 2,
                    _ => 1,
                };
                // A part of each block's rows for each part of the inputs.
                let asked = |step: usize| BLOCK_ROWS * step / steps.max(1);
                let b = self.panels(&outcome, slot, panels, first..last);
                let next = self.next(&outcome, slot + panels, first..last, chain).unwrap_or(b);
                for row in rows.clone().step_by(BLOCK_ROWS) {
                    let sums = sums.next().expect("room for every block");
                    let at = At { row, slot, panels, steps: first..last };
                    let end = rows.end - row;
                    let part = asked(first).min(end)..asked(last).min(end);
                    let from = row - rows.start;
                    outcome.ask(from + part.start..from + part.end, slot, panels);
                    let reads = match blocks {
                        // Nothing of it is used twice.
                        1 => Reads::Streamed,
                        _ => self.ahead(&at, next, (from, steps.min(last + chain))),
                    };
                    self.block(&mut tiles, b, reads, &at, sums);
                    if last == steps {
                        isa.run(Finish { outcome: &mut outcome, sums, at });
                    }
                }
                slot += panels;
            }
            if last == steps {
                return isa.run(End(&mut outcome));
            }
            first = last;
        }
    }
}

/// A block of sums over some of the inputs.
struct At {
    /// Of the argument.
    row: usize,
    slot: usize,
    panels: usize,
    /// Tiles of inputs.
    steps: Range<usize>,
}

impl Tiled<'_> {
    /// Where these tiles of the panels at `slot` begin. Each has sixteen lines for a tile.
    fn panels(
        self,
        outcome: &impl Outcome,
        slot: usize,
        panels: usize,
        steps: Range<usize>,
    ) -> [*const u8; FLAT_PANELS] {
        let pairs = steps.start * TILE_PAIRS..steps.end * TILE_PAIRS;
        let panel = |panel| self.weight.panel(panel, pairs.clone()).as_ptr().cast();
        match panels {
            4 => outcome.panels::<4>(slot).map(panel),
            2 => {
                let [first, second] = outcome.panels::<2>(slot).map(panel);
                [first, second, second, second]
            }
            _ => [panel(outcome.panels::<1>(slot)[0]); 4],
        }
    }

    /// The panels that are multiplied after those before `slot` and these tiles of inputs; none
    /// at the end of the task.
    fn next(
        self,
        outcome: &impl Outcome,
        slot: usize,
        steps: Range<usize>,
        chain: usize,
    ) -> Option<[*const u8; FLAT_PANELS]> {
        let whole = self.weight.pairs() / TILE_PAIRS;
        let (slot, steps) = match slot < outcome.slots() {
            true => (slot, steps),
            false => (0, steps.end..whole.min(steps.end + chain)),
        };
        let panels = BLOCK_PANELS.min(outcome.slots() - slot);
        (!steps.is_empty()).then(|| self.panels(outcome, slot, panels, steps))
    }

    /// What is asked for beside a block that begins `from` rows behind its task's first: the
    /// blocks of rows together ask for the `next` two panels, and the panels one after the other
    /// for this block's tiles up to `end`, which its next chain multiplies.
    fn ahead(self, at: &At, next: [*const u8; FLAT_PANELS], (from, end): (usize, usize)) -> Reads {
        let passed = at.steps.len();
        let part = from / BLOCK_ROWS * passed * AHEAD_B;
        let (a, rows) = self.x.block(at.row, at.steps.end);
        let a: *const u8 = a.as_ptr().cast();
        let size = rows * (end - at.steps.end) * size_of::<Line>();
        let half = passed * AHEAD_A;
        let a = a.wrapping_add(at.slot / BLOCK_PANELS * 2 * half % size.max(1));
        Reads::Ahead {
            a: [a, a.wrapping_add(half)],
            b: [next[0], next[1]].map(|b| b.wrapping_add(part)),
        }
    }

    /// Adds the products of one block to `sums`, `[rows, panels]`; those of the first steps
    /// take their place. `b` is what [`Self::panels`] says of this block's.
    #[inline(always)]
    fn block(
        self,
        tiles: &mut Tiles,
        b: [*const u8; FLAT_PANELS],
        reads: Reads,
        at: &At,
        sums: &mut [[f32; LANES]],
    ) {
        let At { row, panels, ref steps, .. } = *at;
        let (a, rows) = self.x.block(row, steps.start);
        assert!(a.len() >= rows * steps.len() && sums.len() >= rows * panels);
        tiles.set_rows(rows);
        let block = Block {
            a: a.as_ptr().cast(),
            a_stride: size_of::<Line>(),
            a_step: rows * size_of::<Line>(),
            b,
            panels,
            steps: steps.len(),
            reads,
            c: sums.as_mut_ptr().cast(),
            c_stride: panels * size_of::<[f32; LANES]>(),
            accumulate: steps.start > 0,
        };
        // SAFETY: every panel has the lines of these steps, sixteen to a tile, as `panels`
        // checked; A and C have the rows that tiles are shaped for, as asserted; C is borrowed.
        unsafe { tiles.bf16(&block) }
    }
}

/// Lets an outcome do what is left.
struct End<'o, O>(&'o mut O);

impl<O: Outcome> Kernel for End<'_, O> {
    type Out = bool;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> bool {
        self.0.end(simd)
    }
}

/// Hands a block of finished sums on.
struct Finish<'s, O> {
    outcome: &'s mut O,
    /// `[rows, panels]`.
    sums: &'s [[f32; LANES]],
    at: At,
}

impl<O: Outcome> Kernel for Finish<'_, O> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.at.panels {
            4 => self.hand_on::<S, 4>(simd),
            2 => self.hand_on::<S, 2>(simd),
            _ => self.hand_on::<S, 1>(simd),
        }
    }
}

impl<O: Outcome> Finish<'_, O> {
    #[inline(always)]
    fn hand_on<S: Simd, const N: usize>(self, simd: S) {
        let rows = self.outcome.rows();
        let count = BLOCK_ROWS.min(rows.end - self.at.row);
        let at = (self.at.row - rows.start, self.at.slot);
        put_rows::<_, N>(simd, self.outcome, &self.sums[..count * N], at);
    }
}
