//! IQ3_XXS and IQ3_S: 256 elements in 98 and 110 bytes.

use super::grids::{Grid, IQ3_S, IQ3_XXS, eight_signs, sign};
use super::{four_bits, scale, word};

/// f16 scale d, a byte of pattern for every 4 elements, then for each 32 elements 4 bytes of signs
/// and scale as in IQ2_XXS;  x = (d (1/2 + scale) / 2) pattern sign.
pub(crate) fn iq3_xxs(bytes: &[u8; 98]) -> [f32; 256] {
    const LEVELS: [f32; 8] = [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];
    let d = scale(bytes, 0);
    fours((IQ3_XXS, LEVELS), |i| {
        let above = word(&bytes[66 + 4 * (i / 8)..]);
        let signs = eight_signs(above >> (7 * (i / 2 % 4)));
        (d * (0.5 + (above >> 28) as f32) * 0.5, bytes[2 + i].into(), signs)
    })
}

/// f16 scale d, a byte of pattern for every 4 elements, 8 bytes of one more bit of each, 32 bytes
/// of signs, and 4 bytes of 4-bit scales for 32 elements each;  x = (d (1 + 2 scale)) pattern sign.
pub(crate) fn iq3_s(bytes: &[u8; 110]) -> [f32; 256] {
    const LEVELS: [f32; 8] = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0];
    let d = scale(bytes, 0);
    fours((IQ3_S, LEVELS), |i| {
        let high = usize::from(bytes[66 + i / 8] >> (i % 8) & 1);
        let pattern = usize::from(bytes[2 + i]) | high << 8;
        let scale = d * (1.0 + 2.0 * f32::from(four_bits(&bytes[106..], 1, i / 8)));
        (scale, pattern, bytes[74 + i / 2])
    })
}

/// Elements by fours, of each of which `of` tells what multiplies it, its pattern, and the signs of
/// the eight among which it is.
fn fours((grid, levels): (Grid, [f32; 8]), of: impl Fn(usize) -> (f32, usize, u8)) -> [f32; 256] {
    let mut elements = [0.0; 256];
    for (i, four) in elements.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let (scale, pattern, signs) = of(i);
        let levels = grid.four(pattern, levels);
        *four = std::array::from_fn(|j| scale * levels[j] * sign(signs, 4 * (i % 2) + j));
    }
    elements
}
