//! What is made of every element of an up projection that no gate multiplies.

use super::exp::{exp, exp_beyond_line};
use super::simd::{Simd, Vector};
use crate::weights::{Activation, Ungated, Xielu};

/// Q(a) = (1 - Φ(a)) e^(a²/2) for a >= 0 as a polynomial in t = 1 / (1 + 0.31 a), highest power
/// first and without the constant, which is 0. Minimax of a e^(-a²/2) (its error), which is below
/// 3e-9 in these numbers: what is left of GELU's error is that of f32.
const TAIL: [f32; 7] = [
    0.042_180_404,
    -0.245_451_52,
    0.466_058_43,
    -0.233_689_52,
    0.254_104_94,
    0.089_708_02,
    0.127_089_2,
];
const TAIL_SLOPE: f32 = 0.31;

/// Sixteen elements; each within 2e-7 (1 + |result|) of the formula's value, and NaN stays NaN.
#[inline(always)]
pub(super) fn curved<S: Simd>(simd: S, ungated: Ungated, x: S::V) -> S::V {
    let (zero, one) = (simd.splat(0.0), simd.splat(1.0));
    match ungated {
        Ungated::GeluTanh => x / (one + exp(simd, zero - tanh_slope(simd, x))),
        Ungated::Gelu => gelu(simd, x),
        Ungated::Relu => zero.max(x),
        Ungated::ReluSquared => {
            let x = zero.max(x);
            x * x
        }
        Ungated::Xielu(constants) => xielu(simd, constants, x),
    }
}

/// What the sigmoid is of in [`Activation::GeluTanh`].
#[inline(always)]
pub(super) fn tanh_slope<S: Simd>(simd: S, x: S::V) -> S::V {
    let [linear, cubic] = [simd.splat(Activation::GELU[0]), simd.splat(Activation::GELU[1])];
    x * (x * x).fma(cubic, linear)
}

/// max(x, 0) - |x| (1 - Φ(|x|)): either side loses no digits.
#[inline(always)]
fn gelu<S: Simd>(simd: S, x: S::V) -> S::V {
    let (zero, one) = (simd.splat(0.0), simd.splat(1.0));
    let size = x.max(zero - x);
    let t = one / size.fma(simd.splat(TAIL_SLOPE), one);
    let mut tail = simd.splat(TAIL[0]);
    for &coefficient in &TAIL[1..] {
        tail = tail.fma(t, simd.splat(coefficient));
    }
    let tail = tail * t * exp(simd, size * size * simd.splat(-0.5));
    (zero - size).fma(tail, zero.max(x))
}

#[inline(always)]
fn xielu<S: Simd>(simd: S, constants: Xielu, x: S::V) -> S::V {
    let [positive, negative] = [simd.splat(constants.positive), simd.splat(constants.negative)];
    let [zero, beta, eps] =
        [simd.splat(0.0), simd.splat(constants.beta), simd.splat(constants.eps)];
    let below = eps.min(x);
    let bent = negative * (exp_beyond_line(simd, below) + (below - x));
    x.fma(beta, zero.below(x, positive * x * x, bent))
}

#[cfg(test)]
mod tests {
    use super::super::isa::Isa;
    use super::super::simd::{Kernel, LANES};
    use super::*;
    use crate::reference::curved as exact;

    struct Curve(Ungated, [f32; LANES]);

    impl Kernel for Curve {
        type Out = [f32; LANES];

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Out {
            let mut out = [0.0; LANES];
            curved(simd, self.0, simd.load(&self.1)).store(&mut out);
            out
        }
    }

    const XIELU: Xielu = Xielu { positive: 0.9, negative: 1.3, beta: 0.5, eps: -1e-6 };
    const ALL: [Ungated; 5] = [
        Ungated::GeluTanh,
        Ungated::Gelu,
        Ungated::Relu,
        Ungated::ReluSquared,
        Ungated::Xielu(XIELU),
    ];

    fn check(ungated: Ungated, x: f32, holds: impl Fn(f32) -> bool) {
        for isa in Isa::available() {
            let y = isa.run(Curve(ungated, [x; LANES]));
            assert!(y.iter().all(|&y| holds(y)), "{isa:?}: {ungated:?} of {x} = {y:?}");
        }
    }

    #[test]
    fn curves_are_close_to_the_true_value_everywhere() {
        for ungated in ALL {
            for step in 0..20_000 {
                let x = 2.0_f32.powf(-30.0 + 40.0 * (step as f32 / 20_000.0));
                for x in [x, -x] {
                    let want = exact(ungated, x.into());
                    check(ungated, x, |y| (f64::from(y) - want).abs() < 2e-7 * (1.0 + want.abs()));
                }
            }
            let at_zero = exact(ungated, 0.0);
            check(ungated, 0.0, |y| (f64::from(y) - at_zero).abs() < 1e-12);
        }
    }

    #[test]
    fn what_is_far_away_is_nothing_or_as_it_is() {
        for ungated in [Ungated::GeluTanh, Ungated::Gelu, Ungated::Relu] {
            check(ungated, -1e30, |y| y == 0.0);
            check(ungated, 1e10, |y| y == 1e10);
        }
        check(Ungated::ReluSquared, -1e30, |y| y == 0.0);
        for ungated in ALL {
            check(ungated, f32::NAN, f32::is_nan);
        }
    }
}
