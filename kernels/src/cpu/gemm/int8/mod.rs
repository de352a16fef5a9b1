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
use crate::cpu::simd::{LANES, LINES_AHEAD, Simd, Vector, prefetch_line};
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
    /// Staged ones of 512 inputs fill 16 KiB.
    const INPUTS: usize = if I::STAGES { 4 * GROUP } else { 32 * GROUP };
    const STAGES: bool = I::STAGES;

    #[inline(always)]
    fn inputs(self) -> usize {
        self.factors.weight.inputs()
    }

    #[inline(always)]
    fn stage<const N: usize>(
        self,
        _simd: I::Simd,
        panels: [usize; N],
        inputs: Range<usize>,
        to: &mut [[f32; LANES]],
    ) {
        let steps = inputs.start / QUAD..inputs.end / QUAD;
        let to = bytemuck::cast_slice_mut::<_, I::Weights>(to).chunks_exact_mut(steps.len().max(1));
        for (panel, to) in panels.into_iter().zip(to) {
            let from = self.factors.weight.panel(panel).runs.as_flattened();
            for (to, from) in to.iter_mut().zip(&from[steps.clone()]) {
                prefetch_line(std::ptr::from_ref(from).wrapping_add(LINES_AHEAD));
                *to = self.int8.weights(from);
            }
        }
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
        let rows = x.rows::<I::Quad>(row, M);
        assert!(inputs.end <= weight.inputs() && x.inputs() == weight.inputs());
        // Not by `map`, nor by `zip` and `skip`: of both the compiler leaves a call.
        let mut at = [weight.panel(panels[0]); N];
        for j in 1..N {
            at[j] = weight.panel(panels[j]);
        }
        let panels = at;
        match source {
            Source::Staged(lines) if I::STAGES => {
                let (first, stride) = (inputs.start / QUAD, inputs.len() / QUAD);
                let steps = bytemuck::cast_slice::<_, I::Weights>(lines);
                assert!(steps.len() >= N * stride);
                let steps = Staged { steps, first, stride };
                // SAFETY: rows and panels have as many inputs, and what is staged as `inputs`.
                unsafe { add_inputs(int8, acc, (rows, &panels, steps), inputs) }
            }
            _ => {
                let ahead = M > 1 && matches!(source, Source::Far);
                let steps = Lying { panels, ahead };
                // SAFETY: rows and panels have as many inputs.
                unsafe { add_inputs(int8, acc, (rows, &panels, steps), inputs) }
            }
        }
    }
}

/// Where a register tile finds the steps of its panels.
trait Steps<I: Int8, const N: usize>: Copy {
    /// Step `k` of all panels, counted from the first input of all.
    ///
    /// # Safety
    /// There must be such a step.
    unsafe fn at(self, int8: I, k: usize) -> [I::Weights; N];
}

/// Steps of the panels as they lie; what comes later is asked for if `ahead`.
#[derive(Clone, Copy)]
struct Lying<'a, const N: usize> {
    panels: [Panel<'a>; N],
    ahead: bool,
}

impl<I: Int8, const N: usize> Steps<I, N> for Lying<'_, N> {
    #[inline(always)]
    unsafe fn at(self, int8: I, k: usize) -> [I::Weights; N] {
        let Self { panels, ahead } = self;
        if ahead {
            for panel in &panels {
                prefetch_line(panel.runs.as_flattened().as_ptr().wrapping_add(k + LINES_AHEAD));
            }
        }
        // Not by a closure: one that is not inlined lacks the instructions.
        // SAFETY: the caller's.
        let first = unsafe { panels[0].runs.as_flattened().get_unchecked(k) };
        let mut weights = [int8.weights(first); N];
        for j in 1..N {
            // SAFETY: as above.
            weights[j] = int8.weights(unsafe { panels[j].runs.as_flattened().get_unchecked(k) });
        }
        weights
    }
}

/// Steps as [`Factors::stage`] wrote them, `[N, stride]`, from step `first` on.
#[derive(Clone, Copy)]
struct Staged<'a, W> {
    steps: &'a [W],
    first: usize,
    stride: usize,
}

impl<I: Int8, const N: usize> Steps<I, N> for Staged<'_, I::Weights> {
    #[inline(always)]
    unsafe fn at(self, _int8: I, k: usize) -> [I::Weights; N] {
        // SAFETY: the caller's.
        let mut weights = [unsafe { *self.steps.get_unchecked(k - self.first) }; N];
        for (j, weights) in weights.iter_mut().enumerate().skip(1) {
            // SAFETY: as above.
            *weights = unsafe { *self.steps.get_unchecked(j * self.stride + k - self.first) };
        }
        weights
    }
}

/// Steps of a whole group.
const GROUP_STEPS: usize = GROUP / QUAD;

/// Adds the products over some inputs, from the first of a group on.
///
/// # Safety
/// All rows, panels and steps have the inputs.
#[inline(always)]
unsafe fn add_inputs<I: Int8, S: Steps<I, N>, const M: usize, const N: usize>(
    int8: I,
    acc: &mut [[<I::Simd as Simd>::V; N]; M],
    factors: (RowsAt<'_, I::Quad>, &[Panel<'_>; N], S),
    inputs: Range<usize>,
) {
    let mut whole = *acc;
    let last = inputs.end / GROUP;
    for group in inputs.start / GROUP..last {
        // SAFETY: the caller's.
        unsafe { add_group(int8, &mut whole, factors, (group, GROUP_STEPS)) };
    }
    let rest = inputs.end % GROUP / QUAD;
    if rest > 0 {
        // SAFETY: as above.
        unsafe { add_group(int8, &mut whole, factors, (last, rest)) };
    }
    *acc = whole;
}

/// Adds the first steps of one group to sums over groups.
///
/// # Safety
/// All rows, panels and steps have the steps and the group.
#[inline(always)]
unsafe fn add_group<I: Int8, S: Steps<I, N>, const M: usize, const N: usize>(
    int8: I,
    acc: &mut [[<I::Simd as Simd>::V; N]; M],
    (rows, panels, from): (RowsAt<'_, I::Quad>, &[Panel<'_>; N], S),
    (group, steps): (usize, usize),
) {
    let simd = int8.simd();
    // SAFETY: the caller's.
    unsafe {
        let mut sums = [[int8.splat(0); N]; M];
        for (i, sums) in sums.iter_mut().enumerate() {
            *sums = [int8.splat(rows.scale(i, group).offset); N];
        }
        for k in group * GROUP_STEPS..group * GROUP_STEPS + steps {
            let weights = from.at(int8, k);
            for part in 0..weights[0].as_ref().len() {
                for (i, sums) in sums.iter_mut().enumerate() {
                    let inputs = int8.inputs(rows.quad(i, k), part);
                    for (sum, weights) in sums.iter_mut().zip(&weights) {
                        *sum = int8.dot(*sum, weights.as_ref()[part], inputs);
                    }
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
