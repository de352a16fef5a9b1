//! IQ1_S and IQ1_M: 256 elements in 50 and 56 bytes.

use half::f16;

use super::grids::IQ1;
use super::scale;

/// What patterns are made of.
const LEVELS: [f32; 3] = [-1.0, 0.0, 1.0];
/// What is added to them, or taken away.
const DELTA: f32 = 0.125;

/// f16 scale d, a byte of pattern for every 8 elements, then for each 32 elements 2 bytes: three
/// more bits of each pattern, a 3-bit scale, and whether delta is taken away;
/// x = (d (2 scale + 1)) (pattern + delta).
pub(crate) fn iq1_s(bytes: &[u8; 50]) -> [f32; 256] {
    let d = scale(bytes, 0);
    eights(|i| {
        let above = u16::from_le_bytes([bytes[34 + 2 * (i / 4)], bytes[35 + 2 * (i / 4)]]);
        let pattern = usize::from(bytes[2 + i]) | usize::from(above >> (3 * (i % 4)) & 7) << 8;
        (d * f32::from(2 * (above >> 12 & 7) + 1), pattern, above >> 15 == 1)
    })
}

/// A byte of pattern for every 8 elements, 4 bits for each of them: three more of its pattern, and
/// whether delta is taken away; then four 16-bit words, each with the 3-bit scales of four times 16
/// elements, and above them four bits of the f16 scale d, the lowest first;  x as in IQ1_S.
pub(crate) fn iq1_m(bytes: &[u8; 56]) -> [f32; 256] {
    let words: [u16; 4] =
        std::array::from_fn(|i| u16::from_le_bytes([bytes[48 + 2 * i], bytes[49 + 2 * i]]));
    let d = (0..4).fold(0, |d, i| d | words[i] >> 12 << (4 * i));
    let d = f16::from_bits(d).to_f32();
    eights(|i| {
        let above = bytes[32 + i / 2] >> (4 * (i % 2));
        let pattern = usize::from(bytes[i]) | usize::from(above & 7) << 8;
        let scale = words[i / 8] >> (3 * (i / 2 % 4)) & 7;
        (d * f32::from(2 * scale + 1), pattern, above >> 3 & 1 == 1)
    })
}

/// Elements by eights, of each of which `of` tells what multiplies it, its pattern, and whether
/// delta is taken away.
fn eights(of: impl Fn(usize) -> (f32, usize, bool)) -> [f32; 256] {
    let mut elements = [0.0; 256];
    for (i, eight) in elements.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (scale, pattern, is_less) = of(i);
        let delta = if is_less { -DELTA } else { DELTA };
        *eight = IQ1.eight(pattern, LEVELS).map(|level| scale * (level + delta));
    }
    elements
}
