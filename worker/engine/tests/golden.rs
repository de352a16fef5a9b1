//! The float64 oracle's golden file against every backend: eight policies, logits, kept
//! positions and scores (`ops/reference/h2o_reference.py golden`), whether memory travels or
//! stays in shards.

#[path = "support/stores.rs"]
mod stores;

use std::sync::Arc;

use aqueduct_core::{MemoryPolicy, ModelShape, PolicyKind, Scoring, WideHeads, WindowedLayers};
use aqueduct_engine::{Block, LocalPort, Model, ModelParts, Rope, Want, prefill};
use aqueduct_kernels::{
    Activation, Backend, Cpu, CpuOptions, FeedForward, Gated, IsaLevel, KvDtype, LayerSpec,
    LayerWeights, Leaves, Linear, Matrix, MatrixData, MemorySet,
};
use serde::Deserialize;
use stores::Sharded;

type Table = Vec<Vec<f32>>;

#[derive(Deserialize)]
struct Golden {
    model: GoldenModel,
    tokens: Vec<u32>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[allow(non_snake_case)] // the oracle's own names
struct GoldenModel {
    V: u32,
    E: u32,
    L: u32,
    H: u32,
    G: u32,
    D: u32,
    F: u32,
    theta: f64,
    embed: Table,
    norm: Vec<f32>,
    layers: Vec<GoldenLayer>,
}

#[derive(Deserialize)]
struct GoldenLayer {
    n1: Vec<f32>,
    n2: Vec<f32>,
    qn: Vec<f32>,
    kn: Vec<f32>,
    wq: Table,
    wk: Table,
    wv: Table,
    wo: Table,
    gate: Table,
    up: Table,
    down: Table,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    chunk: usize,
    policy: CasePolicy,
    logits: Vec<Vec<f64>>,
    memory: Vec<CaseMemory>,
}

#[derive(Deserialize)]
struct CasePolicy {
    sinks: u32,
    local: u32,
    heavy: u32,
    keep_all: bool,
    decay: f32,
    window: u32,
    age_normalised: bool,
}

#[derive(Deserialize)]
struct CaseMemory {
    pos: Vec<Vec<u32>>,
    score: Vec<Vec<f64>>,
}

fn golden() -> Golden {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ops/reference/golden.json");
    serde_json::from_slice(&std::fs::read(path).expect("golden.json is committed")).unwrap()
}

fn pack(backend: &dyn Backend, parts: &[&Table]) -> Linear {
    let rows: Vec<&Vec<f32>> = parts.iter().flat_map(|part| part.iter()).collect();
    let (outputs, inputs) = (rows.len(), rows[0].len());
    let data = MatrixData::F32(rows.into_iter().flatten().copied().collect());
    backend.pack(Matrix { outputs, inputs, data }, None).unwrap()
}

fn model(golden: &GoldenModel, backend: Arc<dyn Backend>) -> Model {
    let spec = LayerSpec {
        heads: golden.H as usize,
        kv_heads: golden.G as usize,
        head_dim: golden.D as usize,
        norm_eps: 1e-6,
        activation: Activation::Silu,
        kv: KvDtype::F32,
    };
    let layer = |w: &GoldenLayer| LayerWeights {
        gate: None,
        recurrent: None,
        spec,
        attn_norm: Some(w.n1.clone().into()),
        qkv: pack(&*backend, &[&w.wq, &w.wk, &w.wv]),
        latent: None,
        q_norm: Some(w.qn.clone().into()),
        k_norm: Some(w.kn.clone().into()),
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
        out: pack(&*backend, &[&w.wo]),
        attn_post_norm: None,
        ffn_norm: Some(w.n2.clone().into()),
        ffn: FeedForward::Dense(Gated {
            gate_up: pack(&*backend, &[&w.gate, &w.up]),
            down: pack(&*backend, &[&w.down]),
        }),
        parallel: false,
        ffn_post_norm: None,
        scale: None,
    };
    let embed = pack(&*backend, &[&golden.embed]);
    Model::new(ModelParts {
        shape: ModelShape {
            vocab: golden.V,
            layers: golden.L,
            width: golden.E,
            heads: golden.H,
            kv_heads: golden.G,
            head_dim: golden.D,
            ffn: golden.F,
            max_positions: 0,
            recurrent_layers: 0,
            state_bytes: 0,
            wide: WideHeads::NONE,
            kv_shared_layers: 0,
            windowed: WindowedLayers::NONE,
        },
        fingerprint: "golden".to_owned(),
        embed: embed.clone(),
        layers: golden.layers.iter().map(layer).collect(),
        embed_scale: 1.0,
        positions: None,
        windows: vec![None; golden.L as usize],
        final_norm: golden.norm.clone().into(),
        head: embed,
        ropes: vec![Rope::unscaled(golden.theta, golden.D as usize); golden.L as usize],
        temperature: None,
        still_temperature: None,
        scale: 1.0 / (golden.D as f32).sqrt(),
        softcap: None,
        slopes: None,
        logits_softcap: None,
        inputs: None,
        norm_eps: 1e-6,
        kv: KvDtype::F32,
        backend,
    })
    .unwrap()
}

fn policy(case: &CasePolicy) -> MemoryPolicy {
    MemoryPolicy {
        kind: if case.keep_all { PolicyKind::Dense } else { PolicyKind::H2o },
        sinks: case.sinks,
        local: case.local,
        heavy: case.heavy,
        scoring: Scoring {
            decay: case.decay,
            window: case.window,
            age_normalised: case.age_normalised,
        },
    }
}

/// Runs one case and returns its logits and the final memory.
fn run(model: &Model, tokens: &[u32], case: &Case) -> (Vec<f32>, LocalPort) {
    let (mut port, mut logits) = (LocalPort::empty(model), Vec::new());
    let policy = policy(&case.policy);
    for (idx, tokens) in tokens.chunks(case.chunk).enumerate() {
        let leaves = Leaves::of_chunks(case.chunk as u32);
        let block = Block { tokens, start: (idx * case.chunk) as u32, leaves };
        let done = prefill(model, block, &policy, &mut port, Want::All).unwrap();
        logits.extend(model.logits(&done.hidden).unwrap().into_vec());
    }
    (logits, port)
}

/// Position and score of what each KV head of a layer keeps.
type Memory = Vec<Vec<(u32, f32)>>;

fn travelling(model: &Model, tokens: &[u32], case: &Case) -> (Vec<f32>, Vec<Memory>) {
    let (logits, port) = run(model, tokens, case);
    let memory = |set: &Arc<MemorySet>| {
        let n = set.keys.len();
        let head = |g: usize| {
            let scores = set.score[g * n..(g + 1) * n].iter().copied();
            set.keys.head_positions(g).iter().copied().zip(scores).collect()
        };
        (0..set.keys.kv_heads()).map(head).collect()
    };
    (logits, port.layers().iter().map(memory).collect())
}

/// The same with chunk c at store c modulo 3.
fn staying(model: &Model, tokens: &[u32], case: &Case) -> (Vec<f32>, Vec<Memory>) {
    let places: Vec<usize> = (0..tokens.len().div_ceil(case.chunk)).map(|idx| idx % 3).collect();
    let mut sequence = Sharded::new(model, policy(&case.policy), case.chunk as u32, &places);
    let mut logits = Vec::new();
    for tokens in tokens.chunks(case.chunk) {
        logits.extend(model.logits(&sequence.chunk(tokens).hidden).unwrap().into_vec());
    }
    (logits, (0..model.layers() as u32).map(|layer| sequence.kept(layer)).collect())
}

fn check(backend: Arc<dyn Backend>) {
    let golden = golden();
    assert_eq!(golden.cases.len(), 8);
    let model = model(&golden.model, backend);
    for case in &golden.cases {
        for way in [travelling, staying] {
            let (logits, memory) = way(&model, &golden.tokens, case);
            check_logits(case, &logits);
            check_memory(case, &memory);
        }
    }
}

fn check_logits(case: &Case, logits: &[f32]) {
    let want: Vec<f64> = case.logits.iter().flatten().copied().collect();
    assert_eq!(logits.len(), want.len(), "{}", case.name);
    // Relative to the largest logit of the row: single logits cross zero.
    for (row, (got, want)) in logits.chunks(case.logits[0].len()).zip(&case.logits).enumerate() {
        let scale = want.iter().fold(0f64, |max, z| max.max(z.abs()));
        for (got, want) in got.iter().zip(want) {
            let error = (f64::from(*got) - want).abs() / scale;
            assert!(error <= 1e-4, "{} row {row}: {got} for {want}", case.name);
        }
    }
}

fn check_memory(case: &Case, memory: &[Memory]) {
    for (idx, (heads, want)) in memory.iter().zip(&case.memory).enumerate() {
        for (head, (pos, score)) in heads.iter().zip(want.pos.iter().zip(&want.score)) {
            assert!(head.iter().map(|key| &key.0).eq(pos), "{} layer {idx}", case.name);
            if case.policy.keep_all {
                continue; // nothing is ranked, so nothing is scored
            }
            for ((_, got), want) in head.iter().zip(score) {
                let error = (f64::from(*got) - want).abs() / want.abs().max(1e-3);
                assert!(error <= 1e-4, "{} layer {idx}: score {got} for {want}", case.name);
            }
        }
    }
}

#[test]
fn the_reference_backend_reproduces_the_oracle() {
    check(Arc::new(aqueduct_kernels::reference::Reference));
}

#[test]
fn the_cpu_backend_reproduces_the_oracle_on_every_path() {
    for level in IsaLevel::ALL {
        match Cpu::new(CpuOptions { threads: 2, isa: Some(level) }) {
            Ok(cpu) => check(Arc::new(cpu)),
            Err(missing) => println!("skipped: {missing}"),
        }
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn the_cuda_backend_reproduces_the_oracle() {
    use aqueduct_kernels::cuda::{Cuda, CudaOptions};
    check(Arc::new(Cuda::emulated(90, CudaOptions::default()).unwrap()));
}
