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
pub(super) mod int8;
#[cfg(target_arch = "x86_64")]
pub(super) mod int8_x86;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod portable;

/// Elements of a [`Vector`].
pub(crate) const LANES: usize = 16;

/// Two neighbouring elements of bf16.
pub(crate) type Pair = [bf16; 2];

/// 1.5 * 2^23: adding it leaves the nearest integer in the low bits.
const MAGIC: f32 = 12_582_912.0;

/// What an instruction set makes of sixteen rows of sixteen.
pub(crate) trait Square: Copy {
    /// Rows become columns.
    #[inline(always)]
    fn transpose(self, block: &mut [[f32; LANES]; LANES]) {
        for i in 1..LANES {
            let (above, below) = block.split_at_mut(i);
            for (j, above) in above.iter_mut().enumerate() {
                std::mem::swap(&mut above[i], &mut below[0][j]);
            }
        }
    }

    /// The [sum](sum) of each row.
    #[inline(always)]
    fn sums(self, rows: &[[f32; LANES]; LANES], to: &mut [f32; LANES]) {
        for (to, row) in to.iter_mut().zip(rows) {
            *to = halved(*row);
        }
    }
}

/// An instruction set. A value of it proves that the processor has the set.
pub(crate) trait Simd: Square {
    /// Its sixteen f32.
    type V: Vector;
    /// Rows of the largest register tile: 8, 6 or 4.
    const ROWS: usize;
    /// Vectors in a row of the largest register tile: 1 or 2.
    const PANELS: usize;

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::V;

    /// The nearest integer n (ties to even) and what is left of `x`, which is at most 127; below
    /// -126.5 any integer below -126, and a rest within ±1/2.
    #[inline(always)]
    fn parts(self, x: Self::V) -> (Self::V, Self::V) {
        let x = self.splat(-127.0).max(x);
        let magic = self.splat(MAGIC);
        let whole = (x + magic) - magic;
        (whole, x - whole)
    }

    /// `x` 2^n for an integer n of [`parts`](Self::parts); zero where n is below -126.
    #[inline(always)]
    fn times_pow2(self, x: Self::V, whole: Self::V) -> Self::V {
        x * (whole + self.splat(MAGIC)).pow2()
    }

    /// Sixteen elements.
    fn load(self, from: &[f32; LANES]) -> Self::V;

    /// Sixteen elements, widened exactly.
    fn load_bf16(self, from: &[bf16; LANES]) -> Self::V;

    /// The first elements of sixteen pairs, and the second ones, widened exactly.
    fn load_pairs(self, from: &[Pair; LANES]) -> [Self::V; 2];

    /// Writes a vector past the caches, where the instruction set can and `to` is a line. Whoever
    /// has must fence (`fence_streams`) before others read.
    #[inline(always)]
    fn stream(self, lanes: Self::V, to: &mut [f32; LANES]) {
        lanes.store(to);
    }
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

    /// Writes the lanes rounded to nearest even; NaN stays NaN.
    fn store_bf16(self, to: &mut [bf16; LANES]);
}

/// Something to be computed on the best instruction set: see [`super::isa::Isa::run`].
pub(crate) trait Kernel {
    /// What it returns.
    type Out;

    /// The computation. Must be `#[inline(always)]`, like everything that it calls on
    /// vectors: only what is inlined is compiled for the instruction set. Closures around
    /// vectors (`array::map`, `from_fn`) are inlined or not as the compiler likes, and were once
    /// fifty times slower where it did not: loops, please.
    fn run<S: Simd>(self, simd: S) -> Self::Out;
}

/// Elements of two vectors.
pub(crate) const LINE: usize = 2 * LANES;

/// Elements that widen to f32 without rounding.
pub(crate) trait Element: bytemuck::Pod + Default + Send + Sync {
    /// Sixteen of them.
    fn load<S: Simd>(simd: S, from: &[Self; LANES]) -> S::V;

    /// What is multiplied by elements of this type for `x`.
    fn rounded(x: f32) -> f32;

    /// The two vectors of a line, in whatever order costs least.
    fn load_line<S: Simd>(simd: S, from: &[Self; LINE]) -> [S::V; 2];

    /// A line in the order in which [`load_line`](Self::load_line) has its elements.
    fn as_loaded(line: &[[f32; LANES]; 2]) -> [[f32; LANES]; 2];

    /// A line in its own order, from that of [`load_line`](Self::load_line).
    fn in_order(loaded: &[[f32; LANES]; 2]) -> [[f32; LANES]; 2];
}

impl Element for f32 {
    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self; LANES]) -> S::V {
        simd.load(from)
    }

    #[inline(always)]
    fn load_line<S: Simd>(simd: S, from: &[Self; LINE]) -> [S::V; 2] {
        let [first, second] = bytemuck::cast_ref::<_, [[Self; LANES]; 2]>(from);
        [simd.load(first), simd.load(second)]
    }

    fn rounded(x: f32) -> f32 {
        x
    }

    fn as_loaded(line: &[[f32; LANES]; 2]) -> [[f32; LANES]; 2] {
        *line
    }

    fn in_order(loaded: &[[f32; LANES]; 2]) -> [[f32; LANES]; 2] {
        *loaded
    }
}

/// Elements come apart as the first and the second ones of pairs.
impl Element for bf16 {
    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self; LANES]) -> S::V {
        simd.load_bf16(from)
    }

    #[inline(always)]
    fn load_line<S: Simd>(simd: S, from: &[Self; LINE]) -> [S::V; 2] {
        simd.load_pairs(bytemuck::cast_ref(from))
    }

    fn rounded(x: f32) -> f32 {
        Self::from_f32(x).to_f32()
    }

    fn as_loaded(line: &[[f32; LANES]; 2]) -> [[f32; LANES]; 2] {
        let line = line.as_flattened();
        [0, 1].map(|half| std::array::from_fn(|lane| line[2 * lane + half]))
    }

    fn in_order(loaded: &[[f32; LANES]; 2]) -> [[f32; LANES]; 2] {
        let mut line = [[0.0; LANES]; 2];
        for (lane, pair) in line.as_flattened_mut().chunks_exact_mut(2).enumerate() {
            pair.copy_from_slice(&[loaded[0][lane], loaded[1][lane]]);
        }
        line
    }
}

/// Asks for the lines of `bytes` bytes from `at` on to be brought near. They need not exist.
#[inline(always)]
pub(crate) fn prefetch<T>(at: *const T, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        prefetch_line(at.cast::<u8>().wrapping_add(line));
    }
}

/// How many lines before its use one is asked for that streams from memory.
pub(crate) const LINES_AHEAD: usize = 24;

/// Asks for the line at `at` to be brought near. It need not exist.
#[inline(always)]
pub(crate) fn prefetch_line<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 processor has it, and it cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Where lines are brought that will be needed.
#[derive(Clone, Copy)]
pub(crate) enum Level {
    /// The first level, for whoever needs them soon.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "for tiles of AMX"))]
    First,
    /// The second level. Rows that are a power of two apart share few places of the first, where
    /// they would drive out each other and what is being read.
    Second,
}

/// Asks for the lines of `bytes` bytes from `at` on, to be read and written. They need not exist.
#[inline(always)]
pub(crate) fn prefetch_to_write<T>(at: *const T, bytes: usize, level: Level) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T1, _mm_prefetch};
        let at = at.cast::<i8>().wrapping_add(line);
        // SAFETY: a prefetch faults nowhere, and changes no value.
        unsafe {
            match level {
                Level::First => _mm_prefetch::<_MM_HINT_ET0>(at),
                Level::Second => _mm_prefetch::<_MM_HINT_T1>(at),
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, bytes, level);
}

/// Lets what was [streamed](Simd::stream) be seen before whatever is written from here on.
#[cfg(target_arch = "x86_64")]
pub(crate) fn fence_streams() {
    // SAFETY: every x86-64 processor has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// The sum of all lanes, in an order that no processor changes.
#[inline(always)]
pub(crate) fn sum<V: Vector>(vector: V) -> f32 {
    let mut lanes = [0.0; LANES];
    vector.store(&mut lanes);
    halved(lanes)
}

/// The second half added to the first, until one is left.
#[inline(always)]
fn halved(mut lanes: [f32; LANES]) -> f32 {
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

/// The first lanes rounded to nearest even, as many as fit `to`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn store_front_bf16<V: Vector>(vector: V, to: &mut [bf16]) {
    match to.first_chunk_mut() {
        Some(full) => vector.store_bf16(full),
        None => {
            let mut lanes = [bf16::ZERO; LANES];
            vector.store_bf16(&mut lanes);
            to.copy_from_slice(&lanes[..to.len()]);
        }
    }
}

/// `x` rounded to bf16, to nearest even, and widened again.
#[inline(always)]
pub(crate) fn rounded<S: Simd>(simd: S, x: S::V) -> S::V {
    let mut lanes = [bf16::ZERO; LANES];
    x.store_bf16(&mut lanes);
    simd.load_bf16(&lanes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;

    /// Numbers where rounding is not plain: ties either way, the largest, the smallest, NaN
    /// with every kind of payload.
    const ODD: [u32; LANES] = [
        0x3f80_8000,
        0x3f81_8000,
        0x3f80_7fff,
        0x3f80_8001,
        0x7f7f_ffff,
        0x7f7f_7fff,
        0xff7f_8000,
        0x7f80_0000,
        0xff80_0000,
        0x7f80_0001,
        0x7fff_ffff,
        0xffff_ffff,
        0x0000_0001,
        0x8000_8000,
        0x0001_8000,
        0x0000_0000,
    ];

    struct Round([f32; LANES]);

    impl Kernel for Round {
        type Out = [bf16; LANES];

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> [bf16; LANES] {
            let mut to = [bf16::ZERO; LANES];
            simd.load(&self.0).store_bf16(&mut to);
            to
        }
    }

    #[test]
    fn bf16_is_rounded_to_nearest_even() {
        let odd = ODD.map(f32::from_bits);
        let spread: Vec<f32> =
            (0..4096_u32).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b1))).collect();
        for isa in Isa::available() {
            for from in spread.as_chunks().0.iter().chain([&odd]) {
                for (seen, from) in isa.run(Round(*from)).into_iter().zip(from) {
                    let want = bf16::from_f32(*from);
                    let same = seen.to_bits() == want.to_bits() || seen.is_nan() && want.is_nan();
                    assert!(same, "{from:e} became {seen:e}, want {want:e}, on {isa:?}");
                }
            }
        }
    }

    struct Transpose([[f32; LANES]; LANES]);

    impl Kernel for Transpose {
        type Out = [[f32; LANES]; LANES];

        #[inline(always)]
        fn run<S: Simd>(mut self, simd: S) -> Self::Out {
            simd.transpose(&mut self.0);
            self.0
        }
    }

    #[test]
    fn rows_become_columns() {
        let block = std::array::from_fn(|i| std::array::from_fn(|j| (LANES * i + j) as f32));
        let want = std::array::from_fn(|i| std::array::from_fn(|j| (LANES * j + i) as f32));
        for isa in Isa::available() {
            assert_eq!(isa.run(Transpose(block)), want, "{isa:?}");
        }
    }

    struct Sums([[f32; LANES]; LANES]);

    impl Kernel for Sums {
        type Out = [[f32; LANES]; 2];

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Out {
            let mut out = [[0.0; LANES]; 2];
            simd.sums(&self.0, &mut out[0]);
            for (to, row) in out[1].iter_mut().zip(&self.0) {
                *to = sum(simd.load(row));
            }
            out
        }
    }

    #[test]
    fn sums_of_rows_are_those_of_each() {
        // Of such different sizes that every other order rounds otherwise.
        let number = |i: usize| (i as f32 * 1.7).sin() * 2.0_f32.powi(i as i32 * 7 % 40 - 20);
        let rows = std::array::from_fn(|i| std::array::from_fn(|j| number(LANES * i + j)));
        for isa in Isa::available() {
            let [together, each] = isa.run(Sums(rows)).map(|sums| sums.map(f32::to_bits));
            assert_eq!(together, each, "{isa:?}");
        }
    }

    struct Line([bf16; LINE]);

    impl Kernel for Line {
        type Out = [[f32; LANES]; 2];

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Out {
            let mut out = [[0.0; LANES]; 2];
            let halves = bf16::load_line(simd, &self.0);
            halves.iter().zip(&mut out).for_each(|(half, to)| half.store(to));
            out
        }
    }

    #[test]
    fn lines_come_in_the_order_that_they_say() {
        let line: [bf16; LINE] = std::array::from_fn(|i| bf16::from_f32(i as f32 - 7.5));
        let mut want = [[0.0; LANES]; 2];
        want.as_flattened_mut().iter_mut().zip(line).for_each(|(to, x)| *to = x.to_f32());
        for isa in Isa::available() {
            let loaded = isa.run(Line(line));
            assert_eq!(loaded, bf16::as_loaded(&want), "{isa:?}");
            assert_eq!(bf16::in_order(&loaded), want, "{isa:?}");
        }
    }

    struct Widen([Pair; LANES]);

    impl Kernel for Widen {
        type Out = [[f32; LANES]; 2];

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> [[f32; LANES]; 2] {
            simd.load_pairs(&self.0).map(|half| {
                let mut lanes = [0.0; LANES];
                half.store(&mut lanes);
                lanes
            })
        }
    }

    #[test]
    fn pairs_are_taken_apart_exactly() {
        let pair = |i: usize| [i as f32 + 0.5, -1.0 / (1 << i) as f32].map(bf16::from_f32);
        let pairs: [Pair; LANES] = std::array::from_fn(pair);
        let want = [0, 1].map(|of| pairs.map(|pair| pair[of].to_f32()));
        for isa in Isa::available() {
            assert_eq!(isa.run(Widen(pairs)), want, "{isa:?}");
        }
    }
}
