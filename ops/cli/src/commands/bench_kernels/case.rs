//! What is measured: a kernel on a shape, and what it has to compute and to read at least.

use std::hint::black_box;
use std::time::{Duration, Instant};

use aqueduct_kernels::cpu::peak::{Factors, Path};
use aqueduct_kernels::{BackendError, Cpu, IsaLevel};

use super::{attention, layer, recurrent};

/// One row to be.
pub(super) struct Case {
    pub(super) kernel: &'static str,
    /// What multiplies.
    pub(super) path: Path,
    /// For a person.
    pub(super) shape: String,
    /// Multiplications and additions.
    pub(super) flop: u64,
    /// Read and written at least.
    pub(super) bytes: u64,
    pub(super) prepare: Prepare,
}

/// Makes what the kernel is given; called just before it is measured.
pub(super) type Prepare = Box<dyn FnOnce(&Cpu) -> Result<Work, BackendError>>;

/// Runs the kernel once and says how long it took, without what had to be made for it.
pub(super) type Work = Box<dyn FnMut(&Cpu) -> Result<Duration, BackendError>>;

impl Case {
    /// Whether each of the words is a part of what the row will say.
    pub(super) fn is_named(&self, words: &str) -> bool {
        let name = format!("{} {} {}", self.kernel, self.path, self.shape);
        words.split_whitespace().all(|word| name.contains(word))
    }
}

/// Every case: the layers and the attention of a model of 159 M parameters, and a few more.
pub(super) fn all(cpu: &Cpu) -> Vec<Case> {
    let mut cases = layer::linear_maps(cpu);
    cases.extend(layer::rest(cpu));
    cases.extend(attention::over_keys(cpu));
    cases.extend(attention::bookkeeping());
    cases.extend(recurrent::states(cpu));
    cases
}

/// The path of what is written without vectors in mind.
pub(super) const PLAIN: Path = Path { isa: IsaLevel::Portable, factors: Factors::F32 };

/// Times `work`. What it returns is dropped afterwards.
pub(super) fn timed<T>(
    work: impl FnOnce() -> Result<T, BackendError>,
) -> Result<Duration, BackendError> {
    let start = Instant::now();
    let result = black_box(work());
    let took = start.elapsed();
    result.map(|_| took)
}

/// Numbers between -1 and 1, always the same.
pub(in crate::commands) fn noise(count: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Copies of weights or keys that are used in turn, so that they come from memory and not from
/// a cache, as in a model. `bytes` is the size of one.
pub(super) fn copies_of(bytes: usize) -> usize {
    const BEYOND_CACHES: usize = 256 << 20;
    BEYOND_CACHES.div_ceil(bytes.max(1)).clamp(2, 1 << 10)
}
