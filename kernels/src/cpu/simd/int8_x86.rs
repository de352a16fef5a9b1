//! Products of bytes on x86-64: VNNI of AVX-512 or of AVX, or pairs of sixteen-bit products.
//!
//! Without VNNI the even and the odd bytes of a step are widened apart; `pmaddubsw` would
//! saturate.

use std::arch::x86_64::*;

use bytemuck::{Pod, Zeroable};

use super::int8::{Int8, Int8Kernel, QUAD, Step};
use super::{avx2, avx512};

/// Proof of AVX-512 VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Vnni(avx512::Avx512);

/// Proof of AVX-VNNI.
#[derive(Clone, Copy)]
pub(crate) struct AvxVnni(avx2::Avx2);

/// Runs `kernel` on AVX-VNNI.
///
/// # Safety
/// The processor must have AVX-VNNI, AVX2 and FMA.
#[target_feature(enable = "avx2,fma,avxvnni")]
pub(crate) unsafe fn enter_avx_vnni<K: Int8Kernel>(kernel: K) -> K::Out {
    // SAFETY: the caller vouches for AVX2 and FMA.
    kernel.run(AvxVnni(unsafe { avx2::Avx2::assume() }))
}

/// Runs `kernel` on AVX-512 VNNI.
///
/// # Safety
/// The processor must have AVX-512F, BW, VL, DQ and VNNI, AVX2 and FMA.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")]
pub(crate) unsafe fn enter_vnni<K: Int8Kernel>(kernel: K) -> K::Out {
    // SAFETY: the caller vouches for AVX-512.
    kernel.run(Vnni(unsafe { avx512::Avx512::assume() }))
}

/// Runs `kernel` on AVX-512.
///
/// # Safety
/// The processor must have AVX-512F, BW, VL and DQ, AVX2 and FMA.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
pub(crate) unsafe fn enter_avx512<K: Int8Kernel>(kernel: K) -> K::Out {
    // SAFETY: the caller vouches for AVX-512.
    kernel.run(unsafe { avx512::Avx512::assume() })
}

/// Runs `kernel` on AVX2.
///
/// # Safety
/// The processor must have AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(crate) unsafe fn enter_avx2<K: Int8Kernel>(kernel: K) -> K::Out {
    // SAFETY: the caller vouches for AVX2 and FMA.
    kernel.run(unsafe { avx2::Avx2::assume() })
}

impl Int8 for Vnni {
    type Simd = avx512::Avx512;
    type Sums = __m512i;
    type Part = __m512i;
    type Weights = [__m512i; 1];
    type Quad = [i8; QUAD];
    type Inputs = __m512i;
    const ROWS: usize = 8;
    const PANELS: usize = 2;

    #[inline(always)]
    fn simd(self) -> avx512::Avx512 {
        self.0
    }

    #[inline(always)]
    fn splat(self, x: i32) -> __m512i {
        self.0.splat(x)
    }

    #[inline(always)]
    fn weights(self, from: &Step) -> [__m512i; 1] {
        // SAFETY: `self` proves AVX-512; a step has 64 bytes.
        [unsafe { _mm512_loadu_si512(from.0.as_ptr().cast()) }]
    }

    #[inline(always)]
    fn inputs(self, from: &[i8; QUAD], _part: usize) -> __m512i {
        self.0.splat(quad(*from))
    }

    #[inline(always)]
    fn dot(self, sums: __m512i, weights: __m512i, inputs: __m512i) -> __m512i {
        // SAFETY: `self` proves VNNI.
        unsafe { _mm512_dpbusd_epi32(sums, weights, inputs) }
    }

    #[inline(always)]
    fn to_f32(self, sums: __m512i) -> avx512::F32x16 {
        self.0.to_f32(sums)
    }
}

impl Int8 for avx512::Avx512 {
    type Simd = Self;
    type Sums = __m512i;
    /// Bytes 0 and 2 of every four, and bytes 1 and 3.
    type Part = [__m512i; 2];
    type Weights = [[__m512i; 2]; 1];
    type Quad = [i8; QUAD];
    type Inputs = [__m512i; 2];
    const ROWS: usize = 8;
    const PANELS: usize = 2;

    #[inline(always)]
    fn simd(self) -> Self {
        self
    }

    #[inline(always)]
    fn splat(self, x: i32) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_set1_epi32(x) }
    }

    #[inline(always)]
    fn weights(self, from: &Step) -> [[__m512i; 2]; 1] {
        // SAFETY: `self` proves AVX-512; a step has 64 bytes.
        unsafe {
            let bytes = _mm512_loadu_si512(from.0.as_ptr().cast());
            let even = _mm512_and_si512(bytes, _mm512_set1_epi16(0xff));
            [[even, _mm512_srli_epi16::<8>(bytes)]]
        }
    }

    #[inline(always)]
    fn inputs(self, from: &[i8; QUAD], _part: usize) -> [__m512i; 2] {
        let bytes = self.splat(quad(*from));
        // SAFETY: `self` proves AVX-512.
        unsafe {
            let even = _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(bytes));
            [even, _mm512_srai_epi16::<8>(bytes)]
        }
    }

    #[inline(always)]
    fn dot(self, sums: __m512i, weights: [__m512i; 2], inputs: [__m512i; 2]) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe {
            let even = _mm512_madd_epi16(weights[0], inputs[0]);
            let odd = _mm512_madd_epi16(weights[1], inputs[1]);
            _mm512_add_epi32(sums, _mm512_add_epi32(even, odd))
        }
    }

    #[inline(always)]
    fn to_f32(self, sums: __m512i) -> avx512::F32x16 {
        // SAFETY: `self` proves AVX-512.
        avx512::F32x16(unsafe { _mm512_cvtepi32_ps(sums) })
    }
}

impl Int8 for avx2::Avx2 {
    type Simd = Self;
    type Sums = [__m256i; 2];
    /// Bytes 0 and 2 of every four, or bytes 1 and 3, of eight outputs each.
    type Part = [__m256i; 2];
    type Weights = [[__m256i; 2]; 2];
    type Quad = WideQuad;
    type Inputs = __m256i;
    const ROWS: usize = 6;
    const PANELS: usize = 1;
    const STAGES: bool = true;

    #[inline(always)]
    fn simd(self) -> Self {
        self
    }

    #[inline(always)]
    fn splat(self, x: i32) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        [unsafe { _mm256_set1_epi32(x) }; 2]
    }

    #[inline(always)]
    fn weights(self, from: &Step) -> [[__m256i; 2]; 2] {
        let (halves, _) = from.0.as_chunks::<8>();
        // SAFETY: `self` proves AVX2.
        let [low, high] = unsafe { [even_and_odd(&halves[0]), even_and_odd(&halves[1])] };
        [[low[0], high[0]], [low[1], high[1]]]
    }

    #[inline(always)]
    fn inputs(self, from: &WideQuad, part: usize) -> __m256i {
        // SAFETY: `self` proves AVX2.
        unsafe { _mm256_set1_epi32(bytemuck::cast(from.0[part])) }
    }

    #[inline(always)]
    fn dot(self, sums: [__m256i; 2], weights: [__m256i; 2], inputs: __m256i) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let low = _mm256_madd_epi16(weights[0], inputs);
            let high = _mm256_madd_epi16(weights[1], inputs);
            [_mm256_add_epi32(sums[0], low), _mm256_add_epi32(sums[1], high)]
        }
    }

    #[inline(always)]
    fn to_f32(self, sums: [__m256i; 2]) -> avx2::F32x16 {
        // SAFETY: `self` proves AVX2.
        unsafe { avx2::F32x16(_mm256_cvtepi32_ps(sums[0]), _mm256_cvtepi32_ps(sums[1])) }
    }
}

impl Int8 for AvxVnni {
    type Simd = avx2::Avx2;
    type Sums = [__m256i; 2];
    /// Four bytes of eight outputs each.
    type Part = [__m256i; 2];
    type Weights = [[__m256i; 2]; 1];
    type Quad = [i8; QUAD];
    type Inputs = __m256i;
    const ROWS: usize = 6;
    const PANELS: usize = 1;

    #[inline(always)]
    fn simd(self) -> avx2::Avx2 {
        self.0
    }

    #[inline(always)]
    fn splat(self, x: i32) -> [__m256i; 2] {
        Int8::splat(self.0, x)
    }

    #[inline(always)]
    fn weights(self, from: &Step) -> [[__m256i; 2]; 1] {
        let (halves, _) = from.0.as_chunks::<8>();
        // SAFETY: `self` proves AVX; half a step has 32 bytes; unaligned is allowed.
        let low = unsafe { _mm256_loadu_si256(halves[0].as_ptr().cast()) };
        // SAFETY: as above.
        [[low, unsafe { _mm256_loadu_si256(halves[1].as_ptr().cast()) }]]
    }

    #[inline(always)]
    fn inputs(self, from: &[i8; QUAD], _part: usize) -> __m256i {
        Int8::splat(self.0, quad(*from))[0]
    }

    #[inline(always)]
    fn dot(self, sums: [__m256i; 2], weights: [__m256i; 2], inputs: __m256i) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX-VNNI.
        unsafe {
            let low = _mm256_dpbusd_avx_epi32(sums[0], weights[0], inputs);
            [low, _mm256_dpbusd_avx_epi32(sums[1], weights[1], inputs)]
        }
    }

    #[inline(always)]
    fn to_f32(self, sums: [__m256i; 2]) -> avx2::F32x16 {
        self.0.to_f32(sums)
    }
}

/// Inputs 0 and 2 of four, and inputs 1 and 3, in sixteen bits: a pair is read into all lanes by
/// one load, where bytes would be widened for every register tile anew.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(8))]
pub(crate) struct WideQuad([[i16; 2]; 2]);

impl From<[i8; QUAD]> for WideQuad {
    #[inline(always)]
    fn from(from: [i8; QUAD]) -> Self {
        let [a, b, c, d] = from.map(i16::from);
        Self([[a, c], [b, d]])
    }
}

/// Four bytes in one lane.
#[inline(always)]
fn quad(inputs: [i8; QUAD]) -> i32 {
    i32::from_le_bytes(bytemuck::cast(inputs))
}

/// Bytes 0 and 2 of every four, and bytes 1 and 3, widened to sixteen bits.
///
/// # Safety
/// The processor must have AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn even_and_odd(half: &[[u8; QUAD]; 8]) -> [__m256i; 2] {
    // SAFETY: half a step has 32 bytes; unaligned is allowed.
    let bytes = unsafe { _mm256_loadu_si256(half.as_ptr().cast()) };
    [_mm256_and_si256(bytes, _mm256_set1_epi16(0xff)), _mm256_srli_epi16::<8>(bytes)]
}
