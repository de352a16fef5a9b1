//! Products of integers in groups, each with scales of its own: tiles multiply a group, and vectors
//! scale the sums of the second one before it and add them to f32 sums in sixteen registers.
//!
//! The sums of a group are put down when the products of the next one are under way, from one of
//! two tiles by turns. Whoever stores a tile right behind its last product waits for it, and so
//! does everything behind: 34 ns for a group, and 11 a group later.
//!
//! In one piece of assembly, because the compiler spills some of the registers around the tiles.

use std::arch::asm;
use std::mem::MaybeUninit;

use super::config::{TILE_BYTES, TILE_ROWS, Tiles};

/// C += Σ scale_a scale_b (A B + offset) over some groups of two steps of 64 inputs, of sixteen
/// rows and one panel of sixteen columns. The last group may have one step.
pub(in crate::cpu) struct Groups {
    /// `[steps, 16, 64]` of i8, the rows of a step side by side.
    pub(in crate::cpu) a: *const u8,
    /// Bytes from a step of A to the next.
    pub(in crate::cpu) a_step: usize,
    /// `[steps, 16, 16, 4]` of u8.
    pub(in crate::cpu) b: *const u8,
    /// At least one.
    pub(in crate::cpu) steps: usize,
    /// `[groups, 16]`: a scale of f32 and an offset of i32, which is added to sums.
    pub(in crate::cpu) a_scales: *const u8,
    /// Bytes from the scales of a group of A to those of the next.
    pub(in crate::cpu) a_scales_step: usize,
    /// `[groups, 16]`.
    pub(in crate::cpu) b_scales: *const [f32; 16],
    /// Every Nth line is a row of C, which is added to.
    pub(in crate::cpu) c: *mut [f32; 16],
    /// Whether B is far away: then it is asked for two steps ahead.
    pub(in crate::cpu) is_streamed: bool,
    /// What comes next: [`AHEAD`] bytes a step from here on are asked for, into the second cache.
    pub(in crate::cpu) ahead: *const u8,
}

/// Bytes that are asked for with every step, see [`Groups::ahead`]: two lines.
pub(in crate::cpu) const AHEAD: usize = 128;

/// Integer sums of a group and of the one after it.
#[repr(C, align(64))]
struct TwoSums([[[i32; 16]; TILE_ROWS]; 2]);

/// `$what` of every row's number.
macro_rules! rows {
    ($what:ident) => {
        concat!(
            $what!("0"),
            $what!("1"),
            $what!("2"),
            $what!("3"),
            $what!("4"),
            $what!("5"),
            $what!("6"),
            $what!("7"),
            $what!("8"),
            $what!("9"),
            $what!("10"),
            $what!("11"),
            $what!("12"),
            $what!("13"),
            $what!("14"),
            $what!("15"),
        )
    };
}

macro_rules! load {
    ($row:literal) => {
        concat!("vmovups zmm", $row, ", [{c} + 64*{n}*", $row, "]\n")
    };
}

macro_rules! store {
    ($row:literal) => {
        concat!("vmovups [{c} + 64*{n}*", $row, "], zmm", $row, "\n")
    };
}

/// Adds the sums of a row, as the numbers that they stand for.
macro_rules! scale {
    ($row:literal, $sums:literal) => {
        concat!(
            "vmovdqa64 zmm17, [{sums} + ",
            $sums,
            " + 64*",
            $row,
            "]\n",
            "vpaddd zmm17, zmm17, dword ptr [{a_scales} + 8*",
            $row,
            " + 4]{{1to16}}\n",
            "vcvtdq2ps zmm17, zmm17\n",
            "vmulps zmm18, zmm16, dword ptr [{a_scales} + 8*",
            $row,
            "]{{1to16}}\n",
            "vfmadd231ps zmm",
            $row,
            ", zmm17, zmm18\n",
        )
    };
}

macro_rules! scale_even {
    ($row:literal) => {
        scale!($row, "0")
    };
}

macro_rules! scale_odd {
    ($row:literal) => {
        scale!($row, "1024")
    };
}

/// Adds the sums of a group.
macro_rules! scaled {
    ($scale:ident) => {
        concat!(
            "vmovups zmm16, [{b_scales}]\n",
            rows!($scale),
            "add {b_scales}, 64\n",
            "add {a_scales}, {a_scales_step}\n",
        )
    };
}

/// Asks for a line of the panel two steps ahead, past its end too: nothing faults.
macro_rules! line {
    ($row:literal) => {
        concat!("prefetcht0 [{b} + 2048 + 64*", $row, "]\n")
    };
}

/// One step: a product, and what is asked for.
macro_rules! step {
    ($tile:literal, $ask:expr) => {
        concat!(
            $ask,
            "prefetcht1 [{ahead}]\n",
            "prefetcht1 [{ahead} + 64]\n",
            "add {ahead}, 128\n",
            "tileloaddt1 tmm2, [{a} + {line}*1]\n",
            "tileloadd tmm3, [{b} + {line}*1]\n",
            concat!("tdpbsud ", $tile, ", tmm2, tmm3\n"),
            "add {a}, {a_step}\n",
            "add {b}, 1024\n",
            "dec {steps}\n",
        )
    };
}

/// One step of a group, and the next if there is one.
macro_rules! group {
    ($tile:literal, $label:literal, $ask:expr) => {
        concat!(
            concat!("tilezero ", $tile, "\n"),
            step!($tile, $ask),
            "jz ",
            $label,
            "f\n",
            step!($tile, $ask),
            $label,
            ":\n",
        )
    };
}

/// Puts the sums of a group down, and gives the tile back.
macro_rules! put {
    ($tile:literal, $sums:literal) => {
        concat!(
            concat!("tilestored [{sums} + ", $sums, " + {line}*1], ", $tile, "\n"),
            concat!("tilezero ", $tile, "\n"),
        )
    };
}

/// All groups, the even ones in tile 0 and the odd ones in tile 1.
macro_rules! groups {
    ($groups:ident, $sums:ident, $ask:expr) => {
        asm!(
            rows!(load),
            group!("tmm0", "2", $ask),
            "test {steps}, {steps}",
            "jz 7f",
            group!("tmm1", "2", $ask),
            put!("tmm0", "0"),
            "3:",
            "test {steps}, {steps}",
            "jz 5f",
            group!("tmm0", "4", $ask),
            put!("tmm1", "1024"),
            scaled!(scale_even),
            "test {steps}, {steps}",
            "jz 6f",
            group!("tmm1", "4", $ask),
            put!("tmm0", "0"),
            scaled!(scale_odd),
            "jmp 3b",
            "5:",
            put!("tmm1", "1024"),
            scaled!(scale_even),
            scaled!(scale_odd),
            "jmp 8f",
            "6:",
            put!("tmm0", "0"),
            scaled!(scale_odd),
            scaled!(scale_even),
            "jmp 8f",
            "7:",
            put!("tmm0", "0"),
            scaled!(scale_even),
            "8:",
            "tilezero tmm2",
            "tilezero tmm3",
            rows!(store),
            steps = inout(reg) $groups.steps => _,
            a = inout(reg) $groups.a => _,
            a_step = in(reg) $groups.a_step,
            b = inout(reg) $groups.b => _,
            line = in(reg) TILE_BYTES,
            sums = in(reg) $sums.as_mut_ptr(),
            a_scales = inout(reg) $groups.a_scales => _,
            a_scales_step = in(reg) $groups.a_scales_step,
            b_scales = inout(reg) $groups.b_scales => _,
            ahead = inout(reg) $groups.ahead => _,
            c = in(reg) $groups.c,
            n = const N,
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _,
            out("zmm4") _, out("zmm5") _, out("zmm6") _, out("zmm7") _,
            out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
            out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _,
            out("zmm16") _, out("zmm17") _, out("zmm18") _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        )
    };
}

impl Tiles {
    /// The products of some groups. Tiles must be shaped for sixteen rows.
    ///
    /// # Safety
    /// The processor must have AVX-512F. All that [`Groups`] names can be read, for as many steps
    /// and for the groups that they make; the sixteen rows of C can be read and written, by nobody
    /// else.
    ///
    /// # Panics
    /// Tiles have another shape; there are no steps.
    #[inline]
    pub(in crate::cpu) unsafe fn int8_groups<const N: usize>(&mut self, groups: &Groups) {
        assert!(self.rows() == TILE_ROWS && groups.steps > 0);
        let mut sums = MaybeUninit::<TwoSums>::uninit();
        // SAFETY: the caller's; `sums` has room for the tiles of two groups.
        unsafe {
            match groups.is_streamed {
                true => groups!(groups, sums, rows!(line)),
                false => groups!(groups, sums, ""),
            }
        }
    }
}
