//! What the processor can do at most: bursts of the very instructions that kernels are made of,
//! and a read of more memory than any cache holds. A share of a peak means little unless the
//! peak was measured on the same machine, on the same path, a moment before.

mod burst;

use std::sync::{Barrier, Mutex, PoisonError};
use std::time::Instant;

use self::burst::Burst;
use super::isa::{Isa, IsaLevel};
use super::simd::{Kernel, LANES, Simd, sum};
use super::{Cpu, gemm};

/// What is multiplied by what; sums are f32, or i32 of eight-bit integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Factors {
    /// f32.
    F32,
    /// bf16, by an instruction for it or widened.
    Bf16,
    /// Eight-bit integers.
    Int8,
}

impl Factors {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::Int8];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }
}

/// Which instructions multiply, and what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Path {
    /// The set that the multiplying instruction belongs to.
    pub isa: IsaLevel,
    /// What it multiplies.
    pub factors: Factors,
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.isa, self.factors.as_str())
    }
}

/// Bytes that are read for the bandwidth.
pub const READ_BYTES: usize = 256 << 20;

/// Bursts of which the best counts: others use the machine too.
const BURSTS: usize = if cfg!(test) { 2 } else { 64 };
/// What a burst should take: long beside the start of a thread, short beside a time slice.
const BURST_SECONDS: f64 = 1e-3;
/// Reads of which the best counts.
const READS: usize = if cfg!(test) { 2 } else { 24 };
/// Sixteens of f32 that a thread reads at a stretch: 1 MiB.
const READ_PART: usize = 1 << 14;

impl Cpu {
    /// What multiplies where `rows` go through a linear map of such weights.
    pub fn linear_path(&self, factors: Factors, rows: usize) -> Path {
        let isa = gemm::multiplying(self.isa(), factors, rows);
        Path { isa, factors }
    }

    /// What multiplies in attention over such keys and values.
    pub fn attention_path(&self, factors: Factors) -> Path {
        let isa = match factors {
            Factors::Bf16 if self.isa() >= IsaLevel::Avx512Bf16 => self.isa(),
            _ => self.vectors(),
        };
        Path { isa, factors }
    }

    /// Where sixteen f32 at a time are computed.
    pub fn vector_path(&self) -> Path {
        Path { isa: self.vectors(), factors: Factors::F32 }
    }

    fn vectors(&self) -> IsaLevel {
        self.isa().vectors()
    }

    /// Operations per second of all threads together, a multiplication and an addition being
    /// two, on registers alone. Takes a tenth of a second.
    ///
    /// # Panics
    /// When the processor lacks the path, which no path of a `Cpu` does.
    pub fn peak(&self, path: Path) -> f64 {
        let isa = Isa::new(path.isa).expect("a path of this processor");
        let threads = self.threads();
        let mut burst = Burst { isa, factors: path.factors, steps: 1000 };
        while together(1, || burst.run())[0].processor_seconds < BURST_SECONDS {
            burst.steps *= 2;
        }
        // By processor time: by the clock, a machine that others use would have no peak.
        let rate = |spans: Vec<Span>| -> f64 {
            spans.iter().map(|span| burst.operations() / span.processor_seconds).sum()
        };
        most(BURSTS, || rate(together(threads, || burst.run())))
    }

    /// Bytes per second that all threads together read from memory. Takes half a second.
    ///
    /// # Errors
    /// Memory that the system refuses.
    pub fn read_bandwidth(&self) -> std::io::Result<f64> {
        let threads = self.threads();
        let mut memory = memmap2::MmapMut::map_anon(READ_BYTES)?;
        #[cfg(target_os = "linux")]
        memory.advise(memmap2::Advice::HugePage).ok(); // a system without them reads as well
        memory.fill(1); // pages that were never written are all one page
        let data: &[[f32; LANES]] = bytemuck::cast_slice(&memory);
        let rate = || {
            let parts = Mutex::new(data.chunks(READ_PART));
            let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
            let read = || std::iter::from_fn(next).map(|part| self.isa.run(Read(part))).sum();
            let spans = together(threads, read);
            let start = spans.iter().map(|span| span.start).min();
            let end = spans.iter().map(|span| span.end).max();
            let seconds = start.zip(end).map_or(0.0, |(start, end)| (end - start).as_secs_f64());
            READ_BYTES as f64 / seconds
        };
        Ok(most(READS, rate))
    }
}

fn most(times: usize, rate: impl Fn() -> f64) -> f64 {
    (0..times).map(|_| rate()).fold(0.0, f64::max)
}

/// When one thread worked.
struct Span {
    start: Instant,
    end: Instant,
    /// How long of that it had a processor.
    processor_seconds: f64,
}

/// Threads that `work` at the same time.
fn together(threads: usize, work: impl Fn() -> f32 + Sync) -> Vec<Span> {
    let ready = Barrier::new(threads);
    let one = || {
        ready.wait();
        let (start, had) = (Instant::now(), processor_seconds());
        std::hint::black_box(work());
        Span { start, end: Instant::now(), processor_seconds: processor_seconds() - had }
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        running.into_iter().map(|thread| thread.join().expect("a burst does not panic")).collect()
    })
}

/// Processor time of this thread.
fn processor_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer; the clock exists on every Unix.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Loads everything once.
struct Read<'a>(&'a [[f32; LANES]]);

impl Kernel for Read<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let mut sums = [simd.splat(0.0); 4];
        for lines in self.0.chunks_exact(sums.len()) {
            for (sum, line) in sums.iter_mut().zip(lines) {
                *sum = *sum + simd.load(line);
            }
        }
        sums.into_iter().map(sum).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::CpuOptions;

    #[test]
    fn every_path_of_every_instruction_set_has_a_peak() {
        for isa in IsaLevel::available() {
            let cpu = Cpu::new(CpuOptions { threads: 1, isa: Some(isa) }).unwrap();
            let paths = |factors| [cpu.linear_path(factors, 512), cpu.attention_path(factors)];
            for path in Factors::ALL.map(paths).as_flattened() {
                assert!(path.isa <= isa, "{path} on {isa}");
                let peak = cpu.peak(*path);
                assert!(peak.is_finite() && peak > 0.0, "{path} on {isa}: {peak}");
            }
        }
    }

    #[test]
    fn memory_is_read() {
        let cpu = Cpu::new(CpuOptions { threads: 2, isa: None }).unwrap();
        let bandwidth = cpu.read_bandwidth().unwrap();
        assert!(bandwidth.is_finite() && bandwidth > 0.0);
    }

    #[test]
    fn a_path_reads_as_one_would_say_it() {
        let path = Path { isa: IsaLevel::Avx512Vnni, factors: Factors::Int8 };
        assert_eq!(path.to_string(), "avx512vnni int8");
    }
}
