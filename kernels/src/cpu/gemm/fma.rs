//! Products by multiply-adds of f32.

use std::ops::Range;

use super::groups::RowGroups;
use super::pack::PairPanels;
use super::product::{Factors, Product};
use super::result::Outcome;
use crate::cpu::simd::{Kernel, LANES, Simd, Vector};
use crate::cpu::tile::{Left, Panels, multiply};

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
    ) {
        let left = self.x.group(row, M, inputs.start);
        let skipped = panels[0] * self.x.inputs + inputs.start;
        let right = Panels { data: &self.panels[skipped..], stride: self.x.inputs };
        multiply(simd, acc, left, right, inputs.len());
    }
}

impl<O: Outcome> Kernel for Product<'_, Full<'_>, O> {
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
    ) {
        let left = self.x.group(row, M, inputs.start);
        left.check(M, inputs.len());
        let pairs = inputs.start / 2..inputs.end.div_ceil(2);
        let lines = panels.map(|panel| self.panels.panel(panel, pairs.clone()));
        // A copy of its own stays in registers, whatever becomes of `acc` later.
        let mut sums = *acc;
        for pair in 0..pairs.len() {
            let mut b = [[simd.splat(0.0); 2]; N];
            for (b, lines) in b.iter_mut().zip(&lines) {
                // SAFETY: every slice has as many lines as there are pairs.
                *b = simd.load_pairs(unsafe { &lines.get_unchecked(pair).0 });
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

impl<O: Outcome> Kernel for Product<'_, Paired<'_>, O> {
    type Out = bool;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> bool {
        self.compute(simd)
    }
}
