//! Products of blocks: all of K in one piece of assembly, so that tiles hold nothing between.
//!
//! Tiles 0 to 3 are sums, 4 is a tile of A's rows; then, for a block of up to 16 rows, 5 to 7
//! are tiles of B, and for a block of up to 32, 5 is the rest of A's rows, 6 and 7 tiles of B.
//! An element of C is one chain of tile products over ascending k whatever the block's shape,
//! so its bits depend on its row of A and its column of B alone, and K may be cut into several
//! blocks that accumulate.
//!
//! # Why these shapes
//!
//! Sapphire Rapids starts a product of whole tiles every 16 cycles (16 rows, one a cycle: 1024
//! operations of bf16 or 2048 of int8 a cycle) and delivers it 52 cycles later; a tile of fewer
//! rows takes as many cycles as it has rows. It loads a tile from the first cache in 8 cycles
//! (two lines a cycle), from the second in about 21 (48 bytes a cycle), at best.
//!
//! - Sums are chains, so four of them hide the latency: 4 * 16 >= 52. That leaves four tiles
//!   for factors. Two by two loads four tiles for four products, the fewest of all shapes: 32
//!   cycles of loads under 64 of products. One by four loads five for four: 40 under 64. Two
//!   sums alone (`two_by_one`) reach 32 of 52 cycles; they are for remainders.
//! - From the second cache, four tiles take 85 cycles: three quarters of the peak. So the two
//!   panels of B (2 KiB a step) should stay in the first cache while blocks of A pass: with 8
//!   steps, a block of A and the panels between two uses of a line are 32 KiB of its 48, and
//!   sums fit beside them. Then A alone comes from the second cache, 43 cycles of 64, and C,
//!   loaded and stored once in 8 steps, costs 4 * (8 + 16) cycles in 512 where nothing hides
//!   them.
//! - Rows that lie apart are loaded slower from the second cache than a tile in one piece (two
//!   thirds of the peak instead of three quarters were measured by others), and rows that are a
//!   multiple of 2 KiB apart fall into two of the 64 sets of the first cache, 24 lines for the
//!   32 of a step. So A is best cut into blocks of rows, `[steps, rows, 64 bytes]`, where the
//!   hardware's prefetcher sees one stream; software prefetch only took load slots from it.

use std::arch::asm;

use super::config::{TILE_BYTES, TILE_ROWS, Tiles};

/// A product C = A B, or C += A B, of as many rows as the tiles are shaped for.
///
/// K is counted in steps of 64 bytes of A's rows: 32 bf16 or 64 integers of eight bits.
#[derive(Clone, Copy)]
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
    /// How many panels there are: up to 4 for up to 16 rows, up to 2 above.
    pub(in crate::cpu) panels: usize,
    /// Steps.
    pub(in crate::cpu) steps: usize,
    /// The first row of C, row-major, panels side by side.
    pub(in crate::cpu) c: *mut T,
    /// Bytes from a row of C to the next.
    pub(in crate::cpu) c_stride: usize,
    /// Whether C is added to.
    pub(in crate::cpu) accumulate: bool,
}

/// One piece of assembly: sums from C or from zero, `$steps` for every step, sums to C.
///
/// `$sums` are pairs of a tile and its address in C.
macro_rules! product {
    (
        $block:ident, sums [$(($sum:literal, $at:literal)),+], steps [$($step:expr),+ $(,)?],
        operands { $($operands:tt)* }
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
            $(concat!("tilestored [", $at, " + {c_stride}*1], ", $sum),)+
            old = in(reg) u32::from($block.accumulate),
            steps = inout(reg) $block.steps => _,
            a = inout(reg) $block.a => _,
            a_stride = in(reg) $block.a_stride,
            a_step = in(reg) $block.a_step,
            line = in(reg) TILE_BYTES,
            c = in(reg) $block.c,
            c_stride = in(reg) $block.c_stride,
            $($operands)*
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        )
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
            /// There are no panels, or more than the rows leave tiles for.
            pub(in crate::cpu) unsafe fn $name(&mut self, block: &Block<$sum>) {
                // SAFETY: the caller's; the tiles are shaped for `rows`, which says how many
                // panels and which tiles of A there are.
                unsafe {
                    match (self.rows() > TILE_ROWS, block.panels) {
                        (false, 1) => $name::one_by_one(block),
                        (false, 2) => $name::one_by_two(block),
                        (false, 3) => $name::one_by_three(block),
                        (false, 4) => $name::one_by_four(block),
                        (true, 1) => $name::two_by_one(block),
                        (true, 2) => $name::two_by_two(block),
                        (_, panels) => panic!("{panels} panels for {} rows", self.rows()),
                    }
                }
            }
        }

        mod $name {
            use super::*;

            products!(@shapes $sum, $multiply);
        }
    };
    (@shapes $sum:ty, $multiply:literal) => {
        /// # Safety
        /// As for the method; tiles are shaped for at most 16 rows, as in all `one_by`.
        pub(super) unsafe fn one_by_one(block: &Block<$sum>) {
            // SAFETY: the caller's: everything in memory that is touched is named there.
            unsafe {
                product!(block, sums [("tmm0", "{c}")], steps [
                    "tileloadd tmm4, [{a} + {a_stride}*1]",
                    "tileloadd tmm5, [{b} + {line}*1]",
                    concat!($multiply, " tmm0, tmm4, tmm5"),
                    "add {a}, {a_step}",
                    "add {b}, 1024",
                ], operands { b = inout(reg) block.b[0] => _, });
            }
        }

        /// # Safety
        /// As above.
        pub(super) unsafe fn one_by_two(block: &Block<$sum>) {
            // SAFETY: as above.
            unsafe {
                product!(block, sums [("tmm0", "{c}"), ("tmm1", "{c} + 64")], steps [
                    "tileloadd tmm4, [{a} + {a_stride}*1]",
                    "tileloadd tmm5, [{b} + {line}*1]",
                    concat!($multiply, " tmm0, tmm4, tmm5"),
                    "tileloadd tmm6, [{b1} + {line}*1]",
                    concat!($multiply, " tmm1, tmm4, tmm6"),
                    "add {a}, {a_step}",
                    "add {b}, 1024",
                    "add {b1}, 1024",
                ], operands {
                    b = inout(reg) block.b[0] => _,
                    b1 = inout(reg) block.b[1] => _,
                });
            }
        }

        /// # Safety
        /// As above.
        pub(super) unsafe fn one_by_three(block: &Block<$sum>) {
            // SAFETY: as above.
            unsafe {
                product!(block, sums [
                    ("tmm0", "{c}"), ("tmm1", "{c} + 64"), ("tmm2", "{c} + 128")
                ], steps [
                    "tileloadd tmm4, [{a} + {a_stride}*1]",
                    "tileloadd tmm5, [{b} + {line}*1]",
                    concat!($multiply, " tmm0, tmm4, tmm5"),
                    "tileloadd tmm6, [{b1} + {line}*1]",
                    concat!($multiply, " tmm1, tmm4, tmm6"),
                    "tileloadd tmm7, [{b2} + {line}*1]",
                    concat!($multiply, " tmm2, tmm4, tmm7"),
                    "add {a}, {a_step}",
                    "add {b}, 1024",
                    "add {b1}, 1024",
                    "add {b2}, 1024",
                ], operands {
                    b = inout(reg) block.b[0] => _,
                    b1 = inout(reg) block.b[1] => _,
                    b2 = inout(reg) block.b[2] => _,
                });
            }
        }

        /// # Safety
        /// As above.
        pub(super) unsafe fn one_by_four(block: &Block<$sum>) {
            // SAFETY: as above.
            unsafe {
                product!(block, sums [
                    ("tmm0", "{c}"), ("tmm1", "{c} + 64"),
                    ("tmm2", "{c} + 128"), ("tmm3", "{c} + 192")
                ], steps [
                    "tileloadd tmm4, [{a} + {a_stride}*1]",
                    "tileloadd tmm5, [{b} + {line}*1]",
                    concat!($multiply, " tmm0, tmm4, tmm5"),
                    "tileloadd tmm6, [{b1} + {line}*1]",
                    concat!($multiply, " tmm1, tmm4, tmm6"),
                    "tileloadd tmm7, [{b2} + {line}*1]",
                    concat!($multiply, " tmm2, tmm4, tmm7"),
                    "tileloadd tmm5, [{b3} + {line}*1]",
                    concat!($multiply, " tmm3, tmm4, tmm5"),
                    "add {a}, {a_step}",
                    "add {b}, 1024",
                    "add {b1}, 1024",
                    "add {b2}, 1024",
                    "add {b3}, 1024",
                ], operands {
                    b = inout(reg) block.b[0] => _,
                    b1 = inout(reg) block.b[1] => _,
                    b2 = inout(reg) block.b[2] => _,
                    b3 = inout(reg) block.b[3] => _,
                });
            }
        }

        /// # Safety
        /// As for the method; tiles are shaped for more than 16 rows, as in all `two_by`.
        pub(super) unsafe fn two_by_one(block: &Block<$sum>) {
            // SAFETY: as above.
            unsafe {
                product!(block, sums [("tmm0", "{c}"), ("tmm2", "{c1}")], steps [
                    "tileloadd tmm4, [{a} + {a_stride}*1]",
                    "tileloadd tmm6, [{b} + {line}*1]",
                    concat!($multiply, " tmm0, tmm4, tmm6"),
                    "tileloadd tmm5, [{a1} + {a_stride}*1]",
                    concat!($multiply, " tmm2, tmm5, tmm6"),
                    "add {a}, {a_step}",
                    "add {a1}, {a_step}",
                    "add {b}, 1024",
                ], operands {
                    a1 = inout(reg) block.lower_a() => _,
                    b = inout(reg) block.b[0] => _,
                    c1 = in(reg) block.lower_c(),
                });
            }
        }

        /// # Safety
        /// As above.
        pub(super) unsafe fn two_by_two(block: &Block<$sum>) {
            // SAFETY: as above.
            unsafe {
                product!(block, sums [
                    ("tmm0", "{c}"), ("tmm1", "{c} + 64"), ("tmm2", "{c1}"), ("tmm3", "{c1} + 64")
                ], steps [
                    "tileloadd tmm4, [{a} + {a_stride}*1]",
                    "tileloadd tmm6, [{b} + {line}*1]",
                    concat!($multiply, " tmm0, tmm4, tmm6"),
                    "tileloadd tmm7, [{b1} + {line}*1]",
                    concat!($multiply, " tmm1, tmm4, tmm7"),
                    "tileloadd tmm5, [{a1} + {a_stride}*1]",
                    concat!($multiply, " tmm2, tmm5, tmm6"),
                    concat!($multiply, " tmm3, tmm5, tmm7"),
                    "add {a}, {a_step}",
                    "add {a1}, {a_step}",
                    "add {b}, 1024",
                    "add {b1}, 1024",
                ], operands {
                    a1 = inout(reg) block.lower_a() => _,
                    b = inout(reg) block.b[0] => _,
                    b1 = inout(reg) block.b[1] => _,
                    c1 = in(reg) block.lower_c(),
                });
            }
        }
    };
}

impl<T> Block<T> {
    fn lower_a(&self) -> *const u8 {
        self.a.wrapping_add(TILE_ROWS * self.a_stride)
    }

    fn lower_c(&self) -> *mut T {
        self.c.wrapping_byte_add(TILE_ROWS * self.c_stride)
    }
}

products!(bf16, f32, "tdpbf16ps", "f32 sums of products of bf16.");
products!(int8, i32, "tdpbsud", "Sums of products of i8 in A and u8 in B, modulo 2^32.");

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
        /// Whether A is cut into steps.
        is_cut: bool,
    }

    /// Every shape that fits tiles, with partial rows, no step and a few.
    fn shapes() -> impl Iterator<Item = Shape> {
        let rows = (1..=32).flat_map(|rows| [(rows, 0), (rows, 64), (rows, 192)]);
        let most = |rows| if rows > TILE_ROWS { 2 } else { 4 };
        let panels =
            rows.flat_map(move |(rows, gap)| (1..=most(rows)).map(move |p| (rows, gap, p)));
        panels.map(|(rows, gap, panels)| {
            let steps = (rows + panels + gap / 64) % 4;
            let accumulate = (rows / 2 + panels) % 2 == 0;
            Shape { rows, panels, steps, gap, accumulate, is_cut: (rows + panels) % 2 == 0 }
        })
    }

    /// What factors and old sums are made of, from random bits.
    struct Make<E, T> {
        left: fn(u64) -> E,
        right: fn(u64) -> E,
        old: fn(u64) -> T,
    }

    /// Runs a product of random factors, and holds every sum against `want(old, row, column)`,
    /// of which a row is of A and a column is of B, in the order in which they lie in memory.
    fn check<E: Copy, T: Copy + Default + std::fmt::Debug>(
        make: Make<E, T>,
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
        for shape in shapes() {
            let Shape { rows, panels, steps, gap, accumulate, is_cut } = shape;
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
        for (rows, panels) in [(1, 0), (16, 5), (17, 3), (32, 0)] {
            let block: Block<i32> = Block {
                a: std::ptr::null(),
                a_stride: 0,
                a_step: 0,
                b: [std::ptr::null(); 4],
                panels,
                steps: 0,
                c: std::ptr::null_mut(),
                c_stride: 0,
                accumulate: false,
            };
            // SAFETY: refused before memory is touched.
            let refused = std::panic::catch_unwind(|| unsafe { Tiles::new(rows).int8(&block) });
            assert!(refused.is_err(), "{rows} rows, {panels} panels");
        }
    }
}
