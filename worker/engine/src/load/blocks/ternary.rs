//! TQ1_0 and TQ2_0: 256 elements of -1, 0 and 1 in 54 and 66 bytes.

use super::{scale, two_bits};

/// 32 bytes of 160 elements, 16 of 80 and 4 of 16, then f16 scale d;  x = d (q - 1).
///
/// A byte is a fraction of 256 in base 3: its digits are elements as far from each other as there
/// are bytes.
pub(crate) fn tq1_0(bytes: &[u8; 54]) -> [f32; 256] {
    let d = scale(bytes, 52);
    let digit = |run: &[u8], i: usize| {
        let rest = run[i % run.len()].wrapping_mul(3_u8.pow((i / run.len()) as u32));
        ((u16::from(rest) * 3) >> 8) as u8
    };
    std::array::from_fn(|i| {
        let q = match i {
            0..160 => digit(&bytes[..32], i),
            160..240 => digit(&bytes[32..48], i - 160),
            _ => digit(&bytes[48..52], i - 240),
        };
        d * (f32::from(q) - 1.0)
    })
}

/// 64 bytes of 2 bits, f16 scale d;  x = d (q - 1).
pub(crate) fn tq2_0(bytes: &[u8; 66]) -> [f32; 256] {
    let d = scale(bytes, 64);
    std::array::from_fn(|i| d * (f32::from(two_bits(bytes, i)) - 1.0))
}
