//! The model that is shipped in the repository loads and predicts.

use std::path::Path;
use std::sync::Arc;

use aqueduct_core::MemoryPolicy;
use aqueduct_engine::{Block, LoadOptions, LocalPort, Model, Want, WeightDtype, prefill};
use aqueduct_kernels::compare::{Tolerance, close};
use aqueduct_kernels::{KvDtype, Leaves, Reference};

fn load(weights: WeightDtype) -> (Model, aqueduct_engine::LoadProgress) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model");
    let options = LoadOptions { kv: KvDtype::F32, weights, backend: Arc::new(Reference) };
    let mut last = aqueduct_engine::LoadProgress::default();
    let model = Model::load(&path, &options, &mut |progress| last = progress).unwrap();
    (model, last)
}

fn last_logits(model: &Model, tokens: &[u32]) -> Vec<f32> {
    let (block, mut port) =
        (Block { tokens, start: 0, leaves: Leaves::ONE }, LocalPort::empty(model));
    let done = prefill(model, block, &MemoryPolicy::dense(), &mut port, Want::Last).unwrap();
    model.logits(&done.hidden).unwrap().into_vec()
}

#[test]
fn loads_and_predicts() {
    let (model, progress) = load(WeightDtype::Auto);
    assert_eq!(progress.tensors_done, progress.tensors);
    assert_eq!(progress.bytes_done, progress.bytes);
    assert_eq!((model.layers(), model.shape().head_dim), (6, 64));
    let logits = last_logits(&model, &[0, 5, 9]);
    assert_eq!(logits.len(), 4096);
    let spread = logits.iter().cloned().fold(f32::MIN, f32::max)
        - logits.iter().cloned().fold(f32::MAX, f32::min);
    assert!(spread > 1.0 && spread.is_finite(), "spread {spread}");
}

#[test]
fn beside_f32_keys_auto_means_f32() {
    let (auto, f32) = (load(WeightDtype::Auto).0, load(WeightDtype::F32).0);
    assert_eq!(last_logits(&auto, &[7, 8]), last_logits(&f32, &[7, 8]));
    assert_eq!(auto.fingerprint(), f32.fingerprint());
}

#[test]
fn held_in_fewer_bits_it_is_nearly_the_same_model() {
    let f32 = load(WeightDtype::F32).0;
    for (weights, off) in [(WeightDtype::Bf16, 1e-4), (WeightDtype::Int8, 1e-2)] {
        let model = load(weights).0;
        assert_ne!(model.fingerprint(), f32.fingerprint());
        let (seen, want) = (last_logits(&model, &[7, 8]), last_logits(&f32, &[7, 8]));
        let tolerance = Tolerance { abs: f64::INFINITY, rel: 0.0, cosine: off };
        close(&format!("{weights:?}"), &seen, &want, tolerance).unwrap();
    }
}
