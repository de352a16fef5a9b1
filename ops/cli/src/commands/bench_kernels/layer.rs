//! Linear maps, and the rest of a layer that is not attention.

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

use aqueduct_kernels::cpu::peak::Factors;
use aqueduct_kernels::int8::{self, Int8Rows};
use aqueduct_kernels::{
    Activation, Angles, BackendError, Cpu, FeedForward, Gated, KvDtype, LayerOps, LayerSpec,
    LayerWeights, Linear, Matrix, MatrixData, Rows,
};
use half::bf16;

use super::case::{Case, Work, copies_of, noise, timed};

/// E, H, G, D, F and V of the model.
const WIDTH: usize = 1024;
pub(super) const HEADS: usize = 16;
pub(super) const KV_HEADS: usize = 8;
pub(super) const HEAD_DIM: usize = 128;
const FFN: usize = 3072;
const VOCAB: usize = 32_000;

const QKV: usize = (HEADS + 2 * KV_HEADS) * HEAD_DIM;
/// Inputs and outputs of the model's linear maps.
const MAPS: [(&str, usize, usize); 4] = [
    ("qkv", WIDTH, QKV),
    ("out", HEADS * HEAD_DIM, WIDTH),
    ("gate_up", WIDTH, 2 * FFN),
    ("down", FFN, WIDTH),
];
const NORM_EPS: f32 = 1e-6;

/// Every map of the model for one token, a few, a chunk and two; its head; a larger model's.
pub(super) fn linear_maps(cpu: &Cpu) -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in Factors::ALL {
        for (name, inputs, outputs) in MAPS {
            cases.extend(linear(cpu, name, (inputs, outputs, dtype), &[1, 16, 512, 2048]));
        }
        cases.extend(linear(cpu, "head", (WIDTH, VOCAB, dtype), &[1, 16]));
        cases.extend(linear(cpu, "8B out", (4096, 4096, dtype), &[1, 512]));
    }
    cases
}

fn linear(
    cpu: &Cpu,
    name: &str,
    (inputs, outputs, dtype): (usize, usize, Factors),
    rows: &[usize],
) -> Vec<Case> {
    let weight = Rc::new(Weight { inputs, outputs, dtype, copies: OnceCell::new() });
    let case = |&rows: &usize| {
        let weight = weight.clone();
        let prepare = move |cpu: &Cpu| -> Result<Work, BackendError> {
            weight.prepare(cpu)?;
            let x = Rows::from_vec(rows, inputs, noise(rows * inputs));
            let mut turn = 0;
            Ok(Box::new(move |cpu| {
                turn += 1;
                timed(|| cpu.linear(&x, weight.copy(turn)))
            }))
        };
        Case {
            kernel: "linear",
            path: cpu.linear_path(dtype, rows),
            shape: format!("{name} {rows}x{inputs}x{outputs}"),
            flop: (2 * rows * inputs * outputs) as u64,
            bytes: (stored(inputs * outputs, dtype) + 4 * rows * (inputs + outputs)) as u64,
            prepare: Box::new(prepare),
        }
    };
    rows.iter().map(case).collect()
}

/// Bytes of so many elements of a weight.
fn stored(elements: usize, dtype: Factors) -> usize {
    match dtype {
        Factors::F32 => 4 * elements,
        Factors::Bf16 => 2 * elements,
        Factors::Int8 => elements + 4 * elements / int8::GROUP,
    }
}

/// A weight for several cases, packed when the first of them is measured.
struct Weight {
    inputs: usize,
    outputs: usize,
    dtype: Factors,
    copies: OnceCell<Vec<Linear>>,
}

impl Weight {
    fn prepare(&self, cpu: &Cpu) -> Result<(), BackendError> {
        if self.copies.get().is_none() {
            let matrix = matrix(self.outputs, self.inputs, self.dtype);
            let count = copies_of(stored(self.outputs * self.inputs, self.dtype));
            let copies =
                (0..count).map(|_| cpu.pack(matrix.clone(), None)).collect::<Result<_, _>>();
            self.copies.set(copies?).ok(); // nobody else can have set it
        }
        Ok(())
    }

    fn copy(&self, turn: usize) -> &Linear {
        let copies = self.copies.get().expect("prepared before it is used");
        &copies[turn % copies.len()]
    }
}

fn matrix(outputs: usize, inputs: usize, dtype: Factors) -> Matrix {
    let data = noise(inputs * outputs);
    let data = match dtype {
        Factors::F32 => MatrixData::F32(data),
        Factors::Bf16 => MatrixData::Bf16(data.into_iter().map(bf16::from_f32).collect()),
        Factors::Int8 => MatrixData::Int8(Int8Rows::from_f32(&data, inputs)),
    };
    Matrix { outputs, inputs, data }
}

/// `project`, `finish`, `norm` and `embed` for one token and for a chunk.
pub(super) fn rest(cpu: &Cpu) -> Vec<Case> {
    let mut cases = Vec::new();
    for tokens in [1, 1024] {
        for dtype in [Factors::Bf16, Factors::Int8] {
            cases.extend([project(cpu, tokens, dtype), finish(cpu, tokens, dtype)]);
        }
        cases.push(norm(cpu, tokens));
    }
    cases.push(embed(cpu, 1024));
    cases
}

/// A layer of the model, as often as it takes to be read from memory.
fn layers(cpu: &Cpu, dtype: Factors) -> Result<Vec<LayerWeights>, BackendError> {
    let [qkv, out, gate_up, down] = MAPS.map(|(_, inputs, outputs)| matrix(outputs, inputs, dtype));
    let elements: usize = MAPS.iter().map(|(_, inputs, outputs)| inputs * outputs).sum();
    let ones = |count| -> Arc<[f32]> { vec![1.0; count].into() };
    let layer = || {
        Ok(LayerWeights {
            gate: None,
            recurrent: None,
            spec: LayerSpec {
                heads: HEADS,
                kv_heads: KV_HEADS,
                head_dim: HEAD_DIM,
                norm_eps: NORM_EPS,
                activation: Activation::Silu,
                kv: KvDtype::Bf16,
            },
            attn_norm: Some(ones(WIDTH)),
            qkv: cpu.pack(qkv.clone(), None)?,
            latent: None,
            q_norm: Some(ones(HEAD_DIM)),
            k_norm: Some(ones(HEAD_DIM)),
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
            out: cpu.pack(out.clone(), None)?,
            attn_post_norm: None,
            ffn_norm: Some(ones(WIDTH)),
            ffn: FeedForward::Dense(Gated {
                gate_up: cpu.pack(gate_up.clone(), None)?,
                down: cpu.pack(down.clone(), None)?,
            }),
            parallel: false,
            ffn_post_norm: None,
            scale: None,
        })
    };
    (0..copies_of(stored(elements, dtype))).map(|_| layer()).collect()
}

fn project(cpu: &Cpu, tokens: usize, dtype: Factors) -> Case {
    let prepare = move |cpu: &Cpu| -> Result<Work, BackendError> {
        let layers = layers(cpu, dtype)?;
        let x = Rows::from_vec(tokens, WIDTH, noise(tokens * WIDTH));
        let half = HEAD_DIM / 2;
        let [cos, sin] = [1.0, 0.0].map(|value| vec![value; tokens * half].into());
        let angles = Angles { tokens, half, cos, sin };
        let mut turn = 0;
        Ok(Box::new(move |cpu| {
            turn += 1;
            timed(|| cpu.project(&layers[turn % layers.len()], &x, (0, &angles), x.rows()))
        }))
    };
    Case {
        kernel: "project",
        path: cpu.linear_path(dtype, tokens),
        shape: format!("T={tokens}"),
        flop: (2 * tokens * WIDTH * QKV) as u64,
        bytes: (stored(WIDTH * QKV, dtype) + 4 * tokens * (WIDTH + QKV)) as u64,
        prepare: Box::new(prepare),
    }
}

fn finish(cpu: &Cpu, tokens: usize, dtype: Factors) -> Case {
    let prepare = move |cpu: &Cpu| -> Result<Work, BackendError> {
        let layers = layers(cpu, dtype)?;
        let x = Rows::from_vec(tokens, WIDTH, noise(tokens * WIDTH));
        let columns = HEADS * HEAD_DIM;
        let attention = Rows::from_vec(tokens, columns, noise(tokens * columns));
        let mut turn = 0;
        Ok(Box::new(move |cpu| {
            turn += 1;
            timed(|| cpu.finish(&layers[turn % layers.len()], &x, &attention))
        }))
    };
    let weights = WIDTH * (HEADS * HEAD_DIM + 3 * FFN);
    Case {
        kernel: "finish",
        path: cpu.linear_path(dtype, tokens),
        shape: format!("T={tokens}"),
        flop: (2 * tokens * weights) as u64,
        bytes: (stored(weights, dtype) + 4 * tokens * (2 * WIDTH + HEADS * HEAD_DIM)) as u64,
        prepare: Box::new(prepare),
    }
}

fn norm(cpu: &Cpu, tokens: usize) -> Case {
    let prepare = move |_: &Cpu| -> Result<Work, BackendError> {
        let x = Rows::from_vec(tokens, WIDTH, noise(tokens * WIDTH));
        let weight = vec![1.0; WIDTH].into();
        Ok(Box::new(move |cpu| timed(|| Ok(cpu.norm(&x, &weight, NORM_EPS)))))
    };
    Case {
        kernel: "norm",
        path: cpu.vector_path(),
        shape: format!("{tokens}x{WIDTH}"),
        flop: (4 * tokens * WIDTH) as u64,
        bytes: (8 * tokens * WIDTH) as u64,
        prepare: Box::new(prepare),
    }
}

fn embed(cpu: &Cpu, tokens: usize) -> Case {
    let prepare = move |cpu: &Cpu| -> Result<Work, BackendError> {
        let table = cpu.pack(matrix(VOCAB, WIDTH, Factors::Bf16), None)?;
        let ids: Vec<u32> = (0..tokens).map(|idx| (idx * 7919 % VOCAB) as u32).collect();
        Ok(Box::new(move |cpu| timed(|| cpu.embed(&table, &ids, 1.0))))
    };
    Case {
        kernel: "embed",
        path: cpu.vector_path(),
        shape: format!("{tokens} of {VOCAB}x{WIDTH}"),
        flop: 0,
        bytes: (tokens * WIDTH * 6) as u64,
        prepare: Box::new(prepare),
    }
}
