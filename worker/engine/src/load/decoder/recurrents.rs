//! Layers that remember in a state of fixed size.

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
    pub(crate) rule: RuleShape,
}

/// Counts of [`aqueduct_kernels::Rule`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum RuleShape {
    /// Of `width` channels.
    Gated,
    Delta {
        key_heads: u32,
        value_heads: u32,
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
        norm: bool,
    },
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
                let channels: u64 =
                    2 * product(&[key_heads, key_dim]) + product(&[value_heads, value_dim]);
                [channels, product(&[value_heads, key_dim, value_dim])]
            }
            Self::Scan { heads, head_dim, groups, state_dim, .. } => {
                let channels: u64 = product(&[heads, head_dim]) + 2 * product(&[groups, state_dim]);
                [channels, product(&[heads, head_dim, state_dim])]
            }
        }
    }
}

impl Recurrents {
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
