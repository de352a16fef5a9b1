//! The exponential of sixteen f32, and what is made of it.

use std::f32::consts::LN_2;

use super::simd::{LANES, Simd, Vector};

/// ln 2 in two parts: n times the first is exact for every n in use.
const LN2: [f32; 2] = [355.0 / 512.0, -2.121_944_4e-4];

/// Minimax polynomial of (e^r - 1 - r) / r² on |r| <= ln 2 / 2, highest power first
/// (Cephes `expf`).
const POLYNOMIAL: [f32; 6] =
    [1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

/// e^x with a relative error below 2e-7; exactly 1 at 0, exactly 0 at -inf and wherever
/// x < -87.7 (the smallest normal numbers), infinite from 88.4 on. NaN stays NaN.
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, x: S::V) -> S::V {
    // The bounds bring n to -127 and 128, where `pow2` is 0 and infinite.
    let x = simd.splat(89.0).min(simd.splat(-88.0).max(x));
    // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
    let magic = simd.splat(12_582_912.0);
    let shifted = x.fma(simd.splat(std::f32::consts::LOG2_E), magic);
    let n = shifted - magic;
    let r = n.fma(simd.splat(-LN2[1]), n.fma(simd.splat(-LN2[0]), x));
    let mut p = simd.splat(POLYNOMIAL[0]);
    for &coefficient in &POLYNOMIAL[1..] {
        p = p.fma(r, simd.splat(coefficient));
    }
    let one = simd.splat(1.0);
    p.fma(r * r, r + one) * shifted.pow2()
}

/// e^x - 1 - x for x <= 0, within 2e-7 of 1 or of itself, whichever is smaller; no digit is lost
/// near 0. NaN stays NaN.
#[inline(always)]
pub(crate) fn exp_beyond_line<S: Simd>(simd: S, x: S::V) -> S::V {
    let mut p = simd.splat(POLYNOMIAL[0]);
    for &coefficient in &POLYNOMIAL[1..] {
        p = p.fma(x, simd.splat(coefficient));
    }
    let far = exp(simd, x) - simd.splat(1.0) - x;
    x.below(simd.splat(-0.5 * LN_2), far, p * (x * x))
}

/// Minimax polynomial of 2^r on |r| <= 1/2 by relative error, exactly 1 at 0, highest power
/// first and without the 1.
const POLYNOMIAL_2: [f32; 5] = [1.330_060_7e-3, 9.669_691e-3, 5.550_558_5e-2, 2.402_228_3e-1, LN_2];

/// 2^x for x <= 127 with a relative error below 3e-7; exactly 1 at 0, exactly 0 below -126.5, where
/// numbers are no longer normal. NaN stays NaN.
#[inline(always)]
pub(crate) fn exp2<S: Simd>(simd: S, x: S::V) -> S::V {
    let (whole, rest) = simd.parts(x);
    let mut p = simd.splat(POLYNOMIAL_2[0]);
    for &coefficient in &POLYNOMIAL_2[1..] {
        p = p.fma(rest, simd.splat(coefficient));
    }
    simd.times_pow2(p.fma(rest, simd.splat(1.0)), whole)
}

/// tanh x with a relative error below 1e-6; exactly ±1 from ±10 on. What is not finite becomes NaN.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(simd: S, x: S::V) -> S::V {
    let [zero, one, two] = [0.0, 1.0, 2.0].map(|x| simd.splat(x));
    let near = simd.splat(10.0).min(simd.splat(-10.0).max(x));
    // 1 - 2 / (e^2x + 1) loses digits near 0. There a convergent of the continued fraction
    // x / (1 + x² / (3 + x² / (5 + ..)))  (Lambert 1768) is within 1e-9.
    let square = near * near;
    let over = square.fma(simd.splat(21.0), simd.splat(1260.0)).fma(square, simd.splat(10395.0));
    let under = (square + simd.splat(210.0)).fma(square, simd.splat(4725.0));
    let small = near * over / under.fma(square, simd.splat(10395.0));
    let power = exp2(simd, near * simd.splat(2.0 * std::f32::consts::LOG2_E));
    let great = one - two / (power + one);
    x.fma(zero, square.below(simd.splat(0.25), small, great))
}

/// Dot products become cap tanh(factor dot), factor being scale / cap.
#[inline(always)]
pub(crate) fn cap<S: Simd>(simd: S, (factor, cap): (f32, f32), dots: &mut [[f32; LANES]]) {
    let (factor, cap) = (simd.splat(factor), simd.splat(cap));
    for lanes in dots {
        (cap * tanh(simd, simd.load(lanes) * factor)).store(lanes);
    }
}

#[cfg(test)]
mod tests {
    use super::super::isa::Isa;
    use super::super::simd::Kernel;
    use super::*;

    struct Exp([f32; LANES]);

    impl Kernel for Exp {
        type Out = [f32; LANES];

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Out {
            let mut out = [0.0; LANES];
            exp(simd, simd.load(&self.0)).store(&mut out);
            out
        }
    }

    struct Exp2([f32; LANES]);

    impl Kernel for Exp2 {
        type Out = [f32; LANES];

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Out {
            let mut out = [0.0; LANES];
            exp2(simd, simd.load(&self.0)).store(&mut out);
            out
        }
    }

    struct Tanh([f32; LANES]);

    impl Kernel for Tanh {
        type Out = [f32; LANES];

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Out {
            let mut out = [0.0; LANES];
            tanh(simd, simd.load(&self.0)).store(&mut out);
            out
        }
    }

    fn check_tanh(x: f32, holds: impl Fn(f32) -> bool) {
        for isa in Isa::available() {
            let y = isa.run(Tanh([x; LANES]));
            assert!(y.iter().all(|&y| holds(y)), "{isa:?}: tanh({x}) = {y:?}");
        }
    }

    #[test]
    fn the_hyperbolic_tangent_is_close_to_the_true_value_everywhere() {
        for step in 1..20_000 {
            let x = 2.0_f32.powf(-30.0 + 34.0 * (step as f32 / 20_000.0));
            for x in [x, -x] {
                let want = f64::from(x).tanh();
                check_tanh(x, |y| ((f64::from(y) - want) / want).abs() < 1e-6);
            }
        }
        check_tanh(0.0, |y| y == 0.0);
        check_tanh(1e30, |y| y == 1.0);
        check_tanh(-1e30, |y| y == -1.0);
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            check_tanh(broken, f32::is_nan);
        }
    }

    fn check2(x: f32, holds: impl Fn(f32) -> bool) {
        for isa in Isa::available() {
            let y = isa.run(Exp2([x; LANES]));
            assert!(y.iter().all(|&y| holds(y)), "{isa:?}: exp2({x}) = {y:?}");
        }
    }

    #[test]
    fn powers_of_two_are_close_to_the_true_value() {
        for step in 0..40_000 {
            let x = -126.0 + 253.0 * (step as f32 / 40_000.0);
            let want = f64::from(x).exp2();
            check2(x, |y| ((f64::from(y) - want) / want).abs() < 3e-7);
        }
        for x in [-126.1, -126.3, -126.5] {
            check2(x, |y| (0.0..1.2e-38).contains(&y));
        }
        for x in [-126.6, -127.0, -130.5, -149.0, -1e4] {
            check2(x, |y| y.to_bits() == 0);
        }
    }

    #[test]
    fn powers_of_two_are_exact_where_softmax_relies_on_it() {
        check2(0.0, |y| y == 1.0);
        check2(-0.0, |y| y == 1.0);
        check2(-3.0, |y| y == 0.125);
        check2(f32::NEG_INFINITY, |y| y.to_bits() == 0);
        check2(f32::NAN, f32::is_nan);
    }

    fn check(x: f32, holds: impl Fn(f32) -> bool) {
        for isa in Isa::available() {
            let y = isa.run(Exp([x; LANES]));
            assert!(y.iter().all(|&y| holds(y)), "{isa:?}: exp({x}) = {y:?}");
        }
    }

    #[test]
    fn close_to_the_true_value_from_the_smallest_normal_to_the_greatest() {
        for step in 0..40_000 {
            let x = -87.0 + 175.0 * (step as f32 / 40_000.0);
            let want = f64::from(x).exp();
            check(x, |y| ((f64::from(y) - want) / want).abs() < 2e-7);
        }
    }

    #[test]
    fn exact_where_softmax_relies_on_it() {
        check(0.0, |y| y == 1.0);
        check(f32::NEG_INFINITY, |y| y.to_bits() == 0);
        check(-1e4, |y| y.to_bits() == 0);
        check(f32::INFINITY, |y| y == f32::INFINITY);
        check(f32::NAN, f32::is_nan);
    }
}
