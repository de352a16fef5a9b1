//! Q2_K: 256 elements in 84 bytes.

use super::{scale, two_bits};

/// 16 bytes, each the 4-bit scale and above it the minimum of a sub-block of 16, 64 bytes of
/// 2 bits, f16 scales d and dmin;  x = (d scale) q - (dmin min).
pub(crate) fn q2_k(bytes: &[u8; 84]) -> [f32; 256] {
    let (subs, low) = (&bytes[..16], &bytes[16..80]);
    let (d, dmin) = (scale(bytes, 80), scale(bytes, 82));
    std::array::from_fn(|i| {
        let sub = subs[i / 16];
        d * f32::from(sub & 0x0f) * f32::from(two_bits(low, i)) - dmin * f32::from(sub >> 4)
    })
}
