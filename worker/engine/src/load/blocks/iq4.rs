//! IQ4_NL and IQ4_XS: 32 elements in 18 bytes, 256 in 136.

use super::{four_bits, scale};

/// What the sixteen integers stand for: closer together where most weights lie.
const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// f16 scale d, then 16 bytes as in Q4_0;  x = d value(q).
pub(crate) fn iq4_nl(bytes: &[u8; 18]) -> [f32; 32] {
    let d = scale(bytes, 0);
    std::array::from_fn(|i| d * value(&bytes[2..], i))
}

/// f16 scale d, the high 2 bits of the scales of 8 sub-blocks of 32 in 2 bytes, their low 4 bits in
/// 4, then 16 bytes as in Q4_0 for each;  x = (d (scale - 32)) value(q).
pub(crate) fn iq4_xs(bytes: &[u8; 136]) -> [f32; 256] {
    let d = scale(bytes, 0);
    let scales: [f32; 8] = std::array::from_fn(|sub| {
        let high = bytes[2 + sub / 4] >> (2 * (sub % 4)) & 3;
        d * (f32::from(four_bits(&bytes[4..], 1, sub) | high << 4) - 32.0)
    });
    std::array::from_fn(|i| scales[i / 32] * value(&bytes[8..], i))
}

fn value(halves: &[u8], i: usize) -> f32 {
    f32::from(VALUES[usize::from(four_bits(halves, 16, i))])
}
