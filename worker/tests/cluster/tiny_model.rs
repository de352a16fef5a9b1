//! A random decoder, small enough that a whole cluster of it runs in a blink.

use std::sync::Arc;

use aqueduct_core::ModelShape;
use aqueduct_engine::{Model, ModelParts, Rope};
use aqueduct_kernels::{
    Activation, Backend, Convolution, FeedForward, Gated, KvDtype, LayerSpec, LayerWeights, Linear,
    Matrix, MatrixData, Recurrent, Reference, Rule,
};

/// Elements of the state that [`hybrid`] has: two inputs of each channel.
pub(crate) const STATE_LEN: usize = 2 * 24;

/// 8 layers, 4 query heads in 2 groups, heads of 8 elements.
pub(crate) fn tiny(kv: KvDtype) -> Arc<Model> {
    tiny_on(kv, Arc::new(Reference))
}

/// The same, computed by `backend`.
pub(crate) fn tiny_on(kv: KvDtype, backend: Arc<dyn Backend>) -> Arc<Model> {
    model("tiny", kv, backend)
}

/// The same with one more layer, which remembers in a state.
pub(crate) fn hybrid(kv: KvDtype) -> Arc<Model> {
    model("hybrid", kv, Arc::new(Reference))
}

fn model(name: &str, kv: KvDtype, backend: Arc<dyn Backend>) -> Arc<Model> {
    let recurrent_layers = u32::from(name == "hybrid");
    let shape = ModelShape {
        vocab: 61,
        layers: 8 + recurrent_layers,
        width: 24,
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        ffn: 40,
        max_positions: 0,
        recurrent_layers,
        state_bytes: u64::from(recurrent_layers) * 4 * STATE_LEN as u64,
    };
    let activation = Activation::Silu;
    let spec = LayerSpec { heads: 4, kv_heads: 2, head_dim: 8, norm_eps: 1e-6, activation, kv };
    let mut weights = Weights { backend: backend.clone(), state: 1 };
    let ones: Arc<[f32]> = vec![1.0; 24].into();
    let embed = weights.linear(61, 24, 1.0);
    let layer = |weights: &mut Weights| LayerWeights {
        spec,
        attn_norm: Some(ones.clone()),
        qkv: weights.linear(4 * 8 + 2 * 2 * 8, 24, 0.5),
        latent: None,
        q_norm: None,
        k_norm: None,
        norms_last: false,
        sinks: None,
        out: weights.linear(24, 4 * 8, 0.3),
        attn_post_norm: None,
        gate: None,
        recurrent: None,
        ffn_norm: Some(ones.clone()),
        ffn: FeedForward::Dense(Gated {
            gate_up: weights.linear(2 * 40, 24, 0.3),
            down: weights.linear(24, 40, 0.3),
        }),
        parallel: false,
        ffn_post_norm: None,
    };
    let mut layers: Vec<_> = (0..8).map(|_| layer(&mut weights)).collect();
    layers.extend((0..recurrent_layers).map(|_| LayerWeights {
        qkv: weights.linear(3 * 24, 24, 0.5),
        recurrent: Some(Arc::new(weights.recurrent(24))),
        out: weights.linear(24, 24, 0.3),
        ..layer(&mut weights)
    }));
    let parts = ModelParts {
        fingerprint: format!("{name}-{kv:?}"),
        embed: embed.clone(),
        layers,
        embed_scale: 1.0,
        windows: vec![None; shape.layers as usize],
        final_norm: ones.clone(),
        head: embed,
        ropes: vec![Rope::unscaled(10_000.0, 8); shape.layers as usize],
        temperature: None,
        scale: 1.0 / 8f32.sqrt(),
        softcap: None,
        logits_softcap: None,
        norm_eps: 1e-6,
        kv,
        shape,
        backend,
    };
    Arc::new(Model::new(parts).unwrap())
}

struct Weights {
    backend: Arc<dyn Backend>,
    state: u64,
}

impl Weights {
    fn linear(&mut self, outputs: usize, inputs: usize, size: f32) -> Linear {
        let data = (0..outputs * inputs).map(|_| size * self.next()).collect();
        let matrix = Matrix { outputs, inputs, data: MatrixData::F32(data) };
        self.backend.pack(matrix, None).unwrap()
    }

    /// A gated convolution that sees three inputs.
    fn recurrent(&mut self, channels: usize) -> Recurrent {
        let weights = (0..3 * channels).map(|_| self.next()).collect();
        Recurrent { conv: Convolution { taps: 3, weights, bias: None }, rule: Rule::Gated }
    }

    /// Uniform in [-1, 1).
    fn next(&mut self) -> f32 {
        self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}
