//! One task of a product: register tiles over blocks of inputs, whatever multiplies them.

use std::ops::Range;

use super::result::Outcome;
use crate::cpu::lines::Lines;
use crate::cpu::simd::{LANES, Level, Simd, Vector};

/// Two packed factors, as register tiles on `S` multiply them.
pub(super) trait Factors<S: Simd>: Copy {
    /// Rows of the largest register tile: 8, 6 or 4.
    const ROWS: usize;
    /// Panels of the largest register tile: 4, 2 or 1.
    const PANELS: usize;
    /// Inputs that are multiplied before accumulators are put down.
    const INPUTS: usize;

    /// Whether many register tiles read panels as [`stage`](Self::stage) writes them, and not as
    /// they lie.
    const STAGES: bool = false;

    /// How many inputs there are.
    fn inputs(self) -> usize;

    /// Writes panels over `inputs` as register tiles read them, `[N, inputs, 16]`.
    #[inline(always)]
    fn stage<const N: usize>(
        self,
        _simd: S,
        _panels: [usize; N],
        _inputs: Range<usize>,
        _to: &mut [[f32; LANES]],
    ) {
    }

    /// Adds to `acc[i][j]` the products of row `row + i` and panel `panels[j]` over `inputs`,
    /// as one chain of sums over ascending inputs.
    fn multiply<const M: usize, const N: usize>(
        self,
        simd: S,
        acc: &mut [[S::V; N]; M],
        at: (usize, [usize; N]),
        inputs: Range<usize>,
        source: Source<'_>,
    );
}

/// Rows for which it pays to write panels anew: four register tiles or more.
const STAGED_ROWS: usize = 32;

/// Where a register tile finds its panels.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// Where they lie, far away: whatever is read later is to be asked for.
    Far,
    /// Where they lie, but read a moment ago.
    Near,
    /// As [`Factors::stage`] wrote them.
    Staged(&'a [[f32; LANES]]),
}

/// The part of a result that one task computes.
pub(super) struct Product<F, O> {
    pub(super) factors: F,
    pub(super) outcome: O,
    /// `[rows, slots, 16]`: sums over some of the inputs.
    pub(super) partial: Lines<f32>,
    /// Panels as [`Factors::stage`] wrote them last.
    staged: Lines<f32>,
}

impl<F, O> Product<F, O> {
    pub(super) fn new(factors: F, outcome: O) -> Self {
        Self { factors, outcome, partial: Lines::default(), staged: Lines::default() }
    }

    /// The same task with other factors.
    pub(super) fn with<G>(self, factors: G) -> Product<G, O> {
        let Self { outcome, partial, staged, .. } = self;
        Product { factors, outcome, partial, staged }
    }
}

impl<F, O: Outcome> Product<F, O> {
    /// Computes it; whether all sums are finite.
    #[inline(always)]
    pub(super) fn compute<S: Simd>(mut self, simd: S) -> bool
    where
        F: Factors<S>,
    {
        let inputs = self.factors.inputs();
        let (rows, slots) = (self.outcome.rows().len(), self.outcome.slots());
        // Few rows read a panel once: it streams through without a stop.
        let block = if rows <= F::ROWS { inputs } else { F::INPUTS };
        let sums = rows * slots;
        self.partial.resize(if inputs > block { sums } else { 0 });
        let mut first = 0;
        loop {
            let last = inputs.min(first + block);
            self.sweep(simd, first..last);
            if last == inputs {
                return self.outcome.end(simd);
            }
            first = last;
        }
    }

    /// Covers the task with the largest register tiles that fit.
    #[inline(always)]
    fn sweep<S: Simd>(&mut self, simd: S, inputs: Range<usize>)
    where
        F: Factors<S>,
    {
        let (slots, mut slot) = (self.outcome.slots(), 0);
        while slot < slots {
            if inputs.end == self.factors.inputs() {
                self.outcome.turn(simd, slot);
            }
            let left = slots - slot;
            slot += match () {
                () if F::PANELS >= 4 && left >= 4 => self.column::<S, 4>(simd, slot, &inputs),
                () if F::PANELS >= 2 && left >= 2 => self.column::<S, 2>(simd, slot, &inputs),
                () => self.column::<S, 1>(simd, slot, &inputs),
            };
        }
    }

    /// All rows of `N` panels. Returns N.
    #[inline(always)]
    fn column<S: Simd, const N: usize>(
        &mut self,
        simd: S,
        slot: usize,
        inputs: &Range<usize>,
    ) -> usize
    where
        F: Factors<S>,
    {
        let (rows, mut row) = (self.outcome.rows().len(), 0);
        let stages = F::STAGES && rows >= STAGED_ROWS;
        self.staged.resize(if stages { N * inputs.len() } else { 0 });
        if stages {
            let panels = self.outcome.panels(slot);
            self.factors.stage::<N>(simd, panels, inputs.clone(), &mut self.staged);
        }
        while row < rows {
            let left = rows - row;
            row += match () {
                () if F::ROWS == 8 && left >= 8 => self.tile::<S, 8, N>(simd, (row, slot), inputs),
                () if F::ROWS == 6 && left >= 6 => self.tile::<S, 6, N>(simd, (row, slot), inputs),
                () if left >= 4 => self.tile::<S, 4, N>(simd, (row, slot), inputs),
                () if left >= 2 => self.tile::<S, 2, N>(simd, (row, slot), inputs),
                () => self.tile::<S, 1, N>(simd, (row, slot), inputs),
            };
        }
        N
    }

    /// One register tile. Returns M.
    #[inline(always)]
    fn tile<S: Simd, const M: usize, const N: usize>(
        &mut self,
        simd: S,
        (row, slot): (usize, usize),
        inputs: &Range<usize>,
    ) -> usize
    where
        F: Factors<S>,
    {
        let width = self.outcome.slots();
        let mut acc = [[simd.splat(0.0); N]; M];
        if inputs.start > 0 {
            for (i, acc) in acc.iter_mut().enumerate() {
                let partial = &self.partial[(row + i) * width + slot..][..N];
                acc.iter_mut().zip(partial).for_each(|(acc, from)| *acc = simd.load(from));
            }
        }
        let is_last = inputs.end == self.factors.inputs();
        if is_last {
            self.outcome.ask(row..row + M, slot, N, Level::Second);
        }
        let at = (self.outcome.rows().start + row, self.outcome.panels(slot));
        let source = match () {
            () if !self.staged.is_empty() => Source::Staged(&self.staged),
            () if row == 0 => Source::Far,
            () => Source::Near,
        };
        self.factors.multiply(simd, &mut acc, at, inputs.clone(), source);
        if is_last {
            self.outcome.put(simd, &mut acc, row, slot);
        } else {
            for (i, acc) in acc.iter().enumerate() {
                let partial = &mut self.partial[(row + i) * width + slot..][..N];
                acc.iter().zip(partial).for_each(|(acc, to)| acc.store(to));
            }
        }
        M
    }
}
