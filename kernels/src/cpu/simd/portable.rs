//! Plain Rust that the compiler vectorises for what the target always has: SSE2 on x86-64.

use std::ops::{Add, Div, Mul, Sub};

use half::bf16;

use super::{Kernel, LANES, Pair, Simd, Square, Vector};

/// What every processor of the target has.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

/// Sixteen f32 in as many registers as it takes.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct F32x16([f32; LANES]);

/// Runs `kernel` on the target's own instructions.
pub(crate) fn enter<K: Kernel>(kernel: K) -> K::Out {
    kernel.run(Portable)
}

impl Square for Portable {}

impl Simd for Portable {
    type V = F32x16;
    const ROWS: usize = 4;
    const PANELS: usize = 1;

    #[inline(always)]
    fn splat(self, x: f32) -> F32x16 {
        F32x16([x; LANES])
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> F32x16 {
        F32x16(*from)
    }

    #[inline(always)]
    fn load_bf16(self, from: &[bf16; LANES]) -> F32x16 {
        let mut lanes = [0.0; LANES];
        for (lane, from) in lanes.iter_mut().zip(from) {
            *lane = f32::from_bits(u32::from(from.to_bits()) << 16);
        }
        F32x16(lanes)
    }

    #[inline(always)]
    fn load_pairs(self, from: &[Pair; LANES]) -> [F32x16; 2] {
        let mut halves = [[0.0; LANES]; 2];
        let [first, second] = &mut halves;
        for ((first, second), pair) in first.iter_mut().zip(second).zip(from) {
            *first = f32::from_bits(u32::from(pair[0].to_bits()) << 16);
            *second = f32::from_bits(u32::from(pair[1].to_bits()) << 16);
        }
        halves.map(F32x16)
    }
}

impl F32x16 {
    #[inline(always)]
    fn zip(mut self, other: Self, op: impl Fn(f32, f32) -> f32) -> Self {
        for (a, b) in self.0.iter_mut().zip(other.0) {
            *a = op(*a, b);
        }
        self
    }
}

impl Add for F32x16 {
    type Output = Self;
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
}

impl Sub for F32x16 {
    type Output = Self;
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
}

impl Mul for F32x16 {
    type Output = Self;
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
}

impl Div for F32x16 {
    type Output = Self;
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
}

impl Vector for F32x16 {
    #[inline(always)]
    fn fma(mut self, b: Self, c: Self) -> Self {
        for ((a, b), c) in self.0.iter_mut().zip(b.0).zip(c.0) {
            // Without the instruction, `mul_add` is a call into the C library.
            *a = if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
                a.mul_add(b, c)
            } else {
                *a * b + c
            };
        }
        self
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn below(mut self, limit: Self, yes: Self, no: Self) -> Self {
        for i in 0..LANES {
            self.0[i] = if self.0[i] < limit.0[i] { yes.0[i] } else { no.0[i] };
        }
        self
    }

    #[inline(always)]
    fn pow2(mut self) -> Self {
        for lane in &mut self.0 {
            *lane = f32::from_bits(lane.to_bits().wrapping_add(127) << 23);
        }
        self
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        *to = self.0;
    }

    #[inline(always)]
    fn store_bf16(self, to: &mut [bf16; LANES]) {
        for (to, from) in to.iter_mut().zip(self.0) {
            let bits = from.to_bits();
            let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
            let bits = if from.is_nan() { bits | 0x40_0000 } else { rounded };
            *to = bf16::from_bits((bits >> 16) as u16);
        }
    }
}
