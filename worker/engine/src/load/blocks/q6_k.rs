//! Q6_K: 256 elements in 210 bytes.

use super::{four_bits, scale, two_bits};

/// 128 bytes of low 4 bits, 64 bytes of high 2 bits, 16 i8 scales for sub-blocks of 16, f16
/// scale d;  x = (d scale) (q - 32).
///
/// Each half of 128 elements is four runs of 32: the low bits of runs 0 and 2 (1 and 3) share
/// bytes, and the high bits of all four share a byte.
pub(crate) fn q6_k(bytes: &[u8; 210]) -> [f32; 256] {
    let (low, high, scales) = (&bytes[..128], &bytes[128..192], &bytes[192..208]);
    let d = scale(bytes, 208);
    std::array::from_fn(|i| {
        let q = f32::from(four_bits(low, 64, i) | (two_bits(high, i) << 4)) - 32.0;
        d * f32::from(scales[i / 16] as i8) * q
    })
}
