//! Products by AMX tiles.

use std::ops::Range;

use super::pack::{Line, PairPanels, TILE_INPUTS};
use super::result::{Outcome, put_rows};
use super::rounded::RoundedRows;
use crate::cpu::amx::{BLOCK_ROWS, Block, LinesAhead, Reads, TILE_ROWS, Tiles};
use crate::cpu::isa::Isa;
use crate::cpu::lines::Lines;
use crate::cpu::simd::{Kernel, LANES, Level, Simd};

/// Pairs of inputs in a tile: its rows of a weight.
const TILE_PAIRS: usize = TILE_INPUTS / 2;
/// Panels of a block of so many rows, and of one that a single tile of rows serves.
const BLOCK_PANELS: usize = 2;
const FLAT_PANELS: usize = 4;
/// Tiles of inputs in a chain, at most. Between two uses of a line of two panels sixteen rows of
/// the argument and their sums pass: 22 KiB, 11 and 4, of a first level of 48 that replaces the
/// oldest.
const STEPS: usize = 11;
/// Tiles of inputs whose part of a task's rows stays in the second level while all panels pass:
/// 512 KiB of 256 rows. Where there are more, half as many, beside the sums of all panels.
const DEPTH: usize = 32;

/// A weight of bf16 in pairs and an argument rounded to bf16, in blocks of [`BLOCK_ROWS`].
#[derive(Clone, Copy)]
pub(super) struct Tiled<'a> {
    pub(super) x: &'a RoundedRows,
    pub(super) weight: &'a PairPanels,
}

impl Tiled<'_> {
    /// One task, which must begin at a block of the argument. Returns whether all sums are
    /// finite.
    pub(super) fn multiply<O: Outcome>(self, isa: Isa, mut outcome: O) -> bool {
        let (rows, slots, steps) =
            (outcome.rows(), outcome.slots(), self.weight.pairs() / TILE_PAIRS);
        if rows.is_empty() || slots == 0 {
            return true;
        }
        let blocks = rows.len().div_ceil(BLOCK_ROWS);
        // Nothing of a panel is used twice by a single block: it streams through at once.
        let (depth, chain) = match blocks {
            1 => (steps, steps),
            _ if steps <= DEPTH => (DEPTH, STEPS),
            _ => (DEPTH / 2, STEPS),
        };
        // Sums over some of the inputs wait until other panels have passed, or not.
        let groups = if steps <= depth { 1 } else { slots.div_ceil(BLOCK_PANELS) };
        let most = if rows.len() <= TILE_ROWS { FLAT_PANELS } else { BLOCK_PANELS };
        let mut partial = Lines::<f32>::left_over(groups * blocks * BLOCK_ROWS * most);
        let mut tiles = Tiles::new(rows.len().min(BLOCK_ROWS));
        for deep in cut(0..steps, depth) {
            let mut slot = 0;
            while slot < slots {
                let panels = match slots - slot {
                    left if left >= most => most,
                    left if left >= 2 => 2,
                    _ => 1,
                };
                let first = if groups == 1 { 0 } else { slot / BLOCK_PANELS * blocks };
                for chunk in cut(deep.clone(), chain) {
                    let b = self.panels(&outcome, slot, panels, chunk.clone());
                    let next = self.next(&outcome, slot + panels, &chunk, &deep);
                    let sums = partial.chunks_mut(BLOCK_ROWS * most).skip(first);
                    for ((idx, row), sums) in rows.clone().step_by(BLOCK_ROWS).enumerate().zip(sums)
                    {
                        let at = At { row, slot, panels, steps: chunk.clone() };
                        // A part of each block's rows for each part of the inputs.
                        let asked = |step: usize| BLOCK_ROWS * step / steps.max(1);
                        let (from, end) = (row - rows.start, rows.end - row);
                        let part = asked(chunk.start).min(end)..asked(chunk.end).min(end);
                        outcome.ask(from + part.start..from + part.end, slot, panels, Level::First);
                        let reads = match blocks {
                            1 => Reads::Streamed,
                            _ => ahead(next, chunk.len(), idx, blocks),
                        };
                        self.block(&mut tiles, b, reads, &at, sums);
                        if chunk.end == steps {
                            isa.run(Finish { outcome: &mut outcome, sums, at });
                        }
                    }
                }
                slot += panels;
            }
        }
        isa.run(End(&mut outcome))
    }
}

/// Parts of `whole`, of at most so many and about as many each; one where there is nothing.
fn cut(whole: Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = whole.len().div_ceil(most.max(1)).max(1);
    let at = move |part| whole.start + whole.len() * part / parts;
    (0..parts).map(move |part| at(part)..at(part + 1))
}

/// What block `idx` of so many asks for: all together ask for two panels of as many steps as they
/// pass.
fn ahead(next: Option<[*const u8; FLAT_PANELS]>, steps: usize, idx: usize, blocks: usize) -> Reads {
    let lines = match blocks {
        8.. => LinesAhead::Two,
        _ => LinesAhead::Four,
    };
    // Lines of a panel are half of all, and a pass does not go from one to the other.
    let (panel, pass) = (steps * TILE_PAIRS, steps * lines as usize);
    let first = 2 * idx * pass;
    match next {
        Some(next) if first < 2 * panel => {
            let from = next[first / panel].wrapping_add(first % panel * size_of::<Line>());
            Reads::Ahead(lines, [from, from.wrapping_add(pass * size_of::<Line>())])
        }
        _ => Reads::Near,
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

    /// The panels that are multiplied after those before `slot` and these tiles of inputs of a
    /// part; none at the end of the task.
    fn next(
        self,
        outcome: &impl Outcome,
        slot: usize,
        steps: &Range<usize>,
        part: &Range<usize>,
    ) -> Option<[*const u8; FLAT_PANELS]> {
        let whole = self.weight.pairs() / TILE_PAIRS;
        let (slot, steps) = match slot < outcome.slots() {
            true => (slot, steps.clone()),
            false => {
                let [first, last] = [steps.start, steps.end].map(|at| whole.min(at + part.len()));
                (0, first..last)
            }
        };
        let panels = BLOCK_PANELS.min(outcome.slots() - slot);
        (!steps.is_empty()).then(|| self.panels(outcome, slot, panels, steps))
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
