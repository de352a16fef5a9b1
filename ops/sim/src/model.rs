//! A random decoder, small enough that a prompt takes milliseconds. Its numbers are real: a
//! memory that is lost, doubled or out of order changes tokens.

use std::sync::Arc;

use aqueduct_core::{ModelShape, WideHeads, WindowedLayers};
use aqueduct_engine::{Model, ModelParts, Rope};
use aqueduct_kernels::{
    Activation, Backend, Convolution, Delta, FeedForward, Gated, KvDtype, LayerSpec, LayerWeights,
    Linear, Matrix, MatrixData, Recurrent, Reference, Rule, Window,
};

use crate::dice::Dice;

/// Tokens of its vocabulary.
pub(crate) const VOCAB: u32 = 61;

const LAYERS: u32 = 2;
const WIDTH: usize = 16;
const HEADS: usize = 2;
const HEAD_DIM: usize = 8;
const FFN: usize = 24;

/// 2 layers, 2 query heads on one KV head, keys and values in bf16. The first layer has a window
/// or, if it is a hybrid, a state and no keys.
pub(crate) fn model(hybrid: bool) -> Arc<Model> {
    let backend: Arc<dyn Backend> = Arc::new(Reference);
    let mut weights = Weights { backend: backend.clone(), dice: Dice::new(1) };
    let mut shape = ModelShape {
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
        wide: WideHeads::NONE,
        kv_shared_layers: 0,
        windowed: WindowedLayers::NONE,
    };
    let embed = weights.linear(VOCAB as usize, WIDTH, 1.0);
    let mut layers: Vec<_> = (0..LAYERS).map(|_| weights.layer()).collect();
    if hybrid {
        let recurrent = weights.recurrent();
        layers[0].qkv = weights.linear(recurrent.columns(), WIDTH, 0.6);
        layers[0].out = weights.linear(WIDTH, recurrent.outputs(), 0.5);
        (shape.recurrent_layers, shape.state_bytes) = (1, 4 * recurrent.state_len() as u64);
        layers[0].recurrent = Some(Arc::new(recurrent));
    }
    let parts = ModelParts {
        fingerprint: if hybrid { "hybrid" } else { "simulated" }.into(),
        embed: embed.clone(),
        layers,
        windows: vec![(!hybrid).then_some(Window::Last(6)), None],
        final_norm: vec![1.0; WIDTH].into(),
        head: embed,
        embed_scale: 1.0,
        positions: None,
        ropes: vec![Rope::unscaled(10_000.0, HEAD_DIM); LAYERS as usize],
        temperature: None,
        still_temperature: None,
        scale: 1.0 / (HEAD_DIM as f32).sqrt(),
        softcap: None,
        slopes: None,
        logits_softcap: None,
        inputs: None,
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
            out: self.linear(WIDTH, HEADS * HEAD_DIM, 0.5),
            attn_post_norm: None,
            ffn_norm: Some(ones),
            ffn: FeedForward::Dense(Gated {
                gate_up: self.linear(2 * FFN, WIDTH, 0.4),
                down: self.linear(WIDTH, FFN, 0.4),
            }),
            parallel: false,
            ffn_post_norm: None,
            scale: None,
        }
    }

    /// Of the gated delta rule, with a convolution of three inputs.
    fn recurrent(&mut self) -> Recurrent {
        let (heads, dim) = (2, 4);
        let delta = Delta {
            key_heads: 1,
            value_heads: heads,
            tiled: false,
            key_dim: dim,
            value_dim: dim,
            rate: vec![0.1, 0.5].into(),
            shift: vec![0.0; heads].into(),
            steps: 1.0,
            norm: vec![1.0; dim].into(),
            norm_eps: 1e-6,
        };
        let (taps, channels) = (3, delta.channels());
        let weights = self.uniform(taps * channels, 1.0).into();
        let conv = Convolution { taps, weights, bias: None };
        Recurrent { conv, rule: Rule::Delta(delta) }
    }

    fn uniform(&mut self, count: usize, size: f32) -> Vec<f32> {
        let uniform = |_| size * ((self.dice.roll() >> 40) as f32 / (1 << 23) as f32 - 1.0);
        (0..count).map(uniform).collect()
    }

    fn linear(&mut self, outputs: usize, inputs: usize, size: f32) -> Linear {
        let data = self.uniform(outputs * inputs, size);
        let matrix = Matrix { outputs, inputs, data: MatrixData::F32(data) };
        self.backend.pack(matrix, None).expect("f32 can be packed")
    }
}
