//! AVX-512: sixteen f32 are one register.

use std::arch::x86_64::*;
use std::ops::{Add, Div, Mul, Sub};

use half::bf16;

use super::{Kernel, LANES, Pair, Simd, Square, Vector};

/// Proof of AVX-512F, BW, VL and DQ.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

/// One zmm register. Only [`Avx512`] makes the first one.
#[derive(Clone, Copy)]
pub(crate) struct F32x16(pub(super) __m512);

/// Runs `kernel` on AVX-512.
///
/// # Safety
/// The processor must have AVX-512F, BW, VL and DQ, AVX2 and FMA.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
pub(crate) unsafe fn enter<K: Kernel>(kernel: K) -> K::Out {
    kernel.run(Avx512(()))
}

/// Proof of AVX-512 BF16 besides.
#[derive(Clone, Copy)]
pub(crate) struct Dots(());

/// Sixteen pairs of bf16. Only [`Dots`] makes the first one.
#[derive(Clone, Copy)]
pub(crate) struct Pairs(__m512bh);

/// Something to be computed with products of pairs: see [`crate::cpu::isa::Isa::run_dots`].
/// As for [`Kernel`], everything that it calls on vectors must be inlined.
pub(crate) trait DotsKernel {
    /// What it returns.
    type Out;

    /// The computation.
    fn run(self, simd: Avx512, dots: Dots) -> Self::Out;
}

/// Runs `kernel` on AVX-512 BF16.
///
/// # Safety
/// The processor must have AVX-512F, BW, VL, DQ and BF16, AVX2 and FMA.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")]
pub(crate) unsafe fn enter_dots<K: DotsKernel>(kernel: K) -> K::Out {
    kernel.run(Avx512(()), Dots(()))
}

/// Something to be computed on AMX tiles and AVX-512: see [`crate::cpu::isa::Isa::run_tiles`].
/// As for [`Kernel`], everything that it calls on vectors must be inlined.
pub(crate) trait TilesKernel {
    /// What it returns.
    type Out;

    /// The computation, where tiles may be used.
    fn run(self, simd: Avx512) -> Self::Out;
}

/// Runs `kernel` on AVX-512; what it does with tiles is its own affair.
///
/// # Safety
/// The processor must have AVX-512F, BW, VL and DQ, AVX2 and FMA.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
pub(crate) unsafe fn enter_tiles<K: TilesKernel>(kernel: K) -> K::Out {
    kernel.run(Avx512(()))
}

impl Avx512 {
    /// Sixteen integers, `offset` added to each, as f32: exact where they are below 2^24.
    #[inline(always)]
    pub(crate) fn widen(self, from: &[i32; LANES], offset: i32) -> F32x16 {
        // SAFETY: `self` proves AVX-512; the array has 64 bytes; unaligned is allowed.
        unsafe {
            let integers = _mm512_loadu_si512(from.as_ptr().cast());
            F32x16(_mm512_cvtepi32_ps(_mm512_add_epi32(integers, _mm512_set1_epi32(offset))))
        }
    }
}

impl Dots {
    /// Sixteen pairs.
    #[inline(always)]
    pub(crate) fn load(self, from: &[Pair; LANES]) -> Pairs {
        // SAFETY: `self` proves AVX-512; the array has 64 bytes; unaligned is allowed. A vector
        // of bf16 is any 64 bytes.
        unsafe {
            Pairs(std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(
                from.as_ptr().cast(),
            )))
        }
    }

    /// One pair sixteen times.
    #[inline(always)]
    pub(crate) fn splat(self, pair: Pair) -> Pairs {
        let bits = u32::from(pair[1].to_bits()) << 16 | u32::from(pair[0].to_bits());
        // SAFETY: `self` proves AVX-512; a vector of bf16 is any 64 bytes.
        unsafe {
            Pairs(std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(bits.cast_signed())))
        }
    }

    /// Writes the lanes of two vectors as pairs, rounded to nearest even; what is smaller than
    /// the smallest normal number becomes zero.
    #[inline(always)]
    pub(crate) fn pair(self, first: F32x16, second: F32x16, to: &mut [Pair; LANES]) {
        const ORDER: [i16; 2 * LANES] = {
            let mut order = [0; 2 * LANES];
            let mut lane = 0;
            while lane < LANES {
                order[2 * lane] = lane as i16;
                order[2 * lane + 1] = (LANES + lane) as i16;
                lane += 1;
            }
            order
        };
        // SAFETY: `self` proves AVX-512BW and BF16; both arrays have 64 bytes.
        unsafe {
            let order = _mm512_loadu_epi16(ORDER.as_ptr());
            let halves = _mm512_cvtne2ps_pbh(second.0, first.0);
            let halves = std::mem::transmute::<__m512bh, __m512i>(halves);
            _mm512_storeu_si512(to.as_mut_ptr().cast(), _mm512_permutexvar_epi16(order, halves));
        }
    }

    /// The sum of both products of each lane, added to `sum`.
    #[inline(always)]
    pub(crate) fn add(self, sum: F32x16, a: Pairs, b: Pairs) -> F32x16 {
        // SAFETY: `self` proves AVX-512 BF16.
        F32x16(unsafe { _mm512_dpbf16_ps(sum.0, a.0, b.0) })
    }
}

impl Avx512 {
    /// # Safety
    /// The processor must have AVX-512F, BW, VL and DQ, AVX2 and FMA.
    pub(super) unsafe fn assume() -> Self {
        Self(())
    }
}

impl Square for Avx512 {
    #[inline(always)]
    fn transpose(self, block: &mut [[f32; LANES]; LANES]) {
        // SAFETY: `self` proves AVX-512; a row is a vector.
        unsafe {
            let mut rows = [_mm512_setzero_ps(); LANES];
            for (row, from) in rows.iter_mut().zip(block.iter()) {
                *row = _mm512_loadu_ps(from.as_ptr());
            }
            for (to, column) in block.iter_mut().zip(columns(rows)) {
                _mm512_storeu_ps(to.as_mut_ptr(), column);
            }
        }
    }

    #[inline(always)]
    fn sums(self, rows: &[[f32; LANES]; LANES], to: &mut [f32; LANES]) {
        // SAFETY: `self` proves AVX-512; a row is a vector.
        unsafe {
            let mut loaded = [_mm512_setzero_ps(); LANES];
            for (row, from) in loaded.iter_mut().zip(rows) {
                *row = _mm512_loadu_ps(from.as_ptr());
            }
            _mm512_storeu_ps(to.as_mut_ptr(), sums(loaded));
        }
    }
}

impl Simd for Avx512 {
    type V = F32x16;
    const ROWS: usize = 8;
    const PANELS: usize = 2;

    #[inline(always)]
    fn splat(self, x: f32) -> F32x16 {
        // SAFETY: `self` proves AVX-512.
        F32x16(unsafe { _mm512_set1_ps(x) })
    }

    #[inline(always)]
    fn parts(self, x: F32x16) -> (F32x16, F32x16) {
        // SAFETY: `self` proves AVX-512. The rest of an infinity is 0.
        let rest = F32x16(unsafe { _mm512_reduce_ps::<0>(x.0) });
        (x - rest, rest)
    }

    #[inline(always)]
    fn stream(self, lanes: F32x16, to: &mut [f32; LANES]) {
        if !to.as_ptr().addr().is_multiple_of(64) {
            return lanes.store(to);
        }
        // SAFETY: `self` proves AVX-512; the array has 64 bytes, and is a line.
        unsafe { _mm512_stream_ps(to.as_mut_ptr(), lanes.0) }
    }

    #[inline(always)]
    fn times_pow2(self, x: F32x16, whole: F32x16) -> F32x16 {
        // Zero, as elsewhere, where 2^n is no normal number: a processor may take fifty times as
        // long for a vector with others in it. NaN is not below.
        // SAFETY: `self` proves AVX-512.
        unsafe {
            let least = _mm512_set1_ps(-126.0);
            let normal = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(whole.0, least);
            F32x16(_mm512_maskz_scalef_ps(normal, x.0, whole.0))
        }
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> F32x16 {
        // SAFETY: `self` proves AVX-512; the array has sixteen elements; unaligned is allowed.
        F32x16(unsafe { _mm512_loadu_ps(from.as_ptr()) })
    }

    #[inline(always)]
    fn load_bf16(self, from: &[bf16; LANES]) -> F32x16 {
        // SAFETY: `self` proves AVX-512; the array has 32 bytes; unaligned is allowed.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            F32x16(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)))
        }
    }

    #[inline(always)]
    fn load_pairs(self, from: &[Pair; LANES]) -> [F32x16; 2] {
        // SAFETY: `self` proves AVX-512; the array has 64 bytes; unaligned is allowed.
        unsafe {
            let pairs = _mm512_loadu_si512(from.as_ptr().cast());
            let second = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            let first = _mm512_slli_epi32::<16>(pairs);
            [F32x16(_mm512_castsi512_ps(first)), F32x16(_mm512_castsi512_ps(second))]
        }
    }
}

/// Columns of sixteen rows: within fours of rows first, then by quarters of a vector.
///
/// # Safety
/// The processor must have AVX-512F and DQ.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
unsafe fn columns(rows: [__m512; LANES]) -> [__m512; LANES] {
    let mut fours = [_mm512_setzero_pd(); LANES];
    for (four, rows) in fours.chunks_exact_mut(4).zip(rows.chunks_exact(4)) {
        let (ab, cd) = (_mm512_unpacklo_ps(rows[0], rows[1]), _mm512_unpacklo_ps(rows[2], rows[3]));
        let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
        four[0] = _mm512_unpacklo_pd(ab, cd);
        four[1] = _mm512_unpackhi_pd(ab, cd);
        let (ab, cd) = (_mm512_unpackhi_ps(rows[0], rows[1]), _mm512_unpackhi_ps(rows[2], rows[3]));
        let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
        four[2] = _mm512_unpacklo_pd(ab, cd);
        four[3] = _mm512_unpackhi_pd(ab, cd);
    }
    let mut columns = rows;
    for j in 0..4 {
        let (a, b) = (_mm512_castpd_ps(fours[j]), _mm512_castpd_ps(fours[4 + j]));
        let (c, d) = (_mm512_castpd_ps(fours[8 + j]), _mm512_castpd_ps(fours[12 + j]));
        let (even, odd) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
        let (even_low, odd_low) =
            (_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xdd>(c, d));
        columns[j] = _mm512_shuffle_f32x4::<0x88>(even, even_low);
        columns[4 + j] = _mm512_shuffle_f32x4::<0x88>(odd, odd_low);
        columns[8 + j] = _mm512_shuffle_f32x4::<0xdd>(even, even_low);
        columns[12 + j] = _mm512_shuffle_f32x4::<0xdd>(odd, odd_low);
    }
    columns
}

/// What [`super::sum`] makes of each row: halves of vectors are added, then quarters and so on,
/// while rows come together.
///
/// # Safety
/// The processor must have AVX-512F.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn sums(rows: [__m512; LANES]) -> __m512 {
    let eights = |a, b| {
        _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b))
    };
    let fours = |a, b| {
        _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b))
    };
    let twos =
        |a, b| _mm512_add_ps(_mm512_shuffle_ps::<0x44>(a, b), _mm512_shuffle_ps::<0xee>(a, b));
    let ones =
        |a, b| _mm512_add_ps(_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b));
    // Quarter q of vector j is of row 4 q + j, so that lanes end up in the order of rows.
    let quarters =
        |j: usize| fours(eights(rows[j], rows[4 + j]), eights(rows[8 + j], rows[12 + j]));
    ones(twos(quarters(0), quarters(1)), twos(quarters(2), quarters(3)))
}

impl Add for F32x16 {
    type Output = Self;
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: a vector exists only where AVX-512 does.
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }
}

impl Sub for F32x16 {
    type Output = Self;
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: a vector exists only where AVX-512 does.
        Self(unsafe { _mm512_sub_ps(self.0, other.0) })
    }
}

impl Mul for F32x16 {
    type Output = Self;
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: a vector exists only where AVX-512 does.
        Self(unsafe { _mm512_mul_ps(self.0, other.0) })
    }
}

impl Div for F32x16 {
    type Output = Self;
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        // SAFETY: a vector exists only where AVX-512 does.
        Self(unsafe { _mm512_div_ps(self.0, other.0) })
    }
}

impl Vector for F32x16 {
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        // SAFETY: a vector exists only where AVX-512 does.
        Self(unsafe { _mm512_fmadd_ps(self.0, b.0, c.0) })
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: a vector exists only where AVX-512 does.
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: a vector exists only where AVX-512 does.
        Self(unsafe { _mm512_min_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn below(self, limit: Self, yes: Self, no: Self) -> Self {
        // SAFETY: a vector exists only where AVX-512 does.
        unsafe {
            let mask = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, limit.0);
            Self(_mm512_mask_blend_ps(mask, no.0, yes.0))
        }
    }

    #[inline(always)]
    fn pow2(self) -> Self {
        // SAFETY: a vector exists only where AVX-512 does.
        unsafe {
            let n = _mm512_add_epi32(_mm512_castps_si512(self.0), _mm512_set1_epi32(127));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(n)))
        }
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        // SAFETY: a vector exists only where AVX-512 does; the array has sixteen elements.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), self.0) }
    }

    #[inline(always)]
    fn store_bf16(self, to: &mut [bf16; LANES]) {
        // SAFETY: a vector exists only where AVX-512 does; the array has 32 bytes.
        unsafe {
            let bits = _mm512_castps_si512(self.0);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let up = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
            let bits = _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x40_0000));
            let halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(bits));
            _mm256_storeu_si256(to.as_mut_ptr().cast(), halves);
        }
    }
}
