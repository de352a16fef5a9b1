//! Products of many rows by cuBLASLt, beside those of our own kernels, which the other checks
//! compare with f64.

use aqueduct_kernels::cuda::{Cuda, CudaError, CudaOptions};
use aqueduct_kernels::{BackendError, LayerOps, Matrix, MatrixData, Rows};
use half::bf16;

use super::large::{words, worst_row};
use super::{PATIENCE, Report};

/// Often enough that the library's algorithms are measured, and the fastest is in use.
const TIMES: usize = 4;
/// Length of the difference over length, of a row: both add the same products in f32, in other
/// orders, and tensor cores drop some bits of each sum.
const ROW_ERROR_MAX: f64 = 1e-3;

/// What is compared.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    rows: usize,
    inputs: usize,
    outputs: usize,
    bias: bool,
    residual: bool,
}

/// The fewest rows that the library gets, a tile, and a chunk; with and without what is added.
pub(super) fn cases() -> Vec<Case> {
    let shapes = [(65, 520, 776), (128, 1024, 1024), (4096, 1024, 512)];
    let added = [(false, false), (true, false), (false, true), (true, true)];
    let case = |((rows, inputs, outputs), (bias, residual))| Case {
        rows,
        inputs,
        outputs,
        bias,
        residual,
    };
    shapes.into_iter().flat_map(|shape| added.map(|added| case((shape, added)))).collect()
}

impl Case {
    pub(super) fn name(&self) -> String {
        let Self { rows, inputs, outputs, bias, residual } = self;
        let bias = if *bias { ", bias" } else { "" };
        let residual = if *residual { ", residual" } else { "" };
        format!("library::product {rows}x{inputs}x{outputs}{bias}{residual}")
    }

    /// How far the library is from our kernels, in words.
    fn compare(&self, cuda: &Cuda) -> Result<String, String> {
        let Self { rows, inputs, outputs, .. } = *self;
        let data = noise(outputs * inputs, 1).into_iter().map(bf16::from_f32).collect();
        let matrix = Matrix { outputs, inputs, data: MatrixData::Bf16(data) };
        let weight = cuda.pack(matrix, self.bias.then(|| noise(outputs, 2))).map_err(words)?;
        let x = Rows::from_vec(rows, inputs, noise(rows * inputs, 3));
        let residual =
            self.residual.then(|| Rows::from_vec(rows, outputs, noise(rows * outputs, 4)));
        let product = |own: bool| -> Result<Vec<f32>, BackendError> {
            let product = cuda.product_by(&x, &weight, residual.as_ref(), own)?;
            Ok(product.array().host()?.to_vec())
        };
        let want = product(true).map_err(words)?;
        let seen = (0..TIMES).map(|_| product(false)).collect::<Result<Vec<_>, _>>();
        let seen = seen.map_err(words)?;
        let differs = |one: &Vec<f32>| {
            one.iter().map(|x| x.to_bits()).ne(seen[0].iter().map(|x| x.to_bits()))
        };
        if let Some(time) = seen.iter().position(differs) {
            return Err(format!("the bits of time {time} are not those of the first"));
        }
        let error = worst_row(&seen[0], &want, outputs);
        let said = format!("worst row {error:.1e}");
        if error <= ROW_ERROR_MAX { Ok(said) } else { Err(said) }
    }
}

/// Numbers between -1 and 1, the same for every seed.
fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Compares all cases, where there is a library.
pub(super) fn compare_all(
    open: &dyn Fn(CudaOptions) -> Result<Cuda, CudaError>,
    cases: &[Case],
    report: &mut Report,
) -> anyhow::Result<()> {
    let cuda = open(CudaOptions { patience: PATIENCE, ..CudaOptions::default() })?;
    for case in cases {
        report.run(&cuda, &case.name(), || match cuda.has_library() {
            true => case.compare(&cuda),
            false => Ok("there is no cuBLASLt here".to_owned()),
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_between_its_bounds_and_of_its_seed() {
        let one = noise(1000, 1);
        assert!(one.iter().all(|x| x.abs() <= 1.0));
        assert!(one.iter().sum::<f32>().abs() < 50.0);
        assert_eq!(one, noise(1000, 1));
        assert_ne!(one, noise(1000, 2));
    }

    #[test]
    fn every_case_is_one_that_the_library_gets() {
        for case in cases() {
            let fits = case.inputs % 8 == 0 && case.outputs % 8 == 0 && case.rows > 64;
            assert!(fits, "{}", case.name());
        }
    }
}
