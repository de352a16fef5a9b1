//! Products by dot products of pairs of bf16.

use std::ops::Range;

use super::pack::{PairPanels, TILE_INPUTS};
use super::product::{Factors, Product, Source};
use super::result::Outcome;
use super::rounded::RoundedRows;
use crate::cpu::simd::avx512::{Avx512, Dots, DotsKernel};
use crate::cpu::simd::{Pair, Simd};

/// A weight of bf16 in pairs and an argument rounded to bf16.
#[derive(Clone, Copy)]
pub(super) struct Dotted<'a> {
    pub(super) x: &'a RoundedRows,
    pub(super) panels: &'a PairPanels,
}

/// [`Dotted`] where the processor has the products.
#[derive(Clone, Copy)]
struct Proven<'a> {
    factors: Dotted<'a>,
    dots: Dots,
}

impl Factors<Avx512> for Proven<'_> {
    const ROWS: usize = 6;
    const PANELS: usize = 4;
    const INPUTS: usize = 512;

    #[inline(always)]
    fn inputs(self) -> usize {
        2 * self.factors.panels.pairs()
    }

    #[inline(always)]
    fn multiply<const M: usize, const N: usize>(
        self,
        _simd: Avx512,
        acc: &mut [[<Avx512 as Simd>::V; N]; M],
        (row, panels): (usize, [usize; N]),
        inputs: Range<usize>,
        _source: Source<'_>,
    ) {
        let Self { factors: Dotted { x, panels: weight }, dots } = self;
        let pairs = inputs.start / 2..inputs.end / 2;
        let right = panels.map(|panel| weight.panel(panel, pairs.clone()).as_ptr());
        let (left, lines) = x.row_major(row, M);
        let stride = lines * (TILE_INPUTS / 2);
        assert!(pairs.end <= stride);
        let left: *const Pair = left.as_ptr().cast::<Pair>().wrapping_add(pairs.start);
        // A copy of its own stays in registers, whatever becomes of `acc` later.
        let mut sums = *acc;
        for pair in 0..pairs.len() {
            let mut b = [dots.splat(Pair::default()); N];
            for (b, lines) in b.iter_mut().zip(&right) {
                // SAFETY: every panel has as many lines as there are pairs.
                *b = dots.load(unsafe { &(*lines.add(pair)).0 });
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                // SAFETY: there are M rows of `stride` pairs, and `pairs` are among them.
                let a = dots.splat(unsafe { *left.add(i * stride + pair) });
                for (sum, &b) in sums.iter_mut().zip(&b) {
                    *sum = dots.add(*sum, a, b);
                }
            }
        }
        *acc = sums;
    }
}

impl<O: Outcome> DotsKernel for Product<Dotted<'_>, O> {
    type Out = bool;

    #[inline(always)]
    fn run(self, simd: Avx512, dots: Dots) -> bool {
        let factors = Proven { factors: self.factors, dots };
        self.with(factors).compute(simd)
    }
}
