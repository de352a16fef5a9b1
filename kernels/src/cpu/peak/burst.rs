//! Bursts of one multiplying instruction, on registers alone.

use super::Factors;
use crate::cpu::isa::{Isa, IsaLevel};
use crate::cpu::simd::{Kernel, LANES, Simd, Vector, sum};

/// Independent chains of multiply-adds of sixteen f32: as many as there are registers for, and
/// more than the latency asks for. AVX-512; AVX2 and NEON; SSE.
const WHOLE_CHAINS: usize = 16;
const PART_CHAINS: usize = 6;
const PLAIN_CHAINS: usize = 3;
/// The same for products of pairs and fours, of which AVX2 has sixteen registers too.
#[cfg(target_arch = "x86_64")]
const DOT_CHAINS: usize = 12;
/// Independent chains of tiles; what they multiply takes the other four registers.
#[cfg(target_arch = "x86_64")]
const TILE_CHAINS: usize = 4;

/// As many instructions as one thread runs at a stretch.
#[derive(Clone, Copy)]
pub(super) struct Burst {
    pub(super) isa: Isa,
    pub(super) factors: Factors,
    /// Instructions of each chain.
    pub(super) steps: usize,
}

impl Burst {
    /// Multiplications and additions of the burst.
    pub(super) fn operations(&self) -> f64 {
        let (chains, multiplications) = match self.native() {
            #[cfg(target_arch = "x86_64")]
            Native::Tile { bytes } => (TILE_CHAINS, 16 * 16 * 64 / bytes),
            #[cfg(target_arch = "x86_64")]
            Native::Dot { bytes } => (DOT_CHAINS, 64 / bytes),
            #[cfg(target_arch = "x86_64")]
            Native::ShortDot => (DOT_CHAINS, 32),
            #[cfg(target_arch = "x86_64")]
            Native::Pairs { bits } => (DOT_CHAINS, bits / 16),
            Native::Fma => (self.fma_chains(), LANES),
        };
        self.steps as f64 * (chains * multiplications * 2) as f64
    }

    /// Runs it; what comes back only keeps it from being left out.
    pub(super) fn run(self) -> f32 {
        match self.native() {
            // SAFETY: an `Isa` is only made of a level that the processor has, and this one has
            // tiles, which the system has been asked for.
            #[cfg(target_arch = "x86_64")]
            Native::Tile { bytes: 2 } => unsafe { tiles::bf16(self.steps) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Native::Tile { .. } => unsafe { tiles::int8(self.steps) },
            // SAFETY: as above, for AVX-512 BF16.
            #[cfg(target_arch = "x86_64")]
            Native::Dot { bytes: 2 } => unsafe { dot_bf16(self.steps) },
            // SAFETY: as above, for AVX-512 VNNI.
            #[cfg(target_arch = "x86_64")]
            Native::Dot { .. } => unsafe { dot_int8(self.steps) },
            // SAFETY: as above, for AVX-VNNI.
            #[cfg(target_arch = "x86_64")]
            Native::ShortDot => unsafe { short_dot_int8(self.steps) },
            // SAFETY: as above, for AVX-512BW.
            #[cfg(target_arch = "x86_64")]
            Native::Pairs { bits: 512 } => unsafe { pairs_512(self.steps) },
            // SAFETY: as above, for AVX2.
            #[cfg(target_arch = "x86_64")]
            Native::Pairs { .. } => unsafe { pairs_256(self.steps) },
            Native::Fma => self.fma(),
        }
    }

    fn fma_chains(&self) -> usize {
        match self.isa.level() {
            IsaLevel::Portable => PLAIN_CHAINS,
            IsaLevel::Neon | IsaLevel::Avx2 | IsaLevel::AvxVnni => PART_CHAINS,
            _ => WHOLE_CHAINS,
        }
    }

    fn fma(self) -> f32 {
        let steps = self.steps;
        match self.isa.level() {
            // SAFETY: the function asks for what every processor of the target has.
            IsaLevel::Portable => unsafe { plain(steps) },
            IsaLevel::Neon | IsaLevel::Avx2 | IsaLevel::AvxVnni => {
                self.isa.run(Fma::<PART_CHAINS> { steps })
            }
            _ => self.isa.run(Fma::<WHOLE_CHAINS> { steps }),
        }
    }

    fn native(&self) -> Native {
        match (self.isa.level(), self.factors) {
            #[cfg(target_arch = "x86_64")]
            (IsaLevel::Amx, Factors::Bf16) => Native::Tile { bytes: 2 },
            #[cfg(target_arch = "x86_64")]
            (IsaLevel::Amx, Factors::Int8) => Native::Tile { bytes: 1 },
            #[cfg(target_arch = "x86_64")]
            (IsaLevel::Avx512Bf16, Factors::Bf16) => Native::Dot { bytes: 2 },
            #[cfg(target_arch = "x86_64")]
            (level, Factors::Int8) if level >= IsaLevel::Avx512Vnni => Native::Dot { bytes: 1 },
            #[cfg(target_arch = "x86_64")]
            (IsaLevel::AvxVnni, Factors::Int8) => Native::ShortDot,
            #[cfg(target_arch = "x86_64")]
            (IsaLevel::Avx512, Factors::Int8) => Native::Pairs { bits: 512 },
            #[cfg(target_arch = "x86_64")]
            (IsaLevel::Avx2, Factors::Int8) => Native::Pairs { bits: 256 },
            _ => Native::Fma,
        }
    }
}

/// The instruction that multiplies.
enum Native {
    /// Tiles of elements of so many bytes.
    #[cfg(target_arch = "x86_64")]
    Tile { bytes: usize },
    /// Vectors of elements of so many bytes, summed in pairs or fours.
    #[cfg(target_arch = "x86_64")]
    Dot { bytes: usize },
    /// Vectors of 256 bits of bytes, summed in fours.
    #[cfg(target_arch = "x86_64")]
    ShortDot,
    /// Vectors of so many bits of 16-bit integers, multiplied, summed in pairs and then added.
    #[cfg(target_arch = "x86_64")]
    Pairs { bits: usize },
    /// f32, to which everything else is widened.
    Fma,
}

/// Multiplications and additions of what every x86-64 has.
///
/// # Safety
/// None is needed: SSE is part of x86-64.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse")]
fn plain(steps: usize) -> f32 {
    use std::arch::x86_64::*;
    let factor = _mm_set1_ps(std::hint::black_box(0.999));
    let mut chains = [factor; PLAIN_CHAINS * LANES / 4];
    for _ in 0..steps {
        for chain in &mut chains {
            *chain = _mm_add_ps(_mm_mul_ps(*chain, factor), factor);
        }
    }
    chains.into_iter().map(|chain| _mm_cvtss_f32(chain)).sum()
}

/// Multiply-adds as the compiler writes them for the target.
///
/// # Safety
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn plain(steps: usize) -> f32 {
    let factor = std::hint::black_box(0.999_f32);
    let mut chains = [std::hint::black_box(1.0_f32); PLAIN_CHAINS * LANES];
    for _ in 0..steps {
        for chain in &mut chains {
            *chain = chain.mul_add(factor, factor);
        }
    }
    chains.into_iter().sum()
}

struct Fma<const CHAINS: usize> {
    steps: usize,
}

impl<const CHAINS: usize> Kernel for Fma<CHAINS> {
    type Out = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let factor = simd.splat(std::hint::black_box(0.999));
        let mut chains = [simd.splat(std::hint::black_box(1.0)); CHAINS];
        for _ in 0..self.steps {
            for chain in &mut chains {
                *chain = chain.fma(factor, factor);
            }
        }
        chains.into_iter().map(sum).sum()
    }
}

/// # Safety
/// The processor must have AVX-512F and BF16.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn dot_bf16(steps: usize) -> f32 {
    use std::arch::x86_64::*;
    let one = _mm512_set1_ps(std::hint::black_box(1.0));
    let factor = _mm512_cvtne2ps_pbh(one, one);
    let mut chains = [one; DOT_CHAINS];
    for _ in 0..steps {
        for chain in &mut chains {
            *chain = _mm512_dpbf16_ps(*chain, factor, factor);
        }
    }
    chains.into_iter().map(|chain| _mm512_reduce_add_ps(chain)).sum()
}

/// # Safety
/// The processor must have AVX-512F and VNNI.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn dot_int8(steps: usize) -> f32 {
    use std::arch::x86_64::*;
    let factor = _mm512_set1_epi8(std::hint::black_box(1));
    let mut chains = [factor; DOT_CHAINS];
    for _ in 0..steps {
        for chain in &mut chains {
            *chain = _mm512_dpbusd_epi32(*chain, factor, factor);
        }
    }
    chains.into_iter().map(|chain| _mm512_reduce_add_epi32(chain) as f32).sum()
}

/// # Safety
/// The processor must have AVX2 and AVX-VNNI.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,avxvnni")]
unsafe fn short_dot_int8(steps: usize) -> f32 {
    use std::arch::x86_64::*;
    let factor = _mm256_set1_epi8(std::hint::black_box(1));
    let mut chains = [factor; DOT_CHAINS];
    for _ in 0..steps {
        for chain in &mut chains {
            *chain = _mm256_dpbusd_avx_epi32(*chain, factor, factor);
        }
    }
    chains.into_iter().map(|chain| _mm256_extract_epi32::<0>(chain) as f32).sum()
}

/// # Safety
/// The processor must have AVX-512F and BW.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pairs_512(steps: usize) -> f32 {
    use std::arch::x86_64::*;
    let factor = _mm512_set1_epi16(std::hint::black_box(1));
    let mut chains = [factor; DOT_CHAINS];
    for _ in 0..steps {
        for chain in &mut chains {
            *chain = _mm512_add_epi32(_mm512_madd_epi16(*chain, factor), factor);
        }
    }
    chains.into_iter().map(|chain| _mm512_reduce_add_epi32(chain) as f32).sum()
}

/// # Safety
/// The processor must have AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn pairs_256(steps: usize) -> f32 {
    use std::arch::x86_64::*;
    let factor = _mm256_set1_epi16(std::hint::black_box(1));
    let mut chains = [factor; DOT_CHAINS];
    for _ in 0..steps {
        for chain in &mut chains {
            *chain = _mm256_add_epi32(_mm256_madd_epi16(*chain, factor), factor);
        }
    }
    chains.into_iter().map(|chain| _mm256_extract_epi32::<0>(chain) as f32).sum()
}

/// Products of whole tiles: sixteen rows of 64 bytes.
#[cfg(target_arch = "x86_64")]
mod tiles {
    use std::arch::asm;

    /// Operand of `ldtilecfg`.
    #[repr(C, align(64))]
    struct Configuration {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }

    static WHOLE: Configuration = Configuration {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
        rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
    };

    /// `steps` products of the instruction for each of four accumulators, all zero.
    macro_rules! burst {
        ($name:ident, $instruction:literal) => {
            /// # Safety
            /// The processor must have the tiles and the instruction, and the system must let
            /// this process use them.
            pub(super) unsafe fn $name(steps: usize) -> f32 {
                // SAFETY: the configuration is 64 bytes that live until the end and are only
                // read; tiles are declared as overwritten and given back; steps is not zero.
                unsafe {
                    asm!(
                        "ldtilecfg [{configuration}]",
                        "tilezero tmm0",
                        "tilezero tmm1",
                        "tilezero tmm2",
                        "tilezero tmm3",
                        "tilezero tmm4",
                        "tilezero tmm5",
                        "tilezero tmm6",
                        "tilezero tmm7",
                        "2:",
                        concat!($instruction, " tmm0, tmm4, tmm6"),
                        concat!($instruction, " tmm1, tmm4, tmm7"),
                        concat!($instruction, " tmm2, tmm5, tmm6"),
                        concat!($instruction, " tmm3, tmm5, tmm7"),
                        "dec {steps}",
                        "jnz 2b",
                        "tilerelease",
                        configuration = in(reg) &raw const WHOLE,
                        steps = inout(reg) steps.max(1) => _,
                        out("tmm0") _,
                        out("tmm1") _,
                        out("tmm2") _,
                        out("tmm3") _,
                        out("tmm4") _,
                        out("tmm5") _,
                        out("tmm6") _,
                        out("tmm7") _,
                        options(nostack, readonly),
                    );
                }
                0.0
            }
        };
    }

    burst!(bf16, "tdpbf16ps");
    burst!(int8, "tdpbsud");
}
