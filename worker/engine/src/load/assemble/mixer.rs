//! Attention, and what may stand beside it.

use std::sync::Arc;

use aqueduct_kernels::{Latent, LayerSpec, Linear, Recurrent};

use super::{Assembler, Sources, Stacked};
use crate::error::LoadError;
use crate::load::checkpoint::{Checkpoint, Picked, Stored};
use crate::load::decoder::{Decoder, Gate, QkNorm};
use crate::load::names::Names;

/// What a layer has before its feed-forward part, but for norms.
pub(super) struct Mixer {
    pub(super) sinks: Option<Arc<[f32]>>,
    pub(super) qkv: Linear,
    pub(super) latent: Option<Latent>,
    pub(super) gate: Option<Linear>,
    pub(super) recurrent: Option<Arc<Recurrent>>,
    pub(super) out: Linear,
}

/// Norms of queries and keys.
#[derive(Default)]
pub(super) struct HeadNorms {
    pub(super) q_norm: Option<Arc<[f32]>>,
    pub(super) k_norm: Option<Arc<[f32]>>,
}

impl Assembler<'_, '_> {
    /// Those of a layer, if it has any.
    pub(super) fn head_norms(
        &mut self,
        prefix: &str,
        idx: usize,
        spec: &LayerSpec,
    ) -> Result<HeadNorms, LoadError> {
        let Sources { decoder, names, .. } = self.sources;
        let has_keys = decoder.keys_of(idx).is_none();
        let head_dim = spec.head_dim;
        if decoder.unit_norms && decoder.rotates[idx] {
            let ones: Arc<[f32]> = vec![1.0; head_dim].into();
            return Ok(HeadNorms { q_norm: Some(ones.clone()), k_norm: Some(ones) });
        }
        let spans = match decoder.qk_norm {
            QkNorm::HeadByHead => {
                let [q_norm, k_norm] = [(names.q_norm, spec.heads), (names.k_norm, spec.kv_heads)]
                    .map(|of| self.norms_of_heads(prefix, of, head_dim));
                return Ok(HeadNorms { q_norm: Some(q_norm?), k_norm: Some(k_norm?) });
            }
            QkNorm::Nothing => None,
            QkNorm::EachHead => Some([head_dim; 2]),
            QkNorm::AllHeads => Some([spec.heads, spec.kv_heads].map(|heads| heads * head_dim)),
        };
        let q_norm = self.norm_of(prefix, names.q_norm, spans.map(|[span, _]| span))?;
        let k_norm =
            self.norm_of(prefix, names.k_norm, spans.filter(|_| has_keys).map(|[_, span]| span))?;
        Ok(HeadNorms { q_norm, k_norm })
    }

    /// Weights of a norm that each of so many heads has, of one tensor or of one each.
    fn norms_of_heads(
        &mut self,
        prefix: &str,
        (name, heads): (&str, usize),
        head_dim: usize,
    ) -> Result<Arc<[f32]>, LoadError> {
        let whole = format!("{prefix}.{name}.weight");
        if self.sources.checkpoint.tensors.contains_key(&whole) {
            return Ok(self.norm(&whole, heads * head_dim)?.into());
        }
        let of_head = |head| norm_of_head(&format!("{prefix}.{name}"), head);
        let each = (0..heads).map(|head| self.norm(&of_head(head), head_dim));
        Ok(each.collect::<Result<Vec<_>, _>>()?.concat().into())
    }

    /// A layer's attention.
    pub(super) fn attention(&mut self, prefix: &str, idx: usize) -> Result<Mixer, LoadError> {
        let Sources { decoder, names, .. } = self.sources;
        let (shape, biases) = (&decoder.shape, decoder.biases);
        let (heads, width) = (shape.heads as usize, shape.width as usize);
        let [kv_heads, head_dim] = decoder.kv_heads(idx).map(|count| count as usize);
        let (q_rows, kv_rows) = (heads * head_dim, kv_heads * head_dim);
        let v = if decoder.has_keys_for_values(idx) { names.k } else { names.v };
        let sinks = match decoder.family.sinks() {
            true => {
                let name = format!("{prefix}.{}", names.sinks);
                Some(self.read(&name, &[heads], Stored::f32)?.into())
            }
            false => None,
        };
        let norm = Some(names.attn_norm);
        let (qkv, latent) = match decoder.latent {
            None => {
                let qkv = [(names.q, q_rows), (names.k, kv_rows), (v, kv_rows)];
                let qkv = match decoder.keys_of(idx) {
                    Some(_) => vec![qkv[0]], // whatever else files have
                    None => self.parts(prefix, &qkv, names.qkv),
                };
                let qkv = Stacked { parts: &qkv, inputs: width, bias: biases.qkv, norm };
                (self.linear(prefix, qkv)?, None)
            }
            Some(latents) => {
                let (made, latent) = self.latent(prefix, latents)?;
                (made, Some(latent))
            }
        };
        // Files have one number for each head without a bias, and others where queries are.
        let gate = decoder.gate.map(|gate| match gate {
            Gate::Elements => (q_rows, biases.qkv),
            Gate::Heads => (heads, false),
        });
        let gate = match gate {
            Some((rows, bias)) => {
                let parts = &[(names.out_gate, rows)];
                Some(self.linear(prefix, Stacked { parts, inputs: width, bias, norm })?)
            }
            None => None,
        };
        let value_dim = latent.as_ref().map_or(head_dim, |latent| latent.value_dim);
        let inputs = heads * value_dim;
        let out = Stacked { parts: &[(names.out, width)], inputs, bias: biases.out, norm: None };
        let out = self.linear(prefix, out)?;
        Ok(Mixer { sinks, qkv, latent, gate, recurrent: None, out })
    }
}

/// What the weights of one head's norm are called where each has a tensor (Stable LM).
pub(super) fn norm_of_head(norm: &str, head: usize) -> String {
    format!("{norm}.norms.{head}.weight")
}

/// Takes gates of elements out of the tensors of queries, in which a head's stand behind its
/// queries, where they have no tensor of their own.
pub(super) fn take_gates_apart(decoder: &Decoder, checkpoint: &mut Checkpoint<'_>, names: &Names) {
    if decoder.gate != Some(Gate::Elements) {
        return;
    }
    let (heads, head_dim) = (decoder.shape.heads as usize, decoder.shape.head_dim as usize);
    let (rows, of_every) = (2 * heads * head_dim, 2 * head_dim);
    for layer in 0..decoder.shape.layers {
        for suffix in ["weight", "bias"] {
            let [q, gate] = [names.q, names.out_gate]
                .map(|name| format!("{}.{layer}.{name}.{suffix}", names.layer));
            let Some(both) = checkpoint.tensors.get(&q) else { continue };
            if both.shape.first() != Some(&rows) || checkpoint.tensors.contains_key(&gate) {
                continue;
            }
            let of = |first: usize| {
                let mut some = both.clone();
                some.shape[0] = rows / 2;
                some.picked = Some(Picked { rows, of_every, first, count: head_dim });
                some
            };
            let [queries, gates] = [of(0), of(head_dim)];
            checkpoint.tensors.insert(q, queries);
            checkpoint.tensors.insert(gate, gates);
        }
    }
}
