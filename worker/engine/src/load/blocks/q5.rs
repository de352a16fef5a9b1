//! Q5_0 and Q5_1: 32 elements in 22 and 24 bytes.

use super::{four_bits, scale};

/// f16 scale d, fifth bits, then 16 bytes as in Q4_0;  x = d (q - 16).
pub(crate) fn q5_0(bytes: &[u8; 22]) -> [f32; 32] {
    let d = scale(bytes, 0);
    std::array::from_fn(|i| d * (f32::from(five_bits(&bytes[2..], i)) - 16.0))
}

/// f16 scale d and minimum m, fifth bits, then 16 bytes as in Q4_0;  x = d q + m.
pub(crate) fn q5_1(bytes: &[u8; 24]) -> [f32; 32] {
    let (d, m) = (scale(bytes, 0), scale(bytes, 2));
    std::array::from_fn(|i| d * f32::from(five_bits(&bytes[4..], i)) + m)
}

/// q of element `i`: bit i of the first four bytes on top of the four bits behind them.
fn five_bits(bytes: &[u8], i: usize) -> u8 {
    let (fifth, low) = bytes.split_at(4);
    four_bits(low, 16, i) | (fifth[i / 8] >> (i % 8) & 1) << 4
}
