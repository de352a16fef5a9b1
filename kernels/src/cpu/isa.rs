//! Which instructions this processor has, found at run time.

use super::simd::{Kernel, portable};
#[cfg(target_arch = "x86_64")]
use super::simd::{avx2, avx512};

/// Instruction sets that kernels are compiled for, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IsaLevel {
    /// What the target always has: SSE2 on x86-64, NEON on AArch64.
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512F, BW, VL and DQ.
    Avx512,
}

impl IsaLevel {
    /// Whether this processor has it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }

    /// All that this processor has, weakest first.
    pub fn available() -> impl DoubleEndedIterator<Item = Self> {
        [Self::Portable, Self::Avx2, Self::Avx512].into_iter().filter(|level| level.is_available())
    }
}

/// An instruction set that was found to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Isa(IsaLevel);

impl Isa {
    /// `level` if this processor has it.
    pub(crate) fn new(level: IsaLevel) -> Option<Self> {
        level.is_available().then_some(Self(level))
    }

    /// The best that this processor has.
    pub(crate) fn best() -> Self {
        Self(IsaLevel::available().next_back().unwrap_or(IsaLevel::Portable))
    }

    /// All that this processor has.
    #[cfg(test)]
    pub(crate) fn available() -> impl Iterator<Item = Self> {
        IsaLevel::available().map(Self)
    }

    /// What was found.
    pub(crate) fn level(self) -> IsaLevel {
        self.0
    }

    /// Runs `kernel` compiled for this instruction set.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Out {
        match self.0 {
            // SAFETY: an `Isa` is only made of a level that the processor has.
            #[cfg(target_arch = "x86_64")]
            IsaLevel::Avx512 => unsafe { avx512::enter(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            IsaLevel::Avx2 => unsafe { avx2::enter(kernel) },
            _ => portable::enter(kernel),
        }
    }
}
