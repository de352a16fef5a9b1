//! Sixteen f32 at a time, whatever the processor calls it.
//!
//! A kernel is written once over [`Simd`] and compiled once per instruction set. Every set
//! has the same sixteen lanes, so layouts in memory do not depend on the processor.

use std::ops::{Add, Div, Mul, Sub};

use half::bf16;

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod portable;

/// Elements of a [`Vector`].
pub(crate) const LANES: usize = 16;

/// An instruction set. A value of it proves that the processor has the set.
pub(crate) trait Simd: Copy {
    /// Its sixteen f32.
    type V: Vector;
    /// Rows of the largest register tile: 8, 6 or 4.
    const ROWS: usize;
    /// Vectors in a row of the largest register tile: 1 or 2.
    const PANELS: usize;

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::V;

    /// Sixteen elements.
    fn load(self, from: &[f32; LANES]) -> Self::V;

    /// Sixteen elements, widened exactly.
    fn load_bf16(self, from: &[bf16; LANES]) -> Self::V;
}

/// Sixteen f32 of an instruction set; it exists only where the set does.
pub(crate) trait Vector:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// `self * b + c`, rounded once where the processor can.
    fn fma(self, b: Self, c: Self) -> Self;

    /// The greater of each lane; where `other` is NaN, NaN.
    fn max(self, other: Self) -> Self;

    /// The smaller of each lane; where `other` is NaN, NaN.
    fn min(self, other: Self) -> Self;

    /// `yes` where `self < limit`, else `no`.
    fn below(self, limit: Self, yes: Self, no: Self) -> Self;

    /// 2^n of lanes that hold 1.5 * 2^23 + n for an integer n in -127..=128; zero at -127,
    /// infinite at 128.
    fn pow2(self) -> Self;

    /// Writes the lanes.
    fn store(self, to: &mut [f32; LANES]);
}

/// Something to be computed on the best instruction set: see [`super::isa::Isa::run`].
pub(crate) trait Kernel {
    /// What it returns.
    type Out;

    /// The computation. Must be `#[inline(always)]`, like everything that it calls on
    /// vectors: only what is inlined is compiled for the instruction set.
    fn run<S: Simd>(self, simd: S) -> Self::Out;
}

/// Elements that widen to f32 without rounding.
pub(crate) trait Element: Copy + Default + Send + Sync + 'static {
    /// Sixteen of them.
    fn load<S: Simd>(simd: S, from: &[Self; LANES]) -> S::V;

    /// One of them.
    fn widen(self) -> f32;
}

impl Element for f32 {
    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self; LANES]) -> S::V {
        simd.load(from)
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self; LANES]) -> S::V {
        simd.load_bf16(from)
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

/// The sum of all lanes, in an order that no processor changes.
#[inline(always)]
pub(crate) fn sum<V: Vector>(vector: V) -> f32 {
    let mut lanes = [0.0; LANES];
    vector.store(&mut lanes);
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Up to sixteen elements from the front of `from`; zero behind its end.
#[inline(always)]
pub(crate) fn load_front<S: Simd>(simd: S, from: &[f32]) -> S::V {
    match from.first_chunk() {
        Some(full) => simd.load(full),
        None => {
            let mut lanes = [0.0; LANES];
            lanes[..from.len()].copy_from_slice(from);
            simd.load(&lanes)
        }
    }
}

/// The first lanes, as many as fit `to`.
#[inline(always)]
pub(crate) fn store_front<V: Vector>(vector: V, to: &mut [f32]) {
    match to.first_chunk_mut() {
        Some(full) => vector.store(full),
        None => {
            let mut lanes = [0.0; LANES];
            vector.store(&mut lanes);
            to.copy_from_slice(&lanes[..to.len()]);
        }
    }
}
