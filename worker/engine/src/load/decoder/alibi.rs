//! What logits fall by with distance, instead of a rotation  (Press et al. 2021, ALiBi).

use half::bf16;

/// How the slopes of heads come about.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Alibi {
    /// The last of heads whose count is a power of two falls by 2 to minus so much for a position.
    pub(crate) most: f32,
    /// What falls is dot products, before anything multiplies them, by slopes that are rounded to
    /// bf16 (Falcon).
    pub(crate) of_products: bool,
}

impl Alibi {
    /// As nearly all models have it.
    pub(crate) const USUAL: Self = Self { most: 8.0, of_products: false };

    /// `[heads]`. Heads beyond a power of two have every other slope of twice as many.
    pub(crate) fn slopes(self, heads: u32, scale: f32) -> Vec<f32> {
        let whole = 1 << heads.checked_ilog2().unwrap_or(0);
        let slope = |head: u32| {
            let (step, count) = match head < whole {
                true => (head + 1, whole),
                false => (2 * (head - whole) + 1, 2 * whole),
            };
            (-f64::from(self.most) * f64::from(step) / f64::from(count)).exp2() as f32
        };
        let of_logits = |slope: f32| match self.of_products {
            true => bf16::from_f32(slope).to_f32() * scale,
            false => slope,
        };
        (0..heads).map(slope).map(of_logits).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_those_that_models_were_trained_with() {
        let usual = |heads| Alibi::USUAL.slopes(heads, 0.25);
        assert_eq!(usual(1), [0.003_906_25]);
        assert_eq!(usual(4), [0.25, 0.0625, 0.015_625, 0.003_906_25]);
        assert_eq!(usual(6), [0.25, 0.0625, 0.015_625, 0.003_906_25, 0.5, 0.125]);
        // What transformers has for 16 heads and for 71 is no power of two.
        let close = |seen: f32, want: f32| assert!((seen / want - 1.0).abs() < 1e-6, "{seen}");
        close(usual(16)[0], 0.707_106_77);
        close(usual(71)[70], 0.569_394_3);
        let rounded = Alibi { of_products: true, ..Alibi::USUAL };
        assert_eq!(rounded.slopes(16, 0.125)[0], 0.707_031_25 * 0.125);
        assert_eq!(Alibi { most: 4.0, ..Alibi::USUAL }.slopes(2, 1.0), [0.25, 0.0625]);
    }
}
