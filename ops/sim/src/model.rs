//! A random decoder, small enough that a prompt takes milliseconds. Its numbers are real: a
//! memory that is lost, doubled or out of order changes tokens.

use std::sync::Arc;

use aqueduct_core::ModelShape;
use aqueduct_engine::{Model, ModelParts, Rope};
use aqueduct_kernels::{
    Activation, Backend, FeedForward, Gated, KvDtype, LayerSpec, LayerWeights, Linear, Matrix,
    MatrixData, Reference,
};

use crate::dice::Dice;

/// Tokens of its vocabulary.
pub(crate) const VOCAB: u32 = 61;

const LAYERS: u32 = 2;
const WIDTH: usize = 16;
const HEADS: usize = 2;
const HEAD_DIM: usize = 8;
const FFN: usize = 24;

/// 2 layers, 2 query heads on one KV head, keys and values in bf16.
pub(crate) fn model() -> Arc<Model> {
    let backend: Arc<dyn Backend> = Arc::new(Reference);
    let mut weights = Weights { backend: backend.clone(), dice: Dice::new(1) };
    let shape = ModelShape {
        vocab: VOCAB,
        layers: LAYERS,
        width: WIDTH as u32,
        heads: HEADS as u32,
        kv_heads: 1,
        head_dim: HEAD_DIM as u32,
        ffn: FFN as u32,
        max_positions: 0,
        recurrent_layers: 0,
        state_bytes: 0,
    };
    let embed = weights.linear(VOCAB as usize, WIDTH, 1.0);
    let layers = (0..LAYERS).map(|_| weights.layer()).collect();
    let parts = ModelParts {
        fingerprint: "simulated".into(),
        embed: embed.clone(),
        layers,
        windows: vec![None; LAYERS as usize],
        final_norm: vec![1.0; WIDTH].into(),
        head: embed,
        embed_scale: 1.0,
        ropes: vec![Rope::unscaled(10_000.0, HEAD_DIM); LAYERS as usize],
        temperature: None,
        scale: 1.0 / (HEAD_DIM as f32).sqrt(),
        softcap: None,
        logits_softcap: None,
        norm_eps: 1e-6,
        kv: KvDtype::Bf16,
        shape,
        backend,
    };
    Arc::new(Model::new(parts).expect("its parts fit together"))
}

struct Weights {
    backend: Arc<dyn Backend>,
    dice: Dice,
}

impl Weights {
    fn layer(&mut self) -> LayerWeights {
        let ones: Arc<[f32]> = vec![1.0; WIDTH].into();
        LayerWeights {
            gate: None,
            recurrent: None,
            spec: LayerSpec {
                heads: HEADS,
                kv_heads: 1,
                head_dim: HEAD_DIM,
                norm_eps: 1e-6,
                activation: Activation::Silu,
                kv: KvDtype::Bf16,
            },
            attn_norm: Some(ones.clone()),
            qkv: self.linear((HEADS + 2) * HEAD_DIM, WIDTH, 0.6),
            latent: None,
            q_norm: None,
            k_norm: None,
            norms_last: false,
            sinks: None,
            out: self.linear(WIDTH, HEADS * HEAD_DIM, 0.5),
            attn_post_norm: None,
            ffn_norm: Some(ones),
            ffn: FeedForward::Dense(Gated {
                gate_up: self.linear(2 * FFN, WIDTH, 0.4),
                down: self.linear(WIDTH, FFN, 0.4),
            }),
            parallel: false,
            ffn_post_norm: None,
        }
    }

    fn linear(&mut self, outputs: usize, inputs: usize, size: f32) -> Linear {
        let uniform = |_| size * ((self.dice.roll() >> 40) as f32 / (1 << 23) as f32 - 1.0);
        let data = (0..outputs * inputs).map(uniform).collect();
        let matrix = Matrix { outputs, inputs, data: MatrixData::F32(data) };
        self.backend.pack(matrix, None).expect("f32 can be packed")
    }
}
