//! Layers that remember in a state of fixed size.

use aqueduct_core::Refusal;

/// Which layers have no keys, and what they are instead.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Recurrents {
    /// `[layers]`.
    pub(crate) layers: Vec<bool>,
    /// Of the convolution: how many inputs it sees.
    pub(crate) taps: u32,
    /// It adds a bias.
    pub(crate) conv_bias: bool,
    /// First product and output projection add biases.
    pub(crate) biases: bool,
    /// Added to mean squares in the rule's norm, if it has one.
    pub(crate) norm_eps: f32,
    pub(crate) rule: RuleShape,
}

/// Counts of [`aqueduct_kernels::Rule`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum RuleShape {
    /// Of as many channels as the stream is wide.
    Gated,
    Delta {
        key_heads: u32,
        value_heads: u32,
        /// They go round the key heads; else those of a key head follow each other.
        tiled: bool,
        key_dim: u32,
        value_dim: u32,
        steps: f32,
    },
    Scan {
        heads: u32,
        head_dim: u32,
        groups: u32,
        state_dim: u32,
        limits: [f32; 2],
        /// It has a norm, of as many parts as there are groups.
        norm: bool,
    },
}

/// Columns of a first product, or channels of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Columns {
    /// All of the first product.
    All,
    /// All channels.
    Channels,
    /// One for each element of the queries, or of the keys, of all key heads.
    Keys,
    /// The same of the values, or of what multiplies them, of all value heads.
    Values,
    /// One for each value head.
    Heads,
}

/// Whose sigmoid multiplies what attention gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Gate {
    /// One number for each element.
    Elements,
    /// One for each head.
    Heads,
}

impl RuleShape {
    /// Inputs of the convolution, and elements of the matrices of a state.
    pub(crate) fn sizes(self, width: u32) -> [u64; 2] {
        let product = |counts: &[u32]| counts.iter().map(|&count| u64::from(count)).product();
        match self {
            Self::Gated => [u64::from(width), 0],
            Self::Delta { key_heads, value_heads, key_dim, value_dim, .. } => {
                let keys: u64 = product(&[key_heads, key_dim]);
                let values: u64 = product(&[value_heads, value_dim]);
                [2 * keys + values, product(&[value_heads, key_dim, value_dim])]
            }
            Self::Scan { heads, head_dim, groups, state_dim, .. } => {
                let (inner, shared): (u64, u64) =
                    (product(&[heads, head_dim]), product(&[groups, state_dim]));
                [inner + 2 * shared, product(&[heads, head_dim, state_dim])]
            }
        }
    }

    /// Columns of what it gives.
    pub(crate) fn outputs(self, width: u32) -> usize {
        match self {
            Self::Gated => width as usize,
            Self::Delta { value_heads: heads, value_dim: dim, .. }
            | Self::Scan { heads, head_dim: dim, .. } => heads as usize * dim as usize,
        }
    }

    /// How many of these there are.
    pub(crate) fn count(self, columns: Columns, width: u32) -> usize {
        let channels = self.sizes(width)[0] as usize;
        match (columns, self) {
            (Columns::Channels, _) => channels,
            (Columns::All, Self::Gated) => 3 * channels,
            (Columns::All, Self::Delta { value_heads, .. }) => {
                channels + self.outputs(width) + 2 * value_heads as usize
            }
            (Columns::All, Self::Scan { heads, .. }) => {
                self.outputs(width) + channels + heads as usize
            }
            (Columns::Keys, Self::Delta { key_heads, key_dim, .. }) => {
                key_heads as usize * key_dim as usize
            }
            (Columns::Values, Self::Delta { .. }) => self.outputs(width),
            (Columns::Heads, Self::Delta { value_heads, .. }) => value_heads as usize,
            (Columns::Keys | Columns::Values | Columns::Heads, Self::Gated | Self::Scan { .. }) => {
                0 // which they do not have
            }
        }
    }

    /// Heads that have keys of their own, or groups.
    pub(crate) fn key_heads(self) -> usize {
        match self {
            Self::Gated => 1,
            Self::Delta { key_heads: count, .. } | Self::Scan { groups: count, .. } => {
                count as usize
            }
        }
    }

    /// Takes this if heads can share what they share, and nothing is without bounds.
    fn checked(self) -> Result<Self, Refusal> {
        const COUNT_MAX: u32 = 1 << 14;
        let within = |counts: &[(&'static str, u32)]| {
            counts.iter().try_for_each(|&(field, count)| {
                Refusal::unless_within(field, count, 1, COUNT_MAX).map(drop)
            })
        };
        let (heads, shared) = match self {
            Self::Gated => return Ok(self),
            Self::Delta { key_heads, value_heads, key_dim, value_dim, steps, .. } => {
                within(&[
                    ("recurrent key heads", key_heads),
                    ("recurrent value heads", value_heads),
                    ("recurrent key size", key_dim),
                    ("recurrent value size", value_dim),
                ])?;
                Refusal::unless_within("recurrent step", steps, 1e-6, 2.0)?;
                (value_heads, key_heads)
            }
            Self::Scan { heads, head_dim, groups, state_dim, limits: [least, most], .. } => {
                within(&[
                    ("recurrent heads", heads),
                    ("recurrent head size", head_dim),
                    ("recurrent groups", groups),
                    ("recurrent state size", state_dim),
                ])?;
                Refusal::unless_within("least time step", least, 0.0, f32::MAX)?;
                Refusal::unless_within("greatest time step", most, least, f32::INFINITY)?;
                (heads, groups)
            }
        };
        if !heads.is_multiple_of(shared) {
            let bound = format!("a divisor of {heads}");
            return Err(Refusal::new("recurrent key heads or groups", shared, bound));
        }
        Ok(self)
    }
}

impl Recurrents {
    /// Takes these if they make sense; `None` if no layer is one.
    pub(crate) fn checked(self) -> Result<Option<Self>, Refusal> {
        const TAPS_MAX: u32 = 1024;
        Refusal::unless_within("convolution taps", self.taps, 1, TAPS_MAX)?;
        Refusal::unless_within("recurrent norm epsilon", self.norm_eps, 0.0, 1.0)?;
        let rule = self.rule.checked()?;
        Ok(Some(Self { rule, ..self }).filter(|recurrents| recurrents.count() > 0))
    }

    /// How many layers remember so.
    pub(crate) fn count(&self) -> u32 {
        self.layers.iter().filter(|&&recurrent| recurrent).count() as u32
    }

    /// Bytes of the states of all these, of f32.
    pub(crate) fn state_bytes(&self, width: u32) -> u64 {
        let [channels, matrices] = self.rule.sizes(width);
        let inputs = u64::from(self.taps.saturating_sub(1)) * channels;
        4 * u64::from(self.count()) * (inputs + matrices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELTA: RuleShape = RuleShape::Delta {
        key_heads: 2,
        value_heads: 4,
        tiled: false,
        key_dim: 8,
        value_dim: 16,
        steps: 1.0,
    };
    const SCAN: RuleShape = RuleShape::Scan {
        heads: 4,
        head_dim: 8,
        groups: 2,
        state_dim: 16,
        limits: [0.0, f32::INFINITY],
        norm: true,
    };

    fn recurrents(rule: RuleShape) -> Recurrents {
        let layers = vec![true, false, true];
        Recurrents { layers, taps: 4, conv_bias: false, biases: false, norm_eps: 1e-6, rule }
    }

    #[test]
    fn columns_are_counted() {
        let check = |rule: RuleShape, want: [usize; 3]| {
            let count = |columns| rule.count(columns, 32);
            let seen = [count(Columns::All), count(Columns::Channels), rule.outputs(32)];
            assert_eq!(seen, want, "{rule:?}");
        };
        check(RuleShape::Gated, [96, 32, 32]);
        check(DELTA, [96 + 64 + 8, 96, 64]);
        check(SCAN, [32 + 96 + 4, 96, 32]);
        let parts = [Columns::Keys, Columns::Values, Columns::Heads];
        assert_eq!(parts.map(|columns| DELTA.count(columns, 32)), [16, 64, 4]);
        assert_eq!(parts.map(|columns| SCAN.count(columns, 32)), [0; 3]);
        assert_eq!(recurrents(DELTA).state_bytes(32), 4 * 2 * (3 * 96 + 4 * 8 * 16));
        assert_eq!(recurrents(SCAN).state_bytes(32), 4 * 2 * (3 * 96 + 4 * 8 * 16));
        assert_eq!(recurrents(RuleShape::Gated).state_bytes(32), 4 * 2 * 3 * 32);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let check = |rule: RuleShape, field: &str| {
            assert_eq!(recurrents(rule).checked().unwrap_err().field, field);
        };
        let delta = |key_heads, steps| RuleShape::Delta {
            key_heads,
            value_heads: 4,
            tiled: true,
            key_dim: 8,
            value_dim: 16,
            steps,
        };
        assert_eq!(recurrents(DELTA).checked().unwrap(), Some(recurrents(DELTA)));
        assert_eq!(recurrents(SCAN).checked().unwrap(), Some(recurrents(SCAN)));
        check(delta(3, 1.0), "recurrent key heads or groups");
        check(delta(0, 1.0), "recurrent key heads");
        check(delta(2, 3.0), "recurrent step");
        let scan = |limits| RuleShape::Scan {
            heads: 4,
            head_dim: 8,
            groups: 2,
            state_dim: 16,
            limits,
            norm: true,
        };
        check(scan([-1.0, 1.0]), "least time step");
        check(scan([1.0, 0.5]), "greatest time step");
        let none = Recurrents { layers: vec![false; 3], ..recurrents(DELTA) };
        assert_eq!(none.checked(), Ok(None));
        let no_taps = Recurrents { taps: 0, ..recurrents(DELTA) };
        assert_eq!(no_taps.checked().unwrap_err().field, "convolution taps");
    }
}
