//! Chunks of a model's size, by the kernels of the chip and by those that every chip has: a block
//! of the grid goes over many items and long rows of tiles. Too much for a definition in f64.

use anyhow::Context;
use aqueduct_kernels::cuda::{Cuda, CudaError, CudaOptions};
use aqueduct_kernels::{
    Array, Attended, AttentionOps, BackendError, Heads, Keys, KvData, KvHeads, Leaves, Queries,
    Scope,
};

use super::{PATIENCE, Report};

/// Rows of a chunk, query heads, KV heads.
const ROWS: usize = 4096;
const HEADS: usize = 32;
const KV_HEADS: usize = 8;
/// Of logits: so large that few keys have most of a row.
const SPREAD: f32 = 2.0;

/// Length of the difference over length, of a head's row of output: both kernels round
/// probabilities and output to bf16, each of which is up to 4e-3 off.
const ROW_ERROR_MAX: f64 = 2e-2;
/// Of a mass: sums of f32 in another order.
const MASS_ERROR_MAX: f64 = 1e-3;

/// What is compared.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    head_dim: usize,
    past: usize,
}

pub(super) const CASES: [Case; 6] = [
    Case { head_dim: 64, past: 1024 },
    Case { head_dim: 64, past: 20_000 },
    Case { head_dim: 128, past: 1024 },
    Case { head_dim: 128, past: 20_000 },
    Case { head_dim: 256, past: 1024 },
    Case { head_dim: 256, past: 20_000 },
];

impl Case {
    pub(super) fn name(&self) -> String {
        format!("large::heads of {} over {} keys", self.head_dim, self.past)
    }

    /// Output, past and own masses of so many rows; what they are made of is the same on every
    /// device.
    fn attended(&self, cuda: &Cuda, rows: usize) -> Result<[Array<f32>; 3], BackendError> {
        let head_dim = self.head_dim;
        let data = cuda.noise_rounded(HEADS * rows * head_dim, SPREAD, 1)?;
        let q = Heads { heads: HEADS, tokens: rows, head_dim, data };
        let keys = |start: usize, tokens: usize, seed: u64| -> Result<Keys, BackendError> {
            let heads = |seed: u64| -> Result<KvHeads, BackendError> {
                let data = cuda.noise(KV_HEADS * tokens * head_dim, 1.0, seed)?;
                Ok(KvHeads { kv_heads: KV_HEADS, tokens, head_dim, data: KvData::Bf16(data) })
            };
            let positions: Vec<u32> = (start as u32..).take(tokens).collect();
            cuda.keys_here(&Keys::new(positions.repeat(KV_HEADS), heads(seed)?, heads(seed + 1)?))
        };
        let (past, own) = (keys(0, self.past, 2)?, keys(self.past, rows, 4)?);
        let (scale, start) = ((head_dim as f32).sqrt().recip(), self.past as u32);
        let queries = Queries { q: &q, start, scale, window: None, softcap: None, slopes: None };
        let weights = vec![1.0; rows];
        let (leaves, row_weights) = (Leaves::ONE, Some(&*weights));
        let scope = Scope {
            past: &past,
            leaves,
            own: &own,
            row_weights,
            sinks: None,
            outputs: rows,
            rounded: true,
        };
        let Attended { output, past_mass, own_mass } = cuda.attend_all(queries, scope)?;
        Ok([output.into_vec().into(), past_mass, own_mass])
    }

    /// How far two devices are apart, in words.
    fn compare(&self, devices: [&Cuda; 2], rows: usize) -> Result<String, String> {
        let [seen, want] = devices.map(|cuda| self.attended(cuda, rows));
        let (seen, want) = (seen.map_err(words)?, want.map_err(words)?);
        let row_error = worst_row(seen[0].host().map_err(words)?, &want[0], self.head_dim);
        let mut mass_error = 0.0_f64;
        for (seen, want) in seen[1..].iter().zip(&want[1..]) {
            let want = want.host().map_err(words)?;
            mass_error = mass_error.max(worst_row(seen.host().map_err(words)?, want, 1));
        }
        let said = format!("worst row of output {row_error:.1e}, worst mass {mass_error:.1e}");
        // A NaN is as large as can be.
        match row_error <= ROW_ERROR_MAX && mass_error <= MASS_ERROR_MAX {
            true => Ok(said),
            false => Err(said),
        }
    }
}

pub(super) fn words(error: BackendError) -> String {
    error.to_string()
}

/// Of rows of `columns`: the largest length of a difference, over the length of what was wanted.
/// Infinite where a number is none.
pub(super) fn worst_row(seen: &[f32], want: &[f32], columns: usize) -> f64 {
    if seen.len() != want.len() {
        return f64::INFINITY;
    }
    let error = |(seen, want): (&[f32], &[f32])| {
        let (mut off, mut whole) = (0.0_f64, 0.0_f64);
        for (&seen, &want) in seen.iter().zip(want) {
            off += (f64::from(seen) - f64::from(want)).powi(2);
            whole += f64::from(want).powi(2);
        }
        let error = (off / whole.max(f64::MIN_POSITIVE)).sqrt();
        if error.is_nan() { f64::INFINITY } else { error }
    };
    seen.chunks(columns).zip(want.chunks(columns)).map(error).fold(0.0, f64::max)
}

/// Compares all cases, where the chip has kernels of its own.
pub(super) fn compare_all(
    open: &dyn Fn(CudaOptions) -> Result<Cuda, CudaError>,
    cases: &[&Case],
    report: &mut Report,
) -> anyhow::Result<()> {
    let fastest = CudaOptions { patience: PATIENCE, ..CudaOptions::default() };
    let cuda = open(fastest)?;
    if !cuda.has_own_kernels() {
        return Ok(());
    }
    let general = open(CudaOptions { capability_max: Some(80), ..fastest })?;
    for case in cases {
        report.run(&cuda, &case.name(), || case.compare([&cuda, &general], ROWS))?;
        general.settle().with_context(|| format!("lost at {}", case.name()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_row_counts() {
        let want = [3.0, 4.0, 1.0, 0.0];
        assert_eq!(worst_row(&want, &want, 2), 0.0);
        assert_eq!(worst_row(&[3.0, 4.0, 1.0, 0.5], &want, 2), 0.5);
        assert_eq!(worst_row(&[3.0, 4.0, f32::NAN, 0.0], &want, 2), f64::INFINITY);
        assert_eq!(worst_row(&[0.0; 3], &want, 2), f64::INFINITY);
    }
}
