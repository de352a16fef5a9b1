//! What measures need: arrays on the device before the clock starts, single kernels, and the
//! device's own clock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytemuck::Pod;
use half::bf16;

use super::device::Launch;
use super::operands::{PlacedQueries, PlacedState};
use super::params::measure::{Noise, Roof};
use super::resident::{OnDevice, Rounded};
use super::{Cuda, attention, fast, layers, linear, plain};
use crate::array::Array;
use crate::backend::{BackendError, Queries, Scope};
use crate::memory::Keys;
use crate::state::AttentionState;
use crate::tensor::{KvData, KvDtype, KvHeads, Rows};
use crate::weights::Linear;

const THREADS: usize = 256;
/// Bytes that a block of `measure_copy` and `measure_read` goes over.
const BLOCK_BYTES: usize = 4 * THREADS * 16;

/// Memory that is gone over from one end to the other.
pub struct Span {
    from: OnDevice<bf16>,
    to: OnDevice<bf16>,
}

impl Cuda {
    /// The same elements on this device alone.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn here<T: Pod + Send + Sync>(&self, array: &Array<T>) -> Result<Array<T>, BackendError> {
        Ok(self.shared.place(array)?.into_array())
    }

    /// The same keys on this device alone.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn keys_here(&self, keys: &Keys) -> Result<Keys, BackendError> {
        let heads = |heads: &KvHeads| -> Result<KvHeads, BackendError> {
            let data = match &heads.data {
                KvData::F32(data) => KvData::F32(self.here(data)?),
                KvData::Bf16(data) => KvData::Bf16(self.here(data)?),
            };
            Ok(KvHeads { data, ..*heads })
        };
        let positions = self.shared.place(&keys.positions)?;
        let host = keys.positions.host()?;
        let first = host.iter().min().copied().unwrap_or(0);
        let end = host.iter().max().map_or(0, |last| last + 1);
        let positions = positions.known_within(first..end).into_array();
        Ok(Keys { positions, k: heads(&keys.k)?, v: heads(&keys.v)?, ..keys.clone() })
    }

    /// `count` random elements of deviation `size`, made on the device.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn noise(&self, count: usize, size: f32, seed: u64) -> Result<Array<bf16>, BackendError> {
        Ok(self.noise_on_device(count, size, seed)?.into_array())
    }

    /// The same as what queries and attention's output are: f32 that the device keeps as bf16.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn noise_rounded(
        &self,
        count: usize,
        size: f32,
        seed: u64,
    ) -> Result<Array<f32>, BackendError> {
        Ok(Array::on_device(Arc::new(Rounded(self.noise_on_device(count, size, seed)?))))
    }

    /// A random bf16 weight that leaves rows about as large as they were.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn noise_linear(
        &self,
        outputs: usize,
        inputs: usize,
        seed: u64,
    ) -> Result<Linear, BackendError> {
        let size = (inputs as f32).sqrt().recip();
        linear::bf16_on_device(&self.shared, (outputs, inputs), |elements| {
            self.noise_on_device(elements, size, seed)
        })
    }

    fn noise_on_device(
        &self,
        count: usize,
        size: f32,
        seed: u64,
    ) -> Result<OnDevice<bf16>, BackendError> {
        let made = OnDevice::room(&self.shared, count)?;
        let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let params = Noise { to: made.address(), count: count as u64, seed, size, unused: 0 };
        self.shared.run(&Launch {
            kernel: "noise_bf16",
            grid: [count.div_ceil(THREADS) as u32, 1, 1],
            threads: THREADS as u32,
            shared_bytes: 0,
            params: bytemuck::bytes_of(&params),
        })?;
        Ok(made)
    }

    /// `bytes` to be copied or read, a multiple of 16.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn span(&self, bytes: usize) -> Result<Span, BackendError> {
        let from = self.noise_on_device(bytes / size_of::<bf16>(), 1.0, 1)?;
        Ok(Span { to: OnDevice::room(&self.shared, from.len())?, from })
    }

    /// Reads all of `span` and writes as much.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn copy_span(&self, span: &Span) -> Result<(), BackendError> {
        self.go_over("measure_copy", span)
    }

    /// Reads all of `span`.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn read_span(&self, span: &Span) -> Result<(), BackendError> {
        self.go_over("measure_read", span)
    }

    fn go_over(&self, kernel: &'static str, span: &Span) -> Result<(), BackendError> {
        let bytes = span.from.len() * size_of::<bf16>();
        let quads = (bytes / 16) as u64;
        let params = Roof { from: span.from.address(), to: span.to.address(), quads };
        self.shared.run(&Launch {
            kernel,
            grid: [bytes.div_ceil(BLOCK_BYTES) as u32, 1, 1],
            threads: THREADS as u32,
            shared_bytes: 0,
            params: bytemuck::bytes_of(&params),
        })
    }

    /// The masses of [`attend_all`](crate::AttentionOps::attend_all) alone, by the log-sum-exp of
    /// all keys, `[heads, tokens]`.
    ///
    /// # Errors
    /// As there.
    pub fn weigh_all(
        &self,
        queries: Queries<'_>,
        scope: Scope<'_>,
        lse: &Array<f32>,
    ) -> Result<[Array<f32>; 2], BackendError> {
        attention::weigh_all(self, queries, scope, lse)
    }

    /// What two states of the same queries, over different keys, say together.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn merge_states(
        &self,
        queries: Queries<'_>,
        states: [&AttentionState; 2],
    ) -> Result<Rows, BackendError> {
        let rows = PlacedQueries::new(self, queries, KvDtype::Bf16)?;
        let states = states.into_iter().map(|state| PlacedState::of(&self.shared, state));
        let states = states.collect::<Result<Vec<_>, _>>()?;
        let output = plain::merge(&self.shared, &rows, &states, None, KvDtype::Bf16)?;
        let q = queries.q;
        Ok(Rows::new(q.tokens, q.heads * q.head_dim, output.data.into_array()))
    }

    /// `x` through `weight` as inside a layer: nobody looks whether the sums are finite.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn product(&self, x: &Rows, weight: &Linear) -> Result<Rows, BackendError> {
        layers::product(self, (x, None), weight, false)
    }

    /// `x` through `weight`, plus `residual` of the product's shape: by a library, where one takes
    /// it, and by our kernels alone if they are to.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn product_by(
        &self,
        x: &Rows,
        weight: &Linear,
        residual: Option<&Rows>,
        own: bool,
    ) -> Result<Rows, BackendError> {
        layers::product(self, (x, residual), weight, own)
    }

    /// Whether a library multiplies many rows.
    pub fn has_library(&self) -> bool {
        self.shared.gemm_library().is_some()
    }

    /// Whether attention of many rows has kernels for this chip alone, beside those for every chip.
    pub fn has_own_kernels(&self) -> bool {
        fast::own(self.shared.device.properties())
    }

    /// Who multiplies many rows.
    pub fn multiplier(&self) -> &'static str {
        if self.has_library() { "cuBLASLt" } else { "our kernels, without cuBLASLt" }
    }

    /// Waits until the device has done what was asked of it, and forgets numbers that were not
    /// finite and of which nobody has asked.
    ///
    /// # Errors
    /// [`BackendError::Device`]: nothing can be asked of it any more.
    pub fn settle(&self) -> Result<(), BackendError> {
        match self.shared.broken() {
            Err(BackendError::NotFinite { .. }) => Ok(()),
            other => other,
        }
    }

    /// How long the device takes for what `work` enqueues, by its own clock where it has one.
    ///
    /// # Errors
    /// What `work` says, and [`BackendError::Device`].
    pub fn time<E: From<BackendError>>(
        &self,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<Duration, E> {
        self.shared.broken()?; // nothing else is under way
        #[cfg(feature = "cuda")]
        if let Some((driver, _)) = &self.shared.driver {
            let failed = |fault| self.shared.fault(fault);
            let start = driver.mark().map_err(failed)?;
            work()?;
            let end = driver.mark().map_err(failed)?;
            return driver.between(&start, &end).map_err(|fault| failed(fault).into());
        }
        let start = Instant::now();
        work()?;
        self.shared.broken()?;
        Ok(start.elapsed())
    }
}

#[cfg(all(test, feature = "cuda-emulator", target_arch = "x86_64", target_os = "linux"))]
mod tests {
    use super::*;
    use crate::cuda::CudaOptions;

    fn cuda() -> Cuda {
        Cuda::emulated(90, CudaOptions::default()).unwrap()
    }

    #[test]
    fn noise_is_nearly_normal_and_its_own_for_every_seed() {
        let cuda = cuda();
        let noise = |seed| cuda.noise_rounded(5000, 2.0, seed).unwrap().into_vec();
        let (one, other) = (noise(1), noise(2));
        let mean = |of: &dyn Fn(f32) -> f32| one.iter().map(|&x| of(x)).sum::<f32>() / 5000.0;
        assert!(mean(&|x| x).abs() < 0.1, "{}", mean(&|x| x));
        assert!((mean(&|x| x * x) - 4.0).abs() < 0.2, "{}", mean(&|x| x * x));
        let beyond = mean(&|x| f32::from(x.abs() > 2.0)); // 0.317 of a normal distribution
        assert!((0.28..0.36).contains(&beyond), "{beyond}");
        assert_eq!(one, noise(1));
        assert!(one.iter().zip(&other).filter(|(a, b)| a == b).count() < 100);
    }

    #[test]
    fn a_span_is_copied_and_read_to_its_end() {
        let cuda = cuda();
        for bytes in [16, 4096, BLOCK_BYTES - 16, 3 * BLOCK_BYTES + 48] {
            let span = cuda.span(bytes).unwrap();
            cuda.copy_span(&span).unwrap();
            let (from, to) = (span.from.read().unwrap(), span.to.read().unwrap());
            assert!(from == to, "{bytes} bytes");
            cuda.read_span(&span).unwrap();
            let words = |it: &[bf16]| -> Vec<u32> {
                it.chunks(2)
                    .map(|it| u32::from(it[0].to_bits()) | u32::from(it[1].to_bits()) << 16)
                    .collect()
            };
            let all = words(&from).into_iter().fold(0, |all, word| all ^ word);
            let full = bytes / BLOCK_BYTES;
            let rest = (bytes - full * BLOCK_BYTES).div_ceil(32 * 16);
            let warps = full * THREADS / 32 + rest.min(THREADS / 32);
            let seen = words(&span.to.read().unwrap());
            let seen = seen.into_iter().take(warps).fold(0, |all, word| all ^ word);
            assert_eq!(seen, all, "{bytes} bytes");
        }
    }
}
