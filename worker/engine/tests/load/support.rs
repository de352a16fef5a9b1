//! A tiny model, written as a Hugging Face folder and as a GGUF file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aqueduct_engine::{LoadError, LoadOptions, Model, WeightDtype};
use aqueduct_gguf::write::Writer;
use aqueduct_kernels::{KvDtype, Reference};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

const VOCAB: usize = 11;
const WIDTH: usize = 8;
const FFN: usize = 6;
const HEADS: usize = 2;
const HEAD_DIM: usize = 4;
const LAYERS: usize = 2;

/// Name in a Hugging Face folder, name in GGUF, shape; `{}` stands for the layer.
const LAYER_TENSORS: [(&str, &str, &[usize]); 9] = [
    ("input_layernorm", "attn_norm", &[WIDTH]),
    ("self_attn.q_proj", "attn_q", &[HEADS * HEAD_DIM, WIDTH]),
    ("self_attn.k_proj", "attn_k", &[HEAD_DIM, WIDTH]),
    ("self_attn.v_proj", "attn_v", &[HEAD_DIM, WIDTH]),
    ("self_attn.o_proj", "attn_output", &[WIDTH, HEADS * HEAD_DIM]),
    ("post_attention_layernorm", "ffn_norm", &[WIDTH]),
    ("mlp.gate_proj", "ffn_gate", &[FFN, WIDTH]),
    ("mlp.up_proj", "ffn_up", &[FFN, WIDTH]),
    ("mlp.down_proj", "ffn_down", &[WIDTH, FFN]),
];

/// A tensor with both its names.
#[derive(Debug, Clone)]
pub(crate) struct Tensor {
    pub(crate) hf: String,
    pub(crate) gguf: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<f32>,
}

impl Tensor {
    fn new(hf: String, gguf: String, shape: &[usize], seed: &mut u32) -> Self {
        let data = (0..shape.iter().product()).map(|_| uniform(seed)).collect();
        Self { hf: hf + ".weight", gguf: gguf + ".weight", shape: shape.to_vec(), data }
    }

    fn bytes(&self) -> Vec<u8> {
        self.data.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    /// As llama.cpp's converter orders the rows of queries and keys.
    pub(crate) fn interleaved(&self) -> Self {
        let row = self.shape[1];
        let mut data = Vec::new();
        for head in self.data.chunks(HEAD_DIM * row) {
            for pair in 0..HEAD_DIM / 2 {
                for half in [0, HEAD_DIM / 2] {
                    data.extend(&head[(half + pair) * row..(half + pair + 1) * row]);
                }
            }
        }
        Self { data, ..self.clone() }
    }
}

/// Numbers between -1 and 1, always the same ones.
fn uniform(seed: &mut u32) -> f32 {
    *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    (*seed >> 8) as f32 / (1 << 23) as f32 - 1.0
}

/// The tensors of the tiny Llama.
pub(crate) fn tensors() -> Vec<Tensor> {
    let mut seed = 1;
    let mut all = Vec::new();
    let mut add = |hf: String, gguf: String, shape: &[usize]| {
        all.push(Tensor::new(hf, gguf, shape, &mut seed));
    };
    add("model.embed_tokens".into(), "token_embd".into(), &[VOCAB, WIDTH]);
    for layer in 0..LAYERS {
        for (hf, gguf, shape) in LAYER_TENSORS {
            add(format!("model.layers.{layer}.{hf}"), format!("blk.{layer}.{gguf}"), shape);
        }
    }
    add("model.norm".into(), "output_norm".into(), &[WIDTH]);
    add("lm_head".into(), "output".into(), &[VOCAB, WIDTH]);
    all
}

/// The same with queries, keys and values in one, and gate and up, `as_stored` beforehand.
pub(crate) fn fused(as_stored: impl Fn(&Tensor) -> Tensor) -> Vec<Tensor> {
    const FIRST: [[[&str; 2]; 2]; 2] = [
        [["q_proj", "qkv_proj"], ["attn_q.", "attn_qkv."]],
        [["gate_proj", "gate_up_proj"], ["ffn_gate.", "ffn_up."]],
    ];
    let mut all: Vec<Tensor> = Vec::new();
    for tensor in tensors() {
        let is = |name: &str| tensor.hf.contains(&format!(".{name}."));
        let part = as_stored(&tensor);
        if let Some([hf, gguf]) = FIRST.iter().find(|[[first, _], _]| is(first)) {
            let [hf, gguf] =
                [tensor.hf.replace(hf[0], hf[1]), tensor.gguf.replace(gguf[0], gguf[1])];
            all.push(Tensor { hf, gguf, ..part });
        } else if ["k_proj", "v_proj", "up_proj"].into_iter().any(is) {
            let whole = all.last_mut().unwrap();
            whole.shape[0] += part.shape[0];
            whole.data.extend(part.data);
        } else {
            all.push(part);
        }
    }
    all
}

/// Its config.json.
pub(crate) fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
    })
}

/// A safetensors file with these tensors in f32.
pub(crate) fn safetensors(tensors: &[Tensor]) -> Vec<u8> {
    let bytes: Vec<Vec<u8>> = tensors.iter().map(Tensor::bytes).collect();
    let views: BTreeMap<&str, TensorView<'_>> = tensors
        .iter()
        .zip(&bytes)
        .map(|(tensor, bytes)| {
            let view = TensorView::new(Dtype::F32, tensor.shape.clone(), bytes).unwrap();
            (tensor.hf.as_str(), view)
        })
        .collect();
    safetensors::serialize(views, None).unwrap()
}

/// A GGUF file with these tensors in f32.
pub(crate) fn gguf(tensors: &[Tensor]) -> Vec<u8> {
    with_tensors(described(), tensors).finish()
}

/// The same with one more key.
pub(crate) fn with_metadata(key: &str, value: u32) -> Vec<u8> {
    described_by(|writer| writer.u32(key, value))
}

/// The same with other keys more.
pub(crate) fn described_by(more: impl FnOnce(Writer) -> Writer) -> Vec<u8> {
    described_as("llama", more)
}

/// The same in two parts, as llama.cpp splits it, of which the second calls itself `second`.
pub(crate) fn split_gguf(tensors: &[Tensor], second: u32) -> [Vec<u8>; 2] {
    let (a, b) = tensors.split_at(tensors.len() / 3);
    let part = |writer: Writer, number| writer.u32("split.count", 2).u32("split.no", number);
    [
        with_tensors(part(described(), 0), a).finish(),
        with_tensors(part(Writer::new(), second), b).finish(),
    ]
}

/// The same as a file of this architecture, with other keys more.
pub(crate) fn described_as(architecture: &str, more: impl FnOnce(Writer) -> Writer) -> Vec<u8> {
    with_tensors(more(metadata(architecture)), &tensors()).finish()
}

/// Metadata alone.
fn described() -> Writer {
    metadata("llama")
}

fn metadata(architecture: &str) -> Writer {
    let key = |name: &str| format!("{architecture}.{name}");
    Writer::new()
        .str("general.architecture", architecture)
        .u32(&key("block_count"), LAYERS as u32)
        .u32(&key("embedding_length"), WIDTH as u32)
        .u32(&key("feed_forward_length"), FFN as u32)
        .u32(&key("attention.head_count"), HEADS as u32)
        .u32(&key("attention.head_count_kv"), 1)
        .u32(&key("attention.key_length"), HEAD_DIM as u32)
        .u32(&key("context_length"), 64)
        .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
        .f32(&key("rope.freq_base"), 10_000.0)
}

fn with_tensors(mut writer: Writer, tensors: &[Tensor]) -> Writer {
    for tensor in tensors {
        let turned = tensor.gguf.contains("attn_q.") || tensor.gguf.contains("attn_k.");
        let stored = if turned { tensor.interleaved() } else { tensor.clone() };
        let dims: Vec<u64> = tensor.shape.iter().rev().map(|&dim| dim as u64).collect();
        writer = writer.tensor(&tensor.gguf, &dims, 0, &stored.bytes());
    }
    writer
}

/// A folder that goes away with the value.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn empty() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn with(self, name: &str, bytes: impl AsRef<[u8]>) -> Self {
        std::fs::write(self.path().join(name), bytes).unwrap();
        self
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }
}

/// The tiny model as a Hugging Face folder with this config.json.
pub(crate) fn hf_folder(config: &Value) -> Folder {
    let model = safetensors(&tensors());
    Folder::empty().with("config.json", config.to_string()).with("model.safetensors", model)
}

pub(crate) fn options() -> LoadOptions {
    LoadOptions { kv: KvDtype::F32, weights: WeightDtype::Auto, backend: Arc::new(Reference) }
}

pub(crate) fn load(path: &Path) -> Result<Model, LoadError> {
    Model::load(path, &options(), &mut |_| {})
}
