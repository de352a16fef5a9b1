//! Logits of whole models against a directory made by `ops/parity/make_models.py`, named by
//! `AQUEDUCT_PARITY_DIR`; without it there is nothing to compare with and the test says so.

use std::path::Path;
use std::sync::Arc;

use aqueduct_core::{ChunkGrid, MemoryPolicy};
use aqueduct_engine::{Block, LoadOptions, LocalPort, Model, Want, WeightDtype, prefill};
use aqueduct_kernels::{KvDtype, Reference};

fn load(path: &Path) -> Model {
    let options =
        LoadOptions { kv: KvDtype::F32, weights: WeightDtype::Auto, backend: Arc::new(Reference) };
    Model::load(path, &options, &mut |_| {}).unwrap()
}

/// `[tokens, vocab]` of a prompt that goes through in chunks.
fn logits(model: &Model, tokens: &[u32], chunk_tokens: u32) -> Vec<f32> {
    let mut port = LocalPort::empty(model);
    let grid = ChunkGrid::new(tokens.len() as u32, chunk_tokens).unwrap();
    let mut logits = Vec::new();
    for chunk in grid.chunks() {
        let block = Block { tokens: chunk.of(tokens), start: chunk.start };
        let policy = MemoryPolicy::dense();
        let done = prefill(model, block, &policy, &mut port, Want::All).unwrap();
        logits.extend(model.logits(&done.hidden).unwrap().into_vec());
    }
    logits
}

#[test]
fn logits_are_those_of_transformers() {
    let Some(dir) = std::env::var_os("AQUEDUCT_PARITY_DIR") else {
        eprintln!("AQUEDUCT_PARITY_DIR is not set: nothing to compare with");
        return;
    };
    let list = std::fs::read_to_string(Path::new(&dir).join("cases.json")).unwrap();
    let cases: Vec<serde_json::Value> = serde_json::from_str(&list).unwrap();
    let mut failed = Vec::new();
    for case in &cases {
        let path = |key: &str| Path::new(&dir).join(case[key].as_str().unwrap());
        let text = std::fs::read_to_string(path("tokens")).unwrap();
        let tokens: Vec<u32> = text.split_whitespace().map(|id| id.parse().unwrap()).collect();
        let file = std::fs::read(path("logits")).unwrap();
        let file = safetensors::SafeTensors::deserialize(&file).unwrap();
        let (want, _) = file.tensor("logits").unwrap().data().as_chunks();
        let want: Vec<f32> = want.iter().map(|&word| f32::from_le_bytes(word)).collect();
        let seen = logits(&load(&path("model")), &tokens, 17);
        assert_eq!(seen.len(), want.len(), "{case}");
        let worst = seen.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{:<40} {worst:.2e}", case["model"].as_str().unwrap());
        if worst.is_nan() || worst > 2e-3 {
            failed.push((case["model"].clone(), worst));
        }
    }
    assert!(!cases.is_empty() && failed.is_empty(), "above 2e-3: {failed:?}");
}
