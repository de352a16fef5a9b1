//! Logits of whole models against those that the transformers library computed, by
//! `ops/parity/make_models.py`: always the small cases beside this file, and every case of the
//! directory that `AQUEDUCT_PARITY_DIR` names, when it names one.

use std::path::Path;
use std::sync::Arc;

use aqueduct_core::{ChunkGrid, MemoryPolicy};
use aqueduct_engine::{Block, LoadOptions, LocalPort, Model, Want, WeightDtype, prefill};
use aqueduct_kernels::{Backend, Cpu, CpuOptions, KvDtype, Leaves, Reference};

const TOLERANCE: f32 = 2e-3;

fn load(path: &Path, backend: Arc<dyn Backend>) -> Model {
    let options = LoadOptions { kv: KvDtype::F32, weights: WeightDtype::Auto, backend };
    Model::load(path, &options, &mut |_| {}).unwrap()
}

/// `[tokens, vocab]` of a prompt that goes through in chunks.
fn logits(model: &Model, tokens: &[u32], chunk_tokens: u32) -> Vec<f32> {
    let mut port = LocalPort::empty(model);
    let grid = ChunkGrid::new(tokens.len() as u32, chunk_tokens).unwrap();
    let mut logits = Vec::new();
    for chunk in grid.chunks() {
        let block = Block { tokens: chunk.of(tokens, 0), start: chunk.start, leaves: Leaves::ONE };
        let policy = MemoryPolicy::dense();
        let done = prefill(model, block, &policy, &mut port, Want::All).unwrap();
        logits.extend(model.logits(&done.hidden).unwrap().into_vec());
    }
    logits
}

/// The largest difference of one case.
fn worst(dir: &Path, case: &serde_json::Value, backend: Arc<dyn Backend>) -> f32 {
    let path = |key: &str| dir.join(case[key].as_str().unwrap());
    let text = std::fs::read_to_string(path("tokens")).unwrap();
    let tokens: Vec<u32> = text.split_whitespace().map(|id| id.parse().unwrap()).collect();
    let file = std::fs::read(path("logits")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&file).unwrap();
    let (want, _) = file.tensor("logits").unwrap().data().as_chunks();
    let want: Vec<f32> = want.iter().map(|&word| f32::from_le_bytes(word)).collect();
    let seen = logits(&load(&path("model"), backend), &tokens, 17);
    assert_eq!(seen.len(), want.len(), "{case}");
    assert!(seen.iter().all(|x| x.is_finite()), "{case}");
    seen.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn check(dir: &Path, backend: Arc<dyn Backend>) {
    let list = std::fs::read_to_string(dir.join("cases.json")).unwrap();
    let cases: Vec<serde_json::Value> = serde_json::from_str(&list).unwrap();
    assert!(!cases.is_empty());
    let mut failed = Vec::new();
    for case in &cases {
        let worst = worst(dir, case, backend.clone());
        println!("{:<10} {:<28} {worst:.2e}", backend.name(), case["model"].as_str().unwrap());
        if worst > TOLERANCE {
            failed.push((&case["model"], worst));
        }
    }
    assert!(failed.is_empty(), "above {TOLERANCE}: {failed:?}");
}

fn check_all(backend: Arc<dyn Backend>) {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers");
    check(&fixture, backend.clone());
    if let Some(dir) = std::env::var_os("AQUEDUCT_PARITY_DIR") {
        check(Path::new(&dir), backend);
    }
}

#[test]
fn reference_logits_are_those_of_transformers() {
    check_all(Arc::new(Reference));
}

#[test]
fn cpu_logits_are_those_of_transformers() {
    check_all(Arc::new(Cpu::new(CpuOptions::default()).unwrap()));
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn cuda_logits_are_those_of_transformers() {
    use aqueduct_kernels::cuda::{Cuda, CudaOptions};
    check_all(Arc::new(Cuda::emulated(90, CudaOptions::default()).unwrap()));
}
