//! Products with eight-bit weights: integers inside a group of inputs, f32 over groups.
//!
//! Integer sums are exact and every instruction set adds groups in the same order, so bits
//! differ between sets only where one lacks the fused multiply-add.

mod pack;
#[cfg(target_arch = "x86_64")]
mod tiled;

use std::ops::Range;

pub(super) use self::pack::{Int8Inputs, Int8Weight};
use self::pack::{Panel, RowsAt};
#[cfg(target_arch = "x86_64")]
pub(super) use self::tiled::{LEAST_ROWS, Tiled};
use super::product::{Factors, Product};
use super::result::Outcome;
use crate::cpu::simd::int8::{Int8, Int8Kernel, QUAD};
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
    const INPUTS: usize = 32 * GROUP;

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
        let Self { factors: Integers { x, weight }, int8 } = self;
        let rows = x.rows(row, M);
        let mut at = [weight.panel(panels[0]); N];
        for j in 1..N {
            at[j] = weight.panel(panels[j]);
        }
        let (steps, groups) = (inputs.end / QUAD, inputs.end.div_ceil(GROUP));
        assert!(inputs.end <= weight.inputs() && x.inputs() == weight.inputs());
        let mut whole = *acc;
        for group in inputs.start / GROUP..groups {
            let steps = group * GROUP / QUAD..steps.min((group + 1) * GROUP / QUAD);
            // SAFETY: `groups` and `steps` were checked.
            unsafe {
                let sums = sums::<I, M, N>(int8, rows, &at, (group, steps));
                for i in 0..M {
                    let x_scale = simd.splat(rows.scale(i, group).scale);
                    for j in 0..N {
                        let scale = x_scale * simd.load(at[j].scales.get_unchecked(group));
                        whole[i][j] = int8.to_f32(sums[i][j]).fma(scale, whole[i][j]);
                    }
                }
            }
        }
        *acc = whole;
    }
}

/// Sums of integers over the steps of one group.
///
/// # Safety
/// All rows and panels have the steps and the group.
#[inline(always)]
unsafe fn sums<I: Int8, const M: usize, const N: usize>(
    int8: I,
    rows: RowsAt<'_>,
    panels: &[Panel<'_>; N],
    (group, steps): (usize, Range<usize>),
) -> [[I::Sums; N]; M] {
    // SAFETY: the caller's.
    unsafe {
        let mut sums = [[int8.splat(0); N]; M];
        for (i, sums) in sums.iter_mut().enumerate() {
            *sums = [int8.splat(rows.scale(i, group).offset); N];
        }
        for k in steps {
            // Not by a closure: one that is not inlined lacks the instructions.
            let mut weights = [int8.weights(panels[0].runs.as_flattened().get_unchecked(k)); N];
            for j in 1..N {
                weights[j] = int8.weights(panels[j].runs.as_flattened().get_unchecked(k));
            }
            for i in 0..M {
                let inputs = int8.inputs(rows.quad(i, k));
                for j in 0..N {
                    sums[i][j] = int8.dot(sums[i][j], weights[j], inputs);
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
