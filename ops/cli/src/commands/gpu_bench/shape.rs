//! How large everything is, and how much work that makes.

use aqueduct_kernels::{Ranking, Selection};

/// Sizes of a model, of its chunks and of its memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) width: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) ffn: usize,
    pub(super) vocab: usize,
    pub(super) layers: usize,
    /// C.
    pub(super) chunk: usize,
    /// M, of which half is recent or a sink.
    pub(super) memory: usize,
    /// Keys of a decode step over all keys.
    pub(super) depth: usize,
    /// Tokens of a prompt, whole chunks.
    pub(super) prompt: usize,
    /// Rows, columns and depth of the product that stands for the matrix peak.
    pub(super) product: usize,
    /// Bytes that are copied and read to see what memory gives.
    pub(super) span_bytes: usize,
}

/// An 8B model; 128 MiB of keys and values at the depth.
pub(super) const EIGHT_B: Shape = Shape {
    width: 4096,
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    ffn: 14_336,
    vocab: 128_256,
    layers: 32,
    chunk: 4096,
    memory: 1024,
    depth: 32_768,
    prompt: 32_768,
    product: 8192,
    span_bytes: 1 << 30,
};

pub(super) const SINKS: usize = 4;

impl Shape {
    pub(super) fn local(&self) -> usize {
        self.memory / 2 - SINKS
    }

    pub(super) fn heavy(&self) -> usize {
        self.memory / 2
    }

    /// M keys stay.
    pub(super) fn selection(&self) -> Selection {
        Selection {
            keep_all: false,
            sinks: SINKS as u32,
            local: self.local() as u32,
            heavy: self.heavy(),
            ranking: Ranking { decay: 1.0, window: 0, age_normalised: false },
            window: None,
        }
    }

    /// FLOP of attention of a chunk over so many past keys and its own.
    pub(super) fn attention_flop(&self, past: usize) -> f64 {
        let pairs = self.chunk * (self.chunk + 1) / 2 + self.chunk * past;
        4.0 * (self.head_dim * self.heads * pairs) as f64
    }

    /// FLOP of attention of a chunk over past keys alone.
    pub(super) fn past_flop(&self) -> f64 {
        4.0 * (self.head_dim * self.heads * self.chunk * self.memory) as f64
    }

    /// FLOP of the masses of a chunk's last `rows` over memory and own keys.
    pub(super) fn masses_flop(&self, rows: usize) -> f64 {
        let seen: usize = (self.chunk - rows..self.chunk).map(|row| row + 1 + self.memory).sum();
        2.0 * (self.head_dim * self.heads * seen) as f64
    }

    /// Outputs and inputs of a layer's maps: QKV, out, gate and up, down.
    pub(super) fn maps(&self) -> [(usize, usize); 4] {
        let Self { width, heads, kv_heads, head_dim, ffn, .. } = *self;
        [
            ((heads + 2 * kv_heads) * head_dim, width),
            (width, heads * head_dim),
            (2 * ffn, width),
            (width, ffn),
        ]
    }

    /// Weights of a layer.
    pub(super) fn layer_weights(&self) -> usize {
        self.maps().iter().map(|(outputs, inputs)| outputs * inputs).sum()
    }

    /// Bytes of the model in bf16, head and embedding being one.
    pub(super) fn model_bytes(&self) -> usize {
        2 * (self.layers * self.layer_weights() + self.vocab * self.width)
    }

    /// FLOP of a layer's maps on a chunk.
    pub(super) fn layer_flop(&self) -> f64 {
        2.0 * (self.chunk * self.layer_weights()) as f64
    }

    /// Bytes of so many keys with their values, in bf16.
    pub(super) fn kv_bytes(&self, keys: usize) -> usize {
        2 * 2 * self.kv_heads * keys * self.head_dim
    }
}
