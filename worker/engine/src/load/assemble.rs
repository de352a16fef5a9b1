//! Reads, checks, stacks and packs a checkpoint's tensors into a [`Model`].

use std::collections::BTreeSet;
use std::sync::Arc;

use aqueduct_core::Refusal;
use aqueduct_kernels::{KvDtype, LayerSpec, LayerWeights, Linear, Matrix, MatrixData, Op};
use half::bf16;
use half::slice::HalfFloatSliceExt;

use super::checkpoint::{Checkpoint, Stored};
use super::decoder::Decoder;
use super::fingerprint::Fingerprint;
use super::names::Names;
use super::{LoadOptions, LoadProgress, WeightDtype};
use crate::error::LoadError;
use crate::model::{Model, ModelParts};

/// What a model is made from.
pub(crate) struct Sources<'a> {
    pub(crate) decoder: Decoder,
    pub(crate) checkpoint: Checkpoint<'a>,
    pub(crate) names: &'static Names,
}

impl Sources<'_> {
    /// Whether logits come from the embedding. A stored head that differs from it counts for
    /// more than the configuration, as in transformers 5.
    fn is_tied(&self) -> bool {
        let Self { decoder, checkpoint, names } = self;
        let bytes = |name| checkpoint.tensors.get(&format!("{name}.weight")).map(|it| it.bytes);
        let own_head = bytes(names.head).filter(|&head| bytes(names.embed) != Some(head));
        if decoder.tied && own_head.is_some() {
            tracing::warn!(path = checkpoint.path, "tied by configuration, but has its own head");
        }
        decoder.tied && own_head.is_none()
    }
}

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
        .map(|idx| assembler.layer(&format!("{}.{idx}", names.layer)))
        .collect::<Result<_, _>>()?;
    let final_norm = assembler.vector(&format!("{}.weight", names.final_norm), width)?;
    let head = match sources.is_tied() {
        true => embed.clone(),
        false => assembler.table(names.head, vocab, width)?,
    };
    assembler.skip_the_rest();
    let parts = ModelParts {
        shape: decoder.shape.clone(),
        fingerprint: assembler.fingerprint.finish(),
        backend: options.backend.clone(),
        embed,
        layers,
        windows: decoder.windows.clone(),
        final_norm,
        head,
        rope: decoder.rope.clone(),
        scale: 1.0 / (decoder.shape.head_dim as f32).sqrt(),
        norm_eps: decoder.norm_eps,
        kv: options.kv,
    };
    Model::new(parts).map_err(|refusal| LoadError::refused(&checkpoint.path, refusal))
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

    fn layer(&mut self, prefix: &str) -> Result<LayerWeights, LoadError> {
        let Sources { decoder, names, .. } = self.sources;
        let (shape, biases) = (&decoder.shape, decoder.biases);
        let (width, ffn) = (shape.width as usize, shape.ffn as usize);
        let (heads, kv_heads) = (shape.heads as usize, shape.kv_heads as usize);
        let head_dim = shape.head_dim as usize;
        let (q_rows, kv_rows) = (heads * head_dim, kv_heads * head_dim);
        let (norm_eps, kv) = (decoder.norm_eps, self.options.kv);
        let spec = LayerSpec { heads, kv_heads, head_dim, norm_eps, kv };
        let norm = |name| format!("{prefix}.{name}.weight");
        let (q_norm, k_norm) = match decoder.family.qk_norm() {
            true => (
                Some(self.vector(&norm(names.q_norm), head_dim)?),
                Some(self.vector(&norm(names.k_norm), head_dim)?),
            ),
            false => (None, None),
        };
        let qkv = [(names.q, q_rows), (names.k, kv_rows), (names.v, kv_rows)];
        let gate_up = [(names.gate, ffn), (names.up, ffn)];
        let mut linear = |parts: &[(&str, usize)], inputs, bias| {
            self.linear(prefix, Stacked { parts, inputs, bias })
        };
        Ok(LayerWeights {
            spec,
            qkv: linear(&qkv, width, biases.qkv)?,
            out: linear(&[(names.out, width)], q_rows, biases.out)?,
            gate_up: linear(&gate_up, width, biases.gate_up)?,
            down: linear(&[(names.down, width)], ffn, biases.down)?,
            attn_norm: self.vector(&norm(names.attn_norm), width)?,
            ffn_norm: self.vector(&norm(names.ffn_norm), width)?,
            q_norm,
            k_norm,
        })
    }

    /// A table with a row for every token of the vocabulary.
    fn table(&mut self, name: &str, rows: usize, inputs: usize) -> Result<Linear, LoadError> {
        let data = self.read(&format!("{name}.weight"), &[rows, inputs])?;
        self.pack(name, Matrix { outputs: rows, inputs, data }, None)
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Arc<[f32]>, LoadError> {
        Ok(widened(self.read(name, &[len])?).into())
    }

    fn linear(&mut self, prefix: &str, stacked: Stacked<'_>) -> Result<Linear, LoadError> {
        let Stacked { parts, inputs, bias } = stacked;
        let mut weights = Vec::with_capacity(parts.len());
        let mut biases = bias.then(Vec::new);
        for (name, rows) in parts {
            weights.push(self.read(&format!("{prefix}.{name}.weight"), &[*rows, inputs])?);
            if let Some(biases) = &mut biases {
                let part = self.read(&format!("{prefix}.{name}.bias"), &[*rows])?;
                biases.extend(widened(part));
            }
        }
        let outputs = parts.iter().map(|(_, rows)| rows).sum();
        let matrix = Matrix { outputs, inputs, data: stack(weights) };
        self.pack(&format!("{prefix}.{}", parts[0].0), matrix, biases)
    }

    fn pack(
        &self,
        name: &str,
        mut matrix: Matrix,
        bias: Option<Vec<f32>>,
    ) -> Result<Linear, LoadError> {
        matrix.data = match (self.options.weights, self.options.kv) {
            (WeightDtype::Auto, KvDtype::Bf16) => matrix.data,
            // Keys and values of f32 ask for full precision: what is multiplied by bf16 weights
            // would be rounded to bf16.
            (WeightDtype::F32, _) | (WeightDtype::Auto, KvDtype::F32) => {
                MatrixData::F32(widened(matrix.data))
            }
            (WeightDtype::Bf16, _) => MatrixData::Bf16(rounded(matrix.data)),
        };
        let path = &self.sources.checkpoint.path;
        let packed = self.options.backend.pack(matrix, bias);
        packed.map_err(|err| LoadError::tensor(path, name, err.to_string()))
    }

    fn read(&mut self, name: &str, shape: &[usize]) -> Result<MatrixData, LoadError> {
        let sources = self.sources;
        let tensor = sources.checkpoint.find(name, shape)?;
        let data = tensor.decode(name)?;
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

/// Rows of all parts, one after the other; bf16 only where every part is.
fn stack(mut parts: Vec<MatrixData>) -> MatrixData {
    if parts.len() == 1 {
        return parts.remove(0);
    }
    if parts.iter().all(|part| matches!(part, MatrixData::Bf16(_))) {
        let parts: Vec<_> = parts.into_iter().map(rounded).collect();
        return MatrixData::Bf16(parts.concat());
    }
    let parts: Vec<_> = parts.into_iter().map(widened).collect();
    MatrixData::F32(parts.concat())
}

fn widened(data: MatrixData) -> Vec<f32> {
    match data {
        MatrixData::F32(data) => data,
        MatrixData::Bf16(data) => data.to_f32_vec(),
    }
}

fn rounded(data: MatrixData) -> Vec<bf16> {
    match data {
        MatrixData::F32(data) => data.into_iter().map(bf16::from_f32).collect(),
        MatrixData::Bf16(data) => data,
    }
}
