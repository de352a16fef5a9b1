//! Q5_K: 256 elements in 176 bytes.

use super::four_bits;
use super::q4_k::scales_and_minima;

/// Scales and minima as in Q4_K, 32 bytes of fifth bits, in which those of the 8 sub-blocks share
/// a byte, then 128 bytes as in Q4_K;  x = (d scale) q - (dmin min).
pub(crate) fn q5_k(bytes: &[u8; 176]) -> [f32; 256] {
    let subs = scales_and_minima(bytes);
    let (fifth, low) = bytes[16..].split_at(32);
    std::array::from_fn(|i| {
        let (scale, min) = subs[i / 32];
        let q = four_bits(low, 32, i) | (fifth[i % 32] >> (i / 32) & 1) << 4;
        scale * f32::from(q) - min
    })
}
