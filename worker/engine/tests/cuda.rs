//! The shipped model on an emulated CUDA device: the processor's logits.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::path::Path;
use std::sync::Arc;

use aqueduct_core::{MemoryPolicy, PolicyKind};
use aqueduct_engine::{
    Block, LoadOptions, LocalPort, Model, Sequence, Want, WeightDtype, decode, prefill,
};
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

/// The logits of every token of a completion, which is `given` or else greedy.
fn completion(
    backend: Arc<dyn Backend>,
    (weights, kv): (WeightDtype, KvDtype),
    given: Option<&[u32]>,
) -> Vec<Vec<f32>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model");
    let options = LoadOptions { kv, weights, backend };
    let model = Model::load(&path, &options, &mut |_| {}).unwrap();
    let mut port = LocalPort::empty(&model);
    let mut step = |tokens: &[u32], start: usize| {
        let block = Block { tokens, start: start as u32, leaves: Leaves::ONE };
        let done = prefill(&model, block, &policy(), &mut port, Want::Last).unwrap();
        model.logits(&done.hidden).unwrap().into_vec()
    };
    let mut last = Vec::new();
    for (idx, chunk) in PROMPT.chunks(CHUNK).enumerate() {
        last = step(chunk, idx * CHUNK);
    }
    let mut all = vec![last];
    while all.len() < COMPLETION {
        let idx = all.len() - 1;
        let next = given.map_or_else(|| most_likely(&all[idx]), |given| given[idx]);
        all.push(step(&[next], PROMPT.len() + idx));
    }
    all
}

fn spread(numbers: &[f64]) -> f64 {
    let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
    (numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / numbers.len() as f64).sqrt()
}

/// Logits may be `most` of their spread off (root mean squares). Whoever sums in another order, or
/// keeps more than bf16 of a probability, rounds to another side here and there. What is rounded to
/// eight bits is off by 2 % itself (`ops/parity/compare.py`), of which that is another part.
fn check(capability: u32, (weights, kv): (WeightDtype, KvDtype), most: f64) {
    let cuda = Cuda::emulated(capability, CudaOptions::default()).unwrap();
    let cpu = Cpu::new(CpuOptions { threads: 1, isa: None }).unwrap();
    let want = completion(Arc::new(cpu), (weights, kv), None);
    let tokens: Vec<u32> = want.iter().map(|logits| most_likely(logits)).collect();
    assert!(tokens.iter().any(|&token| token != tokens[0]), "{tokens:?} would hide much");
    let seen = completion(Arc::new(cuda), (weights, kv), Some(&tokens));
    for (idx, (seen, want)) in seen.iter().zip(&want).enumerate() {
        let of = format!("token {idx}, {weights:?} beside {kv:?} keys");
        let wide: Vec<f64> = want.iter().copied().map(f64::from).collect();
        let apart: Vec<f64> =
            seen.iter().zip(&wide).map(|(&seen, want)| f64::from(seen) - want).collect();
        let off = spread(&apart) / spread(&wide);
        assert!(off <= most, "{of}: logits are off by {off:.4} of their spread");
    }
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
    assert_eq!(calls.reads, 1, "{calls:?}");
    assert_eq!(calls.launches, 11 * model.layers() as u64 + 4, "{calls:?}");
    assert_eq!(calls.writes, 3, "{calls:?}: the token and its angles");
}

/// Whatever number of sequences and layers: it waits once to hear whether all numbers were finite,
/// before anything is remembered, and once for the logits.
#[test]
fn a_step_of_many_sequences_waits_twice_and_gives_what_each_gives_alone() {
    let (cuda, watch) = Cuda::emulated_and_watched(90, CudaOptions::default()).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model");
    let backend: Arc<dyn Backend> = Arc::new(cuda);
    let options = LoadOptions { kv: KvDtype::Bf16, weights: WeightDtype::Bf16, backend };
    let model = Model::load(&path, &options, &mut |_| {}).unwrap();
    let (policy, dense) = (policy(), MemoryPolicy::dense());
    let policies = [&policy, &dense, &policy];
    let begin = |tokens: &[u32], policy: &MemoryPolicy| {
        let mut port = LocalPort::empty(&model);
        let block = Block { tokens, start: 0, leaves: Leaves::ONE };
        prefill(&model, block, policy, &mut port, Want::Memory).unwrap();
        let mut sequence = Sequence::new(&model, port.layers().to_vec(), Leaves::ONE);
        drop(port);
        sequence.step(&model, 7, policy).unwrap(); // makes memory sets that are its own
        sequence
    };
    let begun: Vec<_> =
        [23, 9, 16].iter().zip(policies).map(|(&end, it)| begin(&PROMPT[..end], it)).collect();
    let bits = |row: &[f32]| row.iter().map(|z| z.to_bits()).collect::<Vec<_>>();
    for count in [2, 3] {
        let mut alone = begun[..count].to_vec();
        let mut together = begun[..count].to_vec();
        for token in [11, 7] {
            let mut logits = Vec::new();
            let calls = watch.calls(|| {
                let each = together.iter_mut().zip(policies);
                let turns = each.map(|(it, policy)| it.turn(token, policy)).collect();
                logits = decode(&model, turns);
            });
            assert!(token == 11 || calls.reads == 2, "{count}: {calls:?}"); // as above
            for ((seen, one), policy) in logits.iter().zip(&mut alone).zip(policies) {
                let want = one.step(&model, token, policy).unwrap();
                assert!(bits(seen.as_ref().unwrap()) == bits(&want), "{count}: {policy:?}");
            }
        }
    }
}

#[test]
fn bf16_logits_are_the_processors() {
    check(90, (WeightDtype::Bf16, KvDtype::Bf16), 0.01);
}

#[test]
fn int8_logits_are_the_processors() {
    check(80, (WeightDtype::Int8, KvDtype::Bf16), 0.02);
}
