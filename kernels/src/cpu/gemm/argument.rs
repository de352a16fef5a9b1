//! What is multiplied: rows as they are, or rows that become it while they are packed.

use crate::cpu::curves::tanh_slope;
use crate::cpu::exp::exp;
use crate::cpu::simd::{LANES, Simd, Vector, load_front, store_front, sum};
use crate::tensor::Rows;
use crate::weights::Activation;

/// The left factor of a product.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Argument<'a> {
    pub(in crate::cpu) rows: &'a Rows,
    pub(in crate::cpu) prepare: Prepare<'a>,
}

/// What is done to every row first.
#[derive(Clone, Copy)]
pub(in crate::cpu) enum Prepare<'a> {
    /// Nothing.
    Nothing,
    /// RMS norm with `weight`, `[cols]`.
    Norm { weight: &'a [f32], eps: f32 },
    /// `[2 inputs]`, gate first, to activation(gate) * up.
    Gate(Activation),
}

impl Argument<'_> {
    /// Columns after preparation.
    pub(super) fn inputs(self) -> usize {
        match self.prepare {
            Prepare::Gate(_) => self.rows.cols() / 2,
            _ => self.rows.cols(),
        }
    }
}

impl<'a> Prepare<'a> {
    /// A norm, if there is one.
    pub(in crate::cpu) fn norm(weight: Option<&'a [f32]>, eps: f32) -> Self {
        weight.map_or(Self::Nothing, |weight| Self::Norm { weight, eps })
    }

    #[inline(always)]
    pub(super) fn row<S: Simd>(self, simd: S, from: &[f32], to: &mut [f32]) {
        match self {
            Self::Nothing => to.copy_from_slice(from),
            Self::Norm { weight, eps } => {
                to.copy_from_slice(from);
                norm_row(simd, to, weight, eps);
            }
            Self::Gate(activation) => gate_row(simd, activation, from, to),
        }
    }
}

/// x / sqrt(mean of x² + eps) * weight, in place  (Zhang and Sennrich 2019).
#[inline(always)]
pub(in crate::cpu) fn norm_row<S: Simd>(simd: S, x: &mut [f32], weight: &[f32], eps: f32) {
    let mut squares = simd.splat(0.0);
    for part in x.chunks(LANES) {
        let x = load_front(simd, part);
        squares = x.fma(x, squares);
    }
    let scale = norm_scale(simd, squares, x.len(), eps);
    for (x, weight) in x.chunks_mut(LANES).zip(weight.chunks(LANES)) {
        store_front(load_front(simd, x) * scale * load_front(simd, weight), x);
    }
}

/// x / sqrt(squares). NaN where squares are beyond f32: x / infinity would make zeros of the row,
/// which nobody could tell from a good one.
#[inline(always)]
pub(in crate::cpu) fn over_root(x: f32, squares: f32) -> f32 {
    if squares.is_finite() { x / squares.sqrt() } else { f32::NAN }
}

/// 1 / sqrt(mean of x² + eps), of so many x with these sums of squares.
#[inline(always)]
pub(in crate::cpu) fn norm_scale<S: Simd>(simd: S, squares: S::V, count: usize, eps: f32) -> S::V {
    simd.splat(over_root(1.0, sum(squares) / count as f32 + eps))
}

/// activation(gate) * up.
#[inline(always)]
pub(in crate::cpu) fn gate_row<S: Simd>(
    simd: S,
    activation: Activation,
    gate_up: &[f32],
    to: &mut [f32],
) {
    let (gate, up) = gate_up.split_at(to.len());
    for (to, (gate, up)) in to.chunks_mut(LANES).zip(gate.chunks(LANES).zip(up.chunks(LANES))) {
        let (gate, up) = (load_front(simd, gate), load_front(simd, up));
        store_front(gated(simd, activation, gate, up), to);
    }
}

/// What the activation makes of sixteen gates and ups.
#[inline(always)]
pub(in crate::cpu) fn gated<S: Simd>(
    simd: S,
    activation: Activation,
    gate: S::V,
    up: S::V,
) -> S::V {
    let (zero, one) = (simd.splat(0.0), simd.splat(1.0));
    let (mut gate, mut up) = (gate, up);
    let x = match activation {
        Activation::Silu => gate,
        Activation::ClampedSilu => {
            let most = simd.splat(Activation::CLAMPED[1]);
            gate = most.min(gate);
            up = one + (zero - most).max(most.min(up));
            gate * simd.splat(Activation::CLAMPED[0])
        }
        Activation::GeluTanh => tanh_slope(simd, gate),
        Activation::ReluSquared => {
            let above = zero.max(gate); // NaN stays NaN
            return above * above * up;
        }
        Activation::Ungated(_) => unreachable!("there is no gate"),
    };
    gate / (one + exp(simd, zero - x)) * up
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;
    use crate::cpu::simd::Kernel;

    /// A row, normed by weights of 1.
    struct Normed(Vec<f32>);

    impl Kernel for Normed {
        type Out = Vec<f32>;

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Vec<f32> {
            let Self(mut row) = self;
            let ones = vec![1.0; row.len()];
            norm_row(simd, &mut row, &ones, 1e-5);
            row
        }
    }

    #[test]
    fn a_row_whose_squares_are_beyond_f32_is_no_row_of_zeros() {
        for isa in Isa::available() {
            for len in [LANES, 2 * LANES + 3] {
                let mut row = vec![1.0; len];
                row[1] = 1e20;
                assert!(isa.run(Normed(row)).iter().all(|x| x.is_nan()), "{isa:?}, {len}");
                let row = isa.run(Normed(vec![1e18; len]));
                assert!(row.iter().all(|x| (x - 1.0).abs() < 1e-5), "{isa:?}, {len}: {row:?}");
            }
        }
    }
}
