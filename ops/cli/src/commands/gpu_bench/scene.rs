//! One layer of an 8B-shaped model on a device, and the block that passes it.

use std::sync::Arc;

use aqueduct_kernels::backend::Qkv;
use aqueduct_kernels::cuda::Cuda;
use aqueduct_kernels::{
    Angles, Array, BackendError, Keys, KvDtype, KvHeads, LayerOps, LayerSpec, LayerWeights, Linear,
    Matrix, MatrixData, MemorySet, Queries, Ranking, Rows, Selection,
};
use half::bf16;

use super::super::bench_kernels::noise;

pub(super) const WIDTH: usize = 4096;
pub(super) const HEADS: usize = 32;
pub(super) const KV_HEADS: usize = 8;
pub(super) const HEAD_DIM: usize = 128;
pub(super) const FFN: usize = 14_336;
/// C, M, and the keys of a decode step: 128 MiB of keys and values.
pub(super) const CHUNK: usize = 4096;
pub(super) const MEMORY: usize = 1024;
pub(super) const DEPTH: usize = 32_768;

/// Four sinks, 508 recent, 512 heavy: M keys.
pub(super) const SELECTION: Selection = Selection {
    keep_all: false,
    sinks: 4,
    local: 508,
    heavy: 512,
    ranking: Ranking { decay: 1.0, window: 0, age_normalised: false },
};

/// All of it on the device.
pub(super) struct Scene {
    pub(super) layer: LayerWeights,
    pub(super) x: Rows,
    pub(super) angles: Angles,
    /// Of the block, which stands behind the memory.
    pub(super) qkv: Qkv,
    pub(super) memory: Arc<MemorySet>,
    /// One row behind [`DEPTH`] keys.
    pub(super) step: Qkv,
    pub(super) deep: Keys,
}

impl Scene {
    pub(super) fn new(cuda: &Cuda) -> Result<Self, BackendError> {
        let layer = layer(cuda)?;
        let x = Rows::new(CHUNK, WIDTH, cuda.here(&noise(CHUNK * WIDTH).into())?);
        let angles = angles(MEMORY, CHUNK);
        let qkv = cuda.project(&layer, &x, MEMORY as u32, &angles)?;
        let keys = cuda.keys_here(&keys(MEMORY))?;
        let tally = || cuda.here(&Array::from(vec![1.0; KV_HEADS * MEMORY]));
        let (score, votes, end) = (tally()?, tally()?, MEMORY as u32);
        let one = Rows::new(1, WIDTH, cuda.here(&noise(WIDTH).into())?);
        let step = cuda.project(&layer, &one, DEPTH as u32, &angles_of_one())?;
        let deep = cuda.keys_here(&self::keys(DEPTH))?;
        let memory = Arc::new(MemorySet { keys, score, votes, end });
        Ok(Self { layer, x, angles, qkv, memory, step, deep })
    }
}

/// Queries of `q` at `start`.
pub(super) fn queries(qkv: &Qkv, start: usize) -> Queries<'_> {
    let scale = 1.0 / (HEAD_DIM as f32).sqrt();
    Queries { q: &qkv.q, start: start as u32, scale, window: None }
}

fn layer(cuda: &Cuda) -> Result<LayerWeights, BackendError> {
    let pack = |outputs: usize, inputs: usize| -> Result<Linear, BackendError> {
        let size = (inputs as f32).sqrt().recip();
        let data = noise(outputs * inputs).into_iter().map(|x| bf16::from_f32(x * size));
        let data = MatrixData::Bf16(data.collect());
        cuda.pack(Matrix { outputs, inputs, data }, None)
    };
    let norm: Arc<[f32]> = vec![1.0; WIDTH].into();
    Ok(LayerWeights {
        spec: LayerSpec {
            heads: HEADS,
            kv_heads: KV_HEADS,
            head_dim: HEAD_DIM,
            norm_eps: 1e-5,
            kv: KvDtype::Bf16,
        },
        attn_norm: norm.clone(),
        qkv: pack((HEADS + 2 * KV_HEADS) * HEAD_DIM, WIDTH)?,
        q_norm: None,
        k_norm: None,
        out: pack(WIDTH, HEADS * HEAD_DIM)?,
        ffn_norm: norm,
        gate_up: pack(2 * FFN, WIDTH)?,
        down: pack(WIDTH, FFN)?,
    })
}

fn angles(start: usize, tokens: usize) -> Angles {
    let half = HEAD_DIM / 2;
    let angle = |i: usize| {
        let (position, pair) = ((start + i / half) as f64, (i % half) as f64);
        position * 500_000_f64.powf(-pair / half as f64)
    };
    let all = |of: fn(f64) -> f64| (0..tokens * half).map(|i| of(angle(i)) as f32).collect();
    Angles { tokens, half, cos: all(f64::cos), sin: all(f64::sin) }
}

fn angles_of_one() -> Angles {
    angles(DEPTH, 1)
}

/// Keys at positions from 0 on.
fn keys(count: usize) -> Keys {
    let data = noise(KV_HEADS * count * HEAD_DIM);
    let heads = KvHeads::from_f32(KV_HEADS, count, HEAD_DIM, &data, KvDtype::Bf16);
    let positions: Vec<u32> = (0..count as u32).collect();
    Keys::new(positions.repeat(KV_HEADS), heads.clone(), heads)
}
