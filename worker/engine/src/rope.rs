//! Rotary position embedding: angles of absolute positions, with the scalings in use.

use aqueduct_kernels::Angles;

/// Inverse frequencies after scaling, and the factor on cosine and sine.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// `[head_dim / 2]`, radians per position.
    pub inv_freq: Vec<f64>,
    /// Multiplies cosine and sine (1 but for yarn).
    pub attention_factor: f64,
}

impl Rope {
    /// Unscaled: theta^(-2i / head_dim)  (Su et al. 2021).
    pub fn unscaled(theta: f64, head_dim: usize) -> Self {
        let inv_freq =
            (0..head_dim / 2).map(|i| theta.powf(-2.0 * i as f64 / head_dim as f64)).collect();
        Self { inv_freq, attention_factor: 1.0 }
    }

    /// Angles of positions `start..start + tokens`. f64 throughout: at position 65,536 an f32
    /// angle would already be off by 0.004 radians.
    pub fn angles(&self, start: u32, tokens: usize) -> Angles {
        let half = self.inv_freq.len();
        let mut angles = Angles {
            tokens,
            half,
            cos: Vec::with_capacity(tokens * half),
            sin: Vec::with_capacity(tokens * half),
        };
        for position in (u64::from(start)..).take(tokens) {
            for freq in &self.inv_freq {
                let (sin, cos) = (position as f64 * freq).sin_cos();
                angles.cos.push((cos * self.attention_factor) as f32);
                angles.sin.push((sin * self.attention_factor) as f32);
            }
        }
        angles
    }
}
