//! Recurrent layers on an emulated CUDA device, beyond what the conformance suite asks for: sizes
//! of every kernel and of none, and what a step asks of the device.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

#[path = "support/noise.rs"]
mod noise;

use std::sync::Arc;

use aqueduct_kernels::compare::{Tolerance, close, identical};
use aqueduct_kernels::cuda::emulated::Calls;
use aqueduct_kernels::cuda::{Cuda, CudaOptions};
use aqueduct_kernels::{
    Array, BackendError, Convolution, Delta, GroupNorm, MixerOps, Recurrent, Reference, Rows, Rule,
    Scan,
};
use noise::noise;

const SUMS: Tolerance = Tolerance::new(2e-5, 2e-5);

fn cuda() -> Cuda {
    let options = CudaOptions { checked: true, ..CudaOptions::default() };
    Cuda::emulated(90, options).expect("kernels compile")
}

fn rows(rows: usize, layer: &Recurrent, seed: u64) -> Rows {
    Rows::from_vec(rows, layer.columns(), noise(rows * layer.columns(), seed))
}

fn above_zero(count: usize, seed: u64) -> Arc<[f32]> {
    noise(count, seed).into_iter().map(f32::exp).collect()
}

fn convolution(taps: usize, channels: usize) -> Convolution {
    let bias = Some(noise(channels, 2).into());
    Convolution { taps, weights: noise(taps * channels, 1).into(), bias }
}

fn delta(taps: usize, [key_heads, value_heads]: [usize; 2], dims: [usize; 2]) -> Recurrent {
    let [key_dim, value_dim] = dims;
    let delta = Delta {
        key_heads,
        value_heads,
        tiled: false,
        key_dim,
        value_dim,
        rate: above_zero(value_heads, 3),
        shift: noise(value_heads, 4).into(),
        steps: 1.0,
        norm: noise(value_dim, 5).into(),
        norm_eps: 1e-5,
    };
    Recurrent { conv: convolution(taps, delta.channels()), rule: Rule::Delta(delta) }
}

fn scan(taps: usize, [heads, groups]: [usize; 2], dims: [usize; 2]) -> Recurrent {
    let [head_dim, state_dim] = dims;
    let scan = Scan {
        heads,
        head_dim,
        groups,
        state_dim,
        rate: above_zero(heads, 3),
        shift: noise(heads, 4).into(),
        skip: noise(heads, 5).into(),
        dt_scale: 0.7,
        x_scale: 1.3,
        limits: [0.01, 2.0],
        norm: Some(GroupNorm { weights: noise(heads * head_dim, 6).into(), groups: 1, eps: 1e-5 }),
    };
    Recurrent { conv: convolution(taps, scan.channels()), rule: Rule::Scan(scan) }
}

/// Blocks of one sequence on the device, and all of it by the reference.
fn check(layer: &Recurrent, blocks: &[usize]) {
    let cuda = cuda();
    let x = rows(blocks.iter().sum(), layer, 7);
    let (mut state, mut seen, mut first) = (Array::default(), Vec::new(), 0);
    for &block in blocks {
        let part = cuda.recur(layer, &x.some(first..first + block), state).unwrap();
        (state, first) = (part.state, first + block);
        seen.extend_from_slice(part.output.data());
    }
    let want = Reference.recur(layer, &x, Array::default()).unwrap();
    close("output", &seen, want.output.data(), SUMS).unwrap();
    close("state", &state, &want.state, SUMS).unwrap();
}

#[test]
fn states_of_every_size() {
    for [rows, cols] in [[17, 33], [64, 8], [96, 100], [100, 64], [200, 32]] {
        check(&delta(4, [1, 2], [rows, cols]), &[18, 1, 2]);
        check(&scan(2, [2, 1], [cols, rows]), &[18, 1, 2]);
    }
}

/// More rows than a kernel is made for.
#[test]
fn states_without_a_kernel() {
    let layer = delta(3, [1, 1], [260, 5]);
    check(&layer, &[3, 1]);
    let x = rows(2, &layer, 8);
    let each = cuda().recur_each(&layer, &x, vec![Array::default(), Array::default()]);
    let alone = cuda().recur(&layer, &x.some(1..2), Array::default()).unwrap();
    assert_eq!(each[1].as_ref().ok(), Some(&alone));
}

#[test]
fn many_taps_over_channels_of_many_warps() {
    let gated = Recurrent { conv: convolution(16, 300), rule: Rule::Gated };
    check(&gated, &[5, 1, 30]);
    check(&delta(16, [2, 2], [32, 300]), &[20, 3]);
    check(&scan(16, [4, 2], [80, 16]), &[20, 3]);
}

/// Nothing is read back, and a batch is as many launches as a block.
#[test]
fn rows_and_states_stay_on_the_device() {
    let (cuda, watch) = Cuda::emulated_and_watched(90, CudaOptions::default()).unwrap();
    let layer = delta(4, [1, 2], [16, 16]);
    let x = rows(3, &layer, 9);
    let begun = cuda.recur(&layer, &x, Array::default()).unwrap();
    let states = vec![begun.state.clone(), Array::default(), begun.state.clone()];
    let mut after = None;
    let calls = watch.calls(|| after = Some(cuda.recur(&layer, &x, begun.state.clone())));
    // Rows came from the host, weights did not: they are there.
    assert_eq!(calls, Calls { launches: 3, writes: 1, reads: 0 });
    let mut each = Vec::new();
    let calls = watch.calls(|| each = cuda.recur_each(&layer, &x, states));
    assert_eq!(calls, Calls { launches: 3, writes: 2, reads: 0 }, "rows, and where they are");
    let first = cuda.recur(&layer, &x.some(0..1), begun.state).unwrap();
    let [seen, want] = [each.remove(0).unwrap(), first];
    identical("output", seen.output.data(), want.output.data()).unwrap();
    identical("state", &seen.state, &want.state).unwrap();
    assert_eq!(after.unwrap().unwrap().output.rows(), 3);
}

/// Whoever reads hears of it, where it can be told whose it is.
#[test]
fn broken_numbers_are_reported_when_they_are_read() {
    let cuda = Cuda::emulated(90, CudaOptions::default()).unwrap();
    let layer = delta(4, [1, 2], [16, 16]);
    let mut x = rows(2, &layer, 10);
    x.data_mut()[3] = f32::NAN;
    let broken = cuda.recur(&layer, &x, Array::default()).expect("nobody has looked");
    let read = broken.output.array().host();
    assert!(matches!(read, Err(BackendError::NotFinite { op: "recur", .. })), "{read:?}");
}
