//! Products of blocks: all of K in one piece of assembly, so that tiles hold nothing between.
//!
//! A pass takes up to sixteen rows by two panels: tiles 0 and 1 are sums, 2 is A's rows, 3 is a
//! panel's tile, one panel after the other. Rows below the first sixteen are a pass of their own;
//! if they are fewer, theirs are tiles 4 to 6. An element of C is one chain of tile products over
//! ascending k whatever the block's shape, so its bits depend on its row of A and its column of B
//! alone, and K may be cut into several blocks that accumulate.
//!
//! # Why these shapes
//!
//! Sapphire Rapids starts a product of whole tiles every 16 cycles (16 rows, one a cycle: 1024
//! operations of bf16 or 2048 of int8 a cycle); a tile of fewer rows takes as many cycles as it
//! has rows. Products into one tile of sums follow each other without a gap, row by row. It loads
//! a tile from the first cache in 8 cycles (two lines a cycle), from the second in about 21 (48
//! bytes a cycle), at best.
//!
//! - **Few tiles are alive.** Every load and every product takes a new register until the one
//!   before it is given back. While the other thread of the core works, and on a rented machine it
//!   often is somebody else's, hardly more registers are left than the eight that have names, and
//!   whoever holds all eight waits for every single operation. Two by two tiles of sums with four
//!   of factors then take 32 ns a product, this shape 14 (7.3 is the peak, which both reach while
//!   the core is alone). `tilezero` gives a register back, so no pass leaves a tile alive, and
//!   tiles that are not used are not shaped. kernels/docs/products.md has the figures of others.
//! - Three tiles are loaded for two products: 24 cycles of loads under 32 of products, as long as
//!   they come from the first cache. So a product of many rows is made of whole blocks by two
//!   panels, see [`squares`](super::squares); blocks are what is left of one, and few rows.
//! - Rows that lie apart are loaded slower from the second cache than a tile in one piece (two
//!   thirds of the peak instead of three quarters were measured by others), and rows that are a
//!   multiple of 2 KiB apart fall into two of the 64 sets of the first cache, 24 lines for the
//!   32 of a step. So A is best cut into blocks of rows, `[steps, rows, 64 bytes]`.
//! - What streams by and is read once is asked for two tiles ahead: loads of tiles alone keep too
//!   few lines on their way (7.6 GB/s for a row on one thread, and 11.4 with it; vectors get 12.1).

use std::arch::asm;

use super::config::{TILE_BYTES, TILE_ROWS, Tiles};

/// Where A and B are, and what is asked for meanwhile.
#[derive(Clone, Copy)]
pub(in crate::cpu) enum Reads {
    /// In a cache of the core; nothing.
    Near,
    /// Far away; themselves, two steps ahead.
    Streamed,
}

/// A product C = A B, or C += A B, of as many rows as the tiles are shaped for.
///
/// K is counted in steps of 64 bytes of A's rows: 32 bf16 or 64 integers of eight bits.
pub(in crate::cpu) struct Block<T> {
    /// The first step of the first row of A.
    pub(in crate::cpu) a: *const u8,
    /// Bytes from a row of A to the next: 64 if it is cut into steps, or, if it is row-major,
    /// best an odd multiple of 64.
    pub(in crate::cpu) a_stride: usize,
    /// Bytes from a step of A to the next: 64 times the block's rows, or 64 if it is row-major.
    pub(in crate::cpu) a_step: usize,
    /// Panels of B, sixteen columns each: a tile of 1 KiB for each step, one after the other. A
    /// tile is `[k / 2, 16, 2]` of bf16 or `[k / 4, 16, 4]` of integers.
    pub(in crate::cpu) b: [*const u8; 4],
    /// How many panels there are, 1 to 4.
    pub(in crate::cpu) panels: usize,
    /// Steps.
    pub(in crate::cpu) steps: usize,
    /// Where A and B are.
    pub(in crate::cpu) reads: Reads,
    /// The first row of C, row-major, panels side by side.
    pub(in crate::cpu) c: *mut T,
    /// Bytes from a row of C to the next.
    pub(in crate::cpu) c_stride: usize,
    /// Whether C is added to.
    pub(in crate::cpu) accumulate: bool,
}

/// One piece of assembly: a tile of A's rows by one panel or two. Sums come from C or from zero,
/// `$step` is done for every step, sums go to C, and no tile stays alive.
///
/// `$sums` are pairs of a tile and its address in C; `$spent` are tiles of factors.
macro_rules! pass {
    (
        $block:ident, $pass:ident, sums [$(($sum:literal, $at:literal)),+],
        spent [$($spent:literal),+], steps [$($step:expr),+ $(,)?], operands { $($operands:tt)* }
    ) => {
        asm!(
            "test {old:e}, {old:e}",
            "jnz 2f",
            $(concat!("tilezero ", $sum),)+
            "jmp 3f",
            "2:",
            $(concat!("tileloadd ", $sum, ", [", $at, " + {c_stride}*1]"),)+
            "3:",
            "test {steps}, {steps}",
            "jz 5f",
            "4:",
            $($step,)+
            "dec {steps}",
            "jnz 4b",
            "5:",
            $(
                concat!("tilestored [", $at, " + {c_stride}*1], ", $sum),
                concat!("tilezero ", $sum),
            )+
            $(concat!("tilezero ", $spent),)+
            old = in(reg) u32::from($block.accumulate),
            steps = inout(reg) $block.steps => _,
            a = inout(reg) $pass.a => _,
            a_stride = in(reg) $block.a_stride,
            a_step = in(reg) $block.a_step,
            line = in(reg) TILE_BYTES,
            b = inout(reg) $pass.b[0] => _,
            c = in(reg) $pass.c,
            c_stride = in(reg) $block.c_stride,
            $($operands)*
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        )
    };
}

/// Asks for a tile of a panel, or of A, two steps ahead, past its end too: nothing faults. A's
/// rows are taken to be one after the other.
macro_rules! ask {
    (a) => {
        ask!("{a} + 2*{a_step}", 0, 64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 832,
            896, 960)
    };
    ($b:literal) => {
        ask!($b, 2048, 2112, 2176, 2240, 2304, 2368, 2432, 2496, 2560, 2624, 2688, 2752, 2816,
            2880, 2944, 3008)
    };
    ($b:literal, $($ahead:literal),+) => {
        concat!($("prefetcht0 [", $b, " + ", $ahead, "]\n"),+)
    };
}

/// The products of all shapes by one instruction.
macro_rules! products {
    ($name:ident, $sum:ty, $multiply:literal, $doc:literal) => {
        impl Tiles {
            #[doc = $doc]
            ///
            /// # Safety
            /// For every row of the block (`self.rows()`) and every step, 64 bytes of A can be read
            /// and `64 * panels` bytes of C can be read and written, by nobody else; for every
            /// panel `1024 * steps` bytes of B can be read. Addresses need no alignment, but
            /// rows that cross lines of 64 bytes cost twice.
            ///
            /// # Panics
            /// There are no panels, or more than four.
            #[inline]
            pub(in crate::cpu) unsafe fn $name(&mut self, block: &Block<$sum>) {
                assert!((1..=4).contains(&block.panels), "{} panels of 1 to 4", block.panels);
                for panel in (0..block.panels).step_by(2) {
                    let (pass, is_pair) = (block.pass(panel), block.panels - panel > 1);
                    // SAFETY: the caller's; tiles 0 to 3 are shaped for the block's first rows,
                    // and for those below if they are as many; 4 to 6 are if they are fewer.
                    unsafe {
                        match (is_pair, block.reads) {
                            (true, Reads::Near) => $name::by_two(block, pass),
                            (true, Reads::Streamed) => $name::stream_by_two(block, pass),
                            (false, Reads::Streamed) => $name::stream_by_one(block, pass),
                            (false, _) => $name::by_one(block, pass),
                        }
                        if self.rows() <= TILE_ROWS {
                            continue;
                        }
                        let below = pass.below(block);
                        let is_whole = self.rows() % TILE_ROWS == 0;
                        match (is_pair, is_whole) {
                            (true, true) => $name::by_two(block, below),
                            (true, false) => $name::rest_by_two(block, below),
                            (false, true) => $name::by_one(block, below),
                            (false, false) => $name::rest_by_one(block, below),
                        }
                    }
                }
            }
        }

        mod $name {
            use super::*;

            products!(@one by_one, $sum, $multiply, "tmm0", "tmm2", "");
            products!(@two by_two, $sum, $multiply, "tmm0", "tmm1", "tmm2", "", "");
            products!(@one rest_by_one, $sum, $multiply, "tmm4", "tmm6", "");
            products!(@two rest_by_two, $sum, $multiply, "tmm4", "tmm5", "tmm6", "", "");
            products!(@one stream_by_one, $sum, $multiply, "tmm0", "tmm2",
                concat!(ask!(a), ask!("{b}")));
            products!(@two stream_by_two, $sum, $multiply, "tmm0", "tmm1", "tmm2",
                concat!(ask!(a), ask!("{b}")), ask!("{b1}"));
        }
    };
    (@one $name:ident, $sum:ty, $multiply:literal, $c:literal, $a:literal, $ask:expr) => {
        /// # Safety
        /// As for the method, of up to 16 rows, for which the tiles are shaped.
        #[inline(always)]
        pub(super) unsafe fn $name(block: &Block<$sum>, pass: Pass<$sum>) {
            // SAFETY: the caller's: everything in memory that is touched is named there.
            unsafe {
                pass!(block, pass, sums [($c, "{c}")], spent [$a, "tmm3"], steps [
                    $ask,
                    concat!("tileloadd ", $a, ", [{a} + {a_stride}*1]"),
                    "tileloadd tmm3, [{b} + {line}*1]",
                    concat!($multiply, " ", $c, ", ", $a, ", tmm3"),
                    "add {a}, {a_step}",
                    "add {b}, 1024",
                ], operands {});
            }
        }
    };
    (
        @two $name:ident, $sum:ty, $multiply:literal, $c:literal, $c1:literal, $a:literal,
        $ask:expr, $ask1:expr
    ) => {
        /// # Safety
        /// As above.
        #[inline(always)]
        pub(super) unsafe fn $name(block: &Block<$sum>, pass: Pass<$sum>) {
            // SAFETY: as above.
            unsafe {
                pass!(block, pass, sums [($c, "{c}"), ($c1, "{c} + 64")],
                    spent [$a, "tmm3"], steps [
                    $ask, $ask1,
                    concat!("tileloadd ", $a, ", [{a} + {a_stride}*1]"),
                    "tileloadd tmm3, [{b} + {line}*1]",
                    concat!($multiply, " ", $c, ", ", $a, ", tmm3"),
                    "tileloadd tmm3, [{b1} + {line}*1]",
                    concat!($multiply, " ", $c1, ", ", $a, ", tmm3"),
                    "add {a}, {a_step}",
                    "add {b}, 1024",
                    "add {b1}, 1024",
                ], operands {
                    b1 = inout(reg) pass.b[1] => _,
                });
            }
        }
    };
}

/// Where a pass begins.
struct Pass<T> {
    a: *const u8,
    /// Panels; the second one is the first where there is one.
    b: [*const u8; 2],
    c: *mut T,
}

impl<T> Clone for Pass<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Pass<T> {}

impl<T> Block<T> {
    /// The first rows by one or two panels.
    #[inline(always)]
    fn pass(&self, panel: usize) -> Pass<T> {
        let b = [self.b[panel], self.b[(panel + 1).min(self.panels - 1)]];
        let c = self.c.wrapping_byte_add(panel * TILE_BYTES);
        Pass { a: self.a, b, c }
    }
}

impl<T> Pass<T> {
    /// The rows below the first sixteen.
    #[inline(always)]
    fn below(self, block: &Block<T>) -> Self {
        Self {
            a: self.a.wrapping_add(TILE_ROWS * block.a_stride),
            c: self.c.wrapping_byte_add(TILE_ROWS * block.c_stride),
            ..self
        }
    }
}

products!(bf16, f32, "tdpbf16ps", "f32 sums of products of bf16.");
mod int8 {
    use super::*;

    products!(@one by_one, i32, "tdpbsud", "tmm0", "tmm2", "");
    products!(@one stream_by_one, i32, "tdpbsud", "tmm0", "tmm2",
        concat!(ask!(a), ask!("{b}")));
}

impl Tiles {
    /// Sums of products of i8 in A and u8 in B, modulo 2^32, of up to sixteen rows and one panel.
    /// Whole rows in whole groups are for [`Self::int8_groups`].
    ///
    /// # Safety
    /// As for [`Self::bf16`].
    ///
    /// # Panics
    /// There are more rows or panels.
    #[inline(always)]
    pub(in crate::cpu) unsafe fn int8(&mut self, block: &Block<i32>) {
        assert!(block.panels == 1, "{} panels instead of one", block.panels);
        assert!(self.rows() <= TILE_ROWS, "{} rows of 1 to {TILE_ROWS}", self.rows());
        // SAFETY: the caller's; tiles 0 to 3 are shaped for so many rows.
        unsafe {
            match block.reads {
                Reads::Streamed => int8::stream_by_one(block, block.pass(0)),
                _ => int8::by_one(block, block.pass(0)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    /// Bytes of a whole tile.
    const TILE: usize = TILE_ROWS * TILE_BYTES;

    /// Numbers that look random.
    struct Noise(u64);

    impl Noise {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
        }

        fn many<T>(&mut self, count: usize, make: impl Fn(u64) -> T) -> Vec<T> {
            (0..count).map(|_| make(self.next())).collect()
        }
    }

    /// A shape, and gaps between rows and panels.
    #[derive(Debug, Clone, Copy)]
    struct Shape {
        rows: usize,
        panels: usize,
        steps: usize,
        gap: usize,
        accumulate: bool,
        /// Which of [`Reads`].
        reads: usize,
        /// Whether A is cut into steps.
        is_cut: bool,
    }

    /// Every shape that fits tiles, with partial rows, no step and a few.
    fn shapes() -> impl Iterator<Item = Shape> {
        let rows = (1..=32).flat_map(|rows| [(rows, 0), (rows, 64), (rows, 192)]);
        let panels = rows.flat_map(|(rows, gap)| (1..=4).map(move |panels| (rows, gap, panels)));
        panels.map(|(rows, gap, panels)| {
            let steps = (rows + panels + gap / 64) % 4;
            let accumulate = (rows / 2 + panels) % 2 == 0;
            let reads = (rows + panels / 2) % 2;
            Shape { rows, panels, steps, gap, accumulate, reads, is_cut: (rows + panels) % 2 == 0 }
        })
    }

    /// What factors and old sums are made of, from random bits.
    struct Make<E, T> {
        left: fn(u64) -> E,
        right: fn(u64) -> E,
        old: fn(u64) -> T,
    }

    /// Runs a product of random factors for each of `shapes`, and holds every sum against
    /// `is_right(sum, old, row, column)`, of which a row is of A and a column is of B, in the order
    /// in which they lie in memory.
    fn check<E: Copy, T: Copy + Default + std::fmt::Debug>(
        make: Make<E, T>,
        shapes: impl Iterator<Item = Shape>,
        multiply: impl Fn(&mut Tiles, &Block<T>),
        is_right: impl Fn(T, T, &[E], &[E]) -> bool,
    ) {
        if !super::super::is_enabled() {
            return println!("skipped: no AMX and no emulator");
        }
        let size = size_of::<E>();
        let (per_step, per_dword) = (TILE_BYTES / size, 4 / size);
        let mut tiles = Tiles::new(1);
        let mut noise = Noise(7);
        for shape in shapes {
            let Shape { rows, panels, steps, gap, accumulate, reads, is_cut } = shape;
            let (a_stride, a_step) = match is_cut {
                true => (TILE_BYTES, rows * TILE_BYTES + gap),
                false => (steps * TILE_BYTES + gap, TILE_BYTES),
            };
            let b_stride = steps * TILE + gap;
            let c_stride = panels * TILE_BYTES + gap;
            let a = noise.many((rows * a_stride + steps * a_step) / size, make.left);
            let b = noise.many(panels * b_stride / size, make.right);
            let before = noise.many(rows * c_stride / 4, make.old);
            let mut c = before.clone();
            tiles.set_rows(rows);
            let block = Block {
                a: a.as_ptr().cast(),
                a_stride,
                a_step,
                b: std::array::from_fn(|j| b.as_ptr().wrapping_byte_add(j * b_stride).cast()),
                panels,
                steps,
                reads: match reads {
                    0 => Reads::Near,
                    _ => Reads::Streamed,
                },
                c: c.as_mut_ptr(),
                c_stride,
                accumulate,
            };
            multiply(&mut tiles, &block);
            for (i, (&seen, &before)) in c.iter().zip(&before).enumerate() {
                let (row, column) = (i / (c_stride / 4), i % (c_stride / 4));
                if column >= panels * 16 {
                    assert!(is_right(seen, before, &[], &[]), "{shape:?}: beside C at {i}");
                    continue;
                }
                let row: Vec<E> = (0..steps * per_step)
                    .map(|k| a[(row * a_stride + k / per_step * a_step) / size + k % per_step])
                    .collect();
                let panel = &b[column / 16 * b_stride / size..][..steps * TILE / size];
                let column: Vec<E> = (0..steps * per_step)
                    .map(|k| panel[(k / per_dword * 16 + column % 16) * per_dword + k % per_dword])
                    .collect();
                let old = if accumulate { before } else { T::default() };
                assert!(is_right(seen, old, &row, &column), "{shape:?}: {seen:?} at {i}");
            }
        }
    }

    /// -1..1
    fn real(bits: u64) -> f32 {
        (bits & 0xffff) as f32 / 32768.0 - 1.0
    }

    #[test]
    fn bf16_blocks_multiply() {
        let factor = |bits| bf16::from_f32(real(bits));
        check::<bf16, f32>(
            Make { left: factor, right: factor, old: real },
            shapes(),
            // SAFETY: `check` allocates what it names.
            |tiles, block| unsafe { tiles.bf16(block) },
            |seen, old, row, column| {
                let products = row.iter().zip(column).map(|(a, b)| a.to_f64() * b.to_f64());
                let want = f64::from(old) + products.sum::<f64>();
                (f64::from(seen) - want).abs() <= 2e-6 * (1.0 + row.len() as f64)
            },
        );
    }

    #[test]
    fn int8_blocks_multiply_exactly() {
        check::<u8, i32>(
            Make { left: |bits| bits as u8, right: |bits| bits as u8, old: |bits| bits as i32 },
            shapes().filter(|shape| shape.rows <= TILE_ROWS && shape.panels == 1),
            // SAFETY: as above.
            |tiles, block| unsafe { tiles.int8(block) },
            |seen, old, row, column| {
                let products = row.iter().zip(column);
                let sum = products.map(|(&a, &b)| i32::from(a as i8) * i32::from(b)).sum::<i32>();
                seen == old.wrapping_add(sum)
            },
        );
    }

    #[test]
    fn there_are_tiles_for_so_many_panels() {
        if !super::super::is_enabled() {
            return println!("skipped: no AMX and no emulator");
        }
        fn block<T>(panels: usize) -> Block<T> {
            Block {
                a: std::ptr::null(),
                a_stride: 0,
                a_step: 0,
                b: [std::ptr::null(); 4],
                panels,
                steps: 0,
                reads: Reads::Near,
                c: std::ptr::null_mut(),
                c_stride: 0,
                accumulate: false,
            }
        }
        let check = |multiply: fn(usize, usize), rows: usize, panels: usize| {
            let refused = std::panic::catch_unwind(|| multiply(rows, panels));
            assert!(refused.is_err(), "{rows} rows, {panels} panels");
        };
        // SAFETY: refused before memory is touched.
        let bf16 = |rows, panels| unsafe { Tiles::new(rows).bf16(&block(panels)) };
        for (rows, panels) in [(1, 0), (16, 5), (17, 5), (32, 0)] {
            check(bf16, rows, panels);
        }
        // SAFETY: as above.
        let int8 = |rows, panels| unsafe { Tiles::new(rows).int8(&block(panels)) };
        for (rows, panels) in [(1, 0), (16, 2), (17, 1)] {
            check(int8, rows, panels);
        }
    }
}
