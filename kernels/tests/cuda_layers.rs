//! Layers on an emulated CUDA device, beyond what the conformance suite asks for: tiles of many
//! rows, and the bits of the processor.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

#[path = "support/noise.rs"]
mod noise;

use std::sync::Arc;

use aqueduct_kernels::compare::{Tolerance, close, identical};
use aqueduct_kernels::cuda::{Cuda, CudaOptions};
use aqueduct_kernels::{
    Activation, Angles, Backend, BackendError, Cpu, CpuOptions, FeedForward, Gated, Int8Rows,
    KvDtype, LayerOps, LayerSpec, LayerWeights, Linear, Matrix, MatrixData, Reference, Rows,
};
use half::bf16;
use noise::noise;

fn cuda() -> Cuda {
    let options = CudaOptions { checked: true, ..CudaOptions::default() };
    Cuda::emulated(90, options).expect("kernels compile")
}

fn rows(rows: usize, cols: usize, seed: u64) -> Rows {
    Rows::from_vec(rows, cols, noise(rows * cols, seed))
}

fn some(of: &Rows, from: usize, to: usize) -> Rows {
    Rows::from_vec(to - from, of.cols(), of.data()[from * of.cols()..to * of.cols()].to_vec())
}

#[derive(Debug, Clone, Copy)]
enum Held {
    F32,
    Bf16,
    Int8,
}

fn matrix(held: Held, (outputs, inputs): (usize, usize), seed: u64) -> Matrix {
    let size = 1.0 / (inputs as f32).sqrt();
    let values: Vec<f32> = noise(outputs * inputs, seed).into_iter().map(|x| size * x).collect();
    let data = match held {
        Held::F32 => MatrixData::F32(values),
        Held::Bf16 => MatrixData::Bf16(values.into_iter().map(bf16::from_f32).collect()),
        Held::Int8 => MatrixData::Int8(Int8Rows::from_f32(&values, inputs)),
    };
    Matrix { outputs, inputs, data }
}

fn pack(backend: &dyn LayerOps, held: Held, shape: (usize, usize), seed: u64) -> Linear {
    backend.pack(matrix(held, shape, seed), Some(noise(shape.0, seed + 1))).unwrap()
}

/// Two tiles of 128 rows, ragged every way, and rows of it in the tiles of fewer rows.
fn check_many(held: Held, shape: (usize, usize)) {
    const ROWS: usize = 133;
    let cuda = cuda();
    let x = rows(ROWS, shape.1, 3);
    let packed = pack(&cuda, held, shape, 4);
    let many = cuda.linear(&x, &packed).unwrap();
    let want = Reference.linear(&x, &pack(&Reference, held, shape, 4)).unwrap();
    let name = format!("{packed:?} of {held:?}");
    close(&name, many.data(), want.data(), Tolerance::new(1e-5, 1e-5)).unwrap();
    for (from, to) in [(0, 1), (120, 133), (60, 124)] {
        let few = cuda.linear(&some(&x, from, to), &packed).unwrap();
        identical(&name, few.data(), some(&many, from, to).data()).unwrap();
    }
}

#[test]
fn a_row_has_the_same_bits_in_every_tile() {
    check_many(Held::Bf16, (135, 200));
    check_many(Held::Int8, (135, 300));
    check_many(Held::F32, (70, 50));
}

#[test]
fn integers_have_the_bits_of_the_processor() {
    let (cuda, cpu) = (cuda(), Cpu::new(CpuOptions { threads: 1, isa: None }).unwrap());
    for (count, shape) in [(1, (33, 300)), (13, (40, 128)), (50, (16, 129)), (130, (131, 400))] {
        let x = rows(count, shape.1, 7);
        let [seen, want] = [&cuda as &dyn LayerOps, &cpu]
            .map(|backend| backend.linear(&x, &pack(backend, Held::Int8, shape, 8)).unwrap());
        identical(&format!("{count} rows to {shape:?}"), seen.data(), want.data()).unwrap();
    }
}

const WIDTH: usize = 72;

/// D, and how keys are stored.
type Kv = (usize, KvDtype);

fn layer(backend: &dyn LayerOps, held: Held, ffn: usize, (head_dim, kv): Kv) -> LayerWeights {
    let ones = || Arc::from(vec![1.0; WIDTH]);
    LayerWeights {
        gate: None,
        recurrent: None,
        spec: LayerSpec {
            heads: 4,
            kv_heads: 2,
            head_dim,
            norm_eps: 1e-5,
            activation: Activation::Silu,
            kv,
        },
        attn_norm: Some(ones()),
        qkv: pack(backend, held, (8 * head_dim, WIDTH), 10),
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
        out: pack(backend, held, (WIDTH, 4 * head_dim), 20),
        attn_post_norm: None,
        ffn_norm: Some(ones()),
        ffn: FeedForward::Dense(Gated {
            gate_up: pack(backend, held, (2 * ffn, WIDTH), 30),
            down: pack(backend, held, (WIDTH, ffn), 40),
        }),
        parallel: false,
        ffn_post_norm: None,
        scale: None,
    }
}

/// Gate and up are multiplied in one tile: whole and ragged, with a bias, in all tiles.
#[test]
fn a_layer_of_many_rows_is_one_of_few() {
    let cuda = cuda();
    for (held, ffn) in [(Held::Bf16, 101), (Held::Int8, 100), (Held::Int8, 101)] {
        let (x, attention) = (rows(130, WIDTH, 1), rows(130, 64, 2));
        let ours = layer(&cuda, held, ffn, (16, KvDtype::F32));
        let many = cuda.finish(&ours, &x, &attention).unwrap();
        let reference = layer(&Reference, held, ffn, (16, KvDtype::F32));
        let want = Reference.finish(&reference, &x, &attention).unwrap();
        // Where a rounding inside turns out the other way, it moves a result by a little.
        close("finish", many.data(), want.data(), Tolerance::new(2e-2, 1e-4)).unwrap();
        for (from, to) in [(0, 1), (100, 130), (129, 130)] {
            let few = cuda.finish(&ours, &some(&x, from, to), &some(&attention, from, to)).unwrap();
            identical("finish", few.data(), some(&many, from, to).data()).unwrap();
        }
    }
}

/// Whoever reads hears of it where operations do not wait.
#[test]
fn broken_numbers_are_reported_when_they_are_read() {
    let cuda = Cuda::emulated(90, CudaOptions::default()).unwrap();
    let packed = pack(&cuda, Held::Bf16, (8, 8), 1);
    let mut x = rows(2, 8, 2);
    x.data_mut()[3] = f32::NAN;
    let y = cuda.linear(&x, &packed).expect("nobody has looked");
    let read = y.array().host();
    assert!(matches!(read, Err(BackendError::NotFinite { op: "linear", .. })), "{read:?}");
    let y = cuda.linear(&rows(2, 8, 2), &packed).unwrap();
    assert!(y.array().host().is_ok(), "once");
}

/// Whoever reads meanwhile neither hears of it nor takes it away.
#[test]
fn broken_numbers_are_told_to_the_thread_that_asked_for_them() {
    let cuda = Cuda::emulated(90, CudaOptions::default()).unwrap();
    let packed = pack(&cuda, Held::Bf16, (8, 8), 1);
    let good = cuda.linear(&rows(2, 8, 2), &packed).unwrap();
    let mut x = rows(2, 8, 2);
    x.data_mut()[3] = f32::NAN;
    let y = cuda.linear(&x, &packed).expect("nobody has looked");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            good.array().host().expect("a reader who computes nothing");
            let own = cuda.linear(&rows(2, 8, 3), &packed).unwrap();
            own.array().host().expect("what was computed here is good");
            cuda.sound().expect("as is all of it");
        });
    });
    let told = cuda.sound();
    assert!(matches!(told, Err(BackendError::NotFinite { op: "linear", .. })), "{told:?}");
    cuda.sound().expect("once");
    assert!(y.array().host().unwrap().iter().any(|y| y.is_nan()), "and nobody else hears of it");
}

/// A device's weights are of no use to another.
#[test]
fn a_weight_of_another_device_is_refused() {
    let packed = pack(&cuda(), Held::F32, (4, 4), 1);
    let y = cuda().linear(&rows(1, 4, 1), &packed);
    assert!(matches!(y, Err(BackendError::ForeignWeight { .. })), "{y:?}");
}

/// What a device keeps as bf16, queries here and attention's output in a model, is multiplied by
/// every weight as if it had come from the host.
#[test]
fn rounded_rows_meet_every_weight() {
    let cuda = cuda();
    for head_dim in [12, 16] {
        let layer = layer(&cuda, Held::Bf16, 8, (head_dim, KvDtype::Bf16));
        let [cos, sin] = [0.6, 0.8].map(|value| vec![value; 3 * head_dim / 2].into());
        let angles = Angles { tokens: 3, half: head_dim / 2, cos, sin };
        let q = cuda.project(&layer, &rows(3, WIDTH, 1), (0, &angles), 3).unwrap().q;
        let there = Rows::new(4 * 3, head_dim, q.data.clone());
        let here = Rows::from_vec(4 * 3, head_dim, q.data.to_vec());
        for held in [Held::F32, Held::Bf16, Held::Int8] {
            let packed = pack(&cuda, held, (5, head_dim), 6);
            let [seen, want] = [&there, &here].map(|x| cuda.linear(x, &packed).unwrap());
            identical(&format!("{packed:?} of {held:?}"), seen.data(), want.data()).unwrap();
        }
    }
}
