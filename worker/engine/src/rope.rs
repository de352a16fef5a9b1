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
}

impl Scaling {
    /// For how many positions a model is that was made for `positions`, as its file tells them.
    pub(crate) fn positions(&self, positions: u32) -> u32 {
        match self {
            Self::Yarn(Yarn { factor, original_positions, .. }) => {
                scaled_positions(positions, "yarn", *factor, Some(*original_positions))
            }
            Self::Linear { factor } => scaled_positions(positions, "linear", *factor, None),
            Self::None | Self::Llama3 { .. } | Self::PerFrequency { .. } => positions,
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
    /// would already be off by 0.004 radians.
    pub fn angles(&self, half: usize, positions: impl Iterator<Item = u64>) -> Angles {
        let (mut tokens, mut cosines, mut sines) = (0, Vec::new(), Vec::new());
        for position in positions {
            tokens += 1;
            for freq in &self.inv_freq {
                let (sin, cos) = (position as f64 * freq).sin_cos();
                cosines.push((cos * self.attention_factor) as f32);
                sines.push((sin * self.attention_factor) as f32);
            }
            cosines.resize(tokens * half, 1.0);
            sines.resize(tokens * half, 0.0);
        }
        Angles { tokens, half, cos: cosines.into(), sin: sines.into() }
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
