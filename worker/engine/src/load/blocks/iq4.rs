//! IQ4_NL and IQ4_XS: 32 elements in 18 bytes, 256 in 136.

use super::scale;

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
        let low = bytes[4 + sub / 2] >> (4 * (sub % 2)) & 0x0f;
        let high = bytes[2 + sub / 4] >> (2 * (sub % 4)) & 3;
        d * (f32::from(low | high << 4) - 32.0)
    });
    std::array::from_fn(|i| scales[i / 32] * value(&bytes[8 + 16 * (i / 32)..], i % 32))
}

fn value(halves: &[u8], i: usize) -> f32 {
    f32::from(VALUES[usize::from(halves[i % 16] >> (4 * (i / 16)) & 0x0f)])
}
