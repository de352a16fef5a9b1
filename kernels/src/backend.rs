//! The interface of a compute device, about this system and not about tensors in general.
//!
//! # Precision
//! What a weight or a key is stored as is what it is multiplied as, on every backend and on
//! every instruction set, so that an answer does not depend on the machine by more than the
//! order of its sums:
//! - f32: both factors are f32.
//! - bf16: the other factor (an activation, a query, and the probability beside a bf16 value)
//!   is rounded to bf16, to nearest even, before it is multiplied.
//! - int8 (weights only): the activations of a row become integers in the same groups and by
//!   the same rule as the weight's ([`crate::int8`]). Products of integers are summed exactly
//!   inside a group, times the product of both scales (f32), over groups in ascending order.
//!
//! Products are summed in f32. Hidden states, norms, rotations, the softmax, l, masses and
//! scores stay f32 always. A backend may keep more than bf16 of a probability, never less.

mod error;
mod mixer;
mod selection;

use std::ops::RangeInclusive;
use std::sync::Arc;

pub use self::error::BackendError;
pub use self::mixer::MixerOps;
pub(crate) use self::mixer::recur_on_host;
pub use self::selection::{Choice, Selected, SelectionOps};
use crate::array::Array;
use crate::fabric::{Fabric, FabricError};
use crate::fold::{Node, fold_all};
use crate::memory::{Keys, Leaves, Parted};
use crate::shapes;
use crate::state::AttentionState;
use crate::tensor::{Heads, Rows};
use crate::weights::{Angles, LayerWeights, Linear, Matrix};
use crate::window::Window;

/// A block's queries with what attention needs to know of them.
#[derive(Debug, Clone, Copy)]
pub struct Queries<'a> {
    /// `[heads, tokens, head_dim]`, rotated.
    pub q: &'a Heads,
    /// Position of row 0; row i stands at `start + i`.
    pub start: u32,
    /// Multiplies every dot product, above 0; 1 / sqrt(head_dim) for the families served here.
    pub scale: f32,
    /// What a row sees of the keys before it, where the model bounds that; `None` sees all.
    pub window: Option<Window>,
    /// Above 0, if the model has it: a scaled product z counts as cap tanh(z / cap)  (Gemma Team
    /// 2024, "logit soft-capping").
    pub softcap: Option<f32>,
    /// `[heads]`, if the model has them: for each position between a row and a key, a head's logit
    /// is less by its slope, behind the cap  (Press et al. 2021, ALiBi).
    pub slopes: Option<&'a [f32]>,
}

impl Queries<'_> {
    /// Positions that row `t` sees: its own and those before it, as far as the window lets it.
    pub fn sight(&self, t: usize) -> RangeInclusive<u32> {
        let position = self.start + t as u32;
        self.window.map_or(0, |window| window.first_seen(position))..=position
    }

    /// The same of `q` alone, which has the heads from `first` on.
    pub(crate) fn of_heads<'b>(&'b self, q: &'b Heads, first: usize) -> Queries<'b> {
        let of = |slopes: &'b [f32]| {
            let end = slopes.len().min(first + q.heads);
            &slopes[first.min(end)..end] // too few are refused by whoever takes them
        };
        Queries { q, slopes: self.slopes.map(of), ..*self }
    }
}

/// A block's own queries, keys and values in one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Qkv {
    /// `[heads, tokens, head_dim]`, rotated: of the block's tokens, or of the last of them.
    pub q: Heads,
    /// Positions `start..start + tokens`, the same for every KV head.
    pub keys: Keys,
}

impl Qkv {
    /// With the queries of the last `queries` tokens alone.
    pub(crate) fn of_last(self, queries: usize) -> Result<Self, BackendError> {
        Ok(Self { q: self.q.of_last(queries)?, ..self })
    }

    /// Each row as a block of its own, row i at `positions[i]`.
    fn into_rows(self, positions: &[u32]) -> Result<Vec<Self>, BackendError> {
        self.q.data.host()?;
        self.keys.k.data.host()?;
        self.keys.v.data.host()?;
        let row = |(t, &position): (usize, &u32)| {
            let positions = vec![position; self.keys.kv_heads()];
            let keys = Keys::new(positions, self.keys.k.token(t), self.keys.v.token(t));
            Self { q: self.q.token(t), keys }
        };
        Ok(positions.iter().enumerate().map(row).collect())
    }
}

/// All keys that a block's rows look at, and how much they count where masses are asked for.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'a> {
    /// Remembered keys.
    pub past: &'a Keys,
    /// Which of them are summed together. A device may sum them all in one go; what it answers
    /// then differs, by the rounding of sums alone, from what shards of the same keys do.
    pub leaves: Leaves,
    /// The block's own.
    pub own: &'a Keys,
    /// `[tokens]`; `None` where nobody asks for masses.
    pub row_weights: Option<&'a [f32]>,
    /// [`LayerWeights::sinks`].
    pub sinks: Option<&'a Arc<[f32]>>,
    /// The output of so many of the block's last rows is wanted, of at most all. Of those before
    /// them a device may leave out what nothing else comes of.
    pub outputs: usize,
    /// Whether the output is multiplied with a bf16 weight next, and so rounded to bf16: a backend
    /// may then give it rounded. It is f32 otherwise.
    pub rounded: bool,
}

/// What a block's rows make of all keys in their [`Scope`].
#[derive(Debug, Clone, PartialEq)]
pub struct Attended {
    /// `[outputs, heads * head_dim]`, see [`AttentionState::output`] and [`Scope::outputs`].
    pub output: Rows,
    /// `[kv_heads, past keys]` column masses, or empty.
    pub past_mass: Array<f32>,
    /// `[kv_heads, own keys]` column masses, or empty.
    pub own_mass: Array<f32>,
}

impl Attended {
    /// Without the outputs that nobody wants, of those of all rows.
    pub(crate) fn of_last(self, outputs: usize) -> Result<Self, BackendError> {
        Ok(Self { output: self.output.of_last(outputs)?, ..self })
    }
}

/// What a caller asks of [`Backend::supports`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Op {
    /// `attend` and `weigh` for heads of this size.
    Attention {
        /// D.
        head_dim: usize,
        /// Query heads per KV head.
        group: usize,
        /// Storage of keys and values.
        kv: crate::KvDtype,
    },
    /// `project`, `finish` and `linear` with such weights.
    Layers,
    /// Reading keys where they lie in a [`Pool`](crate::Pool), which is memory of the host. Who
    /// does not reads them too, from a copy.
    Pages,
    /// The last rows of a block without those before them, with the bits that they have among all.
    LastRows,
}

/// What becomes of states; a backend for which that is much work shares it out.
///
/// Neither can fail, so states that a device made are brought to the host first
/// ([`AttentionState::host`]), where that is an error.
pub trait StateOps: Send + Sync {
    /// The state over the keys of both, bit for bit [`AttentionState::merge`].
    fn merge(&self, state: AttentionState, other: &AttentionState) -> AttentionState {
        state.merge(other)
    }

    /// A state as activations, bit for bit [`AttentionState::output`].
    fn output(&self, state: &AttentionState) -> Rows {
        state.output()
    }
}

/// Attention over keys: states and masses.
///
/// One rule of sight serves own and remembered keys: row i at position p sees a key at
/// position s if and only if s <= p, and s is in the model's [`Window`] if it has one. For a
/// memory set that is every key; for a block's own keys it is the causal triangle.
pub trait AttentionOps: StateOps {
    /// The partial state of `queries` over `keys`. No keys, or none in sight: empty rows.
    /// Keys or values that are not finite are refused, not spread.
    fn attend(&self, queries: Queries<'_>, keys: &Keys) -> Result<AttentionState, BackendError>;

    /// The state over the keys of all leaves of a node of a fold of so many chunks: bit for bit
    /// what [`attend`](Self::attend) of each and [`merge`](StateOps::merge) make of them.
    ///
    /// `keys` are those of the leaves as [`Node::leaves`] counts them.
    fn attend_folded(
        &self,
        queries: Queries<'_>,
        keys: &[&Keys],
        (whole, chunks): (Node, u32),
    ) -> Result<AttentionState, BackendError> {
        shapes::folded("attend", keys, (whole, chunks))?;
        let merge = |state, other: &_| self.merge(state, other);
        let mut leaf = |node: Node| {
            let leaf = || self.attend(queries, keys[whole.index(node.first)])?.on_host();
            node.is_leaf(chunks).then(leaf).transpose()
        };
        fold_all(whole, chunks, &merge, &mut leaf)
    }

    /// What the queries spend on each key, `[kv_heads, keys]` f32:
    /// mass_j = sum over the group's heads and over rows i in sight of w_i exp(z_ij - lse_i).
    ///
    /// `lse` is `[heads, tokens]` of the *merged* state, so that past and own keys are on one
    /// scale and a row of weight 1 spends exactly 1 per query head over both (and the layer's
    /// sinks, if it has any). A row whose lse is -inf spends nothing. Sums run in a fixed order.
    fn weigh(
        &self,
        queries: Queries<'_>,
        keys: &Keys,
        lse: &[f32],
        row_weights: &[f32],
    ) -> Result<Array<f32>, BackendError>;

    /// Output and masses over past and own keys, and last over the layer's sinks, at once: bit for
    /// bit what [`attend`](Self::attend) and [`attend_rest`](Self::attend_rest) give, in one pass
    /// where the backend has one.
    fn attend_all(&self, queries: Queries<'_>, scope: Scope<'_>) -> Result<Attended, BackendError> {
        let own = self.attend(queries, scope.own)?;
        self.attend_rest(queries, scope, &own)
    }

    /// The same where `own`, the state over the own keys, was computed before the past was at
    /// hand.
    fn attend_rest(
        &self,
        queries: Queries<'_>,
        scope: Scope<'_>,
        own: &AttentionState,
    ) -> Result<Attended, BackendError> {
        shapes::outputs("attend", &queries, &scope)?;
        shapes::sinks("attend", &queries, &scope)?;
        let past = Parted::new(scope.past, scope.leaves);
        let merge = |state, other: &_| self.merge(state, other);
        own.host()?;
        let state = past.fold(merge, |keys| self.attend(queries, keys)?.on_host())?;
        let state = self.merge(state, own).with_sinks(scope.sinks.map(|sinks| &**sinks));
        let (mut past_mass, mut own_mass) = (Array::default(), Array::default());
        if let Some(row_weights) = scope.row_weights {
            let lse = state.lse();
            past_mass = past.masses(|keys| self.weigh(queries, keys, &lse, row_weights))?;
            own_mass = self.weigh(queries, scope.own, &lse, row_weights)?;
        }
        let attended = Attended { output: self.output(&state), past_mass, own_mass };
        attended.of_last(scope.outputs)
    }

    /// [`attend_all`](Self::attend_all) for blocks that have nothing to do with each other, as
    /// the rows of a decode batch are: bit for bit what each gives alone. One that is refused
    /// leaves the others as they are.
    fn attend_each(
        &self,
        blocks: &[(Queries<'_>, Scope<'_>)],
    ) -> Vec<Result<Attended, BackendError>> {
        blocks.iter().map(|&(queries, scope)| self.attend_all(queries, scope)).collect()
    }

    /// What [`Queries::softcap`] makes of the logits of tokens.
    fn cap(&self, logits: &Rows, cap: f32) -> Result<Rows, BackendError> {
        let capped = logits.array().host()?.iter().map(|z| cap * (z / cap).tanh()).collect();
        Ok(Rows::from_vec(logits.rows(), logits.cols(), capped))
    }
}

/// Everything of a layer that is not attention.
///
/// Results that are not finite (broken weights) are refused with [`BackendError::NotFinite`]
/// by `linear`, `project` and `finish`.
pub trait LayerOps: Send + Sync {
    /// The backend's own form of a weight. `bias` is `[outputs]`.
    fn pack(&self, weight: Matrix, bias: Option<Vec<f32>>) -> Result<Linear, BackendError>;

    /// x Wᵀ + bias: `[rows, inputs]` -> `[rows, outputs]`, accumulated in f32 in an order that
    /// depends on `inputs` alone, so a row's bits do not depend on the rows beside it.
    fn linear(&self, x: &Rows, weight: &Linear) -> Result<Rows, BackendError>;

    /// RMS norm, QKV, QK norm where the layer has it, rotation, rounding to the KV dtype. Where the
    /// layer has no keys of its own there are queries alone, and keys and values of no head.
    /// `x` is `[tokens, width]`; row i stands at position `start + i`, whose angles are row i.
    /// Only the last `queries` rows have queries, for who has no use for the others.
    fn project(
        &self,
        layer: &LayerWeights,
        x: &Rows,
        at: (u32, &Angles),
        queries: usize,
    ) -> Result<Qkv, BackendError>;

    /// The same where each row is a block of its own, as in a decode batch: row i stands at
    /// `positions[i]`, whose angles are row i. Bit for bit what each row gives alone.
    fn project_each(
        &self,
        layer: &LayerWeights,
        x: &Rows,
        positions: &[u32],
        angles: &Angles,
    ) -> Result<Vec<Qkv>, BackendError> {
        shapes::placed_rows(x, positions)?;
        match *positions {
            [] => Ok(Vec::new()),
            [start] => Ok(vec![self.project(layer, x, (start, angles), 1)?]),
            _ => self.project(layer, x, (0, angles), x.rows())?.into_rows(positions),
        }
    }

    /// The rest of the layer: output projection and residual, norm, gates, residual; where there
    /// are norms behind output projection and feed-forward part, before what they give is added.
    /// `attention` is `[tokens, H D]`; returns the next layer's `[tokens, width]`.
    fn finish(
        &self,
        layer: &LayerWeights,
        x: &Rows,
        attention: &Rows,
    ) -> Result<Rows, BackendError>;

    /// Rows of a packed table, widened to f32 and multiplied by `scale`: `[tokens.len(), inputs]`.
    /// An id that is no row is refused.
    fn embed(&self, table: &Linear, tokens: &[u32], scale: f32) -> Result<Rows, BackendError>;

    /// RMS norm of every row. `weight` is `[width]`; shared, so that a device copies it once.
    fn norm(&self, x: &Rows, weight: &Arc<[f32]>, eps: f32) -> Rows;
}

/// A compute device.
pub trait Backend: AttentionOps + SelectionOps + LayerOps + MixerOps {
    /// What it computes with, for people, logs and benches; nothing may branch on it. Two of one
    /// name sum in the same order, and give the same bits.
    fn name(&self) -> &'static str;

    /// Whether the backend does `op`; the caller falls back or refuses when it does not.
    fn supports(&self, op: Op) -> bool;

    /// Whether operations under way make way for those of a thread that goes first.
    fn makes_way(&self) -> bool {
        false
    }

    /// From `true` to `false`, the calling thread's operations go before those of others, which
    /// wait meanwhile; so it must not wait for others' results in between. Where the backend
    /// [makes way](Self::makes_way), the others get a share of the time in between. No bit
    /// depends on it.
    fn go_first(&self, _first: bool) {}

    /// Whether anything can still be asked of the device, after a [`BackendError::Device`]; waits
    /// for what it has to do.
    ///
    /// # Errors
    /// [`BackendError::Device`]: it is lost to this process, which has to be started again.
    fn alive(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Waits for what the calling thread has asked of the device, and reports what it met there
    /// that nobody has read yet. What leaves a device in another thread's hands is heard of here
    /// alone.
    ///
    /// # Errors
    /// [`BackendError::NotFinite`] and [`BackendError::Device`].
    fn sound(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// What takes memory sets from its device to others; `None` where sets lie in the host's
    /// memory anyway.
    ///
    /// # Errors
    /// [`FabricError::Missing`]: sets lie on a device, which has no fabric.
    fn fabric(self: Arc<Self>) -> Result<Option<Arc<dyn Fabric>>, FabricError> {
        Ok(None)
    }
}
