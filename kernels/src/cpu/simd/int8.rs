//! Sums of products of eight-bit integers, sixteen at a time, exact on every processor.

use bytemuck::{Pod, Zeroable};

use super::{Kernel, LANES, Simd};

/// Neighbouring inputs that are multiplied in one step.
pub(crate) const QUAD: usize = 4;

/// Four neighbouring inputs of sixteen outputs, each 128 more than it stands for: processors
/// multiply unsigned by signed bytes.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
pub(crate) struct Step(pub(crate) [[u8; QUAD]; LANES]);

/// An instruction set's products of bytes. A value of it proves that the processor has them.
pub(crate) trait Int8: Copy {
    /// Its vectors of f32.
    type Simd: Simd;
    /// Sixteen i32.
    type Sums: Copy;
    /// What of a step is multiplied at a time: all of it, or the products of one input of every
    /// pair, where there are not registers for more.
    type Part: Pod;
    /// A step as it is multiplied, in parts.
    type Weights: Pod + AsRef<[Self::Part]>;
    /// Four inputs of one row as they are packed.
    type Quad: Pod + From<[i8; QUAD]>;
    /// Those that are multiplied with a part, each for every output.
    type Inputs: Copy;
    /// Rows of the largest register tile: 8, 6 or 4.
    const ROWS: usize;
    /// Steps in a row of the largest register tile: 1 or 2.
    const PANELS: usize;
    /// Whether [`weights`](Self::weights) is work that pays to be done once for many rows.
    const STAGES: bool = false;

    /// The instruction set that this one is part of.
    fn simd(self) -> Self::Simd;

    /// `x` in every lane.
    fn splat(self, x: i32) -> Self::Sums;

    /// Reads a step.
    fn weights(self, from: &Step) -> Self::Weights;

    /// Repeats for every output the inputs that are multiplied with part `part` of a step.
    fn inputs(self, from: &Self::Quad, part: usize) -> Self::Inputs;

    /// Adds to each sum its products.
    fn dot(self, sums: Self::Sums, weights: Self::Part, inputs: Self::Inputs) -> Self::Sums;

    /// The sums as f32: exact below 2^24.
    fn to_f32(self, sums: Self::Sums) -> <Self::Simd as Simd>::V;
}

/// Something to be computed with products of bytes: see [`crate::cpu::isa::Isa::run_int8`].
pub(crate) trait Int8Kernel {
    /// What it returns.
    type Out;

    /// The computation, `#[inline(always)]` like a [`super::Kernel`]'s.
    fn run<I: Int8>(self, int8: I) -> Self::Out;
}

/// Runs a kernel with products that the compiler vectorises.
pub(crate) struct Plainly<K>(pub(crate) K);

impl<K: Int8Kernel> Kernel for Plainly<K> {
    type Out = K::Out;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> K::Out {
        self.0.run(Plain(simd))
    }
}

/// Products in plain Rust beside the vectors of an instruction set.
#[derive(Clone, Copy)]
struct Plain<S>(S);

impl<S: Simd> Int8 for Plain<S> {
    type Simd = S;
    type Sums = [i32; LANES];
    type Part = Step;
    type Weights = [Step; 1];
    type Quad = [i8; QUAD];
    type Inputs = [i8; QUAD];
    const ROWS: usize = 4;
    const PANELS: usize = 1;

    #[inline(always)]
    fn simd(self) -> S {
        self.0
    }

    #[inline(always)]
    fn splat(self, x: i32) -> [i32; LANES] {
        [x; LANES]
    }

    #[inline(always)]
    fn weights(self, from: &Step) -> [Step; 1] {
        [*from]
    }

    #[inline(always)]
    fn inputs(self, from: &[i8; QUAD], _part: usize) -> [i8; QUAD] {
        *from
    }

    #[inline(always)]
    fn dot(self, mut sums: [i32; LANES], weights: Step, inputs: [i8; QUAD]) -> [i32; LANES] {
        for (sum, weights) in sums.iter_mut().zip(&weights.0) {
            for (&weight, &input) in weights.iter().zip(&inputs) {
                *sum += i32::from(weight) * i32::from(input);
            }
        }
        sums
    }

    #[inline(always)]
    fn to_f32(self, sums: [i32; LANES]) -> S::V {
        let mut lanes = [0.0; LANES];
        for (lane, sum) in lanes.iter_mut().zip(sums) {
            *lane = sum as f32;
        }
        self.0.load(&lanes)
    }
}
