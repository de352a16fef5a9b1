//! Values that are known up to how a rounding inside a computation turned out: to bf16, or to
//! integers of a group.
//!
//! Where an argument is *given*, every backend rounds the same number and an oracle rounds it
//! too: nothing is uncertain. Where it was *computed* (a norm, a gate), a backend's f32 is off
//! the truth by some noise, and where the truth is that near to a tie, either neighbour is
//! right. How far that moves a result is carried along, first order, and is zero for nearly
//! every row: so the tolerance of what is compared stays that of f32 sums.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI};

use half::bf16;

use crate::compare::{Mismatch, Tolerance, close};
use crate::int8::{GROUP, Int8Rows};
use crate::reference::erf::erf;
use crate::weights::{Activation, Ungated, Xielu};

/// A value and what it may be off.
#[derive(Debug, Clone, Copy)]
pub(super) struct Near {
    pub(super) value: f64,
    /// By roundings that may turn out either way.
    pub(super) slack: f64,
    /// By the f32 arithmetic that computed it; matters only where it is rounded.
    noise: f64,
}

impl Near {
    /// What every backend is given alike.
    pub(super) fn given(value: f64) -> Self {
        Self { value, slack: 0.0, noise: 0.0 }
    }

    /// A result of f32 sums of terms of size 1: a dozen units in the last place.
    pub(super) fn computed(value: f64, slack: f64) -> Self {
        Self { value, slack, noise: 1e-6 * (1.0 + value.abs()) }
    }

    /// Rounded to bf16, either way where that is uncertain.
    pub(super) fn rounded(self) -> Self {
        let round = |x: f64| bf16::from_f32(x as f32).to_f64();
        let value = round(self.value);
        let off = self.slack + self.noise;
        let ends = [round(self.value - off), round(self.value + off)];
        Self {
            value,
            slack: ends.map(|end| (end - value).abs()).into_iter().fold(0.0, f64::max),
            noise: 0.0,
        }
    }

    /// What `seen` is held to: the value that is nearest to it.
    fn nearest(self, seen: f32) -> f64 {
        f64::from(seen).max(self.value - self.slack).min(self.value + self.slack)
    }
}

/// A row as integers in groups, multiplied out; either way where that is uncertain.
pub(super) fn quantised(row: &[Near]) -> Vec<Near> {
    let values: Vec<f32> = row.iter().map(|x| x.value as f32).collect();
    let integers = Int8Rows::from_f32(&values, row.len());
    let scales = integers.scales.iter().flat_map(|&scale| [f64::from(scale); GROUP]);
    let groups = row.chunks(GROUP).flat_map(|group| {
        // How far the scale may be off, and how much of that lies in earlier roundings.
        let most = |f: fn(&Near) -> f64| group.iter().map(f).fold(0.0, f64::max) / 127.0;
        group.iter().map(move |x| (x, most(|x| x.slack + x.noise), most(|x| x.slack)))
    });
    let one = |(((x, scale_off, scale_slack), scale), &q): (((&Near, f64, f64), f64), &i8)| {
        let (q, value) = (f64::from(q), f64::from(q) * scale);
        let off = (x.slack + x.noise + q.abs() * scale_off) / scale.max(f64::MIN_POSITIVE);
        let ratio = x.value / scale.max(f64::MIN_POSITIVE);
        let ends = [ratio - off, ratio + off].map(|end| (end.round_ties_even() - q).abs());
        let steps = if off == 0.0 { 0.0 } else { ends[0].max(ends[1]) };
        Near { value, slack: steps * scale + q.abs() * scale_slack, noise: 0.0 }
    };
    groups.zip(scales).zip(&integers.q).map(one).collect()
}

/// As given to every backend.
pub(super) fn given(row: &[f32]) -> Vec<Near> {
    row.iter().map(|&x| Near::given(x.into())).collect()
}

/// a + b.
pub(super) fn sum(a: &[Near], b: &[Near]) -> Vec<Near> {
    let add = |(a, b): (&Near, &Near)| Near::computed(a.value + b.value, a.slack + b.slack);
    a.iter().zip(b).map(add).collect()
}

/// a · w + bias.
pub(super) fn dot(a: &[Near], w: &[f64], bias: f64) -> Near {
    let (mut value, mut slack) = (bias, 0.0);
    for (a, w) in a.iter().zip(w) {
        value += a.value * w;
        slack += a.slack * w.abs();
    }
    Near::computed(value, slack)
}

/// x / sqrt(mean of x² + eps) * weight.
pub(super) fn normed(x: &[Near], weight: &[f32], eps: f64) -> Vec<Near> {
    let mean_of = |f: &dyn Fn(&Near) -> f64| x.iter().map(f).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean_of(&|x| x.value * x.value) + eps).sqrt();
    // How far the scale may be off in proportion: d(1 / sqrt m) = -dm / 2m * (1 / sqrt m).
    let stretch = scale * scale * mean_of(&|x| x.value.abs() * x.slack);
    let one = |(x, &w): (&Near, &f32)| {
        let factor = scale * f64::from(w);
        let slack = factor.abs() * (x.slack + x.value.abs() * stretch);
        Near::computed(x.value * factor, slack)
    };
    x.iter().zip(weight).map(one).collect()
}

/// Element i with element i + d / 2, as a complex number times (cos, sin).
pub(super) fn rotated(x: &[Near], cos_sin: &[(f64, f64)]) -> Vec<Near> {
    let half = x.len() / 2;
    let turn = |i: usize| {
        let (cos, sin) = cos_sin[i % half];
        let (other, sin) = if i < half { (x[i + half], -sin) } else { (x[i - half], sin) };
        let slack = x[i].slack * cos.abs() + other.slack * sin.abs();
        Near::computed(x[i].value * cos + other.value * sin, slack)
    };
    (0..x.len()).map(turn).collect()
}

/// What the activation makes of both; the slope of silu is at most 1.1, those of the others 1.13.
pub(super) fn gated(activation: Activation, gate: Near, up: Near) -> Near {
    let (x, mut up) = (gate.value, up);
    let active = match activation {
        Activation::ClampedSilu => {
            up = Near::computed(up.value.clamp(-7.0, 7.0) + 1.0, up.slack);
            let x = x.min(7.0);
            x / (1.0 + (-1.702 * x).exp())
        }
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => gelu_tanh(x),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::Ungated(_) => panic!("there is no gate"),
    };
    let slope = match activation {
        Activation::ReluSquared => 2.0 * (x.abs() + gate.slack),
        _ => 1.13,
    };
    let slack = slope * gate.slack * (up.value.abs() + up.slack) + active.abs() * up.slack;
    Near::computed(active * up.value, slack)
}

fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + (FRAC_2_PI.sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

/// What is made of an up projection that has no gate.
pub(super) fn curved(ungated: Ungated, x: Near) -> Near {
    let (value, far) = (x.value, x.value.abs() + x.slack);
    let (made, slope) = match ungated {
        Ungated::GeluTanh => (gelu_tanh(value), 1.13),
        Ungated::Gelu => (value * (0.5 + 0.5 * erf(value * FRAC_1_SQRT_2)), 1.13),
        Ungated::Relu => (value.max(0.0), 1.0),
        Ungated::ReluSquared if value > 0.0 => (value * value, 2.0 * far),
        Ungated::ReluSquared => (0.0, 2.0 * x.slack),
        Ungated::Xielu(Xielu { positive, negative, beta, eps }) => {
            let [positive, negative, beta, eps] = [positive, negative, beta, eps].map(f64::from);
            let bent = match value > 0.0 {
                true => positive * value.powi(2),
                false => negative * (value.min(eps).exp_m1() - value),
            };
            (bent + beta * value, beta + negative.max(2.0 * positive * far))
        }
    };
    Near::computed(made, slope * x.slack)
}

/// [`close`], each element held to the nearest of what it may be.
pub(super) fn close_to(
    what: &str,
    seen: &[f32],
    want: &[Near],
    tolerance: Tolerance,
) -> Result<(), Mismatch> {
    let nearest = seen.iter().zip(want).map(|(&seen, want)| want.nearest(seen));
    // Elements that are missing are compared as they are: the lengths differ.
    let rest = want[seen.len().min(want.len())..].iter().map(|want| want.value);
    close(what, seen, &nearest.chain(rest).collect::<Vec<_>>(), tolerance)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(x: Near, value: f64, slack: f64) {
        let rounded = x.rounded();
        assert_eq!((rounded.value, rounded.slack), (value, slack), "{x:?}");
    }

    #[test]
    fn only_what_is_near_a_tie_is_uncertain() {
        let ulp = 1.0 / 128.0;
        check(Near::given(1.0 + 0.5 * ulp), 1.0, 0.0);
        check(Near::computed(1.0 + 0.4 * ulp, 0.0), 1.0, 0.0);
        check(Near::computed(1.0 + 0.5 * ulp, 0.0), 1.0, ulp);
        check(Near::computed(1.0 + 0.4 * ulp, 0.2 * ulp), 1.0, ulp);
    }

    #[test]
    fn only_integers_near_a_tie_are_uncertain() {
        let given = [127.0, 3.5, -20.3].map(Near::given);
        let slack = |row: &[Near]| quantised(row).iter().map(|x| x.slack).collect::<Vec<_>>();
        assert_eq!(slack(&given), [0.0, 0.0, 0.0]);
        let values = quantised(&given).iter().map(|x| x.value).collect::<Vec<_>>();
        assert_eq!(values, [127.0, 4.0, -20.0]);
        let computed = [127.0, 3.5, -20.3].map(|x| Near::computed(x, 0.0));
        assert_eq!(slack(&computed), [0.0, 1.0, 0.0]);
        let wide = [127.0, 3.5, -20.3].map(|x| Near::computed(x, 0.25));
        assert!(slack(&wide)[2] > 1.0, "the scale is uncertain too");
    }

    #[test]
    fn nan_is_near_nothing() {
        let tolerance = Tolerance::new(1.0, 1.0);
        assert!(close_to("x", &[f32::NAN], &[Near::given(1.0)], tolerance).is_err());
        assert!(close_to("x", &[], &[Near::given(1.0)], tolerance).is_err());
        assert!(close_to("x", &[1.0, 1.0], &[Near::given(1.0)], tolerance).is_err());
    }
}
