//! Which instructions this processor has, found at run time.

use super::simd::int8::{Int8Kernel, Plainly};
#[cfg(target_arch = "x86_64")]
use super::simd::int8_x86::{enter_avx_vnni, enter_avx2, enter_avx512, enter_vnni};
#[cfg(target_arch = "aarch64")]
use super::simd::neon;
use super::simd::{Kernel, portable};
#[cfg(target_arch = "x86_64")]
use super::simd::{avx2, avx512};

/// Instruction sets that kernels are compiled for, weakest first. What has one of a kind of
/// processor has those before it, but for AVX-VNNI, which few processors with AVX-512 have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IsaLevel {
    /// Plain Rust on what the target always has: SSE2 on x86-64.
    Portable,
    /// NEON, of AArch64.
    Neon,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-VNNI as well: products of eight-bit integers, as Intel's processors without AVX-512
    /// have them since Alder Lake.
    AvxVnni,
    /// AVX-512F, BW, VL and DQ.
    Avx512,
    /// AVX-512 VNNI as well: products of eight-bit integers.
    Avx512Vnni,
    /// AVX-512 BF16 as well: products of bf16.
    Avx512Bf16,
    /// AMX tiles as well, with products of bf16 and of eight-bit integers.
    Amx,
}

impl IsaLevel {
    /// What every device of these begins with.
    const DEVICE: &str = "cpu ";

    /// All of them, weakest first.
    pub const ALL: [Self; 8] = [
        Self::Portable,
        Self::Neon,
        Self::Avx2,
        Self::AvxVnni,
        Self::Avx512,
        Self::Avx512Vnni,
        Self::Avx512Bf16,
        Self::Amx,
    ];

    /// The word for it: what a user writes and what is reported.
    pub fn as_str(self) -> &'static str {
        &self.device()[Self::DEVICE.len()..]
    }

    /// What a processor is called whose operations use it.
    pub(crate) fn device(self) -> &'static str {
        match self {
            Self::Portable => "cpu portable",
            Self::Neon => "cpu neon",
            Self::Avx2 => "cpu avx2",
            Self::AvxVnni => "cpu avxvnni",
            Self::Avx512 => "cpu avx512",
            Self::Avx512Vnni => "cpu avx512vnni",
            Self::Avx512Bf16 => "cpu avx512bf16",
            Self::Amx => "cpu amx",
        }
    }

    /// The set whose vectors of f32 it has.
    pub(crate) fn vectors(self) -> Self {
        match self {
            Self::AvxVnni => Self::Avx2,
            _ => self.min(Self::Avx512),
        }
    }

    /// Whether this processor has it.
    #[cfg(target_arch = "x86_64")]
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            Self::Neon => false,
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            Self::AvxVnni => Self::Avx2.is_available() && super::amx::has_avx_vnni(),
            Self::Avx512 => {
                Self::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
            }
            Self::Avx512Vnni => {
                Self::Avx512.is_available() && is_x86_feature_detected!("avx512vnni")
            }
            Self::Avx512Bf16 => {
                Self::Avx512Vnni.is_available() && is_x86_feature_detected!("avx512bf16")
            }
            Self::Amx => Self::Avx512Bf16.is_available() && super::amx::is_enabled(),
        }
    }

    /// Whether this processor has it.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_available(self) -> bool {
        self == Self::Portable || (self == Self::Neon && cfg!(target_arch = "aarch64"))
    }

    /// All that this processor has, weakest first.
    pub fn available() -> impl DoubleEndedIterator<Item = Self> {
        Self::ALL.into_iter().filter(|level| level.is_available())
    }

    /// Whether it is faster here than those before it. Intel's processors split the bf16
    /// product into slow steps outside of AMX (a third of the rate of f32); AMD's do not.
    /// Emulated tiles are for tests, which ask for them.
    #[cfg(target_arch = "x86_64")]
    fn pays(self) -> bool {
        match self {
            Self::AvxVnni => is_x86_feature_detected!("avxvnni"),
            Self::Avx512Bf16 => is_amd(),
            Self::Amx => super::amx::is_native(),
            _ => true,
        }
    }

    /// Whether it is faster here than those before it.
    #[cfg(not(target_arch = "x86_64"))]
    fn pays(self) -> bool {
        true
    }
}

impl std::fmt::Display for IsaLevel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for IsaLevel {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|level| level.as_str() == word)
            .ok_or_else(|| format!("must be one of {}", Self::ALL.map(Self::as_str).join(", ")))
    }
}

#[cfg(target_arch = "x86_64")]
fn is_amd() -> bool {
    let leaf = std::arch::x86_64::__cpuid(0);
    let vendor = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes);
    vendor.as_flattened() == b"AuthenticAMD"
}

/// An instruction set that was found to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Isa(IsaLevel);

impl Isa {
    /// `level` if this processor has it.
    pub(crate) fn new(level: IsaLevel) -> Option<Self> {
        level.is_available().then_some(Self(level))
    }

    /// The fastest that this processor has.
    pub(crate) fn best() -> Self {
        let mut levels = IsaLevel::ALL.into_iter().rev();
        let fastest = levels.find(|level| level.pays() && level.is_available());
        Self(fastest.unwrap_or(IsaLevel::Portable))
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

    /// Runs `kernel` on products of pairs of bf16, or gives it back where there are none.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn run_dots<K: avx512::DotsKernel>(self, kernel: K) -> Result<K::Out, K> {
        if self.0 < IsaLevel::Avx512Bf16 {
            return Err(kernel);
        }
        // SAFETY: an `Isa` is only made of a level that the processor has, and a level has
        // those before it.
        Ok(unsafe { avx512::enter_dots(kernel) })
    }

    /// Runs `kernel` on AMX tiles and AVX-512.
    ///
    /// # Panics
    /// There are no tiles.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn run_tiles<K: avx512::TilesKernel>(self, kernel: K) -> K::Out {
        assert_eq!(self.0, IsaLevel::Amx, "a product on tiles where there are none");
        // SAFETY: an `Isa` is only made of a level that the processor has, and a level has
        // those before it.
        unsafe { avx512::enter_tiles(kernel) }
    }

    /// Runs `kernel` compiled for this instruction set, or for the best before it that has
    /// vectors of its own.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Out {
        match self.0 {
            // SAFETY: an `Isa` is only made of a level that the processor has, and a level
            // has those before it.
            #[cfg(target_arch = "x86_64")]
            level if level >= IsaLevel::Avx512 => unsafe { avx512::enter(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            IsaLevel::Avx2 | IsaLevel::AvxVnni => unsafe { avx2::enter(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            IsaLevel::Neon => unsafe { neon::enter(kernel) },
            _ => portable::enter(kernel),
        }
    }

    /// Runs `kernel` with the best products of bytes that this instruction set has.
    pub(crate) fn run_int8<K: Int8Kernel>(self, kernel: K) -> K::Out {
        match self.0 {
            // SAFETY: as in `run`.
            #[cfg(target_arch = "x86_64")]
            level if level >= IsaLevel::Avx512Vnni => unsafe { enter_vnni(kernel) },
            // SAFETY: as in `run`.
            #[cfg(target_arch = "x86_64")]
            IsaLevel::Avx512 => unsafe { enter_avx512(kernel) },
            // SAFETY: as in `run`.
            #[cfg(target_arch = "x86_64")]
            IsaLevel::AvxVnni => unsafe { enter_avx_vnni(kernel) },
            // SAFETY: as in `run`.
            #[cfg(target_arch = "x86_64")]
            IsaLevel::Avx2 => unsafe { enter_avx2(kernel) },
            _ => self.run(Plainly(kernel)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_back() {
        for level in IsaLevel::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        let refusal =
            "must be one of portable, neon, avx2, avxvnni, avx512, avx512vnni, avx512bf16, amx";
        assert_eq!("sse9".parse::<IsaLevel>(), Err(refusal.to_owned()));
    }

    #[test]
    fn the_best_is_there() {
        assert!(Isa::best().level().is_available());
        assert!(IsaLevel::available().is_sorted());
    }
}
