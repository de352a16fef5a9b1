//! Reads, checks, stacks and packs a checkpoint's tensors into a [`Model`].

mod feed;
mod latent;
mod layer_norms;
mod sources;

use std::collections::BTreeSet;
use std::sync::Arc;

use aqueduct_core::Refusal;
use aqueduct_kernels::{Int8Rows, LayerSpec, LayerWeights, Linear, Matrix, MatrixData, Op};

pub(crate) use self::sources::Sources;
use super::checkpoint::Stored;
use super::decoder::{Decoder, QkNorm};
use super::fingerprint::Fingerprint;
use super::held::Held;
use super::{LoadOptions, LoadProgress};
use crate::error::LoadError;
use crate::model::{Model, ModelParts};

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
        layers,
        windows: decoder.windows.clone(),
        final_norm: final_norm.into(),
        head,
        ropes: decoder.ropes(),
        temperature: decoder.temperature,
        scale: decoder.scales.attention,
        softcap: decoder.softcaps.attention,
        logits_softcap: decoder.softcaps.tokens,
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
    let shape = &sources.decoder.shape;
    let attention = Op::Attention {
        head_dim: shape.head_dim as usize,
        group: shape.group() as usize,
        kv: options.kv,
    };
    let backend = &options.backend;
    if backend.supports(attention) && backend.supports(Op::Layers) {
        return Ok(());
    }
    let bound = format!("a head size that backend {} has kernels for", backend.name());
    let refusal = Refusal::new("head_dim", shape.head_dim, bound);
    Err(LoadError::refused(&sources.checkpoint.path, refusal))
}

/// A linear map that is stored in parts: their names and row counts, stacked in this order.
struct Stacked<'n> {
    parts: &'n [(&'n str, usize)],
    inputs: usize,
    bias: bool,
    /// Whose result it takes, if it is a norm's.
    norm: Option<&'n str>,
}

struct Assembler<'a, 'r> {
    sources: &'a Sources<'a>,
    options: &'a LoadOptions,
    report: &'r mut dyn FnMut(LoadProgress),
    progress: LoadProgress,
    used: BTreeSet<String>,
    fingerprint: Fingerprint,
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
            bytes: tensors.values().map(|tensor| tensor.bytes.len() as u64).sum(),
            ..LoadProgress::default()
        };
        let fingerprint = Fingerprint::new(&sources.decoder, options);
        Self { sources, options, report, progress, used: BTreeSet::new(), fingerprint }
    }

    fn layer(&mut self, idx: usize) -> Result<LayerWeights, LoadError> {
        let Sources { decoder, names, .. } = self.sources;
        let (shape, biases) = (&decoder.shape, decoder.biases);
        let (prefix, width) = (&*format!("{}.{idx}", names.layer), shape.width as usize);
        let (heads, kv_heads) = (shape.heads as usize, shape.kv_heads as usize);
        let head_dim = shape.head_dim as usize;
        let (q_rows, kv_rows) = (heads * head_dim, kv_heads * head_dim);
        let (norm_eps, kv) = (norm_eps(decoder), self.options.kv);
        let activation = decoder.activations[idx];
        let spec = LayerSpec { heads, kv_heads, head_dim, norm_eps, activation, kv };
        let (has_qk_norms, [q_span, k_span]) = match decoder.qk_norm {
            QkNorm::Nothing => (false, [0; 2]),
            QkNorm::EachHead => (true, [head_dim; 2]),
            QkNorm::AllHeads => (true, [q_rows, kv_rows]),
        };
        let (pre_norms, post_norms) = (decoder.family.pre_norms(), decoder.family.post_norms());
        // In this order tensors are read, and so known by the fingerprint.
        let q_norm = self.norm_of(prefix, names.q_norm, has_qk_norms.then_some(q_span))?;
        let k_norm = self.norm_of(prefix, names.k_norm, has_qk_norms.then_some(k_span))?;
        let attn_post_norm =
            self.norm_of(prefix, names.attn_post_norm, post_norms.then_some(width))?;
        let ffn_post_norm =
            self.norm_of(prefix, names.ffn_post_norm, post_norms.then_some(width))?;
        let sinks = match decoder.family.sinks() {
            true => {
                let name = format!("{prefix}.{}", names.sinks);
                Some(self.read(&name, &[heads], Stored::f32)?.into())
            }
            false => None,
        };
        let (qkv, latent) = match decoder.latent {
            None => {
                let qkv = [(names.q, q_rows), (names.k, kv_rows), (names.v, kv_rows)];
                let qkv = self.parts(prefix, &qkv, names.qkv);
                let norm = Some(names.attn_norm);
                let qkv = Stacked { parts: &qkv, inputs: width, bias: biases.qkv, norm };
                (self.linear(prefix, qkv)?, None)
            }
            Some(latents) => {
                let (made, latent) = self.latent(prefix, latents)?;
                (made, Some(latent))
            }
        };
        let value_dim = latent.as_ref().map_or(head_dim, |latent| latent.value_dim);
        let inputs = heads * value_dim;
        let out = Stacked { parts: &[(names.out, width)], inputs, bias: biases.out, norm: None };
        let out = self.linear(prefix, out)?;
        let ffn = self.feed(prefix, idx)?;
        let attn_norm = self.norm_of(prefix, names.attn_norm, pre_norms.then_some(width))?;
        let ffn_norm = match decoder.shares_norm() {
            true => attn_norm.clone(),
            false => self.norm_of(prefix, names.ffn_norm, pre_norms.then_some(width))?,
        };
        Ok(LayerWeights {
            gate: None,
            recurrent: None,
            spec,
            parallel: decoder.parallel,
            qkv,
            latent,
            out,
            ffn,
            attn_norm,
            ffn_norm,
            q_norm,
            k_norm,
            norms_last: decoder.family.norms_last(),
            sinks,
            attn_post_norm,
            ffn_post_norm,
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
        let Stacked { parts, inputs, bias, norm } = stacked;
        let named = |suffix: &str| -> Vec<(String, usize)> {
            parts.iter().map(|(part, rows)| (format!("{prefix}.{part}.{suffix}"), *rows)).collect()
        };
        let biases = match bias {
            true => Some(self.stack(&named("bias"), &[], Stored::f32)?.concat()),
            false => None,
        };
        let norm = norm.map(|norm| format!("{prefix}.{norm}"));
        let shift = self.behind_norm(norm.as_deref(), &named("weight"), inputs)?;
        self.matrix(&named("weight"), inputs, layer_norms::sum(biases, shift))
    }

    /// Rows of all the tensors named in `parts`, one after the other.
    fn matrix(
        &mut self,
        parts: &[(String, usize)],
        inputs: usize,
        bias: Option<Vec<f32>>,
    ) -> Result<Linear, LoadError> {
        let tensors = &self.sources.checkpoint.tensors;
        let encodings: Vec<_> = parts.iter().map(|(name, _)| tensors.get(name)?.encoding).collect();
        let held = self.options.weights.held(self.options.kv, &encodings);
        self.matrix_held(held, parts, inputs, bias)
    }

    fn matrix_held(
        &mut self,
        held: Held,
        parts: &[(String, usize)],
        inputs: usize,
        bias: Option<Vec<f32>>,
    ) -> Result<Linear, LoadError> {
        self.fingerprint.hold(held);
        let data = match held {
            Held::F32 => MatrixData::F32(joined(self.stack(parts, &[inputs], Stored::f32)?)),
            Held::Bf16 => MatrixData::Bf16(joined(self.stack(parts, &[inputs], Stored::bf16)?)),
            Held::Int8 => {
                let stack = self.stack(parts, &[inputs], Stored::int8)?;
                let (q, scales) = stack.into_iter().map(|part| (part.q, part.scales)).unzip();
                MatrixData::Int8(Int8Rows { q: joined(q), scales: joined(scales) })
            }
        };
        let outputs = parts.iter().map(|(_, rows)| rows).sum();
        let packed = self.options.backend.pack(Matrix { outputs, inputs, data }, bias);
        let path = &self.sources.checkpoint.path;
        packed.map_err(|err| LoadError::tensor(path, &parts[0].0, err.to_string()))
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
        self.used.insert(name.to_owned());
        self.count(tensor);
        Ok(data)
    }

    fn count(&mut self, tensor: &Stored<'_>) {
        self.progress.tensors_done += 1;
        self.progress.bytes_done += tensor.bytes.len() as u64;
        (self.report)(self.progress);
    }

    /// Counts what the model has no use for (rotary tables, the head of a tied model).
    fn skip_the_rest(&mut self) {
        for (name, tensor) in &self.sources.checkpoint.tensors {
            if !self.used.contains(name) {
                tracing::debug!(tensor = name, path = tensor.path, "tensor is not used");
                self.count(tensor);
            }
        }
    }
}

/// All parts, one after the other; a single one as it is.
fn joined<T: Clone>(mut parts: Vec<Vec<T>>) -> Vec<T> {
    if parts.len() == 1 { parts.remove(0) } else { parts.concat() }
}
