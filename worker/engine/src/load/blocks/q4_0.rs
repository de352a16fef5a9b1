//! Q4_0: 32 elements in 18 bytes.

use super::{four_bits, scale};

/// f16 scale d, then 16 bytes: low halves are elements 0..16, high halves 16..32;
/// x = d (q - 8).
pub(crate) fn q4_0(bytes: &[u8; 18]) -> [f32; 32] {
    let d = scale(bytes, 0);
    std::array::from_fn(|i| d * (f32::from(four_bits(&bytes[2..], 16, i)) - 8.0))
}
