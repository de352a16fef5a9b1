//! Rotary position embedding: angles of absolute positions, with the scalings in use.

use std::f64::consts::TAU;

use aqueduct_core::{Refusal, scaled_positions};
use aqueduct_kernels::Angles;

/// Inverse frequencies after scaling, and the factor on cosine and sine.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Radians per position, of the first pairs of a head's `head_dim / 2`; the others stay as
    /// they are.
    pub inv_freq: Vec<f64>,
    /// Multiplies cosine and sine of what is rotated (1 but for yarn and longrope).
    pub attention_factor: f64,
}

/// What queries are multiplied by once they are rotated, the more the farther they stand:
/// 1 + beta ln(1 + floor(position / every))  (Meta 2025, Llama 4; Mistral AI 2025, Ministral 3).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Temperature {
    /// By how much it grows.
    pub beta: f64,
    /// Positions within which it does not: those that the model was trained for before scaling.
    pub every: u32,
}

impl Temperature {
    /// Takes these if every query is multiplied by something finite above 0.
    ///
    /// # Errors
    /// The first that is out of bounds.
    pub fn checked(self) -> Result<Self, Refusal> {
        Refusal::unless_within("attention temperature scale", self.beta, 0.0, 1e3)?;
        Refusal::unless_within("attention temperature positions", self.every, 1, u32::MAX)?;
        Ok(self)
    }

    fn at(self, position: u64) -> f64 {
        1.0 + self.beta * ((position / u64::from(self.every)) as f64).ln_1p()
    }
}

/// How a model stretches its rotation over more positions than it was trained for, as the
/// transformers library computes it.
#[derive(Debug, Clone, PartialEq)]
pub enum Scaling {
    /// Not at all.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// At least 1 in practice.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided by `factor`, high ones kept, a ramp between.
    Llama3 {
        /// What low frequencies are divided by.
        factor: f64,
        /// Wavelengths above `original_positions` / this are low frequencies.
        low_freq_factor: f64,
        /// Wavelengths below `original_positions` / this are high frequencies.
        high_freq_factor: f64,
        /// Positions that the model was trained for before scaling.
        original_positions: f64,
    },
    /// Peng et al. 2023: the same idea by rotations, and sharper attention.
    Yarn(Yarn),
    /// `[rotary_dim / 2]`: each frequency divided by its own factor (GGUF's `rope_freqs`, and
    /// longrope, Ding et al. 2024).
    PerFrequency {
        /// What each is divided by.
        factors: Vec<f64>,
        /// Multiplies cosine and sine: 1, or [`longrope_attention_factor`].
        attention_factor: f64,
    },
    /// The frequencies of whole heads, of which the lowest are 0.
    Proportional {
        /// The share of them that are not.
        share: f64,
        /// What each is divided by.
        factor: f64,
    },
}

impl Scaling {
    /// For how many positions a model is that was made for `positions`, as its file tells them.
    pub(crate) fn positions(&self, positions: u32) -> u32 {
        match self {
            Self::Yarn(Yarn { factor, original_positions, .. }) => {
                scaled_positions(positions, "yarn", *factor, Some(*original_positions))
            }
            Self::Linear { factor } => scaled_positions(positions, "linear", *factor, None),
            Self::None | Self::Llama3 { .. } => positions,
            Self::PerFrequency { .. } | Self::Proportional { .. } => positions,
        }
    }
}

/// The parameters of yarn.
#[derive(Debug, Clone, PartialEq)]
pub struct Yarn {
    /// What low frequencies are divided by.
    pub factor: f64,
    /// Positions that the model was trained for before scaling.
    pub original_positions: f64,
    /// Frequencies with more rotations than this over those positions are kept.
    pub beta_fast: f64,
    /// Frequencies with fewer are divided by `factor`.
    pub beta_slow: f64,
    /// Multiplies cosine and sine; [`yarn_attention_factor`] unless the model says otherwise.
    pub attention_factor: f64,
    /// Whether the ramp's ends are rounded to whole frequencies.
    pub truncate: bool,
}

/// 0.1 weight ln(factor) + 1.
pub fn yarn_attention_factor(factor: f64, weight: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 }
}

/// sqrt(1 + ln(factor) / ln(original positions)), for a model stretched by `factor`.
pub fn longrope_attention_factor(factor: f64, original_positions: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original_positions.ln()).sqrt() }
}

impl Rope {
    /// Nothing is rotated.
    pub const NONE: Self = Self { inv_freq: Vec::new(), attention_factor: 1.0 };

    /// Unscaled: theta^(-2i / dim)  (Su et al. 2021), for the first `dim` elements of a head.
    pub fn unscaled(theta: f64, dim: usize) -> Self {
        let inv_freq = (0..dim / 2).map(|i| theta.powf(-2.0 * i as f64 / dim as f64)).collect();
        Self { inv_freq, attention_factor: 1.0 }
    }

    /// Scaled.
    ///
    /// # Errors
    /// A parameter from which no finite positive frequencies come.
    pub fn scaled(theta: f64, dim: usize, scaling: &Scaling) -> Result<Self, Refusal> {
        if !(theta.is_finite() && theta > 1.0) {
            return Err(Refusal::new("rope_theta", theta, "finite and above 1"));
        }
        let mut rope = Self::unscaled(theta, dim);
        match scaling {
            Scaling::None => {}
            Scaling::Linear { factor } => rope.divide(|_, _| *factor),
            &Scaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_positions } => {
                let rotations = |freq: f64| original_positions * freq / TAU;
                rope.blend(factor, |_, freq| {
                    (rotations(freq) - low_freq_factor) / (high_freq_factor - low_freq_factor)
                });
            }
            Scaling::Yarn(yarn) => {
                let (low, high) = yarn.ramp(theta, dim);
                rope.blend(yarn.factor, |i, _| 1.0 - (i as f64 - low) / (high - low));
                rope.attention_factor = yarn.attention_factor;
            }
            Scaling::PerFrequency { factors, attention_factor } => {
                let (seen, want) = (factors.len(), dim / 2);
                Refusal::unless_within("rope factors", seen, want, want)?;
                rope.divide(|i, _| factors[i]);
                rope.attention_factor = *attention_factor;
            }
            Scaling::Proportional { share, factor } => {
                rope.inv_freq.truncate((share * (dim / 2) as f64) as usize);
                rope.divide(|_, _| *factor);
            }
        }
        rope.checked()
    }

    fn divide(&mut self, factor: impl Fn(usize, f64) -> f64) {
        for (i, freq) in self.inv_freq.iter_mut().enumerate() {
            *freq /= factor(i, *freq);
        }
    }

    /// Keeps the share `keep(i, freq)`, clamped to 0..=1, and divides the rest by `factor`.
    fn blend(&mut self, factor: f64, keep: impl Fn(usize, f64) -> f64) {
        for (i, freq) in self.inv_freq.iter_mut().enumerate() {
            let keep = keep(i, *freq).clamp(0.0, 1.0);
            *freq = *freq * keep + *freq / factor * (1.0 - keep);
        }
    }

    fn checked(self) -> Result<Self, Refusal> {
        let usable = |x: f64| x.is_finite() && x > 0.0;
        if let Some(freq) = self.inv_freq.iter().find(|&&freq| !usable(freq)) {
            let bound = "such that every frequency is finite and above 0";
            return Err(Refusal::new("rope scaling", format!("frequency {freq}"), bound));
        }
        if !usable(self.attention_factor) {
            let bound = "finite and above 0";
            return Err(Refusal::new("rope attention_factor", self.attention_factor, bound));
        }
        Ok(self)
    }

    /// Angles of `half` pairs at any positions. f64 throughout: at position 65,536 an f32 angle
    /// would already be off by 0.004 radians. Queries have their own where `temperature` is not 1.
    pub fn angles(
        &self,
        half: usize,
        positions: impl Iterator<Item = u64> + Clone,
        temperature: Option<Temperature>,
    ) -> Angles {
        let tokens = positions.clone().count();
        let unscaled = positions.clone().map(|position| (position, 1.0));
        let (mut cos, mut sin) = self.turns(half, unscaled);
        let warm = |position| temperature.map_or(1.0, |it| it.at(position));
        if positions.clone().any(|position| warm(position) != 1.0) {
            let scaled = positions.clone().map(|position| (position, warm(position)));
            let (of_cos, of_sin) = self.turns(half, scaled);
            cos.extend(of_cos);
            sin.extend(of_sin);
        }
        Angles { tokens, half, cos: cos.into(), sin: sin.into() }
    }

    /// Cosines and sines at these positions, each multiplied by its number.
    fn turns(
        &self,
        half: usize,
        positions: impl Iterator<Item = (u64, f64)>,
    ) -> (Vec<f32>, Vec<f32>) {
        let (mut cosines, mut sines) = (Vec::new(), Vec::new());
        for (idx, (position, scale)) in positions.enumerate() {
            let factor = self.attention_factor * scale;
            for freq in &self.inv_freq {
                let (sin, cos) = (position as f64 * freq).sin_cos();
                cosines.push((cos * factor) as f32);
                sines.push((sin * factor) as f32);
            }
            cosines.resize((idx + 1) * half, scale as f32);
            sines.resize((idx + 1) * half, 0.0);
        }
        (cosines, sines)
    }
}

impl Yarn {
    /// Indices of the frequencies between which the ramp runs.
    fn ramp(&self, theta: f64, dim: usize) -> (f64, f64) {
        let dim = dim as f64;
        let index_of = |rotations: f64| {
            dim * (self.original_positions / (rotations * TAU)).ln() / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (index_of(self.beta_fast), index_of(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, high) = (low.max(0.0), high.min(dim - 1.0));
        (low, if low == high { high + 0.001 } else { high })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `want` is what transformers 5.23 computes (in f32) for a head of 16.
    fn check(theta: f64, scaling: Scaling, want: [f64; 8], attention_factor: f64) {
        let rope = Rope::scaled(theta, 16, &scaling).unwrap();
        for (seen, want) in rope.inv_freq.iter().zip(want) {
            assert!((seen / want - 1.0).abs() < 1e-6, "{scaling:?}: {seen} is not {want}");
        }
        assert!((rope.attention_factor - attention_factor).abs() < 1e-12);
    }

    #[test]
    fn scales_as_transformers_does() {
        check(
            10_000.0,
            Scaling::Linear { factor: 4.0 },
            [
                0.25,
                0.079056941,
                0.0250000004,
                0.00790569466,
                0.00249999994,
                0.000790569466,
                0.000250000012,
                7.90569466e-05,
            ],
            1.0,
        );
        check(
            500_000.0,
            Scaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_positions: 256.0,
            },
            [
                1.0,
                0.193922758,
                0.0105382307,
                0.000911583134,
                0.000176776681,
                3.42810235e-05,
                6.64786967e-06,
                1.28917316e-06,
            ],
            1.0,
        );
    }

    #[test]
    fn the_lowest_frequencies_may_be_0() {
        let proportional = |share, factor| {
            Rope::scaled(1e4, 16, &Scaling::Proportional { share, factor }).unwrap().inv_freq
        };
        let whole = Rope::unscaled(1e4, 16).inv_freq;
        assert_eq!(proportional(1.0, 1.0), whole);
        assert_eq!(proportional(0.5, 1.0), whole[..4]);
        assert_eq!(proportional(0.3, 2.0), [whole[0] / 2.0, whole[1] / 2.0]);
    }

    #[test]
    fn yarn_is_that_of_transformers() {
        let yarn = Yarn {
            factor: 4.0,
            original_positions: 1024.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: yarn_attention_factor(4.0, 1.0),
            truncate: true,
        };
        check(
            10_000.0,
            Scaling::Yarn(yarn),
            [
                1.0,
                0.316227764,
                0.0812500045,
                0.0197642371,
                0.00437500002,
                0.000790569466,
                0.000250000012,
                7.90569466e-05,
            ],
            1.138629436111989,
        );
        let optional = Yarn {
            factor: 16.0,
            original_positions: 4096.0,
            beta_fast: 16.0,
            beta_slow: 2.0,
            attention_factor: yarn_attention_factor(16.0, 1.0) / yarn_attention_factor(16.0, 0.5),
            truncate: false,
        };
        check(
            50_000.0,
            Scaling::Yarn(optional),
            [
                1.0,
                0.258600146,
                0.0668740347,
                0.0145638799,
                0.00103932922,
                7.22809345e-05,
                1.86918605e-05,
                4.83371741e-06,
            ],
            1.121751143713058,
        );
    }

    #[test]
    fn queries_grow_with_their_position() {
        let rope = Rope { attention_factor: 1.5, ..Rope::unscaled(10_000.0, 4) };
        let temperature = Temperature { beta: 0.5, every: 10 };
        let check = |positions: &[u64], want: Option<&[f32]>| {
            let angles = |it| rope.angles(3, positions.iter().copied(), it);
            let (plain, seen) = (angles(None), angles(Some(temperature)));
            let count = positions.len() * 3;
            assert_eq!((plain.tokens, plain.cos.len()), (positions.len(), count));
            assert_eq!((&seen.cos[..count], &seen.sin[..count]), (&*plain.cos, &*plain.sin));
            let Some(want) = want else {
                assert_eq!(seen, plain, "{positions:?}");
                return;
            };
            for (of, seen) in [(&plain.cos, &seen.cos), (&plain.sin, &seen.sin)] {
                assert_eq!(seen.len(), 2 * count, "{positions:?}");
                for (i, x) in of.iter().enumerate() {
                    let want = x * want[i / 3];
                    assert!((seen[count + i] - want).abs() < 1e-6, "{positions:?}: {seen:?}");
                }
            }
        };
        check(&[], None);
        check(&[0, 9], None);
        // 1 + 0.5 ln 2, and of ln 3.
        check(&[9, 10, 19, 20], Some(&[1.0, 1.346_573_6, 1.346_573_6, 1.549_306_1]));
        for (beta, every, field) in [
            (f64::NAN, 10, "attention temperature scale"),
            (-0.1, 10, "attention temperature scale"),
            (0.1, 0, "attention temperature positions"),
        ] {
            assert_eq!(Temperature { beta, every }.checked().unwrap_err().field, field);
        }
    }

    #[test]
    fn refuses_what_makes_no_frequencies() {
        let check = |theta: f64, scaling: Scaling, field: &str| {
            assert_eq!(Rope::scaled(theta, 16, &scaling).unwrap_err().field, field);
        };
        check(0.0, Scaling::None, "rope_theta");
        check(f64::NAN, Scaling::None, "rope_theta");
        check(1e4, Scaling::Linear { factor: 0.0 }, "rope scaling");
        check(1e4, Scaling::Linear { factor: -2.0 }, "rope scaling");
        let each = |factors, attention_factor| Scaling::PerFrequency { factors, attention_factor };
        check(1e4, each(vec![1.0; 7], 1.0), "rope factors");
        check(1e4, each(vec![f64::NAN; 8], 1.0), "rope scaling");
        check(1e4, each(vec![1.0; 8], f64::NAN), "rope attention_factor");
    }
}
