//! Q6_K: 256 elements in 210 bytes.

use super::scale;

/// 128 bytes of low 4 bits, 64 bytes of high 2 bits, 16 i8 scales for sub-blocks of 16, f16
/// scale d;  x = (d scale) (q - 32).
///
/// Each half of 128 elements is four runs of 32: the low bits of runs 0 and 2 (1 and 3) share
/// bytes, and the high bits of all four share a byte.
pub(crate) fn q6_k(bytes: &[u8; 210]) -> [f32; 256] {
    let (low, high, scales) = (&bytes[..128], &bytes[128..192], &bytes[192..208]);
    let d = scale(bytes, 208);
    std::array::from_fn(|i| {
        let (half, run, at) = (i / 128, i % 128 / 32, i % 32);
        let low = low[64 * half + 32 * (run % 2) + at] >> (4 * (run / 2)) & 0x0f;
        let high = high[32 * half + at] >> (2 * run) & 0x03;
        let q = f32::from(low | (high << 4)) - 32.0;
        d * f32::from(scales[i / 16] as i8) * q
    })
}
