//! Q4_K: 256 elements in 144 bytes.

use super::{four_bits, scale};

/// f16 scales d and dmin, 12 bytes of packed 6-bit scales and minima for 8 sub-blocks of 32,
/// then 128 bytes: each 32 of them hold two sub-blocks, low halves first;
/// x = (d scale) q - (dmin min).
pub(crate) fn q4_k(bytes: &[u8; 144]) -> [f32; 256] {
    let subs = scales_and_minima(bytes);
    std::array::from_fn(|i| {
        let (scale, min) = subs[i / 32];
        scale * f32::from(four_bits(&bytes[16..], 32, i)) - min
    })
}

/// Per sub-block what q is multiplied by, and what is taken off.
pub(super) fn scales_and_minima<const BYTES: usize>(bytes: &[u8; BYTES]) -> [(f32, f32); 8] {
    let (d, dmin) = (scale(bytes, 0), scale(bytes, 2));
    std::array::from_fn(|sub| {
        let (scale, min) = scale_and_min(&bytes[4..16], sub);
        (d * f32::from(scale), dmin * f32::from(min))
    })
}

/// The first four sub-blocks have their 6 bits in a byte; of the last four, the low 4 bits
/// share a byte and the high 2 sit on top of the first four's.
fn scale_and_min(packed: &[u8], sub: usize) -> (u8, u8) {
    if sub < 4 {
        return (packed[sub] & 0x3f, packed[sub + 4] & 0x3f);
    }
    let (low, of_scale, of_min) = (packed[sub + 4], packed[sub - 4], packed[sub]);
    ((low & 0x0f) | (of_scale >> 6 << 4), (low >> 4) | (of_min >> 6 << 4))
}
