//! What rows are made with: a device, what it gives at most, and arrays on it.

use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;

use aqueduct_kernels::cuda::Cuda;
use aqueduct_kernels::{
    Activation, Angles, Array, BackendError, FeedForward, Gated, Heads, Keys, KvData, KvDtype,
    KvHeads, LayerSpec, LayerWeights, Leaves, MemorySet, Queries, Rows, Scope,
};

use super::measure::median_seconds;
use super::shape::Shape;
use crate::commands::bench_kernels::noise;

/// Of bf16 in the datasheets of H100 SXM and H200.
pub(super) const PEAK: f64 = 989e12;

/// What rows are made with.
pub(super) struct Bench {
    pub(super) cuda: Arc<Cuda>,
    /// What the device calls itself.
    pub(super) chip: String,
    pub(super) shape: Shape,
    copy: OnceCell<f64>,
    read: OnceCell<f64>,
    products: OnceCell<f64>,
}

type Answer<T> = Result<T, BackendError>;

impl Bench {
    pub(super) fn new(cuda: Arc<Cuda>, chip: String, shape: Shape) -> Self {
        let (copy, read, products) = Default::default();
        Self { cuda, chip, shape, copy, read, products }
    }

    /// Bytes a second that are read and written, both counted, measured once.
    pub(super) fn copy_roof(&self) -> Answer<f64> {
        roof(&self.copy, || {
            let span = self.cuda.span(self.shape.span_bytes)?;
            let seconds = median_seconds(&self.cuda, &mut || self.cuda.copy_span(&span))?;
            Ok(2.0 * self.shape.span_bytes as f64 / seconds)
        })
    }

    /// Bytes a second that are read, measured once.
    pub(super) fn read_roof(&self) -> Answer<f64> {
        roof(&self.read, || {
            let span = self.cuda.span(self.shape.span_bytes)?;
            let seconds = median_seconds(&self.cuda, &mut || self.cuda.read_span(&span))?;
            Ok(self.shape.span_bytes as f64 / seconds)
        })
    }

    /// FLOP a second of one large product of random bf16, measured once.
    pub(super) fn products_roof(&self) -> Answer<f64> {
        roof(&self.products, || {
            let size = self.shape.product;
            let (x, weight) = (self.rows(size, size)?, self.cuda.noise_linear(size, size, 2)?);
            let mut work = || self.cuda.product(&x, &weight).map(drop);
            Ok(2.0 * (size as f64).powi(3) / median_seconds(&self.cuda, &mut work)?)
        })
    }

    /// Rows as attention leaves them: kept as bf16.
    pub(super) fn rows(&self, rows: usize, columns: usize) -> Answer<Rows> {
        Ok(Rows::new(rows, columns, self.cuda.noise_rounded(rows * columns, 1.0, 1)?))
    }

    /// Hidden states: kept as f32.
    pub(super) fn hidden(&self, rows: usize) -> Answer<Rows> {
        let width = self.shape.width;
        let noise = self.cuda.noise_rounded(rows * width, 1.0, 3)?;
        Ok(Rows::new(rows, width, self.cuda.here(&Array::from(noise.into_vec()))?))
    }

    /// Keys at these positions.
    pub(super) fn keys(&self, positions: Range<u32>) -> Answer<Keys> {
        let Shape { kv_heads, head_dim, .. } = self.shape;
        let tokens = positions.len();
        let heads = |seed: u64| -> Answer<KvHeads> {
            let seed = seed + u64::from(positions.start);
            let data = self.cuda.noise(kv_heads * tokens * head_dim, 1.0, seed)?;
            Ok(KvHeads { kv_heads, tokens, head_dim, data: KvData::Bf16(data) })
        };
        let all: Vec<u32> = positions.clone().collect();
        self.cuda.keys_here(&Keys::new(all.repeat(kv_heads), heads(5)?, heads(6)?))
    }

    /// Rows behind as many past keys, and these.
    pub(super) fn block(&self, tokens: usize, past: usize) -> Answer<Block> {
        let Shape { heads, head_dim, .. } = self.shape;
        let start = past as u32;
        let data = self.cuda.noise_rounded(heads * tokens * head_dim, 1.0, 4)?;
        Ok(Block {
            cuda: self.cuda.clone(),
            q: Heads { heads, tokens, head_dim, data },
            start,
            past: self.keys(0..start)?,
            own: self.keys(start..start + tokens as u32)?,
        })
    }

    /// Full of the first M keys.
    pub(super) fn memory(&self) -> Answer<MemorySet> {
        let (count, end) = (self.shape.kv_heads * self.shape.memory, self.shape.memory as u32);
        let tally = || {
            let positive: Vec<f32> = noise(count).into_iter().map(f32::abs).collect();
            self.cuda.here(&Array::from(positive))
        };
        let (keys, score, votes) = (self.keys(0..end)?, tally()?, tally()?);
        Ok(MemorySet { keys, score, votes, state: Array::default(), end })
    }

    /// A layer of its own.
    pub(super) fn layer(&self, seed: u64) -> Answer<LayerWeights> {
        let Shape { width, heads, kv_heads, head_dim, .. } = self.shape;
        let maps = self.shape.maps();
        let map =
            |idx: usize| self.cuda.noise_linear(maps[idx].0, maps[idx].1, 4 * seed + idx as u64);
        let norm: Arc<[f32]> = vec![1.0; width].into();
        Ok(LayerWeights {
            gate: None,
            recurrent: None,
            spec: LayerSpec {
                heads,
                kv_heads,
                head_dim,
                norm_eps: 1e-5,
                activation: Activation::Silu,
                kv: KvDtype::Bf16,
            },
            attn_norm: Some(norm.clone()),
            qkv: map(0)?,
            latent: None,
            q_norm: None,
            k_norm: None,
            v_norm: None,
            keys_of: None,
            beside_last: false,
            out_norm: None,
            hidden_norm: None,
            input: None,
            norms_last: false,
            norms_apart: false,
            clip: None,
            sinks: None,
            out: map(1)?,
            attn_post_norm: None,
            ffn_norm: Some(norm),
            ffn: FeedForward::Dense(Gated { gate_up: map(2)?, down: map(3)? }),
            parallel: false,
            ffn_post_norm: None,
            scale: None,
        })
    }

    /// Of a chunk behind the memory. No measure depends on what they are.
    pub(super) fn angles(&self) -> Angles {
        let (tokens, half) = (self.shape.chunk, self.shape.head_dim / 2);
        let all = |of: fn(f32) -> f32| (0..tokens * half).map(|i| of(i as f32)).collect();
        Angles { tokens, half, cos: all(f32::cos), sin: all(f32::sin) }
    }
}

fn roof(known: &OnceCell<f64>, measure: impl FnOnce() -> Answer<f64>) -> Answer<f64> {
    if let Some(&roof) = known.get() {
        return Ok(roof);
    }
    let measured = measure()?;
    Ok(*known.get_or_init(|| measured))
}

/// A block's rows and what they look at.
pub(super) struct Block {
    pub(super) cuda: Arc<Cuda>,
    q: Heads,
    start: u32,
    pub(super) past: Keys,
    pub(super) own: Keys,
}

impl Block {
    pub(super) fn queries(&self) -> Queries<'_> {
        let scale = 1.0 / (self.q.head_dim as f32).sqrt();
        Queries { q: &self.q, start: self.start, scale, window: None, softcap: None, slopes: None }
    }

    pub(super) fn scope<'a>(&'a self, row_weights: Option<&'a [f32]>) -> Scope<'a> {
        let (past, leaves, own) = (&self.past, Leaves::ONE, &self.own);
        Scope { past, leaves, own, row_weights, sinks: None, outputs: own.len(), rounded: true }
    }
}
