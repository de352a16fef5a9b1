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
use super::product::{Factors, Product, Source};
use super::result::Outcome;
use crate::cpu::simd::int8::{Int8, Int8Kernel, QUAD};
use crate::cpu::simd::{LINES_AHEAD, Simd, Vector, prefetch_line};
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
    /// Sums are hardly ever put down. Two panels of 1,024 inputs fill 32 KiB of the first level;
    /// of 3,072 they stream from the second, and take no longer by the input.
    const INPUTS: usize = 32 * GROUP;

    #[inline(always)]
    fn inputs(self) -> usize {
        self.factors.weight.inputs()
    }

    #[inline(always)]
    fn multiply<const M: usize, const N: usize>(
        self,
        _simd: I::Simd,
        acc: &mut [[<I::Simd as Simd>::V; N]; M],
        (row, panels): (usize, [usize; N]),
        inputs: Range<usize>,
        source: Source<'_>,
    ) {
        let Self { factors: Integers { x, weight }, int8 } = self;
        let rows = x.rows(row, M);
        let mut at = [weight.panel(panels[0]); N];
        for j in 1..N {
            at[j] = weight.panel(panels[j]);
        }
        assert!(inputs.end <= weight.inputs() && x.inputs() == weight.inputs());
        let ahead = M > 1 && matches!(source, Source::Far);
        let mut whole = *acc;
        let last = inputs.end / GROUP;
        for group in inputs.start / GROUP..last {
            // SAFETY: rows and panels have as many inputs.
            unsafe { add_group(int8, &mut whole, (rows, &at), (group, GROUP_STEPS), ahead) };
        }
        let rest = inputs.end % GROUP / QUAD;
        if rest > 0 {
            // SAFETY: as above.
            unsafe { add_group(int8, &mut whole, (rows, &at), (last, rest), ahead) };
        }
        *acc = whole;
    }
}

/// Steps of a whole group.
const GROUP_STEPS: usize = GROUP / QUAD;

/// Adds the first steps of one group to sums over groups; asks for what comes later if `ahead`.
///
/// # Safety
/// All rows and panels have the steps and the group.
#[inline(always)]
unsafe fn add_group<I: Int8, const M: usize, const N: usize>(
    int8: I,
    acc: &mut [[<I::Simd as Simd>::V; N]; M],
    (rows, panels): (RowsAt<'_>, &[Panel<'_>; N]),
    (group, steps): (usize, usize),
    ahead: bool,
) {
    let simd = int8.simd();
    // SAFETY: the caller's.
    unsafe {
        let mut sums = [[int8.splat(0); N]; M];
        for (i, sums) in sums.iter_mut().enumerate() {
            *sums = [int8.splat(rows.scale(i, group).offset); N];
        }
        for k in group * GROUP_STEPS..group * GROUP_STEPS + steps {
            if ahead {
                for panel in panels {
                    prefetch_line(panel.runs.as_flattened().as_ptr().wrapping_add(k + LINES_AHEAD));
                }
            }
            // Not by a closure: one that is not inlined lacks the instructions.
            let mut weights = [int8.weights(panels[0].runs.as_flattened().get_unchecked(k)); N];
            for j in 1..N {
                weights[j] = int8.weights(panels[j].runs.as_flattened().get_unchecked(k));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let inputs = int8.inputs(rows.quad(i, k));
                for (sum, &weights) in sums.iter_mut().zip(&weights) {
                    *sum = int8.dot(*sum, weights, inputs);
                }
            }
        }
        for i in 0..M {
            let x_scale = simd.splat(rows.scale(i, group).scale);
            for j in 0..N {
                let scale = x_scale * simd.load(panels[j].scales.get_unchecked(group));
                acc[i][j] = int8.to_f32(sums[i][j]).fma(scale, acc[i][j]);
            }
        }
    }
}

impl<O: Outcome> Int8Kernel for Product<Integers<'_>, O> {
    type Out = bool;

    #[inline(always)]
    fn run<I: Int8>(self, int8: I) -> bool {
        let factors = Proven { factors: self.factors, int8 };
        self.with(factors).compute(int8.simd())
    }
}
