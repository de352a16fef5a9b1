//! Products of whole blocks of 32 rows by two panels, whose sums are put down while the next ones
//! are computed.
//!
//! Tiles 0 to 3 are sums, two by two; 4 is a tile of A's rows, 5 and 6 are the panels'. An element
//! of C is the chain of tile products that [`blocks`](super::blocks) makes of it, so a result has
//! the same bits whichever of the two computed it.
//!
//! # Why this shape
//!
//! One thread of a Xeon with AMX whose neighbours rest, blocks of 256 rows and 1,024 inputs in the
//! second cache, nanoseconds for a product of whole tiles of numbers (6.4 at best: of zeros 5.2,
//! but what switches costs power, and the clock gives way):
//!
//! - **A does not pass through the first cache** (`tileloaddt1`): 7.4, and 9.8 with `tileloadd`.
//!   Two panels of 16 steps, 32 KiB, then stay in the 48 that it has; with `tileloadd` 11 steps
//!   do, and sums are put down more often: 7.9 (one tile of rows by two panels 8.7).
//! - **Sums are put down in the first step of the next product**, each behind a product that begins
//!   when they are done: 7.4, and some 8.5 at the end of their own, where everything waits.
//! - A tile is given back (`tilezero`) as soon as it is used, for whom the core's other thread is
//!   not resting: nothing here, and 18 ns instead of 32 in the burst there.

use std::arch::asm;

use super::config::{TILE_BYTES, TILE_ROWS, Tiles};

/// A product C = A B, or C += A B, of 32 rows by two panels of sixteen columns.
pub(in crate::cpu) struct Square {
    /// `[steps, 32, 64]` bytes: the rows of a step side by side.
    pub(in crate::cpu) a: *const u8,
    /// Bytes from a step of A to the next.
    pub(in crate::cpu) a_step: usize,
    /// Two panels: a tile of 1 KiB for each step.
    pub(in crate::cpu) b: [*const u8; 2],
    /// Steps of 64 bytes of a row; at least one.
    pub(in crate::cpu) steps: usize,
    /// The first of 32 rows of f32, two panels side by side.
    pub(in crate::cpu) c: *mut f32,
    /// Bytes from a row of C to the next; the same for all products whose sums are not put down.
    pub(in crate::cpu) c_stride: usize,
    /// Whether C is added to.
    pub(in crate::cpu) accumulate: bool,
    /// What is asked for meanwhile.
    pub(in crate::cpu) ahead: Ahead,
}

/// Pairs of lines that are asked for into the second cache with every step, from an address on. Of
/// a pair only the first is: the processor fetches the other one by itself, and a core has sixteen
/// places for lines that it waits for.
#[derive(Clone, Copy)]
pub(in crate::cpu) enum Ahead {
    Nothing,
    One(*const u8),
    Two(*const u8),
    Four(*const u8),
}

/// Bytes of a pair of lines.
pub(in crate::cpu) const PAIR_BYTES: usize = 128;

/// One step. `$begin` of a tile is what comes before its first product.
macro_rules! step {
    ($begin:ident, $ask:expr) => {
        concat!(
            $ask,
            "tileloaddt1 tmm4, [{a} + {line}*1]\n",
            "tileloadd tmm5, [{b} + {line}*1]\n",
            $begin!("tmm0", "", "0"),
            "tdpbf16ps tmm0, tmm4, tmm5\n",
            "tileloadd tmm6, [{b1} + {line}*1]\n",
            $begin!("tmm1", "", "64"),
            "tdpbf16ps tmm1, tmm4, tmm6\n",
            "tileloaddt1 tmm4, [{a} + {line}*1 + 1024]\n",
            $begin!("tmm2", "_below", "0"),
            "tdpbf16ps tmm2, tmm4, tmm5\n",
            "tilezero tmm5\n",
            $begin!("tmm3", "_below", "64"),
            "tdpbf16ps tmm3, tmm4, tmm6\n",
            "tilezero tmm6\n",
            "tilezero tmm4\n",
            "add {a}, {a_step}\n",
            "add {b}, 1024\n",
            "add {b1}, 1024\n",
        )
    };
}

/// Sums go on.
macro_rules! on {
    ($sum:literal, $half:literal, $at:literal) => {
        ""
    };
}

/// The sums before are put down, new ones begin at zero.
macro_rules! from_zero {
    ($sum:literal, $half:literal, $at:literal) => {
        concat!(
            concat!("tilestored [{before", $half, "} + {row}*1 + ", $at, "], ", $sum, "\n"),
            concat!("tilezero ", $sum, "\n"),
        )
    };
}

/// The sums before are put down, new ones begin at C.
macro_rules! from_c {
    ($sum:literal, $half:literal, $at:literal) => {
        concat!(
            concat!("tilestored [{before", $half, "} + {row}*1 + ", $at, "], ", $sum, "\n"),
            concat!("tileloadd ", $sum, ", [{c", $half, "} + {row}*1 + ", $at, "]\n"),
        )
    };
}

/// Asks for so many pairs of lines.
macro_rules! ask {
    (0) => {
        "// {far}\n"
    };
    (1) => {
        "prefetcht1 [{far}]\nadd {far}, 128\n"
    };
    (2) => {
        "prefetcht1 [{far}]\nprefetcht1 [{far} + 128]\nadd {far}, 256\n"
    };
    (4) => {
        concat!(
            "prefetcht1 [{far}]\nprefetcht1 [{far} + 128]\n",
            "prefetcht1 [{far} + 256]\nprefetcht1 [{far} + 384]\nadd {far}, 512\n",
        )
    };
}

macro_rules! square {
    ($square:ident, $before:ident, $far:expr, $ask:expr) => {
        asm!(
            "test {old:e}, {old:e}",
            "jnz 2f",
            step!(from_zero, $ask),
            "jmp 3f",
            "2:",
            step!(from_c, $ask),
            "3:",
            "dec {steps}",
            "jz 5f",
            "4:",
            step!(on, $ask),
            "dec {steps}",
            "jnz 4b",
            "5:",
            old = in(reg) u32::from($square.accumulate),
            steps = inout(reg) $square.steps => _,
            a = inout(reg) $square.a => _,
            b = inout(reg) $square.b[0] => _,
            b1 = inout(reg) $square.b[1] => _,
            far = inout(reg) $far => _,
            a_step = in(reg) $square.a_step,
            before = in(reg) $before,
            before_below = in(reg) $before.wrapping_byte_add(TILE_ROWS * $square.c_stride),
            c = in(reg) $square.c,
            c_below = in(reg) $square.c.wrapping_byte_add(TILE_ROWS * $square.c_stride),
            line = in(reg) TILE_BYTES,
            row = in(reg) $square.c_stride,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        )
    };
}

impl Tiles {
    /// Computes a product, and puts the sums of the one before down, where its C is.
    ///
    /// # Safety
    /// For every step 2 KiB of A, and of each panel 1 KiB, can be read; C has room for 32 rows of
    /// 128 bytes, which nobody else reads or writes before the next product or
    /// [`Self::put_square`] has put them down.
    ///
    /// # Panics
    /// There are no steps; the sums that are still in tiles belong to rows of another stride.
    #[inline]
    pub(in crate::cpu) unsafe fn bf16_square(&mut self, square: &Square) {
        assert!(square.steps > 0, "a product without a step");
        let before = match self.begin_square() {
            Some((before, stride)) => {
                assert!(stride == square.c_stride, "rows that lie {stride} bytes apart");
                before
            }
            // Nothing is in the tiles. What is put down in its place is what is there, or what
            // nobody reads.
            None => {
                if square.accumulate {
                    // SAFETY: the caller's.
                    unsafe { take(square.c, square.c_stride) };
                }
                square.c
            }
        };
        // SAFETY: the caller's, of this product and of the one before; tiles have that shape.
        unsafe {
            match square.ahead {
                Ahead::Nothing => square!(square, before, square.a, ask!(0)),
                Ahead::One(far) => square!(square, before, far, ask!(1)),
                Ahead::Two(far) => square!(square, before, far, ask!(2)),
                Ahead::Four(far) => square!(square, before, far, ask!(4)),
            }
        }
        self.waiting = Some((square.c, square.c_stride));
    }

    /// Puts the sums of the last product down; nothing happens if they are.
    pub(in crate::cpu) fn put_square(&mut self) {
        let Some((before, stride)) = self.waiting.take() else { return };
        // SAFETY: whoever computed it keeps the memory until now.
        unsafe {
            asm!(
                "tilestored [{before} + {row}*1], tmm0",
                "tilestored [{before} + {row}*1 + 64], tmm1",
                "tilestored [{below} + {row}*1], tmm2",
                "tilestored [{below} + {row}*1 + 64], tmm3",
                before = in(reg) before,
                below = in(reg) before.wrapping_byte_add(TILE_ROWS * stride),
                row = in(reg) stride,
                options(nostack, preserves_flags)
            );
        }
    }
}

/// Takes sums into the tiles.
///
/// # Safety
/// Tiles are those of this thread, with the shape of these products; 32 rows of 128 bytes can be
/// read.
#[inline(always)]
unsafe fn take(c: *mut f32, stride: usize) {
    // SAFETY: the caller's.
    unsafe {
        asm!(
            "tileloadd tmm0, [{c} + {row}*1]",
            "tileloadd tmm1, [{c} + {row}*1 + 64]",
            "tileloadd tmm2, [{below} + {row}*1]",
            "tileloadd tmm3, [{below} + {row}*1 + 64]",
            c = in(reg) c,
            below = in(reg) c.wrapping_byte_add(TILE_ROWS * stride),
            row = in(reg) stride,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            options(nostack, preserves_flags, readonly)
        );
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::super::{Block, Reads};
    use super::*;

    /// Numbers of a block's sums.
    const SUMS: usize = 32 * 32;

    /// Numbers between -1 and 1.
    fn noise(count: usize) -> Vec<f32> {
        (0..count).map(|i| ((i as f32 + 1.0) * 12.9898).sin()).collect()
    }

    fn rounded(count: usize) -> Vec<bf16> {
        noise(count).into_iter().map(bf16::from_f32).collect()
    }

    /// Steps of each of some products in a row, and whether the sums of the one before go on.
    fn check(products: &[(usize, bool)], ahead: fn(*const u8) -> Ahead) {
        if !super::super::is_enabled() {
            return println!("skipped: no AMX and no emulator");
        }
        let most = products.iter().map(|(steps, _)| *steps).max().unwrap();
        let (a, b) = (rounded(32 * 32 * most), rounded(2 * 16 * 32 * most));
        let panels = [0, most * 512].map(|at| b[at..].as_ptr().cast::<u8>());
        let begun = noise(SUMS);
        let mut places = vec![begun.clone(); products.len()];
        let mut want = places.clone();
        let mut tiles = Tiles::new(32);
        for ((steps, accumulate), c) in products.iter().zip(&mut want) {
            let block = Block {
                a: a.as_ptr().cast(),
                a_stride: 64,
                a_step: 2048,
                b: [panels[0], panels[1], panels[1], panels[1]],
                panels: 2,
                steps: *steps,
                reads: Reads::Near,
                c: c.as_mut_ptr(),
                c_stride: 128,
                accumulate: *accumulate,
            };
            // SAFETY: a, b and c have so many steps, and 32 rows of 32 columns.
            unsafe { tiles.bf16(&block) };
        }
        for (idx, (steps, accumulate)) in products.iter().enumerate() {
            let square = Square {
                a: a.as_ptr().cast(),
                a_step: 2048,
                b: panels,
                steps: *steps,
                c: places[idx].as_mut_ptr(),
                c_stride: 128,
                accumulate: *accumulate,
                ahead: ahead(b.as_ptr().cast()),
            };
            // SAFETY: as above; nobody looks at a place before the next product.
            unsafe { tiles.bf16_square(&square) };
            if let Some(before) = idx.checked_sub(1) {
                assert_eq!(places[before], want[before], "{products:?}: the sums of {before}");
            }
        }
        tiles.put_square();
        assert_eq!(places, want, "{products:?}");
        tiles.put_square();
        tiles.set_rows(7);
    }

    #[test]
    fn sums_are_those_of_blocks() {
        check(&[(1, false)], |_| Ahead::Nothing);
        check(&[(1, true), (1, false), (3, false)], Ahead::One);
        check(&[(5, false), (2, true), (1, true), (4, true)], Ahead::Two);
        check(&[(2, true), (17, false)], Ahead::Four);
    }

    #[test]
    fn sums_are_not_lost_by_another_shape() {
        if !super::super::is_enabled() {
            return println!("skipped: no AMX and no emulator");
        }
        let (a, b) = (rounded(32 * 32), rounded(2 * 16 * 32));
        let mut c = vec![0.0; SUMS];
        let lost = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut tiles = Tiles::new(32);
            let square = Square {
                a: a.as_ptr().cast(),
                a_step: 2048,
                b: [b.as_ptr().cast(); 2],
                steps: 1,
                c: c.as_mut_ptr(),
                c_stride: 128,
                accumulate: false,
                ahead: Ahead::Nothing,
            };
            // SAFETY: a step of everything is there.
            unsafe { tiles.bf16_square(&square) };
            tiles.set_rows(16);
        }));
        assert!(lost.is_err());
    }
}
