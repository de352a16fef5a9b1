//! Layers that remember in a state of fixed size instead of keys and values.
//!
//! A state is what was seen, whatever its length: the last inputs of a short convolution and,
//! where the rule has one, a matrix for every head. Rows are taken one after the other, each sum
//! in an order that depends on shapes alone, so the bits of rows and states do not depend on where
//! a prompt is cut.

use std::ops::Range;
use std::sync::Arc;

use crate::array::Array;
use crate::backend::BackendError;
use crate::shapes;
use crate::tensor::Rows;

/// What a recurrent layer does between its first product and `out`.
///
/// The first product ([`LayerWeights::qkv`](crate::LayerWeights::qkv)) has the columns that
/// [`Rule`] names, in that order.
#[derive(Debug, Clone)]
pub struct Recurrent {
    /// What its inputs go through first.
    pub conv: Convolution,
    /// What becomes of them then.
    pub rule: Rule,
}

/// A convolution of each channel with its own last inputs: y_t = bias + Σ_j w_j x_{t-K+1+j}, inputs
/// before the first token being 0.
#[derive(Debug, Clone)]
pub struct Convolution {
    /// K, at least 1.
    pub taps: usize,
    /// `[K, channels]`, that of the token itself last.
    pub weights: Arc<[f32]>,
    /// `[channels]`, if the model has it.
    pub bias: Option<Arc<[f32]>>,
}

/// What becomes of convolved inputs.
#[derive(Debug, Clone)]
pub enum Rule {
    /// Columns b, c and x of `channels` each: c · conv(b · x)  (Liquid AI 2025, LFM2).
    Gated,
    /// See [`Delta`].
    Delta(Delta),
    /// See [`Scan`].
    Scan(Scan),
}

/// The gated delta rule  (Yang, Kautz and Hatamizadeh 2024).
///
/// Columns: q and k of all key heads and v of all value heads, which are silu(conv(.)); z of all
/// value heads; b and a, one of each for every value head. q and k of a head are divided by
/// sqrt(|.|² + [`EPS`](Self::EPS)), and q by sqrt(key_dim) besides. For every value head, with
/// decay α = exp(-rate · softplus(a + shift)) and step β = `steps` σ(b):
///
/// S ← α S;  S ← S + k ⊗ β (v - kᵀ S);  o = qᵀ S;  output RMSnorm(o) · silu(z).
#[derive(Debug, Clone)]
pub struct Delta {
    /// Each serves `value_heads / key_heads` value heads: see `tiled`.
    pub key_heads: usize,
    /// As many states.
    pub value_heads: usize,
    /// Value heads go round the key heads, as llama.cpp has those of Qwen 3.5; else those of a key
    /// head follow each other.
    pub tiled: bool,
    /// Rows of a state.
    pub key_dim: usize,
    /// Its columns.
    pub value_dim: usize,
    /// `[value_heads]`, above 0.
    pub rate: Arc<[f32]>,
    /// `[value_heads]`.
    pub shift: Arc<[f32]>,
    /// What β is at most: 1, or 2 where a state may turn over.
    pub steps: f32,
    /// `[value_dim]`: of the norm.
    pub norm: Arc<[f32]>,
    /// Added to the mean square in it.
    pub norm_eps: f32,
}

impl Delta {
    /// Added to the squares of q and k.
    pub const EPS: f32 = 1e-6;
}

/// A selective state space in which a head's decay is one number  (Dao and Gu 2024, Mamba 2).
///
/// Columns: z, `heads * head_dim`; x of all heads and B and C of all groups, which are
/// silu(conv(.)); dt, one for every head. With Δ = softplus(`dt_scale` dt + shift) within `limits`:
///
/// S ← exp(-rate Δ) S + B ⊗ `x_scale` Δ x;  y = Cᵀ S + skip · x;  output RMSnorm(y · silu(z)).
#[derive(Debug, Clone)]
pub struct Scan {
    /// As many states.
    pub heads: usize,
    /// Columns of a state.
    pub head_dim: usize,
    /// Each serves `heads / groups` heads that follow each other.
    pub groups: usize,
    /// Rows of a state.
    pub state_dim: usize,
    /// `[heads]`, above 0.
    pub rate: Arc<[f32]>,
    /// `[heads]`.
    pub shift: Arc<[f32]>,
    /// `[heads]`.
    pub skip: Arc<[f32]>,
    /// Multiplies dt: 1 in most models  (TII 2025, Falcon H1).
    pub dt_scale: f32,
    /// Multiplies what comes into a state, and so what comes out of it but for `skip`: the same.
    pub x_scale: f32,
    /// Least and greatest Δ.
    pub limits: [f32; 2],
    /// The norm, if the model has it.
    pub norm: Option<GroupNorm>,
}

/// An RMS norm of parts of a row, each by itself.
#[derive(Debug, Clone)]
pub struct GroupNorm {
    /// `[columns]`.
    pub weights: Arc<[f32]>,
    /// Parts of equal size.
    pub groups: usize,
    /// Added to the mean squares.
    pub eps: f32,
}

/// What rows and a state make of each other.
#[derive(Debug, Clone, PartialEq)]
pub struct Recurred {
    /// `[tokens, inputs of out]`.
    pub output: Rows,
    /// What is remembered behind the last row.
    pub state: Array<f32>,
}

impl Recurrent {
    /// Checks counts against each other.
    ///
    /// # Errors
    /// [`BackendError::Shape`]: what is 0, or does not fit.
    pub fn validate(&self) -> Result<(), BackendError> {
        shapes::recurrent(self)
    }

    /// Inputs of the convolution.
    pub fn channels(&self) -> usize {
        self.conv.weights.len() / self.conv.taps.max(1)
    }

    /// Elements of a state: `[K - 1, channels]` inputs of the convolution, the oldest first; then
    /// `[heads, rows, columns]` of the rule. No elements stand for zeros, which is what there is
    /// before the first token.
    pub fn state_len(&self) -> usize {
        self.inputs_len() + self.rule.states().map_or(0, |states| states.len())
    }

    /// A state to be gone on from.
    pub(crate) fn begin(&self, state: Array<f32>) -> Vec<f32> {
        match state.is_empty() {
            true => vec![0.0; self.state_len()],
            false => state.into_vec(),
        }
    }

    /// Elements of the convolution's inputs in it.
    pub(crate) fn inputs_len(&self) -> usize {
        (self.conv.taps - 1) * self.channels()
    }

    /// Columns of the first product.
    pub fn columns(&self) -> usize {
        let channels = self.channels();
        match &self.rule {
            Rule::Gated => 3 * channels,
            Rule::Delta(delta) => channels + delta.outputs() + 2 * delta.value_heads,
            Rule::Scan(scan) => scan.outputs() + channels + scan.heads,
        }
    }

    /// Columns of what it gives.
    pub fn outputs(&self) -> usize {
        match &self.rule {
            Rule::Gated => self.channels(),
            Rule::Delta(delta) => delta.outputs(),
            Rule::Scan(scan) => scan.outputs(),
        }
    }
}

/// Matrices of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct States {
    pub(crate) heads: usize,
    /// Elements of a key.
    pub(crate) rows: usize,
    /// Elements of a value.
    pub(crate) cols: usize,
}

impl States {
    pub(crate) fn len(self) -> usize {
        self.heads * self.rows * self.cols
    }
}

impl Rule {
    /// `None`: it has no state but the convolution's.
    pub(crate) fn states(&self) -> Option<States> {
        match self {
            Self::Gated => None,
            Self::Delta(delta) => Some(States {
                heads: delta.value_heads,
                rows: delta.key_dim,
                cols: delta.value_dim,
            }),
            Self::Scan(scan) => {
                Some(States { heads: scan.heads, rows: scan.state_dim, cols: scan.head_dim })
            }
        }
    }
}

impl Delta {
    /// Columns of q, or of k.
    pub(crate) fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    pub(crate) fn outputs(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Inputs of the convolution.
    pub fn channels(&self) -> usize {
        2 * self.keys() + self.outputs()
    }

    /// Columns of z, of b and of a.
    pub(crate) fn gates(&self) -> [Range<usize>; 3] {
        let z = self.channels();
        let b = z + self.outputs();
        let a = b + self.value_heads;
        [z..b, b..a, a..a + self.value_heads]
    }

    /// The key head of a value head.
    pub(crate) fn key_head(&self, head: usize) -> usize {
        match self.tiled {
            true => head % self.key_heads,
            false => head / (self.value_heads / self.key_heads),
        }
    }

    /// α and β of a value head for a token whose b and a these are.
    pub(crate) fn decay_and_step(&self, head: usize, [b, a]: [f32; 2]) -> [f32; 2] {
        let dt = softplus(f64::from(a) + f64::from(self.shift[head]));
        let decay = (-f64::from(self.rate[head]) * dt).exp();
        let step = f64::from(self.steps) / (1.0 + (-f64::from(b)).exp());
        [decay as f32, step as f32]
    }
}

impl Scan {
    pub(crate) fn outputs(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Inputs of the convolution.
    pub fn channels(&self) -> usize {
        self.outputs() + 2 * self.groups * self.state_dim
    }

    /// Columns of Δ.
    pub(crate) fn steps(&self) -> Range<usize> {
        let first = self.outputs() + self.channels();
        first..first + self.heads
    }

    /// The group of a head.
    pub(crate) fn group(&self, head: usize) -> usize {
        head / (self.heads / self.groups)
    }

    /// The decay of a head and what multiplies x, for a token whose dt this is.
    pub(crate) fn decay_and_step(&self, head: usize, dt: f32) -> [f32; 2] {
        let [least, most] = self.limits.map(f64::from);
        let step = softplus(f64::from(self.dt_scale) * f64::from(dt) + f64::from(self.shift[head]));
        // `clamp` panics where limits cross, and `max` would make a number of NaN.
        let step = if step < least { least } else { step };
        let step = if step > most { most } else { step };
        let decay = (-f64::from(self.rate[head]) * step).exp();
        [decay as f32, (step * f64::from(self.x_scale)) as f32]
    }
}

/// log(1 + e^x).
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_heads_are_by_key_head_or_go_round() {
        let numbers: Arc<[f32]> = [0.0; 6].into();
        let delta = |tiled| Delta {
            key_heads: 2,
            value_heads: 6,
            tiled,
            key_dim: 4,
            value_dim: 6,
            rate: numbers.clone(),
            shift: numbers.clone(),
            steps: 1.0,
            norm: numbers.clone(),
            norm_eps: 0.0,
        };
        let of = |tiled| -> Vec<_> { (0..6).map(|head| delta(tiled).key_head(head)).collect() };
        assert_eq!(of(false), [0, 0, 0, 1, 1, 1]);
        assert_eq!(of(true), [0, 1, 0, 1, 0, 1]);
    }
}
