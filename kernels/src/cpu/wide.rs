//! Plain loops, compiled for the widest vectors that this processor has.

use std::sync::OnceLock;

use super::isa::Isa;
use super::simd::{Kernel, Simd};

/// Work in plain Rust, of whose loops the compiler makes vectors. It fuses no multiplication with
/// an addition by itself, so results have the same bits on every processor.
pub trait PlainWork {
    /// What it returns.
    type Out;

    /// The work: `#[inline(always)]`, as everything must be that its loops call, or else it is
    /// compiled for what every processor has. That goes for closures, which cannot be marked.
    fn run(self) -> Self::Out;
}

/// Does `work` with the widest vectors that this processor has.
pub fn on_widest_vectors<W: PlainWork>(work: W) -> W::Out {
    /// Found once: a virtual machine stops whenever its processor is asked.
    static BEST: OnceLock<Isa> = OnceLock::new();
    BEST.get_or_init(Isa::best).run(Plain(work))
}

struct Plain<W>(W);

impl<W: PlainWork> Kernel for Plain<W> {
    type Out = W::Out;

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) -> W::Out {
        self.0.run()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of powers, where a fused addition would show.
    #[derive(Clone, Copy)]
    struct Sum<'a>(&'a [f32]);

    impl PlainWork for Sum<'_> {
        type Out = [u32; 16];

        #[inline(always)]
        fn run(self) -> Self::Out {
            let mut sums = [0.0_f32; 16];
            for block in self.0.as_chunks::<16>().0 {
                for (sum, x) in sums.iter_mut().zip(block) {
                    *sum = *sum * 0.999 + x * x;
                }
            }
            sums.map(f32::to_bits)
        }
    }

    #[test]
    fn bits_are_the_same_on_every_instruction_set() {
        let x: Vec<f32> = (0..4096).map(|i| (i as f32 * 0.37).sin()).collect();
        let want = Sum(&x).run();
        for isa in Isa::available() {
            assert_eq!(isa.run(Plain(Sum(&x))), want, "{isa:?}");
        }
        assert_eq!(on_widest_vectors(Sum(&x)), want);
    }
}
