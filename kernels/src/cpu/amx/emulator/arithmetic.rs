//! Products of a row by a tile, to the bit as the manual has them.

use std::arch::asm;

use super::machine::{ROW, ROWS};

/// MXCSR: denormals are zero, for operands and for results; nearest, ties to even; no traps.
const FLUSHED: u32 = 0x9fc0;

/// The high halves of dwords.
const HIGH: u32 = 0xffff_0000;

/// `to[n] += sum of left[k] right[k][n]` over pairs of bf16, for sixteen f32.
///
/// The first of all pairs and the second of all pairs are two chains of fused products, each
/// from zero over ascending k; the two are added, and their sum to what is there.
///
/// There is at least one row on the right.
#[target_feature(enable = "avx512f")]
pub(super) fn bf16_row(to: &mut [u8; ROW], left: &[u8; ROW], right: &[[u8; ROW]]) {
    assert!((1..=ROWS).contains(&right.len()));
    let (mut old, flushed, high_half) = (0u32, FLUSHED, HIGH);
    // SAFETY: `left` has a dword for each of up to sixteen rows of `right`, and there is at
    // least one; `to` has sixteen. MXCSR is at the end what it was.
    unsafe {
        asm!(
            "stmxcsr [{old}]",
            "ldmxcsr [{flushed}]",
            "vpxord {first}, {first}, {first}",
            "vpxord {second}, {second}, {second}",
            "vpbroadcastd {high}, [{high_half}]",
            "2:",
            "vpbroadcastd {left_first}, [{left}]",
            "vpandd {left_second}, {left_first}, {high}",
            "vpslld {left_first}, {left_first}, 16",
            "vpslld {right_part}, [{right}], 16",
            "vfmadd231ps {first}, {left_first}, {right_part}",
            "vpandd {right_part}, {high}, [{right}]",
            "vfmadd231ps {second}, {left_second}, {right_part}",
            "add {left}, 4",
            "add {right}, 64",
            "dec {k}",
            "jnz 2b",
            "vaddps {first}, {first}, {second}",
            "vmovups {second}, [{to}]",
            "vaddps {first}, {second}, {first}",
            "vmovups [{to}], {first}",
            "ldmxcsr [{old}]",
            old = in(reg) &raw mut old,
            flushed = in(reg) &raw const flushed,
            high_half = in(reg) &raw const high_half,
            left = inout(reg) left.as_ptr() => _,
            right = inout(reg) right.as_ptr() => _,
            k = inout(reg) right.len() => _,
            to = in(reg) to.as_mut_ptr(),
            first = out(zmm_reg) _,
            second = out(zmm_reg) _,
            high = out(zmm_reg) _,
            left_first = out(zmm_reg) _,
            left_second = out(zmm_reg) _,
            right_part = out(zmm_reg) _,
            options(nostack),
        );
    }
}

/// The same over fours of eight-bit integers, modulo 2^32.
pub(super) fn int8_row(
    to: &mut [u8; ROW],
    left: &[u8; ROW],
    right: &[[u8; ROW]],
    (left_signed, right_signed): (bool, bool),
) {
    let widen = |byte: u8, signed| if signed { i32::from(byte as i8) } else { i32::from(byte) };
    let (to, _) = to.as_chunks_mut::<4>();
    let (left, _) = left.as_chunks::<4>();
    for (left, right) in left.iter().zip(right) {
        let left = left.map(|byte| widen(byte, left_signed));
        let (right, _) = right.as_chunks::<4>();
        for (to, right) in to.iter_mut().zip(right) {
            let products = left.iter().zip(right).map(|(l, &r)| l * widen(r, right_signed));
            *to = i32::from_le_bytes(*to).wrapping_add(products.sum()).to_le_bytes();
        }
    }
}
