//! Eight-bit integers with scales: the one rule by which f32 becomes them.
//!
//! Weights are made by it when a model is loaded, activations whenever they meet such a
//! weight. It is plain IEEE arithmetic in a fixed order, so every processor makes the same
//! integers of the same numbers. Weights that are such integers already stay what they are.

use std::ops::Range;

/// Neighbouring elements that share a scale; the last group of a row may be shorter.
pub const GROUP: usize = 128;

/// The largest integer that is used; its negative is the smallest.
const LARGEST: f32 = 127.0;

/// 1.5 * 2^23: added to a number of size below 2^22, it leaves the nearest integer (to even
/// where two are as near) in the low bits of the sum.
const ROUND: f32 = 12_582_912.0;

/// Rows of integers with a scale for every group: element i of a row stands for
/// `q[i] * scale[i / GROUP]`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Int8Rows {
    /// `[rows, inputs]`. The rule makes -127 to 127; integers of a file may be -128.
    pub q: Vec<i8>,
    /// `[rows, inputs.div_ceil(GROUP)]`: largest magnitude of a group / 127, or what a file says.
    /// Zero where the group is, NaN where it was not finite.
    pub scales: Vec<f32>,
}

impl Int8Rows {
    /// All zero.
    pub fn zeros(rows: usize, inputs: usize) -> Self {
        Self { q: vec![0; rows * inputs], scales: vec![0.0; rows * inputs.div_ceil(GROUP)] }
    }

    /// `data`, rows of `inputs`.
    pub fn from_f32(data: &[f32], inputs: usize) -> Self {
        let mut made = Self::zeros(data.len() / inputs.max(1), inputs);
        quantise(data, inputs, &mut made.q, &mut made.scales);
        made
    }

    /// Bytes of integers and scales.
    pub fn bytes(&self) -> usize {
        size_of_val(self.q.as_slice()) + size_of_val(self.scales.as_slice())
    }

    /// Row `row` of rows of `to.len()`, multiplied out.
    pub fn read(&self, row: usize, to: &mut [f32]) {
        let (inputs, groups) = (to.len(), to.len().div_ceil(GROUP));
        let q = self.q[row * inputs..][..inputs].chunks(GROUP);
        let scales = &self.scales[row * groups..][..groups];
        for ((to, q), &scale) in to.chunks_mut(GROUP).zip(q).zip(scales) {
            to.iter_mut().zip(q).for_each(|(to, &q)| *to = f32::from(q) * scale);
        }
    }
}

/// Makes integers and scales of `data`, rows of `inputs`: see [`Int8Rows`] for what `q` and
/// `scales` are.
///
/// Per group: scale = a / 127 where a is the largest magnitude, q = x (127 / a) rounded to
/// nearest even. Where the scale is not a normal number (a below 1.5e-36) all is zero.
///
/// # Panics
/// Where the lengths do not belong together.
pub fn quantise(data: &[f32], inputs: usize, q: &mut [i8], scales: &mut [f32]) {
    let groups = inputs.div_ceil(GROUP);
    assert_eq!(data.len(), q.len(), "integers");
    assert_eq!(data.len() / inputs.max(1) * groups, scales.len(), "scales");
    let rows = data.chunks_exact(inputs.max(1)).zip(q.chunks_exact_mut(inputs.max(1)));
    for ((row, q), scales) in rows.zip(scales.chunks_exact_mut(groups.max(1))) {
        let groups = row.chunks(GROUP).zip(q.chunks_mut(GROUP));
        for ((group, q), scale) in groups.zip(scales) {
            *scale = quantise_group(group, q);
        }
    }
}

/// Makes integers and scales of a row of a file that says in what steps a group goes, if in any:
/// `step_of` knows, given the inputs. Where all elements are whole multiples of it, from -128 to
/// 127, they stay exactly what they are; any other group follows the rule of [`quantise`].
///
/// # Panics
/// Where the lengths do not belong together.
pub fn keep_steps(
    row: &[f32],
    (q, scales): (&mut [i8], &mut [f32]),
    step_of: impl Fn(Range<usize>) -> Option<f32>,
) {
    assert_eq!(row.len(), q.len(), "integers");
    assert_eq!(row.len().div_ceil(GROUP), scales.len(), "scales");
    let groups = row.chunks(GROUP).zip(q.chunks_mut(GROUP));
    for ((idx, (group, q)), scale) in groups.enumerate().zip(scales) {
        let first = idx * GROUP;
        let step = step_of(first..first + group.len());
        *scale = match step.filter(|&step| are_multiples(group, step, q)) {
            Some(step) => step,
            None => quantise_group(group, q),
        };
    }
}

/// Fills `q`, and tells whether that many steps are exactly `group`.
fn are_multiples(group: &[f32], step: f32, q: &mut [i8]) -> bool {
    let of_one = |all: bool, (&x, q): (&f32, &mut i8)| {
        *q = (x / step).round_ties_even() as i8;
        all & (f32::from(*q) * step == x)
    };
    step.is_normal() && group.iter().zip(q).fold(true, of_one)
}

/// One group; returns its scale. Inlined so that it is compiled for the caller's instructions.
#[inline(always)]
pub(crate) fn quantise_group(group: &[f32], q: &mut [i8]) -> f32 {
    // As integers, magnitudes are in the same order, infinity above them and NaN above all.
    let magnitude = |x: &f32| x.to_bits() & (u32::MAX >> 1);
    let largest = f32::from_bits(group.iter().map(magnitude).fold(0, u32::max));
    let scale = largest / LARGEST;
    if !scale.is_normal() {
        q.fill(0);
        return if scale.is_finite() { 0.0 } else { f32::NAN };
    }
    let inverse = LARGEST / largest;
    for (q, &x) in q.iter_mut().zip(group) {
        *q = (x * inverse + ROUND).to_bits() as i8;
    }
    scale
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(data: &[f32], q: &[i8], scale: f32) {
        let made = Int8Rows::from_f32(data, data.len());
        assert_eq!(made.q, q, "{data:?}");
        assert!(made.scales[0] == scale || scale.is_nan() && made.scales[0].is_nan(), "{made:?}");
    }

    #[test]
    fn the_rule_holds() {
        check(&[127.0, -127.0, 0.4, -0.6, 0.0], &[127, -127, 0, -1, 0], 1.0);
        check(&[254.0, 1.0, 3.0, 5.0, -1.0, -3.0], &[127, 0, 2, 2, 0, -2], 2.0);
        check(&[0.0, -0.0], &[0, 0], 0.0);
        check(&[1e-40, -1e-38], &[0, 0], 0.0);
        check(&[3e38, -3.4e38], &[112, -127], 3.4e38 / 127.0);
        check(&[1.0, f32::NAN, 2.0], &[0, 0, 0], f32::NAN);
        check(&[1.0, f32::NEG_INFINITY], &[0, 0], f32::NAN);
    }

    #[test]
    fn every_group_has_its_own_scale() {
        let data: Vec<f32> = (0..300).map(|i| if i < 150 { 1.0 } else { i as f32 }).collect();
        let made = Int8Rows::from_f32(&data, 150);
        assert_eq!(made.scales.len(), 4);
        assert_eq!(made.scales, [1.0, 1.0, 277.0, 299.0].map(|largest| largest / 127.0));
        let mut row = [0.0; 150];
        made.read(1, &mut row);
        for (seen, want) in row.iter().zip(&data[150..]) {
            assert!((seen - want).abs() <= 299.0 / 254.0, "{seen} for {want}");
        }
    }

    #[test]
    fn what_goes_in_steps_stays_as_it_is() {
        let check = |row: &[f32], step: Option<f32>, q: &[i8], scales: &[f32]| {
            let mut made = Int8Rows::zeros(1, row.len());
            keep_steps(row, (&mut made.q, &mut made.scales), |_| step);
            assert_eq!((&*made.q, &*made.scales), (q, scales), "{row:?} in steps of {step:?}");
        };
        let step = 0.1_f32;
        let row = [-128.0, 127.0, 3.0, 0.0, -0.0].map(|x: f32| x * step);
        check(&row, Some(step), &[-128, 127, 3, 0, 0], &[step]);
        check(&[7.0, -15.0], Some(-1.0), &[-7, 15], &[-1.0]);
        // Not in such steps, further than integers go, in no steps at all.
        let rule = |row: &[f32]| Int8Rows::from_f32(row, row.len());
        for (row, step) in [
            ([1.0, 2.5], Some(1.0)),
            ([1.0, 128.0], Some(1.0)),
            ([1.0, -129.0], Some(1.0)),
            ([1.0, 2.0], Some(0.0)),
            ([1.0, 2.0], Some(f32::NAN)),
            ([1.0, 2.0], Some(1e-40)),
            ([1.0, 2.0], None),
        ] {
            check(&row, step, &rule(&row).q, &rule(&row).scales);
        }
        // Each group for itself: the second of these has no steps.
        let row: Vec<f32> = (0..GROUP + 2).map(|i| (i % 16) as f32).collect();
        let mut made = Int8Rows::zeros(1, row.len());
        keep_steps(&row, (&mut made.q, &mut made.scales), |inputs| {
            assert!(inputs == (0..GROUP) || inputs == (GROUP..GROUP + 2), "{inputs:?}");
            (inputs.start == 0).then_some(1.0)
        });
        assert_eq!(made.scales, [1.0, 1.0 / 127.0]);
        assert_eq!((made.q[5], &made.q[GROUP..]), (5, &[0, 127][..]));
        let mut not_finite = Int8Rows::zeros(1, 1);
        keep_steps(&[f32::NAN], (&mut not_finite.q, &mut not_finite.scales), |_| Some(1.0));
        assert!(not_finite.scales[0].is_nan());
    }

    /// The nearest integer by definition, in f64, and never more than 127.
    #[test]
    fn integers_are_the_nearest() {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        for size in [1e-30, 0.02, 7.0, 1e30] {
            let data: Vec<f32> = (0..GROUP * 40).map(|_| size * next()).collect();
            let made = Int8Rows::from_f32(&data, GROUP);
            for (i, (&x, &q)) in data.iter().zip(&made.q).enumerate() {
                let exact = f64::from(x) / f64::from(made.scales[i / GROUP]);
                assert!((exact - f64::from(q)).abs() <= 0.5 + 1e-4, "{x} as {q}");
                assert!(q != i8::MIN);
            }
        }
    }
}
