//! Products by multiply-adds of f32.

use std::ops::Range;

use super::groups::RowGroups;
use super::pack::PairPanels;
use super::product::{Factors, Product, Source};
use super::result::Outcome;
use crate::cpu::simd::{Kernel, LANES, LINES_AHEAD, Simd, Vector, prefetch_line};
use crate::cpu::tile::{ByColumn, Far, Left, Panels, multiply};

/// Two panels of f32 over a block of inputs fill 32 KiB, two thirds of a first-level cache.
const INPUTS: usize = 256;

/// A weight of f32.
#[derive(Clone, Copy)]
pub(super) struct Full<'a> {
    pub(super) x: &'a RowGroups,
    pub(super) panels: &'a [[f32; LANES]],
}

impl<S: Simd> Factors<S> for Full<'_> {
    const ROWS: usize = S::ROWS;
    const PANELS: usize = S::PANELS;
    const INPUTS: usize = INPUTS;

    #[inline(always)]
    fn inputs(self) -> usize {
        self.x.inputs
    }

    #[inline(always)]
    fn multiply<const M: usize, const N: usize>(
        self,
        simd: S,
        acc: &mut [[S::V; N]; M],
        (row, panels): (usize, [usize; N]),
        inputs: Range<usize>,
        source: Source<'_>,
    ) {
        let left = self.x.group(row, M, inputs.start);
        let skipped = panels[0] * self.x.inputs + inputs.start;
        let right = Panels { data: &self.panels[skipped..], stride: self.x.inputs };
        match source {
            Source::Far => multiply(simd, acc, left, Far(right), inputs.len()),
            _ => multiply(simd, acc, left, right, inputs.len()),
        }
    }
}

impl<O: Outcome> Kernel for Product<Full<'_>, O> {
    type Out = bool;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> bool {
        self.compute(simd)
    }
}

/// A weight of bf16 in pairs, widened in registers, and an argument rounded to bf16.
#[derive(Clone, Copy)]
pub(super) struct Paired<'a> {
    pub(super) x: &'a RowGroups,
    pub(super) panels: &'a PairPanels,
}

impl<S: Simd> Factors<S> for Paired<'_> {
    const ROWS: usize = S::ROWS;
    const PANELS: usize = S::PANELS;
    const INPUTS: usize = INPUTS;
    /// Widened once for all rows: in each tile that is one instruction for eight multiply-adds.
    const STAGES: bool = true;

    #[inline(always)]
    fn inputs(self) -> usize {
        self.x.inputs
    }

    #[inline(always)]
    fn stage<const N: usize>(
        self,
        simd: S,
        panels: [usize; N],
        inputs: Range<usize>,
        to: &mut [[f32; LANES]],
    ) {
        for (j, to) in to.chunks_exact_mut(inputs.len().max(1)).enumerate() {
            let lines = self.panels.panel(panels[j], inputs.start / 2..inputs.end / 2);
            for (to, line) in to.as_chunks_mut::<2>().0.iter_mut().zip(lines) {
                prefetch_line(std::ptr::from_ref(line).wrapping_add(LINES_AHEAD));
                let [first, second] = simd.load_pairs(&line.0);
                first.store(&mut to[0]);
                second.store(&mut to[1]);
            }
        }
    }

    #[inline(always)]
    fn multiply<const M: usize, const N: usize>(
        self,
        simd: S,
        acc: &mut [[S::V; N]; M],
        (row, panels): (usize, [usize; N]),
        inputs: Range<usize>,
        source: Source<'_>,
    ) {
        let left = self.x.group(row, M, inputs.start);
        if let Source::Staged(data) = source {
            let right = Panels { data, stride: inputs.len() };
            return multiply(simd, acc, left, right, inputs.len());
        }
        match source {
            Source::Far => self.in_pairs::<S, M, N, true>(simd, acc, left, (panels, inputs)),
            _ => self.in_pairs::<S, M, N, false>(simd, acc, left, (panels, inputs)),
        }
    }
}

impl Paired<'_> {
    /// The products of one register tile, with panels as they lie; they are `FAR` or near.
    #[inline(always)]
    fn in_pairs<S: Simd, const M: usize, const N: usize, const FAR: bool>(
        self,
        simd: S,
        acc: &mut [[S::V; N]; M],
        left: ByColumn<'_>,
        (panels, inputs): ([usize; N], Range<usize>),
    ) {
        left.check(M, inputs.len());
        let pairs = inputs.start / 2..inputs.end.div_ceil(2);
        let lines = panels.map(|panel| self.panels.panel(panel, pairs.clone()));
        // A copy of its own stays in registers, whatever becomes of `acc` later.
        let mut sums = *acc;
        for pair in 0..pairs.len() {
            let mut b = [[simd.splat(0.0); 2]; N];
            for (b, lines) in b.iter_mut().zip(&lines) {
                // SAFETY: every slice has as many lines as there are pairs.
                let line = unsafe { lines.get_unchecked(pair) };
                if FAR {
                    prefetch_line(std::ptr::from_ref(line).wrapping_add(LINES_AHEAD));
                }
                *b = simd.load_pairs(&line.0);
            }
            for half in 0..2 {
                for (i, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: i < M and 2 pair + half < inputs, an even number, as checked.
                    let a = simd.splat(unsafe { left.at(i, 2 * pair + half) });
                    for (sum, b) in sums.iter_mut().zip(&b) {
                        *sum = a.fma(b[half], *sum);
                    }
                }
            }
        }
        *acc = sums;
    }
}

impl<O: Outcome> Kernel for Product<Paired<'_>, O> {
    type Out = bool;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> bool {
        self.compute(simd)
    }
}
