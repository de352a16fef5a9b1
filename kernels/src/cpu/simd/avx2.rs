//! AVX2 with FMA: sixteen f32 are two registers.

use std::arch::x86_64::*;
use std::ops::{Add, Div, Mul, Sub};

use half::bf16;

use super::{Kernel, LANES, Pair, Simd, Square, Vector};

/// Proof of AVX2 and FMA.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

/// Two ymm registers. Only [`Avx2`] makes the first one.
#[derive(Clone, Copy)]
pub(crate) struct F32x16(pub(super) __m256, pub(super) __m256);

/// Runs `kernel` on AVX2.
///
/// # Safety
/// The processor must have AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(crate) unsafe fn enter<K: Kernel>(kernel: K) -> K::Out {
    kernel.run(Avx2(()))
}

impl Avx2 {
    /// # Safety
    /// The processor must have AVX2 and FMA.
    pub(super) unsafe fn assume() -> Self {
        Self(())
    }
}

impl Square for Avx2 {}

impl Simd for Avx2 {
    type V = F32x16;
    const ROWS: usize = 6;
    const PANELS: usize = 1;

    #[inline(always)]
    fn splat(self, x: f32) -> F32x16 {
        // SAFETY: `self` proves AVX2.
        let half = unsafe { _mm256_set1_ps(x) };
        F32x16(half, half)
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> F32x16 {
        // SAFETY: `self` proves AVX2; the array has sixteen elements; unaligned is allowed.
        unsafe { F32x16(_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from[8..].as_ptr())) }
    }

    #[inline(always)]
    fn load_bf16(self, from: &[bf16; LANES]) -> F32x16 {
        // SAFETY: `self` proves AVX2; the array has 32 bytes; unaligned is allowed.
        unsafe {
            let low = _mm_loadu_si128(from.as_ptr().cast());
            let high = _mm_loadu_si128(from[8..].as_ptr().cast());
            F32x16(widen(low), widen(high))
        }
    }

    #[inline(always)]
    fn load_pairs(self, from: &[Pair; LANES]) -> [F32x16; 2] {
        // SAFETY: `self` proves AVX2; the array has 64 bytes; unaligned is allowed.
        unsafe {
            let [first_low, second_low] = split(_mm256_loadu_si256(from.as_ptr().cast()));
            let [first_high, second_high] = split(_mm256_loadu_si256(from[8..].as_ptr().cast()));
            [F32x16(first_low, first_high), F32x16(second_low, second_high)]
        }
    }
}

/// The first and the second elements of eight pairs of bf16.
///
/// # Safety
/// The processor must have AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn split(pairs: __m256i) -> [__m256; 2] {
    let second = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32 as i32));
    [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)), _mm256_castsi256_ps(second)]
}

/// bf16 bits of eight lanes, to nearest even; NaN stays NaN.
///
/// # Safety
/// The processor must have AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn round(x: __m256) -> __m256i {
    let bits = _mm256_castps_si256(x);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let up = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff));
    let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
    let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
    _mm256_srli_epi32::<16>(_mm256_blendv_epi8(up, quiet, nan))
}

/// Eight bf16 as f32.
///
/// # Safety
/// The processor must have AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn widen(bits: __m128i) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)))
}

/// 2^n of eight lanes, see [`Vector::pow2`].
///
/// # Safety
/// The processor must have AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn pow2(magic: __m256) -> __m256 {
    let n = _mm256_add_epi32(_mm256_castps_si256(magic), _mm256_set1_epi32(127));
    _mm256_castsi256_ps(_mm256_slli_epi32::<23>(n))
}

impl Add for F32x16 {
    type Output = Self;
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: a vector exists only where AVX2 does.
        unsafe { Self(_mm256_add_ps(self.0, other.0), _mm256_add_ps(self.1, other.1)) }
    }
}

impl Sub for F32x16 {
    type Output = Self;
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: a vector exists only where AVX2 does.
        unsafe { Self(_mm256_sub_ps(self.0, other.0), _mm256_sub_ps(self.1, other.1)) }
    }
}

impl Mul for F32x16 {
    type Output = Self;
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: a vector exists only where AVX2 does.
        unsafe { Self(_mm256_mul_ps(self.0, other.0), _mm256_mul_ps(self.1, other.1)) }
    }
}

impl Div for F32x16 {
    type Output = Self;
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        // SAFETY: a vector exists only where AVX2 does.
        unsafe { Self(_mm256_div_ps(self.0, other.0), _mm256_div_ps(self.1, other.1)) }
    }
}

impl Vector for F32x16 {
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        // SAFETY: a vector exists only where AVX2 and FMA do.
        unsafe { Self(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1)) }
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: a vector exists only where AVX2 does.
        unsafe { Self(_mm256_max_ps(self.0, other.0), _mm256_max_ps(self.1, other.1)) }
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: a vector exists only where AVX2 does.
        unsafe { Self(_mm256_min_ps(self.0, other.0), _mm256_min_ps(self.1, other.1)) }
    }

    #[inline(always)]
    fn below(self, limit: Self, yes: Self, no: Self) -> Self {
        // SAFETY: a vector exists only where AVX2 does.
        unsafe {
            let low = _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, limit.0);
            let high = _mm256_cmp_ps::<_CMP_LT_OQ>(self.1, limit.1);
            Self(_mm256_blendv_ps(no.0, yes.0, low), _mm256_blendv_ps(no.1, yes.1, high))
        }
    }

    #[inline(always)]
    fn pow2(self) -> Self {
        // SAFETY: a vector exists only where AVX2 does.
        unsafe { Self(pow2(self.0), pow2(self.1)) }
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        // SAFETY: a vector exists only where AVX2 does; the array has sixteen elements.
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), self.0);
            _mm256_storeu_ps(to[8..].as_mut_ptr(), self.1);
        }
    }

    #[inline(always)]
    fn store_bf16(self, to: &mut [bf16; LANES]) {
        // SAFETY: a vector exists only where AVX2 does; the array has 32 bytes.
        unsafe {
            // Packing takes turns between 128-bit halves: the permutation puts them in order.
            let packed = _mm256_packus_epi32(round(self.0), round(self.1));
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
            _mm256_storeu_si256(to.as_mut_ptr().cast(), packed);
        }
    }
}
