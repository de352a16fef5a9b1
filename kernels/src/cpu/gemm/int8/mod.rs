//! Products with eight-bit weights: integers inside a group of inputs, f32 over groups.
//!
//! Integer sums are exact and every instruction set adds groups in the same order, so bits
//! differ between sets only where one lacks the fused multiply-add.

mod pack;
#[cfg(target_arch = "x86_64")]
mod tiled;

use std::ops::Range;

use self::pack::STEPS;
pub(super) use self::pack::{Int8Inputs, Int8Weight};
#[cfg(target_arch = "x86_64")]
pub(super) use self::tiled::{LEAST_ROWS, Tiled};
use super::product::{Factors, Product};
use super::result::Outcome;
use crate::cpu::simd::int8::{Int8, Int8Kernel};
use crate::cpu::simd::{Simd, Vector};
use crate::int8::GROUP;

/// A weight of integers and an argument made integers.
#[derive(Clone, Copy)]
pub(super) struct Integers<'a> {
    pub(super) x: &'a Int8Inputs,
    pub(super) weight: &'a Int8Weight,
}

/// [`Integers`] with the instructions that multiply them.
#[derive(Clone, Copy)]
struct Proven<'a, I> {
    factors: Integers<'a>,
    int8: I,
}

impl<I: Int8> Factors<I::Simd> for Proven<'_, I> {
    const ROWS: usize = I::ROWS;
    const PANELS: usize = I::PANELS;
    /// Two panels fill 32 KiB, two thirds of a first-level cache.
    const INPUTS: usize = 8 * GROUP;

    #[inline(always)]
    fn inputs(self) -> usize {
        self.factors.weight.inputs()
    }

    #[inline(always)]
    fn multiply<const M: usize, const N: usize>(
        self,
        simd: I::Simd,
        acc: &mut [[<I::Simd as Simd>::V; N]; M],
        (row, panels): (usize, [usize; N]),
        inputs: Range<usize>,
    ) {
        let Integers { x, weight } = self.factors;
        for group in inputs.start / GROUP..inputs.end.div_ceil(GROUP) {
            let sums = self.sums::<M, N>(row, panels, group);
            let scales = panels.map(|panel| simd.load(weight.scales(panel, group)));
            for (i, (acc, sums)) in acc.iter_mut().zip(sums).enumerate() {
                let x_scale = simd.splat(x.scale(row + i, group));
                for ((acc, sum), scale) in acc.iter_mut().zip(sums).zip(scales) {
                    *acc = self.int8.to_f32(sum).fma(x_scale * scale, *acc);
                }
            }
        }
    }
}

impl<I: Int8> Proven<'_, I> {
    /// Sums of integers over one group of inputs.
    #[inline(always)]
    fn sums<const M: usize, const N: usize>(
        self,
        row: usize,
        panels: [usize; N],
        group: usize,
    ) -> [[I::Sums; N]; M] {
        let Self { factors: Integers { x, weight }, int8 } = self;
        let mut sums = std::array::from_fn(|i| [int8.splat(x.offset(row + i, group)); N]);
        for run in weight.runs(group) {
            let weights = panels.map(|panel| weight.run(panel, run));
            let inputs: [_; M] = std::array::from_fn(|i| x.run(row + i, run));
            for k in 0..STEPS {
                let weights = weights.map(|weights| int8.weights(&weights[k]));
                for (sums, inputs) in sums.iter_mut().zip(inputs) {
                    let inputs = int8.inputs(inputs[k]);
                    for (sum, weights) in sums.iter_mut().zip(weights) {
                        *sum = int8.dot(*sum, weights, inputs);
                    }
                }
            }
        }
        sums
    }
}

impl<O: Outcome> Int8Kernel for Product<'_, Integers<'_>, O> {
    type Out = bool;

    #[inline(always)]
    fn run<I: Int8>(self, int8: I) -> bool {
        let Self { factors, outcome, partial } = self;
        Product { factors: Proven { factors, int8 }, outcome, partial }.compute(int8.simd())
    }
}
