//! Exponentials over a whole vocabulary, in plain loops that the compiler makes vectors of.

use aqueduct_kernels::cpu::{PlainWork, on_widest_vectors};

/// Elements of a loop that is unrolled into vectors.
pub(super) const BLOCK: usize = 64;

/// e^x for x <= 0, within 2e-7 of it in proportion; 0 below -87, where f32 runs out.
///
/// 2^n e^r with |r| <= ln 2 / 2 (Cephes' `expf`), no table and no branch.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    /// Adding it rounds to a whole number, which the low bits of the sum then hold.
    const ROUND: f32 = 12_582_912.0;
    let clamped = if x > -87.0 { x } else { -87.0 };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = clamped - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p * r + coefficient;
    }
    let p = p * (r * r) + r + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    if x < -87.0 { 0.0 } else { p * power }
}

/// Sums that are kept apart, of every so many-th element.
const LANES: usize = 16;

/// ln sum exp of all logits, of which `max` is the largest; in an order that depends on their
/// number alone.
pub(super) fn log_sum_exp(logits: &[f32], max: f32) -> f64 {
    if !max.is_finite() {
        return f64::from(max);
    }
    let sums = on_widest_vectors(Sums { logits, max });
    f64::from(max) + sums.iter().sum::<f64>().ln()
}

/// Sums of e^(z - max).
struct Sums<'a> {
    logits: &'a [f32],
    max: f32,
}

impl PlainWork for Sums<'_> {
    type Out = [f64; LANES];

    #[inline(always)]
    fn run(self) -> [f64; LANES] {
        let Self { logits, max } = self;
        let mut sums = [0.0_f64; LANES];
        let (blocks, rest) = logits.as_chunks::<LANES>();
        for block in blocks {
            for (sum, &z) in sums.iter_mut().zip(block) {
                *sum += f64::from(exp(z - max));
            }
        }
        for (sum, &z) in sums.iter_mut().zip(rest) {
            *sum += f64::from(exp(z - max));
        }
        sums
    }
}

/// The largest logit by [`f32::total_cmp`]; -inf where there is none. `None` where one is NaN
/// or +inf.
pub(super) fn largest(logits: &[f32]) -> Option<f32> {
    let Seen { highest, usable } = on_widest_vectors(See { logits });
    let highest = highest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    // Both zeros are equal to a comparison, and the positive one is the larger.
    let positive = |z: &f32| z.to_bits() == 0;
    let zero = || if logits.iter().any(positive) { 0.0 } else { -0.0 };
    let highest = if highest == 0.0 { zero() } else { highest };
    usable.iter().all(|&usable| usable).then_some(highest)
}

struct See<'a> {
    logits: &'a [f32],
}

/// What is seen of every sixteenth logit.
struct Seen {
    highest: [f32; LANES],
    /// Whether none is NaN or +inf.
    usable: [bool; LANES],
}

impl PlainWork for See<'_> {
    type Out = Seen;

    #[inline(always)]
    fn run(self) -> Seen {
        let mut seen = Seen { highest: [f32::NEG_INFINITY; LANES], usable: [true; LANES] };
        let (blocks, rest) = self.logits.as_chunks::<LANES>();
        for block in blocks {
            seen.take(block);
        }
        seen.take(rest);
        seen
    }
}

impl Seen {
    #[inline(always)]
    fn take(&mut self, block: &[f32]) {
        for ((highest, usable), &z) in self.highest.iter_mut().zip(&mut self.usable).zip(block) {
            *highest = if z > *highest { z } else { *highest };
            *usable &= z < f32::INFINITY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_near_in_proportion() {
        for step in 0..870_000 {
            let x = step as f32 * -1e-4;
            let want = f64::from(x).exp();
            let off = (f64::from(exp(x)) - want).abs() / want;
            assert!(off < 2e-7, "exp({x}) is off by {off}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-87.5), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    }

    #[test]
    fn the_largest_is_by_total_order() {
        let bits = |logits: &[f32]| largest(logits).map(f32::to_bits);
        assert_eq!(bits(&[-0.0, 0.0, -0.0]), Some(0));
        assert_eq!(bits(&[-3.0, -0.0]), Some((-0.0_f32).to_bits()));
        assert_eq!(bits(&[f32::NEG_INFINITY; 3]), Some(f32::NEG_INFINITY.to_bits()));
        assert_eq!(bits(&[]), Some(f32::NEG_INFINITY.to_bits()));
        for broken in [f32::NAN, -f32::NAN, f32::INFINITY] {
            assert_eq!(largest(&[&[1.0; 40][..], &[broken], &[2.0; 7]].concat()), None);
        }
    }
}
