//! Q4_1: 32 elements in 20 bytes.

use super::{four_bits, scale};

/// f16 scale d and minimum m, then 16 bytes as in Q4_0;  x = d q + m.
pub(crate) fn q4_1(bytes: &[u8; 20]) -> [f32; 32] {
    let (d, m) = (scale(bytes, 0), scale(bytes, 2));
    std::array::from_fn(|i| d * f32::from(four_bits(&bytes[4..], 16, i)) + m)
}
