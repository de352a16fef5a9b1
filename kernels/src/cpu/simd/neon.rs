//! NEON: sixteen f32 are four registers. Every AArch64 processor has it.

use std::arch::aarch64::*;
use std::ops::{Add, Div, Mul, Sub};

use half::bf16;

use super::{Kernel, LANES, Pair, Simd, Square, Vector};

/// Proof of NEON.
#[derive(Clone, Copy)]
pub(crate) struct Neon(());

/// Four q registers. Only [`Neon`] makes the first one.
#[derive(Clone, Copy)]
pub(crate) struct F32x16([float32x4_t; 4]);

/// Runs `kernel` on NEON.
///
/// # Safety
/// The processor must have NEON.
#[target_feature(enable = "neon")]
pub(crate) unsafe fn enter<K: Kernel>(kernel: K) -> K::Out {
    kernel.run(Neon(()))
}

impl Square for Neon {}

impl Simd for Neon {
    type V = F32x16;
    /// 6 x 4 accumulators, four registers of the right factor and one of the left fit 32.
    const ROWS: usize = 6;
    const PANELS: usize = 1;

    #[inline(always)]
    fn splat(self, x: f32) -> F32x16 {
        // SAFETY: `self` proves NEON.
        F32x16([unsafe { vdupq_n_f32(x) }; 4])
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> F32x16 {
        let at = from.as_ptr();
        // SAFETY: `self` proves NEON; the array has sixteen elements.
        F32x16([0, 4, 8, 12].map(|i| unsafe { vld1q_f32(at.add(i)) }))
    }

    #[inline(always)]
    fn load_bf16(self, from: &[bf16; LANES]) -> F32x16 {
        let at = from.as_ptr().cast::<u16>();
        // SAFETY: `self` proves NEON; the array has sixteen elements of two bytes.
        F32x16(
            [0, 4, 8, 12]
                .map(|i| unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(at.add(i)))) }),
        )
    }

    #[inline(always)]
    fn load_pairs(self, from: &[Pair; LANES]) -> [F32x16; 2] {
        let at = from.as_ptr().cast::<u32>();
        // SAFETY: `self` proves NEON; the array has sixteen pairs of two elements of two bytes,
        // which may stand at any even address, as a load of elements by bytes allows.
        let pairs = [0, 4, 8, 12]
            .map(|i| unsafe { vreinterpretq_u32_u8(vld1q_u8(at.wrapping_add(i).cast())) });
        // SAFETY: `self` proves NEON.
        let first = pairs.map(|pairs| unsafe { vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs)) });
        // SAFETY: `self` proves NEON.
        let second = pairs.map(|pairs| unsafe {
            vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff_0000)))
        });
        [F32x16(first), F32x16(second)]
    }
}

/// bf16 bits of four lanes, to nearest even; NaN stays NaN.
///
/// # Safety
/// The processor must have NEON.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn round(x: float32x4_t) -> uint16x4_t {
    let bits = vreinterpretq_u32_f32(x);
    let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
    let up = vaddq_u32(vaddq_u32(bits, odd), vdupq_n_u32(0x7fff));
    let quiet = vorrq_u32(bits, vdupq_n_u32(0x40_0000));
    vshrn_n_u32::<16>(vbslq_u32(vceqq_f32(x, x), up, quiet))
}

impl F32x16 {
    #[inline(always)]
    fn zip(self, other: Self, op: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> Self {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        Self([op(a, e), op(b, f), op(c, g), op(d, h)])
    }
}

impl Add for F32x16 {
    type Output = Self;
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: a vector exists only where NEON does.
        self.zip(other, |a, b| unsafe { vaddq_f32(a, b) })
    }
}

impl Sub for F32x16 {
    type Output = Self;
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: a vector exists only where NEON does.
        self.zip(other, |a, b| unsafe { vsubq_f32(a, b) })
    }
}

impl Mul for F32x16 {
    type Output = Self;
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: a vector exists only where NEON does.
        self.zip(other, |a, b| unsafe { vmulq_f32(a, b) })
    }
}

impl Div for F32x16 {
    type Output = Self;
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        // SAFETY: a vector exists only where NEON does.
        self.zip(other, |a, b| unsafe { vdivq_f32(a, b) })
    }
}

impl Vector for F32x16 {
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        let mut sum = c.0;
        for (sum, (a, b)) in sum.iter_mut().zip(self.0.into_iter().zip(b.0)) {
            // SAFETY: a vector exists only where NEON does.
            *sum = unsafe { vfmaq_f32(*sum, a, b) };
        }
        Self(sum)
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // The contract of x86: where a comparison fails, the second.
        // SAFETY: a vector exists only where NEON does.
        self.zip(other, |a, b| unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: a vector exists only where NEON does.
        self.zip(other, |a, b| unsafe { vbslq_f32(vcltq_f32(a, b), a, b) })
    }

    #[inline(always)]
    fn below(self, limit: Self, yes: Self, no: Self) -> Self {
        Self([0, 1, 2, 3].map(|i| {
            // SAFETY: a vector exists only where NEON does.
            unsafe { vbslq_f32(vcltq_f32(self.0[i], limit.0[i]), yes.0[i], no.0[i]) }
        }))
    }

    #[inline(always)]
    fn pow2(self) -> Self {
        // SAFETY: a vector exists only where NEON does.
        Self(self.0.map(|lanes| unsafe {
            let n = vaddq_u32(vreinterpretq_u32_f32(lanes), vdupq_n_u32(127));
            vreinterpretq_f32_u32(vshlq_n_u32::<23>(n))
        }))
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        let at = to.as_mut_ptr();
        for (i, lanes) in [0, 4, 8, 12].into_iter().zip(self.0) {
            // SAFETY: a vector exists only where NEON does; the array has sixteen elements.
            unsafe { vst1q_f32(at.add(i), lanes) }
        }
    }

    #[inline(always)]
    fn store_bf16(self, to: &mut [bf16; LANES]) {
        let at = to.as_mut_ptr().cast::<u16>();
        for (i, lanes) in [0, 4, 8, 12].into_iter().zip(self.0) {
            // SAFETY: a vector exists only where NEON does; the array has sixteen elements of
            // two bytes.
            unsafe { vst1_u16(at.add(i), round(lanes)) }
        }
    }
}
