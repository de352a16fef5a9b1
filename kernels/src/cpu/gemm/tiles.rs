//! Products by AMX tiles.

use std::ops::Range;

use super::pack::{Line, PairPanels, TILE_INPUTS};
use super::result::{Outcome, put_rows};
use super::rounded::RoundedRows;
use crate::cpu::amx::{
    Ahead, BLOCK_ROWS, Block, PAIR_BYTES, Reads, Square, TILE_ROWS, Tiles, threads_of_core,
};
use crate::cpu::isa::Isa;
use crate::cpu::lines::Lines;
use crate::cpu::simd::{Kernel, LANES, Level, Simd, fence_streams};

/// Pairs of inputs in a tile: its rows of a weight.
const TILE_PAIRS: usize = TILE_INPUTS / 2;
/// Panels of a block of so many rows, and of one that a single tile of rows serves.
const BLOCK_PANELS: usize = 2;
const FLAT_PANELS: usize = 4;
/// Tiles of inputs in a chain, at most: two panels of them stay in a first level of 48 KiB, which
/// the argument's rows do not pass through. The threads of a core share it.
const STEPS: usize = 16;
/// Lines of a task's rows that stay in the second level while all panels pass: 1 MiB.
const NEAR_LINES: usize = 1 << 14;

/// A weight of bf16 in pairs and an argument rounded to bf16, in blocks of [`BLOCK_ROWS`].
#[derive(Clone, Copy)]
pub(super) struct Tiled<'a> {
    pub(super) x: &'a RoundedRows,
    pub(super) weight: &'a PairPanels,
}

impl Tiled<'_> {
    /// One task, which must begin at a block of the argument. Returns whether all sums are
    /// finite.
    pub(super) fn multiply<O: Outcome>(self, isa: Isa, outcome: O) -> bool {
        let (rows, slots, steps) = (outcome.rows(), outcome.slots(), self.steps());
        if rows.is_empty() || slots == 0 {
            return true;
        }
        let blocks = rows.len().div_ceil(BLOCK_ROWS);
        // Nothing of a panel is used twice by a single block: it streams through at once.
        let (depth, chain) = match blocks {
            1 => (steps, steps),
            _ => (NEAR_LINES / (blocks * BLOCK_ROWS), STEPS / threads_of_core()),
        };
        let (depth, chain) = (depth.max(STEPS), chain.max(1));
        // Sums over some of the inputs wait until other panels have passed, or not.
        let groups = if steps <= depth { 1 } else { slots.div_ceil(BLOCK_PANELS) };
        let most = if rows.len() <= TILE_ROWS { FLAT_PANELS } else { BLOCK_PANELS };
        let mut task = Task {
            isa,
            outcome,
            tiles: Tiles::new(rows.len().min(BLOCK_ROWS)),
            sums: Lines::left_over(groups * blocks * BLOCK_ROWS * most),
            most,
            last: None,
        };
        for deep in cut(0..steps, depth) {
            let mut slot = 0;
            while slot < slots {
                let panels = match slots - slot {
                    left if left >= most => most,
                    left if left >= 2 => 2,
                    _ => 1,
                };
                let first = if groups == 1 { 0 } else { slot / BLOCK_PANELS * blocks };
                let mut is_new = deep.end == steps;
                for chunk in cut(deep.clone(), chain) {
                    let b = self.panels(&task.outcome, slot, panels, chunk.clone());
                    let next = self.next(&task.outcome, slot + panels, &chunk, &deep);
                    for (idx, row) in rows.clone().step_by(BLOCK_ROWS).enumerate() {
                        let count = BLOCK_ROWS.min(rows.end - row);
                        let (steps, place) = (chunk.clone(), first + idx);
                        let at = At { row, count, slot, panels, steps, place };
                        let is_square = count == BLOCK_ROWS && panels == BLOCK_PANELS;
                        match blocks > 1 && is_square && !chunk.is_empty() {
                            true => {
                                let ahead = ahead(next, chunk.len(), idx, blocks);
                                self.square(&mut task, b, ahead, at);
                                // With this product the last sums before it were put.
                                task.turn(std::mem::take(&mut is_new), slot);
                            }
                            false => {
                                task.put();
                                task.turn(std::mem::take(&mut is_new), slot);
                                let reads = if blocks == 1 { Reads::Streamed } else { Reads::Near };
                                self.block(&mut task, b, reads, at);
                            }
                        }
                    }
                }
                slot += panels;
            }
        }
        task.end()
    }
}

/// One task on its way.
struct Task<O> {
    isa: Isa,
    outcome: O,
    tiles: Tiles,
    /// Per place: `[rows, panels, 16]`.
    sums: Lines<f32>,
    /// Panels of a block, at most.
    most: usize,
    /// The block of the product that was begun last, if it is the last one of the block: its sums
    /// are put down with the next.
    last: Option<At>,
}

impl<O: Outcome> Task<O> {
    /// Which of the sums are a block's.
    fn lines(&self, at: &At) -> Range<usize> {
        let first = at.place * BLOCK_ROWS * self.most;
        first..first + at.count * at.panels
    }

    /// Hands finished sums on.
    #[inline(always)]
    fn finish(&mut self, at: At) {
        let sums = &self.sums[self.lines(&at)];
        self.isa.run(Finish { outcome: &mut self.outcome, sums, at });
    }

    /// Tells the outcome that the sums of a slot come next, if they do.
    fn turn(&mut self, is_new: bool, slot: usize) {
        if is_new {
            self.isa.run(Turn { outcome: &mut self.outcome, slot });
        }
    }

    /// Puts sums down that are still in tiles.
    fn put(&mut self) {
        self.tiles.put_square();
        if let Some(at) = self.last.take() {
            self.finish(at);
        }
    }

    /// Whether all sums were finite.
    fn end(mut self) -> bool {
        self.put();
        let finite = self.isa.run(End(&mut self.outcome));
        fence_streams();
        finite
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
fn ahead(next: Option<[*const u8; FLAT_PANELS]>, steps: usize, idx: usize, blocks: usize) -> Ahead {
    let (pairs, ask): (usize, fn(*const u8) -> Ahead) = match blocks {
        16.. => (1, Ahead::One),
        8.. => (2, Ahead::Two),
        _ => (4, Ahead::Four),
    };
    // A block does not go from one panel to the other.
    let (panel, block) = (steps * TILE_PAIRS * size_of::<Line>(), steps * pairs * PAIR_BYTES);
    let first = idx * block;
    match next {
        Some(next) if first < 2 * panel => ask(next[first / panel].wrapping_add(first % panel)),
        _ => Ahead::Nothing,
    }
}

/// A block of sums over some of the inputs.
struct At {
    /// Of the argument.
    row: usize,
    /// Rows.
    count: usize,
    slot: usize,
    panels: usize,
    /// Tiles of inputs.
    steps: Range<usize>,
    /// Which of the blocks of sums it is.
    place: usize,
}

impl Tiled<'_> {
    /// Tiles of inputs.
    fn steps(self) -> usize {
        self.weight.pairs() / TILE_PAIRS
    }

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
        let whole = self.steps();
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

    /// Adds the products of a whole block by two panels to its sums; those of the first steps take
    /// their place. `b` is what [`Self::panels`] says of this block's.
    #[inline(always)]
    fn square<O: Outcome>(
        self,
        task: &mut Task<O>,
        b: [*const u8; FLAT_PANELS],
        ahead: Ahead,
        at: At,
    ) {
        let (a, rows) = self.x.block(at.row, at.steps.start);
        assert!(rows == BLOCK_ROWS && a.len() >= rows * at.steps.len());
        let lines = task.lines(&at);
        let sums = &mut task.sums[lines];
        assert!(sums.len() == BLOCK_ROWS * BLOCK_PANELS);
        let square = Square {
            a: a.as_ptr().cast(),
            a_step: size_of_val(&a[..rows]),
            b: [b[0], b[1]],
            steps: at.steps.len(),
            c: sums.as_mut_ptr().cast(),
            c_stride: size_of_val(&sums[..BLOCK_PANELS]),
            accumulate: at.steps.start > 0,
            ahead,
        };
        // SAFETY: both panels have the lines of these steps, sixteen to a tile, as `panels`
        // checked; A has those of 32 rows and C is as large, as asserted. Nobody looks at C before
        // `finish`, for which the next product or `put` has put the sums down.
        unsafe { task.tiles.bf16_square(&square) };
        let is_done = at.steps.end == self.steps();
        if let Some(before) = std::mem::replace(&mut task.last, is_done.then_some(at)) {
            task.finish(before);
        }
    }

    /// The same of any block.
    #[inline(always)]
    fn block<O: Outcome>(
        self,
        task: &mut Task<O>,
        b: [*const u8; FLAT_PANELS],
        reads: Reads,
        at: At,
    ) {
        let At { row, panels, ref steps, .. } = at;
        let (a, rows) = self.x.block(row, steps.start);
        let is_done = steps.end == self.steps();
        if is_done {
            let first = row - task.outcome.rows().start;
            task.outcome.ask(first..first + rows, at.slot, panels, Level::First);
        }
        let lines = task.lines(&at);
        let sums = &mut task.sums[lines];
        assert!(a.len() >= rows * steps.len() && sums.len() == rows * panels);
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
        task.tiles.set_rows(rows);
        // SAFETY: every panel has the lines of these steps, sixteen to a tile, as `panels`
        // checked; A and C have the rows that tiles are shaped for, as asserted; C is borrowed.
        unsafe { task.tiles.bf16(&block) };
        if is_done {
            task.finish(at);
        }
    }
}

/// See [`Outcome::turn`].
struct Turn<'o, O> {
    outcome: &'o mut O,
    slot: usize,
}

impl<O: Outcome> Kernel for Turn<'_, O> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.outcome.turn(simd, self.slot);
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
        let at = (self.at.row - self.outcome.rows().start, self.at.slot);
        put_rows::<_, N>(simd, self.outcome, self.sums, at);
    }
}
