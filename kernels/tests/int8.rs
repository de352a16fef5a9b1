//! Products with eight-bit weights: the same on every instruction set and number of threads.

#[path = "support/noise.rs"]
mod noise;

use aqueduct_kernels::compare::{Tolerance, close, identical};
use aqueduct_kernels::{
    Cpu, CpuOptions, Int8Rows, IsaLevel, LayerOps, Matrix, MatrixData, Reference, Rows,
};
use noise::noise;

fn cpu(isa: IsaLevel, threads: usize) -> Cpu {
    Cpu::new(CpuOptions { threads, isa: Some(isa) }).unwrap()
}

fn check(rows: usize, outputs: usize, inputs: usize) {
    let x = Rows::from_vec(rows, inputs, noise(rows * inputs, 7));
    let data = MatrixData::Int8(Int8Rows::from_f32(&noise(outputs * inputs, 8), inputs));
    let (weight, bias) = (Matrix { outputs, inputs, data }, Some(noise(outputs, 9)));
    let linear = |backend: &dyn LayerOps| {
        let packed = backend.pack(weight.clone(), bias.clone()).unwrap();
        backend.linear(&x, &packed).unwrap()
    };
    let want = linear(&Reference);
    let mut fused: Option<Rows> = None;
    for isa in IsaLevel::available() {
        let what = format!("[{rows}, {inputs}] to {outputs} on {isa}");
        let seen = linear(&cpu(isa, 1));
        close(&what, seen.data(), want.data(), Tolerance::new(1e-5, 2e-6)).unwrap();
        for threads in [2, 3] {
            identical(&what, linear(&cpu(isa, threads)).data(), seen.data()).unwrap();
        }
        if isa != IsaLevel::Portable {
            let first = fused.get_or_insert_with(|| seen.clone());
            identical(&what, seen.data(), first.data()).unwrap();
        }
    }
}

#[test]
fn sets_agree_to_the_bit_where_they_fuse() {
    for rows in [1, 2, 3, 7, 8, 13, 193] {
        check(rows, 33, 300);
    }
    check(5, 1, 1);
    check(9, 16, 256);
    check(12, 600, 17);
    check(40, 96, 1088);
}
