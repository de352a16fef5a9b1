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
#[target_feature(enable = "avx512f")]
pub(super) fn int8_row(
    to: &mut [u8; ROW],
    left: &[u8; ROW],
    right: &[[u8; ROW]],
    (left_signed, right_signed): (bool, bool),
) {
    let widen = |byte: u8, signed| if signed { i32::from(byte as i8) } else { i32::from(byte) };
    let mut sums = dwords(to).map(|sum| sum as i32);
    for (left, right) in left.as_chunks::<4>().0.iter().zip(right) {
        let right = dwords(right);
        for (i, &left) in left.iter().enumerate() {
            let left = widen(left, left_signed);
            for (sum, right) in sums.iter_mut().zip(right) {
                let high = right << (24 - 8 * i);
                let right = if right_signed { high as i32 >> 24 } else { (high >> 24) as i32 };
                *sum = sum.wrapping_add(left * right);
            }
        }
    }
    to.as_chunks_mut().0.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum.to_le_bytes());
}

/// A row's dwords.
#[inline(always)]
fn dwords(row: &[u8; ROW]) -> [u32; ROW / 4] {
    std::array::from_fn(|i| u32::from_le_bytes(row.as_chunks().0[i]))
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use proptest::prelude::*;

    use super::*;

    /// Denormals are zero.
    fn flushed(x: f32) -> f32 {
        if x.is_subnormal() { 0f32.copysign(x) } else { x }
    }

    /// The manual's words in plain Rust.
    fn plain_bf16(old: f32, left: &[[bf16; 2]], right: &[[bf16; 2]]) -> f32 {
        let chain = |half: usize| {
            left.iter().zip(right).fold(0.0, |sum, (left, right)| {
                let [left, right] = [left, right].map(|pair| flushed(pair[half].to_f32()));
                flushed(left.mul_add(right, sum))
            })
        };
        flushed(flushed(old) + flushed(chain(0) + chain(1)))
    }

    /// Bit patterns of bf16: any at all, those near one, and the odd ones.
    fn any_bf16() -> impl Strategy<Value = u16> + Clone {
        let odd = [0x0000, 0x8000, 0x0001, 0x807f, 0x0080, 0x7f80, 0xff80, 0x7fc0, 0x7f7f];
        let near_one = (0x3e80u16..0x4080, any::<bool>());
        prop_oneof![
            1 => any::<u16>(),
            12 => near_one.prop_map(|(bits, sign)| bits | u16::from(sign) << 15),
            1 => prop::sample::select(odd.to_vec()),
            // Products of these are denormal, and their sums around the smallest normal.
            4 => (0x1f00u16..0x2100, any::<bool>()).prop_map(|(b, sign)| b | u16::from(sign) << 15),
        ]
    }

    type Row = Vec<u16>;

    fn row() -> impl Strategy<Value = Row> + Clone {
        prop::collection::vec(any_bf16(), ROW / 2)
    }

    fn bytes(row: &[u16]) -> [u8; ROW] {
        let mut bytes = [0; ROW];
        for (to, from) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(row) {
            *to = from.to_le_bytes();
        }
        bytes
    }

    fn pair(row: &[u16], at: usize) -> [bf16; 2] {
        [bf16::from_bits(row[2 * at]), bf16::from_bits(row[2 * at + 1])]
    }

    proptest! {
        #[test]
        fn bf16_products_are_the_manuals(
            left in row(),
            right in prop::collection::vec(row(), 1..=ROWS),
            old in prop::collection::vec(prop_oneof![any::<u32>(), Just(0), Just(1)], ROW / 4),
        ) {
            if !is_x86_feature_detected!("avx512f") {
                return Ok(());
            }
            let mut to = [0; ROW];
            for (to, old) in to.as_chunks_mut().0.iter_mut().zip(&old) {
                *to = old.to_le_bytes();
            }
            let right_bytes: Vec<_> = right.iter().map(|row| bytes(row)).collect();
            // SAFETY: AVX-512F was detected.
            unsafe { bf16_row(&mut to, &bytes(&left), &right_bytes) };
            let factors: Vec<_> = (0..right.len()).map(|k| pair(&left, k)).collect();
            for (n, (seen, old)) in to.as_chunks::<4>().0.iter().zip(old).enumerate() {
                let seen = f32::from_le_bytes(*seen);
                let column: Vec<_> = right.iter().map(|row| pair(row, n)).collect();
                let want = plain_bf16(f32::from_bits(old), &factors, &column);
                prop_assert!(
                    seen.to_bits() == want.to_bits() || (seen.is_nan() && want.is_nan()),
                    "column {}: {} for {}", n, seen, want
                );
            }
            prop_assert!(std::hint::black_box(f32::MIN_POSITIVE) / 2.0 > 0.0, "MXCSR was changed");
        }

        #[test]
        fn int8_products_are_exact(
            left in any::<[u8; 32]>(),
            right in prop::collection::vec(any::<[u8; 32]>(), 1..=ROWS),
            old in any::<[i32; 16]>(),
            signed in any::<(bool, bool)>(),
        ) {
            let whole = |half: &[u8; 32]| -> [u8; ROW] { std::array::from_fn(|i| half[i % 32]) };
            let (left, right): (_, Vec<_>) = (whole(&left), right.iter().map(whole).collect());
            let mut to: [u8; ROW] = old.map(i32::to_le_bytes).as_flattened().try_into().unwrap();
            if !is_x86_feature_detected!("avx512f") {
                return Ok(());
            }
            // SAFETY: AVX-512F was detected.
            unsafe { int8_row(&mut to, &left, &right, signed) };
            let widen = |x: u8, signed| if signed { i64::from(x as i8) } else { i64::from(x) };
            for (n, (seen, old)) in to.as_chunks::<4>().0.iter().zip(old).enumerate() {
                let column = (0..4 * right.len()).map(|i| right[i / 4][4 * n + i % 4]);
                let products = left.iter().zip(column);
                let sum: i64 =
                    products.map(|(&l, r)| widen(l, signed.0) * widen(r, signed.1)).sum();
                prop_assert_eq!(i32::from_le_bytes(*seen), (i64::from(old) + sum) as i32);
            }
        }
    }
}
