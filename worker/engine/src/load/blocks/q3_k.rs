//! Q3_K: 256 elements in 110 bytes.

use super::{four_bits, scale, two_bits};

/// 32 bytes of third bits, 64 bytes of low 2 bits, 12 bytes of packed 6-bit scales for 16
/// sub-blocks of 16, f16 scale d;  x = (d (scale - 32)) (q - 4).
///
/// The third bits of eight runs of 32 share a byte.
pub(crate) fn q3_k(bytes: &[u8; 110]) -> [f32; 256] {
    let (third, low, packed) = (&bytes[..32], &bytes[32..96], &bytes[96..108]);
    let d = scale(bytes, 108);
    let scales: [f32; 16] =
        std::array::from_fn(|sub| d * (f32::from(six_bits(packed, sub)) - 32.0));
    std::array::from_fn(|i| {
        let third = third[i % 32] >> (i / 32) & 1;
        scales[i / 16] * (f32::from(two_bits(low, i) | third << 2) - 4.0)
    })
}

/// The low 4 bits of the first eight share a byte with the last eight's; the high 2 of every
/// fourth share one.
fn six_bits(packed: &[u8], sub: usize) -> u8 {
    four_bits(packed, 8, sub) | (packed[8 + sub % 4] >> (2 * (sub / 4)) & 3) << 4
}
