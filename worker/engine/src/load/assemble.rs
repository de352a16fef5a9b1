//! Reads, checks, stacks and packs a checkpoint's tensors into a [`Model`].

mod feed;
mod inputs;
mod latent;
mod layer_norms;
mod matrices;
mod mixer;
mod multiplied;
mod recurrent;
mod sources;
mod unused;

use std::collections::BTreeSet;
use std::sync::Arc;

use aqueduct_core::Refusal;
use aqueduct_kernels::{LayerSpec, LayerWeights, Linear, Op};

use self::mixer::{HeadNorms, Mixer};
pub(crate) use self::sources::Sources;
use super::checkpoint::{Laid, Stored};
use super::decoder::{Decoder, Family, QkNorm};
use super::encoding::Encoding;
use super::fingerprint::Fingerprint;
use super::held::Held;
use super::{LoadOptions, LoadProgress};
use crate::error::LoadError;
use crate::model::{Model, ModelParts};
use crate::positions::PositionTable;

/// Makes the model.
pub(crate) fn assemble(
    sources: &Sources<'_>,
    options: &LoadOptions,
    report: &mut dyn FnMut(LoadProgress),
) -> Result<Model, LoadError> {
    let Sources { decoder, checkpoint, names } = sources;
    check_backend(sources, options)?;
    let mut assembler = Assembler::new(sources, options, report);
    let (vocab, width) = (decoder.shape.vocab as usize, decoder.shape.width as usize);
    let embed = assembler.table(names.embed, vocab, width)?;
    assembler.embed_norm()?;
    let positions = assembler.positions()?;
    let inputs = assembler.token_inputs()?;
    let layers = (0..decoder.shape.layers)
        .map(|idx| assembler.layer(idx as usize))
        .collect::<Result<_, _>>()?;
    let mut final_norm = assembler.norm(&format!("{}.weight", names.final_norm), width)?;
    final_norm.iter_mut().for_each(|weight| *weight /= decoder.scales.logits);
    let head = match sources.is_tied() {
        true => embed.clone(),
        false => assembler.head(vocab, width)?,
    };
    assembler.skip_the_rest();
    let parts = ModelParts {
        shape: decoder.shape.clone(),
        fingerprint: assembler.fingerprint.finish(),
        backend: options.backend.clone(),
        embed,
        embed_scale: decoder.scales.embed / decoder.scales.residual,
        positions,
        layers,
        windows: decoder.windows.iter().map(|window| window.map(decoder.sight())).collect(),
        final_norm: final_norm.into(),
        head,
        ropes: decoder.ropes(),
        temperature: decoder.temperature,
        still_temperature: decoder.still_temperature,
        scale: decoder.scales.attention,
        softcap: decoder.softcaps.attention,
        slopes: decoder.slopes(),
        logits_softcap: decoder.softcaps.tokens,
        inputs,
        norm_eps: norm_eps(decoder),
        kv: options.kv,
    };
    Model::new(parts).map_err(|refusal| LoadError::refused(&checkpoint.path, refusal))
}

/// Where what is added to the stream is multiplied by a number r, the stream is kept divided by r
/// instead, from the embedding on: every reader takes its RMS norm first, which is the same if
/// epsilon is divided by r squared. So no weight is rounded anew. Families whose parts take the
/// stream as it is have no such number.
fn norm_eps(decoder: &Decoder) -> f32 {
    decoder.norm_eps / (decoder.scales.residual * decoder.scales.residual)
}

fn check_backend(sources: &Sources<'_>, options: &LoadOptions) -> Result<(), LoadError> {
    let (decoder, backend) = (&sources.decoder, &options.backend);
    let shape = &decoder.shape;
    let refused = |refusal| Err(LoadError::refused(&sources.checkpoint.path, refusal));
    let wide = (shape.wide.layers > 0).then_some((shape.wide.head_dim, shape.wide.kv_heads));
    for (head_dim, kv_heads) in [(shape.head_dim, shape.kv_heads)].into_iter().chain(wide) {
        let group = (shape.heads / kv_heads) as usize;
        let op = Op::Attention { head_dim: head_dim as usize, group, kv: options.kv };
        if !backend.supports(op) || !backend.supports(Op::Layers) {
            let bound = format!("a head size that backend {} has kernels for", backend.name());
            return refused(Refusal::new("head_dim", head_dim, bound));
        }
    }
    Ok(())
}

/// A linear map that is stored in parts: their names and row counts, stacked in this order.
struct Stacked<'n> {
    parts: &'n [(&'n str, usize)],
    inputs: usize,
    bias: bool,
    /// Whose result it takes, if it is a norm's.
    norm: Option<&'n str>,
}

impl Stacked<'_> {
    /// Full names of the parts' tensors, with their rows.
    fn named(&self, prefix: &str, suffix: &str) -> Vec<(String, usize)> {
        let name = |(part, rows): &(&str, usize)| (format!("{prefix}.{part}.{suffix}"), *rows);
        self.parts.iter().map(name).collect()
    }
}

struct Assembler<'a, 'r> {
    sources: &'a Sources<'a>,
    options: &'a LoadOptions,
    report: &'r mut dyn FnMut(LoadProgress),
    progress: LoadProgress,
    used: BTreeSet<String>,
    fingerprint: Fingerprint,
    /// Files whose linear maps are integers in words have all else as F16, which would take more
    /// room as f32 than the integers do: it is held as if it were of bf16.
    f16_as: Encoding,
}

impl<'a, 'r> Assembler<'a, 'r> {
    fn new(
        sources: &'a Sources<'a>,
        options: &'a LoadOptions,
        report: &'r mut dyn FnMut(LoadProgress),
    ) -> Self {
        let tensors = &sources.checkpoint.tensors;
        let progress = LoadProgress {
            tensors: tensors.len(),
            bytes: tensors.values().map(Stored::own_bytes).sum(),
            ..LoadProgress::default()
        };
        let fingerprint = Fingerprint::new(&sources.decoder, options);
        let in_words = tensors.values().any(|tensor| matches!(tensor.laid, Laid::FewBits(_)));
        let f16_as = if in_words { Encoding::Bf16 } else { Encoding::F16 };
        let used = BTreeSet::new();
        Self { sources, options, report, progress, used, fingerprint, f16_as }
    }

    fn layer(&mut self, idx: usize) -> Result<LayerWeights, LoadError> {
        let Sources { decoder, names, .. } = self.sources;
        let shape = &decoder.shape;
        let (prefix, width) = (&*format!("{}.{idx}", names.layer), shape.width as usize);
        let [kv_heads, head_dim] = decoder.kv_heads(idx);
        let spec = LayerSpec {
            heads: shape.heads as usize,
            kv_heads: kv_heads as usize,
            head_dim: head_dim as usize,
            norm_eps: norm_eps(decoder),
            activation: decoder.activations[idx],
            kv: self.options.kv,
        };
        let has_norms =
            [decoder.pre_norms(idx), decoder.post_norms(idx), decoder.ffn_post_norm(idx)];
        let [pre_norm, post_norm, ffn_post] = has_norms.map(|has| has.then_some(width));
        let recurrents = decoder.recurrent.as_ref().filter(|recurrents| recurrents.layers[idx]);
        // In this order tensors are read, and so known by the fingerprint.
        let HeadNorms { q_norm, k_norm } = match recurrents {
            Some(_) => HeadNorms::default(),
            None => self.head_norms(prefix, idx, &spec)?,
        };
        let attn_post_norm = self.norm_of(prefix, names.attn_post_norm, post_norm)?;
        let ffn_post_norm = self.norm_of(prefix, names.ffn_post_norm, ffn_post)?;
        let Mixer { sinks, qkv, latent, gate, recurrent, out } = match recurrents {
            Some(recurrents) => self.recurrent(prefix, recurrents)?,
            None if !decoder.has_mixer(idx) => self.no_mixer()?,
            None => self.attention(prefix, idx)?,
        };
        let ffn = self.feed(prefix, idx)?;
        let attn_norm = self.norm_before_mixer(prefix, idx, pre_norm)?;
        let ffn_norm = match decoder.shares_norm() {
            true => attn_norm.clone(),
            false => self.norm_before_feed(prefix, idx, pre_norm)?,
        };
        let [out_norm, hidden_norm] = self.sub_norms(prefix, idx, &spec)?;
        let keys_of = decoder.keys_of(idx);
        let normed = decoder.family == Family::Gemma4 && keys_of.is_none();
        let scale = self.layer_scale(prefix)?;
        let input = self.layer_input(prefix, scale)?.map(Box::new);
        Ok(LayerWeights {
            spec,
            keys_of,
            beside_last: decoder.is_beside_last(idx),
            parallel: decoder.parallel,
            qkv,
            latent,
            gate,
            recurrent,
            out_norm,
            out,
            ffn,
            hidden_norm,
            attn_norm,
            ffn_norm,
            q_norm,
            k_norm,
            v_norm: normed.then(|| vec![1.0; spec.head_dim].into()),
            norms_last: decoder.family.norms_last(),
            norms_apart: decoder.qk_norm == QkNorm::HeadByHead,
            clip: decoder.clip,
            sinks,
            attn_post_norm,
            ffn_post_norm,
            scale: scale.filter(|_| input.is_none()),
            input,
        })
    }

    /// These parts, or the whole of them if the first is not there and it is.
    fn parts<'n>(
        &self,
        prefix: &str,
        parts: &[(&'n str, usize)],
        whole: &'n str,
    ) -> Vec<(&'n str, usize)> {
        let tensors = &self.sources.checkpoint.tensors;
        let has = |name: &str| tensors.contains_key(&format!("{prefix}.{name}.weight"));
        match !has(parts[0].0) && has(whole) {
            true => vec![(whole, parts.iter().map(|(_, rows)| rows).sum())],
            false => parts.to_vec(),
        }
    }

    /// A table with a row for every token of the vocabulary.
    fn table(&mut self, name: &str, rows: usize, inputs: usize) -> Result<Linear, LoadError> {
        let names = vec![(format!("{name}.weight"), rows)];
        self.matrix(&names, inputs, None)
    }

    /// What positions add to embeddings, in families where they do.
    fn positions(&mut self) -> Result<Option<PositionTable>, LoadError> {
        let Sources { decoder, names, .. } = self.sources;
        let Some(first) = decoder.family.first_position() else { return Ok(None) };
        let (rows, width) =
            (decoder.shape.max_positions.saturating_add(first), decoder.shape.width);
        let table = self.table(names.positions, rows as usize, width as usize)?;
        Ok(Some(PositionTable { table, first }))
    }

    /// A norm's weights.
    fn norm(&mut self, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
        let mut weights = self.weights_of_norm(name, len)?;
        let offset = self.sources.decoder.norm_offset;
        weights.iter_mut().for_each(|weight| *weight += offset);
        Ok(weights)
    }

    /// The same of a layer, if it has one of such a length.
    fn norm_of(
        &mut self,
        prefix: &str,
        name: &str,
        len: Option<usize>,
    ) -> Result<Option<Arc<[f32]>>, LoadError> {
        let read = |len| self.norm(&format!("{prefix}.{name}.weight"), len).map(Arc::from);
        len.map(read).transpose()
    }

    fn linear(&mut self, prefix: &str, stacked: Stacked<'_>) -> Result<Linear, LoadError> {
        let held = self.held(&stacked.named(prefix, "weight"));
        self.linear_held(prefix, stacked, held)
    }

    fn linear_held(
        &mut self,
        prefix: &str,
        stacked: Stacked<'_>,
        held: Held,
    ) -> Result<Linear, LoadError> {
        let Stacked { inputs, bias, norm, .. } = stacked;
        let biases = match bias {
            true => Some(self.stack(&stacked.named(prefix, "bias"), &[], Stored::f32)?.concat()),
            false => None,
        };
        let norm = norm.map(|norm| format!("{prefix}.{norm}"));
        let weights = stacked.named(prefix, "weight");
        let shift = self.behind_norm(norm.as_deref(), &weights, inputs)?;
        let outputs = weights.iter().map(|(_, rows)| rows).sum();
        let bias = layer_norms::sum(biases, shift);
        self.matrix_held(held, &weights, inputs, (outputs, bias))
    }

    /// Every part as `decode` makes it; `row` is the shape of one row.
    fn stack<T>(
        &mut self,
        parts: &[(String, usize)],
        row: &[usize],
        decode: impl Fn(&Stored<'a>, &str) -> Result<T, LoadError>,
    ) -> Result<Vec<T>, LoadError> {
        let shape = |rows: usize| [&[rows], row].concat();
        parts.iter().map(|(name, rows)| self.read(name, &shape(*rows), &decode)).collect()
    }

    fn read<T>(
        &mut self,
        name: &str,
        shape: &[usize],
        decode: impl Fn(&Stored<'a>, &str) -> Result<T, LoadError>,
    ) -> Result<T, LoadError> {
        let sources = self.sources;
        let tensor = sources.checkpoint.find(name, shape)?;
        let data = decode(tensor, name)?;
        self.fingerprint.add(name, tensor);
        if self.used.insert(name.to_owned()) {
            self.count(tensor);
        }
        Ok(data)
    }

    fn count(&mut self, tensor: &Stored<'_>) {
        self.progress.tensors_done += 1;
        self.progress.bytes_done += tensor.own_bytes();
        (self.report)(self.progress);
    }

    /// Counts what the model has no use for (rotary tables, the head of a tied model). What is of
    /// one of its layers, and nothing that is known to have none, may be what answers need.
    fn skip_the_rest(&mut self) {
        let Sources { decoder, checkpoint, names } = self.sources;
        // Behind the last are layers that predict tokens to come. Without keys of their own, layers
        // may have tensors for them all the same.
        let read =
            |idx: usize| idx < decoder.shape.layers as usize && decoder.keys_of(idx).is_none();
        let mut strange = Vec::new();
        for (name, tensor) in &checkpoint.tensors {
            if self.used.contains(name) {
                continue;
            }
            tracing::debug!(tensor = name, path = tensor.path, "tensor is not used");
            if unused::is_strange(read, names.layer, name) {
                strange.push(name);
            }
            self.count(tensor);
        }
        if let [first, ..] = *strange {
            let (count, path) = (strange.len(), &checkpoint.path);
            tracing::warn!(count, first, path, "tensors of the model's layers are not used");
        }
    }
}
