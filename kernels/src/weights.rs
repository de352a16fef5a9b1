//! Weights as backends see them.

use std::sync::Arc;

use half::bf16;

use crate::experts::Routing;
use crate::int8::Int8Rows;
use crate::latent::{Latent, Raised};
use crate::recurrent::Recurrent;
use crate::tensor::KvDtype;

/// Elements of a weight matrix.
#[derive(Debug, Clone)]
pub enum MatrixData {
    /// f32.
    F32(Vec<f32>),
    /// bf16, widened exactly where it is used.
    Bf16(Vec<bf16>),
    /// Eight-bit integers with a scale for every group of inputs; see [`crate::int8`].
    Int8(Int8Rows),
}

/// A weight as a model file has it: `[outputs, inputs]`, row-major; y = x Wᵀ.
#[derive(Debug, Clone)]
pub struct Matrix {
    /// Rows.
    pub outputs: usize,
    /// Columns.
    pub inputs: usize,
    /// `[outputs, inputs]`.
    pub data: MatrixData,
}

/// A linear map ready for a backend: the packed weight and an optional bias `[outputs]`.
///
/// Made by [`crate::LayerOps::pack`]; a backend accepts only what it packed itself.
#[derive(Clone)]
pub struct Linear {
    /// Columns of the result.
    pub outputs: usize,
    /// Columns of the argument.
    pub inputs: usize,
    /// Added to every row.
    pub bias: Option<Arc<[f32]>>,
    /// Whether it is held as bf16, beside which rows are rounded to bf16 too.
    pub rounds: bool,
    /// Bytes of the packed weight: what a product reads of it.
    pub bytes: usize,
    /// The backend's own form of the weight.
    pub packed: Arc<dyn std::any::Any + Send + Sync>,
}

impl std::fmt::Debug for Linear {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Linear[{}, {}]", self.outputs, self.inputs)
    }
}

/// Cosines and sines of a block's positions: `[tokens, head_dim / 2]` each, computed in f64,
/// already multiplied by the rope scaling's attention factor. Half-split layout: element i is
/// paired with element i + head_dim / 2.
///
/// Where a model multiplies queries by a number of their position, those of queries follow, in
/// which it is: what turns a row then scales it. Pairs that are not rotated have it as cosine.
#[derive(Debug, Clone, PartialEq)]
pub struct Angles {
    /// T.
    pub tokens: usize,
    /// D / 2.
    pub half: usize,
    /// `[tokens, half]` of keys, and as many of queries if they have their own. Shared, because all
    /// layers of a block ask for the same.
    pub cos: Arc<[f32]>,
    /// The same.
    pub sin: Arc<[f32]>,
}

/// What queries or keys are turned by: row i is token i's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turns<'a> {
    pub(crate) half: usize,
    pub(crate) cos: &'a [f32],
    pub(crate) sin: &'a [f32],
}

impl Angles {
    /// The row of the first token's queries; that of its keys is 0.
    pub(crate) fn queries_from(&self) -> usize {
        if self.cos.len() > self.tokens * self.half { self.tokens } else { 0 }
    }

    /// By which keys are turned.
    pub(crate) fn of_keys(&self) -> Turns<'_> {
        Turns { half: self.half, cos: &self.cos, sin: &self.sin }
    }

    /// By which queries are turned.
    pub(crate) fn of_queries(&self) -> Turns<'_> {
        let first = self.queries_from() * self.half;
        Turns { half: self.half, cos: &self.cos[first..], sin: &self.sin[first..] }
    }

    /// Those of the last `tokens`, of at most all.
    pub fn last(&self, tokens: usize) -> Self {
        let first = (self.tokens - tokens) * self.half;
        let last = |all: &[f32]| -> Arc<[f32]> {
            let parts = all.chunks_exact((self.tokens * self.half).max(1));
            parts.flat_map(|part| &part[first..]).copied().collect()
        };
        Self { tokens, half: self.half, cos: last(&self.cos), sin: last(&self.sin) }
    }
}

/// What stands between the two products of a feed-forward part: what is made of a gate before it
/// multiplies the up projection, or of the up projection where there is no gate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// x σ(x), with σ(x) = 1 / (1 + e^-x)  (SwiGLU: Shazeer 2020).
    Silu,
    /// x σ([`CLAMPED`](Self::CLAMPED)`[0]` x), the gate being at most `CLAMPED[1]`; the up
    /// projection is brought within ± `CLAMPED[1]`, and 1 is added to it  (OpenAI 2025, gpt-oss).
    ClampedSilu,
    /// 0.5 x (1 + tanh(sqrt(2 / π) (x + 0.044715 x³)))  (Hendrycks and Gimpel 2016), which is
    /// x σ([`GELU`](Self::GELU)`[0]` x + [`GELU`](Self::GELU)`[1]` x³).
    GeluTanh,
    /// max(x, 0)²  (So et al. 2021; Microsoft 2025, BitNet b1.58 2B).
    ReluSquared,
    /// There is no gate: the first product is the up projection alone.
    Ungated(Ungated),
}

/// What is made of every element of an up projection that no gate multiplies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Ungated {
    /// [`Activation::GeluTanh`]'s formula.
    GeluTanh,
    /// x Φ(x), with Φ(x) = (1 + erf(x / sqrt 2)) / 2  (Hendrycks and Gimpel 2016).
    Gelu,
    /// max(x, 0)
    Relu,
    /// max(x, 0)²  (So et al. 2021).
    ReluSquared,
    /// See [`Xielu`].
    Xielu(Xielu),
}

/// positive x² + beta x for x > 0, else negative (e^min(x, eps) - 1 - x) + beta x
/// (Huang and Schlag 2024). The numbers are a layer's own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Xielu {
    /// α_p, as it multiplies: what softplus makes of the trained parameter.
    pub positive: f32,
    /// α_n, the same plus `beta`.
    pub negative: f32,
    /// The slope at 0.
    pub beta: f32,
    /// At most 0: beyond it e^x - 1 is as there.
    pub eps: f32,
}

impl Activation {
    /// How many projections the first product is of, stacked: two with a gate.
    pub fn projections(self) -> usize {
        if let Self::Ungated(_) = self { 1 } else { 2 }
    }

    /// sqrt(8 / π), and 0.044715 of it.
    pub const GELU: [f32; 2] = [1.595_769, 0.071_354_814];

    /// What the gate is multiplied by inside of σ, and what neither side may go beyond.
    pub const CLAMPED: [f32; 2] = [1.702, 7.0];
}

/// What all layers of a model have in common, but for the numbers of [`Xielu`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerSpec {
    /// H.
    pub heads: usize,
    /// G.
    pub kv_heads: usize,
    /// D.
    pub head_dim: usize,
    /// Added to the mean square in every RMS norm.
    pub norm_eps: f32,
    /// Of the feed-forward parts.
    pub activation: Activation,
    /// How keys and values are stored.
    pub kv: KvDtype,
}

/// Gate, up and down: y = W_down (activation(W_gate x) · W_up x), or
/// y = W_down activation(W_up x) where the layer's activation is [`Activation::Ungated`].
#[derive(Debug, Clone)]
pub struct Gated {
    /// Gate and up projections stacked: `[2 ffn, width]`, gate first; up alone, `[ffn, width]`,
    /// where there is no gate.
    pub gate_up: Linear,
    /// `[width, ffn]`.
    pub down: Linear,
}

impl Gated {
    /// Bytes of both products' weights.
    fn bytes(&self) -> usize {
        self.gate_up.bytes + self.down.bytes
    }
}

/// What stands behind attention in a layer.
#[derive(Debug, Clone)]
pub enum FeedForward {
    /// The layer ends where attention is added to the stream (NVIDIA 2025, Nemotron-H). There are
    /// no norms of a feed-forward part then.
    Nothing,
    /// One for all tokens.
    Dense(Gated),
    /// For each token a few of many  (Shazeer et al. 2017).
    Experts(Box<Experts>),
    /// Both, side by side  (Google 2026, Gemma 4).
    Beside(Box<Beside>),
}

/// Parts of which a token goes through a few, as its router has it.
#[derive(Debug, Clone)]
pub struct Experts {
    /// `[experts, width]`. Of f32, so that no rounding chooses.
    pub router: Linear,
    /// What becomes of its logits.
    pub routing: Routing,
    /// All of one shape.
    pub each: Vec<Gated>,
    /// What every token goes through besides, of another size perhaps.
    pub shared: Option<Gated>,
    /// `[1, width]`: what comes of `shared` is multiplied by σ of this.
    pub shared_gate: Option<Linear>,
}

impl Experts {
    /// Bytes of the weights that one token goes through.
    fn bytes_of_one_token(&self) -> usize {
        let chosen = self.each.iter().take(self.routing.chosen);
        let gate = self.shared_gate.as_ref().map_or(0, |gate| gate.bytes);
        self.router.bytes + gate + chosen.chain(&self.shared).map(Gated::bytes).sum::<usize>()
    }
}

/// A part that every token goes through, and a few of many beside it  (Google 2026, Gemma 4).
/// Each takes the stream by a norm of its own, and has another behind it; what comes of both is
/// added up. [`LayerWeights::ffn_norm`] is that of what `dense` takes, and
/// [`LayerWeights::ffn_post_norm`] is behind the sum.
#[derive(Debug, Clone)]
pub struct Beside {
    /// For all tokens.
    pub dense: Gated,
    /// `[width]`: RMS norm of what `dense` gives.
    pub dense_post_norm: Arc<[f32]>,
    /// Without any that is shared: `dense` is that.
    pub experts: Experts,
    /// `[width]`: RMS norm of the stream before experts.
    pub experts_norm: Arc<[f32]>,
    /// `[width]`: RMS norm of the stream before the router alone. What a model multiplies the
    /// router's argument by besides is in it.
    pub router_norm: Arc<[f32]>,
    /// `[width]`: RMS norm of what experts give, weighed and added up.
    pub experts_post_norm: Arc<[f32]>,
}

impl FeedForward {
    /// Bytes of the weights that one token goes through.
    pub fn bytes_of_one_token(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Dense(dense) => dense.bytes(),
            Self::Experts(experts) => experts.bytes_of_one_token(),
            Self::Beside(both) => both.dense.bytes() + both.experts.bytes_of_one_token(),
        }
    }
}

/// Numbers of a token that are a layer's own, which it takes at its end beside the stream: to that
/// it adds norm(W_up (activation(W_gate x) · input))  (Google 2025, Gemma 3n).
#[derive(Debug, Clone)]
pub struct LayerInput {
    /// `[inputs, width]`, of the stream as it comes.
    pub gate: Linear,
    /// `[width, inputs]`.
    pub up: Linear,
    /// `[width]`: RMS norm of what that gives, before it is added.
    pub norm: Arc<[f32]>,
    /// What the stream is multiplied by behind it, if it is. [`LayerWeights::scale`] is before it.
    pub scale: Option<f32>,
}

/// One decoder layer.
#[derive(Debug, Clone)]
pub struct LayerWeights {
    /// Shape and constants.
    pub spec: LayerSpec,
    /// `[width]`: RMS norm before attention, if the model has it.
    pub attn_norm: Option<Arc<[f32]>>,
    /// The earlier layer to whose keys and values it attends, if it has none of its own: `qkv` is
    /// of queries alone then, `[H D, width]`, and `spec` has the heads of that layer
    /// (Google 2025, Gemma 3n).
    pub keys_of: Option<usize>,
    /// Query, key and value projections stacked: `[(H + 2G) D, width]`, rows in that order,
    /// with the stacked bias if the model has one. What `latent` says where that is there.
    pub qkv: Linear,
    /// What stands between it and the heads, if anything does. There are no other norms of queries
    /// and keys then.
    pub latent: Option<Latent>,
    /// RMS norm of queries before rotation, if the model has it: `[head_dim]`, of every head, or
    /// `[H D]`, of all heads of a token together unless [`norms_apart`](Self::norms_apart).
    pub q_norm: Option<Arc<[f32]>>,
    /// The same for keys: `[head_dim]` or `[G D]`.
    pub k_norm: Option<Arc<[f32]>>,
    /// RMS norm of every head of values, if the model has it: `[head_dim]`  (Google 2026, Gemma 4).
    pub v_norm: Option<Arc<[f32]>>,
    /// These norms are of what is rotated already, each head's  (Tencent 2025, Hunyuan). Angles
    /// only rotate then: cosine and sine have no factor.
    pub norms_last: bool,
    /// Norms of queries and keys that have weights of all heads are of each head by itself
    /// (Cohere 2024, Command R+).
    pub norms_apart: bool,
    /// How far from 0 elements of queries, keys and values are at most, if there is a bound: what
    /// is further is cut off there, behind norms and before rotation
    /// (Groeneveld et al. 2024, OLMo).
    pub clip: Option<f32>,
    /// `[H]`, if the model has it: the logit of something that every row of a head sees besides
    /// keys, and that has no value  (OpenAI 2025, gpt-oss). No key is given its mass.
    pub sinks: Option<Arc<[f32]>>,
    /// `[H D]`: RMS norm of what attention gives, before `out`, if the model has it
    /// (Microsoft 2025, BitNet b1.58 2B).
    pub out_norm: Option<Arc<[f32]>>,
    /// `[width, H D]`; `[width, H value_dim]` of what [`Latent`] says where that is there.
    pub out: Linear,
    /// `[width]`: RMS norm of what `out` gives, before it is added to the stream, if the model
    /// has it.
    pub attn_post_norm: Option<Arc<[f32]>>,
    /// `[width]`: RMS norm before the feed-forward part, if the model has it.
    pub ffn_norm: Option<Arc<[f32]>>,
    /// `[H D, width]`, or `[H, width]` for one number a head, if the model has it: what attention
    /// gives is multiplied by σ of this, of what `qkv` takes  (Qiu et al. 2025).
    pub gate: Option<Linear>,
    /// What this layer has instead of attention, if it is none. `qkv` is its first product then,
    /// and `out` takes what it gives.
    pub recurrent: Option<Arc<Recurrent>>,
    /// It takes the stream as what mixes tokens in the layer before took it, and not what that has
    /// added to it: the two stand side by side  (TII 2025, Falcon H1). The layer before has no
    /// feed-forward part then.
    pub beside_last: bool,
    /// The feed-forward part.
    pub ffn: FeedForward,
    /// `[ffn]`: RMS norm of what stands between the products of a [`FeedForward::Dense`] part, if
    /// the model has it  (Microsoft 2025, BitNet b1.58 2B).
    pub hidden_norm: Option<Arc<[f32]>>,
    /// It takes the stream as attention does, and not what attention has added to it
    /// (Wang and Komatsuzaki 2021, GPT-J).
    pub parallel: bool,
    /// `[width]`: the same norm for what the feed-forward part gives.
    pub ffn_post_norm: Option<Arc<[f32]>>,
    /// What the stream is multiplied by behind that, if it is  (Google 2026, Gemma 4).
    pub scale: Option<f32>,
    /// What it takes at its end besides the stream, if anything.
    pub input: Option<Box<LayerInput>>,
}

impl LayerWeights {
    /// Heads of what `qkv` gives: no KV head where keys are another layer's.
    pub(crate) fn projected(&self) -> LayerSpec {
        let kv_heads = if self.keys_of.is_some() { 0 } else { self.spec.kv_heads };
        LayerSpec { kv_heads, ..self.spec }
    }

    /// Bytes of the weights that one token goes through.
    pub fn bytes_of_one_token(&self) -> usize {
        let of_raised = |raised: &Raised| raised.up.bytes;
        let latent = self.latent.as_ref().map_or(0, |latent| {
            of_raised(&latent.keys) + latent.queries.as_ref().map_or(0, of_raised)
        });
        let gate = self.gate.as_ref().map_or(0, |gate| gate.bytes);
        let input = self.input.as_ref().map_or(0, |input| input.gate.bytes + input.up.bytes);
        self.qkv.bytes + latent + gate + self.out.bytes + self.ffn.bytes_of_one_token() + input
    }
}
