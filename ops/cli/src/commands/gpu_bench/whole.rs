//! A layer, and a whole model of random weights that are made on the device.

use std::sync::Arc;

use anyhow::Context;
use aqueduct_core::{MemoryPolicy, ModelShape, WideHeads, WindowedLayers};
use aqueduct_engine::{
    Block, LocalPort, Model, ModelParts, Rope, Sequence, Want, prefill as send_through,
};
use aqueduct_kernels::{AttentionOps, KvDtype, LayerOps, Leaves, Queries, Scope, SelectionOps};

use super::bench::{Bench, PEAK};
use super::row::Work;
use super::shape::{SINKS, Shape};

/// Of the bf16 peak, counting attention and not the masses.
const PREFILL_SHARE: f64 = 0.5;
/// Of what reading every weight once takes: where launches would begin to show.
const DECODE_SHARE: f64 = 0.8;
const THETA: f64 = 500_000.0;

pub(super) fn layer(bench: &Bench) -> anyhow::Result<Work> {
    let (cuda, shape) = (bench.cuda.clone(), bench.shape);
    let (layer, x, angles) = (bench.layer(1)?, bench.hidden(shape.chunk)?, bench.angles());
    let (memory, weights) = (Arc::new(bench.memory()?), vec![1.0; shape.chunk]);
    let flop = shape.layer_flop() + shape.attention_flop(shape.memory);
    let run = move || {
        let start = shape.memory as u32;
        let qkv = cuda.project(&layer, &x, (start, &angles), x.rows())?;
        let scale = 1.0 / (shape.head_dim as f32).sqrt();
        let queries =
            Queries { q: &qkv.q, start, scale, window: None, softcap: None, slopes: None };
        let scope = Scope {
            past: &memory.keys,
            leaves: Leaves::ONE,
            own: &qkv.keys,
            row_weights: Some(&weights),
            sinks: None,
            outputs: qkv.q.tokens,
            rounded: true,
        };
        let attended = cuda.attend_all(queries, scope)?;
        let masses = (&attended.past_mass, &attended.own_mass);
        cuda.select(memory.clone(), &qkv.keys, masses, &shape.selection())?;
        Ok(cuda.finish(&layer, &x, &attended.output).map(drop)?)
    };
    Ok(of_peak(flop, run))
}

/// A row beside the bf16 peak.
fn of_peak(flop: f64, run: impl FnMut() -> anyhow::Result<()> + 'static) -> Work {
    let floor_us = flop / PEAK * 1e6;
    Work {
        bound: format!("{:.0} GFLOP without masses at 989 TFLOP/s; target 50 %", flop / 1e9),
        floor_us,
        target_us: Some(floor_us / PREFILL_SHARE),
        flop,
        bytes: 0.0,
        run: Box::new(run),
    }
}

/// Every layer with weights of its own.
fn model(bench: &Bench) -> anyhow::Result<Arc<Model>> {
    let (cuda, shape) = (&bench.cuda, bench.shape);
    let why = || format!("weights of {:.1} GB", shape.model_bytes() as f64 / 1e9);
    let layers = (0..shape.layers as u64).map(|idx| bench.layer(idx));
    let layers = layers.collect::<Result<Vec<_>, _>>().with_context(why)?;
    let embed = cuda.noise_linear(shape.vocab, shape.width, 1 << 20).with_context(why)?;
    let pairs = shape.head_dim / 2;
    let inv_freq = (0..pairs).map(|pair| THETA.powf(-(pair as f64) / pairs as f64)).collect();
    let model = Model::new(ModelParts {
        shape: counts(&shape),
        fingerprint: "random".into(),
        backend: cuda.clone(),
        head: embed.clone(),
        embed,
        embed_scale: 1.0,
        positions: None,
        windows: vec![None; layers.len()],
        ropes: vec![Rope { inv_freq, attention_factor: 1.0 }; layers.len()],
        temperature: None,
        still_temperature: None,
        layers,
        final_norm: vec![1.0; shape.width].into(),
        scale: 1.0 / (shape.head_dim as f32).sqrt(),
        softcap: None,
        slopes: None,
        logits_softcap: None,
        inputs: None,
        norm_eps: 1e-5,
        kv: KvDtype::Bf16,
    })?;
    Ok(Arc::new(model))
}

fn counts(shape: &Shape) -> ModelShape {
    ModelShape {
        vocab: shape.vocab as u32,
        layers: shape.layers as u32,
        width: shape.width as u32,
        heads: shape.heads as u32,
        kv_heads: shape.kv_heads as u32,
        head_dim: shape.head_dim as u32,
        ffn: shape.ffn as u32,
        max_positions: 0,
        recurrent_layers: 0,
        state_bytes: 0,
        wide: WideHeads::NONE,
        kv_shared_layers: 0,
        windowed: WindowedLayers::NONE,
    }
}

fn policy(shape: &Shape) -> MemoryPolicy {
    MemoryPolicy::h2o(SINKS as u32, shape.local() as u32, shape.heavy() as u32)
}

/// Sends so many tokens through all layers, chunk by chunk as workers do.
fn prompt(model: &Model, shape: &Shape, tokens: usize) -> anyhow::Result<LocalPort> {
    let mut port = LocalPort::empty(model);
    let ids: Vec<u32> = (0..tokens).map(|idx| (idx * 7919 % shape.vocab) as u32).collect();
    for chunk in ids.chunks(shape.chunk) {
        let block = Block { tokens: chunk, start: port.end(), leaves: Leaves::ONE };
        let done = send_through(model, block, &policy(shape), &mut port, Want::Memory)?;
        done.retained()?; // which waits, as the report of a chunk does
    }
    Ok(port)
}

pub(super) fn prefill(bench: &Bench) -> anyhow::Result<Work> {
    let (model, shape) = (model(bench)?, bench.shape);
    let chunks = shape.prompt / shape.chunk;
    // Of the last layer nothing but its memory is wanted.
    let [_, (out, inputs), gate_up, down] = shape.maps();
    let finish = out * inputs + gate_up.0 * gate_up.1 + down.0 * down.1;
    let weights = shape.layers * shape.layer_weights() - finish;
    let attention: f64 = (0..chunks)
        .map(|chunk| shape.attention_flop(if chunk == 0 { 0 } else { shape.memory }))
        .sum();
    let flop = 2.0 * (shape.prompt * weights) as f64 + shape.layers as f64 * attention;
    Ok(of_peak(flop, move || prompt(&model, &shape, shape.prompt).map(drop)))
}

/// With a full memory.
pub(super) fn decode(bench: &Bench) -> anyhow::Result<Work> {
    let (model, shape) = (model(bench)?, bench.shape);
    let memory = prompt(&model, &shape, shape.chunk)?.layers().to_vec();
    let mut sequence = Sequence::new(&model, memory, Leaves::ONE);
    let kv = shape.layers * shape.kv_bytes(shape.memory);
    let (bytes, read) = ((shape.model_bytes() + kv) as f64, bench.read_roof()?);
    let floor_us = bytes / read * 1e6;
    Ok(Work {
        bound: format!(
            "{:.1} GB at {:.2} TB/s, as read here; target 80 %",
            bytes / 1e9,
            read / 1e12
        ),
        floor_us,
        target_us: Some(floor_us / DECODE_SHARE),
        flop: 0.0,
        bytes,
        run: Box::new(move || Ok(sequence.step(&model, 7, &policy(&shape)).map(drop)?)),
    })
}
