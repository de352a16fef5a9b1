//! A random decoder, small enough that a whole cluster of it runs in a blink.

use std::sync::Arc;

use aqueduct_core::{ModelShape, WideHeads, WindowedLayers};
use aqueduct_engine::{Model, ModelParts, Rope};
use aqueduct_kernels::{
    Activation, Backend, Convolution, FeedForward, Gated, KvDtype, LayerSpec, LayerWeights, Linear,
    Matrix, MatrixData, Recurrent, Reference, Rule,
};

/// 8 layers, 4 query heads in 2 groups, heads of 8 elements.
pub(crate) fn tiny(kv: KvDtype) -> Arc<Model> {
    tiny_on(kv, Arc::new(Reference))
}

/// The same, computed by `backend`.
pub(crate) fn tiny_on(kv: KvDtype, backend: Arc<dyn Backend>) -> Arc<Model> {
    made(("tiny", 8), kv, backend, |_, _| None)
}

/// Elements of the state that [`hybrid`] has: two inputs of each channel.
pub(crate) const STATE_LEN: usize = 2 * 24;

/// The first one with one more layer, which remembers in a state.
pub(crate) fn hybrid(kv: KvDtype) -> Arc<Model> {
    made(("hybrid", 9), kv, Arc::new(Reference), |idx, weights| {
        (idx == 8).then(|| weights.recurrent(3, 24, Rule::Gated))
    })
}

/// With layers that are recurrent where `recurrent` says so. One of the others has a gate then.
pub(crate) fn made(
    name: (&str, u32),
    kv: KvDtype,
    backend: Arc<dyn Backend>,
    recurrent: fn(u32, &mut Weights) -> Option<Recurrent>,
) -> Arc<Model> {
    Arc::new(Model::new(parts(name, kv, backend, recurrent)).unwrap())
}

/// What [`made`] makes it of.
pub(crate) fn parts(
    (name, layers): (&str, u32),
    kv: KvDtype,
    backend: Arc<dyn Backend>,
    recurrent: fn(u32, &mut Weights) -> Option<Recurrent>,
) -> ModelParts {
    let mut shape = ModelShape {
        vocab: 61,
        layers,
        width: 24,
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        ffn: 40,
        max_positions: 0,
        recurrent_layers: 0,
        state_bytes: 0,
        wide: WideHeads::NONE,
        kv_shared_layers: 0,
        windowed: WindowedLayers::NONE,
    };
    let activation = Activation::Silu;
    let spec = LayerSpec { heads: 4, kv_heads: 2, head_dim: 8, norm_eps: 1e-6, activation, kv };
    let mut weights = Weights::new(backend.clone(), 1);
    let ones: Arc<[f32]> = vec![1.0; 24].into();
    let embed = weights.linear(61, 24, 1.0);
    let layer = |weights: &mut Weights| LayerWeights {
        spec,
        attn_norm: Some(ones.clone()),
        gate: None,
        recurrent: None,
        qkv: weights.linear(4 * 8 + 2 * 2 * 8, 24, 0.5),
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
        out: weights.linear(24, 4 * 8, 0.3),
        attn_post_norm: None,
        ffn_norm: Some(ones.clone()),
        ffn: FeedForward::Dense(Gated {
            gate_up: weights.linear(2 * 40, 24, 0.3),
            down: weights.linear(24, 40, 0.3),
        }),
        parallel: false,
        ffn_post_norm: None,
        scale: None,
    };
    let mut layers: Vec<_> = (0..shape.layers).map(|_| layer(&mut weights)).collect();
    for (idx, layer) in (0..).zip(&mut layers) {
        let Some(recurrent) = recurrent(idx, &mut weights) else { continue };
        shape.recurrent_layers += 1;
        shape.state_bytes += 4 * recurrent.state_len() as u64;
        layer.qkv = weights.linear(recurrent.columns(), 24, 0.5);
        layer.out = weights.linear(24, recurrent.outputs(), 0.3);
        layer.recurrent = Some(Arc::new(recurrent));
    }
    if shape.recurrent_layers > 0 {
        layers[5].gate = Some(weights.linear(4 * 8, 24, 0.5));
    }
    ModelParts {
        fingerprint: format!("{name}-{kv:?}"),
        embed: embed.clone(),
        layers,
        embed_scale: 1.0,
        positions: None,
        windows: vec![None; shape.layers as usize],
        final_norm: ones.clone(),
        head: embed,
        ropes: vec![Rope::unscaled(10_000.0, 8); shape.layers as usize],
        temperature: None,
        still_temperature: None,
        scale: 1.0 / 8f32.sqrt(),
        softcap: None,
        slopes: None,
        logits_softcap: None,
        inputs: None,
        norm_eps: 1e-6,
        kv,
        shape,
        backend,
    }
}

pub(crate) struct Weights {
    backend: Arc<dyn Backend>,
    state: u64,
}

impl Weights {
    pub(crate) fn new(backend: Arc<dyn Backend>, state: u64) -> Self {
        Self { backend, state }
    }

    pub(crate) fn linear(&mut self, outputs: usize, inputs: usize, size: f32) -> Linear {
        let data = (0..outputs * inputs).map(|_| size * self.next()).collect();
        let matrix = Matrix { outputs, inputs, data: MatrixData::F32(data) };
        self.backend.pack(matrix, None).unwrap()
    }

    pub(crate) fn numbers(&mut self, count: usize) -> Arc<[f32]> {
        (0..count).map(|_| self.next()).collect()
    }

    pub(crate) fn recurrent(&mut self, taps: usize, channels: usize, rule: Rule) -> Recurrent {
        let (weights, bias) = (self.numbers(taps * channels), Some(self.numbers(channels)));
        Recurrent { conv: Convolution { taps, weights, bias }, rule }
    }

    /// Uniform in [-1, 1).
    fn next(&mut self) -> f32 {
        self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}
