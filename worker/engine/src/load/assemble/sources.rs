//! A model's description and its tensors, put together.

use aqueduct_core::ModelShape;

use super::mixer::{norm_of_head, take_gates_apart};
use super::recurrent::lay_recurrents;
use crate::error::LoadError;
use crate::load::checkpoint::{Checkpoint, HeadRows, RowOrder};
use crate::load::decoder::{Decoder, HeadOrder, QkNorm};
use crate::load::names::Names;

/// What a model is made from.
pub(crate) struct Sources<'a> {
    pub(crate) decoder: Decoder,
    pub(crate) checkpoint: Checkpoint<'a>,
    pub(crate) names: &'static Names,
}

impl<'a> Sources<'a> {
    /// Tells where the rows of heads stand, if they do not stand as they are used, and where the
    /// matrices of experts do, if one tensor has them all.
    ///
    /// # Errors
    /// A tensor that has another number of them.
    pub(crate) fn new(
        decoder: Decoder,
        mut checkpoint: Checkpoint<'a>,
        names: &'static Names,
    ) -> Result<Self, LoadError> {
        take_gates_apart(&decoder, &mut checkpoint, names);
        stack_norms(&decoder, &mut checkpoint, names);
        order_heads(&decoder, &mut checkpoint, names);
        lay_recurrents(&decoder, &mut checkpoint, names);
        if let Some(experts) = &decoder.experts {
            let layers = (0..decoder.shape.layers).zip(&experts.layers);
            for (layer, _) in layers.filter(|(_, has_experts)| **has_experts) {
                let bias = format!("{}.{layer}.{}", names.layer, names.experts.bias);
                if let Some(bias) = checkpoint.tensors.get_mut(&bias) {
                    bias.flatten();
                }
                for stack in names.experts.stacks() {
                    let name = format!("{}.{layer}.{stack}", names.layer);
                    checkpoint.cut_stack(&name, experts.count as usize)?;
                    if decoder.expert_biases {
                        let count = experts.count as usize;
                        checkpoint.cut_biases(&format!("{name}.bias"), &name, count)?;
                    }
                }
            }
        }
        let mut sources = Self { decoder, checkpoint, names };
        if let Some(latents) = sources.decoder.latent {
            (0..sources.decoder.shape.layers)
                .try_for_each(|layer| sources.order_latent(layer, latents))?;
        }
        sources.centre()?;
        sources.centre_heads()?;
        Ok(sources)
    }

    /// Whether logits come from the embedding. A stored head that differs from it counts for
    /// more than the configuration, as in transformers 5.
    pub(super) fn is_tied(&self) -> bool {
        let Self { decoder, checkpoint, names } = self;
        let bytes = |name| checkpoint.tensors.get(&format!("{name}.weight")).map(|it| it.bytes);
        let own_head = bytes(names.head).filter(|&head| bytes(names.embed) != Some(head));
        if decoder.tied && own_head.is_some() {
            tracing::warn!(path = checkpoint.path, "tied by configuration, but has its own head");
        }
        decoder.tied && own_head.is_none()
    }
}

/// Tells where the rows of query and key heads stand that come of the stream.
fn order_heads(decoder: &Decoder, checkpoint: &mut Checkpoint<'_>, names: &Names) {
    let (shape, HeadOrder { rotary_dim, neighbours, by_head }) = (&decoder.shape, decoder.order);
    let is_used = rotary_dim == shape.head_dim && !neighbours && !by_head;
    if is_used || decoder.latent.is_some() {
        return;
    }
    let both = shape.heads + shape.kv_heads;
    let [q_normed, k_normed] = match decoder.qk_norm {
        QkNorm::AllHeads | QkNorm::HeadByHead => [shape.heads, shape.kv_heads],
        QkNorm::Nothing | QkNorm::EachHead => [1; 2],
    };
    let heads_of = [
        (names.q, shape.heads),
        (names.k, shape.kv_heads),
        (names.qkv, both),
        (names.q_norm, q_normed),
        (names.k_norm, k_normed),
    ];
    // Other layers may call something else by these names.
    let layers = (0..shape.layers).filter(|&layer| !decoder.is_recurrent(layer as usize));
    for (layer, (name, heads)) in layers.flat_map(|layer| heads_of.map(|of| (layer, of))) {
        let order = RowOrder::Heads(HeadRows {
            first: 0,
            rows: heads as usize * shape.head_dim as usize,
            head_dim: shape.head_dim as usize,
            rotary_dim: rotary_dim as usize,
            neighbours,
            by_head: (by_head && name == names.qkv).then_some(shape.group() as usize),
            rotated_last: false,
        });
        for suffix in ["weight", "bias"] {
            let name = format!("{}.{layer}.{name}.{suffix}", names.layer);
            if let Some(tensor) = checkpoint.tensors.get_mut(&name) {
                tensor.order = Some(order);
            }
        }
        let name = format!("{}.{layer}.{name}", names.layer);
        for head in 0..heads as usize {
            let Some(tensor) = checkpoint.tensors.get_mut(&norm_of_head(&name, head)) else {
                break;
            };
            tensor.order = Some(order);
        }
    }
}

/// Norms of heads that have weights of their own are one column after the other here, whose rows
/// may be told where they stand.
fn stack_norms(decoder: &Decoder, checkpoint: &mut Checkpoint<'_>, names: &Names) {
    let ModelShape { layers, heads, kv_heads, head_dim, .. } = decoder.shape;
    if decoder.qk_norm != QkNorm::HeadByHead {
        return;
    }
    for layer in 0..layers {
        for (name, heads) in [(names.q_norm, heads), (names.k_norm, kv_heads)] {
            let tensor =
                checkpoint.tensors.get_mut(&format!("{}.{layer}.{name}.weight", names.layer));
            let [heads, head_dim] = [heads, head_dim].map(|count| count as usize);
            if let Some(tensor) = tensor.filter(|tensor| tensor.shape == [heads, head_dim]) {
                tensor.shape = vec![heads * head_dim];
            }
        }
    }
}
