//! What a decoder is, whichever file said so.

mod alibi;
mod experts;
mod family;
mod intervals;
mod latents;
mod lenders;
mod multipliers;
mod recurrents;
mod scales;
mod wide;

use aqueduct_core::{ModelShape, Refusal};
use aqueduct_kernels::Activation;
use aqueduct_kernels::experts::Groups;

pub(crate) use self::alibi::Alibi;
pub(crate) use self::experts::ManyExperts;
pub(crate) use self::family::{Family, xielu};
pub(crate) use self::intervals::{
    ALTERNATE_LAYERS, FULL_LAYER_INTERVAL, OLMO3_FULL_LAYER_INTERVAL, STILL_LAYER_INTERVAL,
    all_but_every,
};
pub(crate) use self::latents::{LATENT_EPS, Latents};
pub(crate) use self::multipliers::Multipliers;
pub(crate) use self::recurrents::{Columns, Gate, Recurrents, RuleShape};
pub(crate) use self::scales::{Scales, Softcaps};
use super::folded::Folded;
use crate::rope::{Rope, Temperature};

/// What the RMS norms of queries and keys are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum QkNorm {
    /// There are none.
    Nothing,
    EachHead,
    /// All heads of a token together.
    AllHeads,
    /// Each head, by weights of its own; they are layer norms in files.
    HeadByHead,
}

/// What the norms of the stream are, where they take its mean away first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LayerNorms {
    /// Files have weights of theirs; else these are one.
    pub(crate) weights: bool,
    pub(crate) biases: bool,
}

/// How a query or key head's elements stand in the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct HeadOrder {
    /// How many of a head's elements are rotated: its first ones, an even number.
    pub(crate) rotary_dim: u32,
    /// Rotated elements stand beside each other in pairs; else their halves do.
    pub(crate) neighbours: bool,
    /// Where queries, keys and values are in one tensor, those of a head stand together.
    pub(crate) by_head: bool,
}

/// Which linear maps add a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Biases {
    pub(crate) qkv: bool,
    pub(crate) out: bool,
    pub(crate) gate_up: bool,
    pub(crate) down: bool,
}

/// A decoder's description, validated: counts within limits, rope finite.
#[derive(Debug, Clone)]
pub(crate) struct Decoder {
    pub(crate) family: Family,
    pub(crate) shape: ModelShape,
    pub(crate) norm_eps: f32,
    pub(crate) layer_norms: Option<LayerNorms>,
    /// The feed-forward part takes what attention takes.
    pub(crate) parallel: bool,
    /// Through a norm of its own; else by the same.
    pub(crate) two_norms: bool,
    /// `[layers]`, all gated or none.
    pub(crate) activations: Vec<Activation>,
    pub(crate) rope: Rope,
    /// `[layers]`: whether queries and keys are rotated.
    pub(crate) rotates: Vec<bool>,
    /// Of layers with a window, if it is another one.
    pub(crate) window_rope: Option<Rope>,
    /// What queries are multiplied by where they stand, if anything.
    pub(crate) temperature: Option<Temperature>,
    /// The same in layers that do not rotate, by positions counted from 1.
    pub(crate) still_temperature: Option<Temperature>,
    /// Added to the weights of norms.
    pub(crate) norm_offset: f32,
    pub(crate) order: HeadOrder,
    pub(crate) scales: Scales,
    /// What multiplies numbers inside of layers, if anything does.
    pub(crate) multipliers: Option<Multipliers>,
    /// `[layers]`.
    pub(crate) windows: Vec<Option<u32>>,
    /// These are blocks of positions, and else the last ones.
    pub(crate) in_blocks: bool,
    pub(crate) biases: Biases,
    pub(crate) experts: Option<ManyExperts>,
    /// What they share counts half, without a gate.
    pub(crate) shared_half: bool,
    /// Their router and their parts add biases.
    pub(crate) expert_biases: bool,
    /// Groups of which a token may go to a few alone.
    pub(crate) expert_groups: Option<Groups>,
    /// Of what keys and values come, if not of the stream.
    pub(crate) latent: Option<Latents>,
    /// Layers that remember in a state, if there are any.
    pub(crate) recurrent: Option<Recurrents>,
    /// Which parts each layer has, where files number parts.
    pub(crate) folded: Option<Folded>,
    /// What attention gives is multiplied by the sigmoid of something, if it is.
    pub(crate) gate: Option<Gate>,
    pub(crate) softcaps: Softcaps,
    /// What logits fall by with distance, if they do.
    pub(crate) alibi: Option<Alibi>,
    pub(crate) qk_norm: QkNorm,
    /// How far from 0 queries, keys and values are at most, behind their norms, if they are kept.
    pub(crate) clip: Option<f32>,
    /// Layers that rotate have norms of each head of queries and keys, without weights.
    pub(crate) unit_norms: bool,
    /// In layers that see everything, values are keys before their norm and rotation.
    pub(crate) keys_are_values: bool,
    /// So many numbers of each token are a layer's own, if layers take such.
    pub(crate) inputs: Option<u32>,
    /// Layers without keys of their own have feed-forward parts of twice the width.
    pub(crate) double_ffn: bool,
    /// Logits come from the embedding.
    pub(crate) tied: bool,
    /// They have a bias.
    pub(crate) head_bias: bool,
    /// Files have none for tokens from this one on, which are only read.
    pub(crate) head_rows: Option<u32>,
}

impl Decoder {
    /// Takes this if what stands behind its rotation takes what was rotated and nothing more, and
    /// layers without keys have others to attend to.
    pub(crate) fn checked(self) -> Result<Self, Refusal> {
        self.check_lenders()?;
        let factor = [Some(&self.rope), self.window_rope.as_ref()]
            .into_iter()
            .flatten()
            .map(|rope| rope.attention_factor)
            .find(|&factor| factor != 1.0);
        match factor.filter(|_| self.family.norms_last()) {
            Some(factor) => {
                let bound = "1, where norms are behind the rotation";
                Err(Refusal::new("rope attention_factor", factor, bound))
            }
            None => Ok(self),
        }
    }

    /// `[heads]`: what a logit falls by for each position, in heads of all layers.
    pub(crate) fn slopes(&self) -> Option<Vec<f32>> {
        self.alibi.map(|alibi| alibi.slopes(self.shape.heads, self.scales.attention))
    }

    /// Layer `idx` remembers in a state.
    pub(crate) fn is_recurrent(&self, idx: usize) -> bool {
        self.recurrent.as_ref().is_some_and(|recurrent| recurrent.layers[idx])
    }

    /// Layer `idx` takes the stream as the one before it took it.
    pub(crate) fn is_beside_last(&self, idx: usize) -> bool {
        self.family == Family::FalconH1 && !self.is_recurrent(idx)
    }

    /// Layer `idx` has something that mixes tokens.
    pub(crate) fn has_mixer(&self, idx: usize) -> bool {
        self.folded.as_ref().is_none_or(|folded| folded.layers[idx].mixer.is_some())
    }

    /// Layer `idx` has a feed-forward part.
    pub(crate) fn has_feed(&self, idx: usize) -> bool {
        self.folded.as_ref().is_none_or(|folded| folded.layers[idx].feed.is_some())
    }

    /// Layer `idx` has norms before its parts. Where a family has none, it has in layers that
    /// remember in a state.
    pub(crate) fn pre_norms(&self, idx: usize) -> bool {
        self.family.pre_norms() || self.is_recurrent(idx)
    }

    /// Layer `idx` has norms behind its parts.
    pub(crate) fn post_norms(&self, idx: usize) -> bool {
        self.family.post_norms() && (self.family.pre_norms() || !self.is_recurrent(idx))
    }

    /// Layer `idx` has a norm behind its feed-forward part.
    pub(crate) fn ffn_post_norm(&self, idx: usize) -> bool {
        let has_experts = self.experts.as_ref().is_some_and(|experts| experts.layers[idx]);
        self.post_norms(idx) || (has_experts && self.family.expert_norms())
    }

    /// One norm is of what attention and what the feed-forward part takes.
    pub(crate) fn shares_norm(&self) -> bool {
        self.parallel && !self.two_norms
    }

    /// Feed-forward parts have gates.
    pub(crate) fn is_gated(&self) -> bool {
        self.activations.iter().all(|activation| activation.projections() == 2)
    }

    /// `[layers]`: each layer's rotation.
    pub(crate) fn ropes(&self) -> Vec<Rope> {
        let of_layer = |(&rotates, window): (&bool, &Option<u32>)| match (rotates, window) {
            (false, _) => Rope::NONE,
            (true, Some(_)) => self.window_rope.clone().unwrap_or_else(|| self.rope.clone()),
            (true, None) => self.rope.clone(),
        };
        self.rotates.iter().zip(&self.windows).map(of_layer).collect()
    }
}
