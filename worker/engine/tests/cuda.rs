//! The shipped model on an emulated CUDA device: greedily, the processor's tokens.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::path::Path;
use std::sync::Arc;

use aqueduct_core::{MemoryPolicy, PolicyKind};
use aqueduct_engine::{Block, LoadOptions, LocalPort, Model, Sequence, Want, WeightDtype, prefill};
use aqueduct_kernels::cuda::{Cuda, CudaOptions};
use aqueduct_kernels::{Backend, Cpu, CpuOptions, KvDtype, Leaves};

/// "It was a fine morning, and the old man walked slowly along the road to the village, where his
/// daughter lived"
const PROMPT: [u32; 23] = [
    816, 314, 261, 1719, 1156, 14, 280, 263, 684, 438, 2199, 2368, 1283, 263, 1691, 283, 263, 2279,
    14, 753, 337, 2015, 2147,
];
const CHUNK: usize = 10;
const COMPLETION: usize = 5;

/// Memory that is full after two chunks.
fn policy() -> MemoryPolicy {
    MemoryPolicy { kind: PolicyKind::H2o, sinks: 2, local: 4, heavy: 8, ..MemoryPolicy::dense() }
}

fn most_likely(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.expect("a vocabulary").0 as u32
}

fn completion(backend: Arc<dyn Backend>, weights: WeightDtype, kv: KvDtype) -> Vec<u32> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model");
    let options = LoadOptions { kv, weights, backend };
    let model = Model::load(&path, &options, &mut |_| {}).unwrap();
    let mut port = LocalPort::empty(&model);
    let mut step = |tokens: &[u32], start: usize| {
        let block = Block { tokens, start: start as u32, leaves: Leaves::ONE };
        let done = prefill(&model, block, &policy(), &mut port, Want::Last).unwrap();
        most_likely(model.logits(&done.hidden).unwrap().data())
    };
    let mut next = 0;
    for (idx, chunk) in PROMPT.chunks(CHUNK).enumerate() {
        next = step(chunk, idx * CHUNK);
    }
    let mut tokens = vec![next];
    while tokens.len() < COMPLETION {
        next = step(&[next], PROMPT.len() + tokens.len() - 1);
        tokens.push(next);
    }
    tokens
}

fn check(capability: u32, weights: WeightDtype, kv: KvDtype) {
    let cuda = Cuda::emulated(capability, CudaOptions::default()).unwrap();
    let cpu = Cpu::new(CpuOptions { threads: 1, isa: None }).unwrap();
    let seen = completion(Arc::new(cuda), weights, kv);
    assert!(seen.iter().any(|&token| token != seen[0]), "{seen:?} would hide much");
    assert_eq!(seen, completion(Arc::new(cpu), weights, kv), "{weights:?} beside {kv:?} keys");
}

/// A step may enqueue as fast as it can, because it reads nothing before the logits, and what met
/// a number that is not finite.
#[test]
fn a_decode_step_waits_for_its_logits_alone() {
    let (cuda, watch) = Cuda::emulated_and_watched(90, CudaOptions::default()).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model");
    let backend: Arc<dyn Backend> = Arc::new(cuda);
    let options = LoadOptions { kv: KvDtype::Bf16, weights: WeightDtype::Bf16, backend };
    let model = Model::load(&path, &options, &mut |_| {}).unwrap();
    let mut port = LocalPort::empty(&model);
    let block = Block { tokens: &PROMPT, start: 0, leaves: Leaves::ONE };
    prefill(&model, block, &policy(), &mut port, Want::Memory).unwrap();
    let mut sequence = Sequence::new(&model, port.layers().to_vec(), Leaves::ONE);
    drop(port);
    let mut step = || drop(sequence.step(&model, 7, &policy()).unwrap());
    step(); // makes memory sets that are its own
    let calls = watch.calls(step);
    assert_eq!(calls.reads, 2, "{calls:?}");
    assert_eq!(calls.launches, 11 * model.layers() as u64 + 4, "{calls:?}");
    assert_eq!(calls.writes, 3, "{calls:?}: the token and its angles");
}

#[test]
fn bf16_tokens_are_the_processors() {
    check(90, WeightDtype::Bf16, KvDtype::Bf16);
}

#[test]
fn int8_tokens_are_the_processors() {
    check(80, WeightDtype::Int8, KvDtype::Bf16);
}
