//! IQ2_XXS, IQ2_XS and IQ2_S: 256 elements in 66, 74 and 82 bytes.

use super::grids::{Grid, IQ2_S, IQ2_XS, IQ2_XXS, eight_signs, sign};
use super::{four_bits, scale, word};

/// What patterns are made of.
const LEVELS: [f32; 3] = [8.0, 25.0, 43.0];

/// f16 scale d, then for each 32 elements 4 bytes of patterns and 4 of signs, 7 bits for every 8
/// elements, with a 4-bit scale above them;  x = (d (1/2 + scale) / 4) pattern sign.
pub(crate) fn iq2_xxs(bytes: &[u8; 66]) -> [f32; 256] {
    let d = scale(bytes, 0);
    eights(IQ2_XXS, |i| {
        let part = &bytes[2 + 8 * (i / 4)..][..8];
        let above = word(&part[4..]);
        let signs = eight_signs(above >> (7 * (i % 4)));
        (d * (0.5 + (above >> 28) as f32) * 0.25, part[i % 4].into(), signs)
    })
}

/// f16 scale d, then 2 bytes for every 8 elements, 9 bits of pattern and 7 of signs, and 8 bytes of
/// 4-bit scales for 16 elements each;  x as in IQ2_XXS.
pub(crate) fn iq2_xs(bytes: &[u8; 74]) -> [f32; 256] {
    let d = scale(bytes, 0);
    eights(IQ2_XS, |i| {
        let both = u16::from_le_bytes([bytes[2 + 2 * i], bytes[3 + 2 * i]]);
        let (pattern, signs) = (usize::from(both & 511), eight_signs(u32::from(both >> 9)));
        (step(d, four_bits(&bytes[66..], 1, i / 2)), pattern, signs)
    })
}

/// f16 scale d, then for every 8 elements a byte of pattern, 32 bytes of signs, 8 bytes of two more
/// bits of patterns, and scales as in IQ2_XS;  x as in IQ2_XXS.
pub(crate) fn iq2_s(bytes: &[u8; 82]) -> [f32; 256] {
    let d = scale(bytes, 0);
    eights(IQ2_S, |i| {
        let high = usize::from(bytes[66 + i / 4] >> (2 * (i % 4)) & 3);
        let pattern = usize::from(bytes[2 + i]) | high << 8;
        (step(d, four_bits(&bytes[74..], 1, i / 2)), pattern, bytes[34 + i])
    })
}

fn step(d: f32, scale: u8) -> f32 {
    d * (0.5 + f32::from(scale)) * 0.25
}

/// Elements by eights, of each of which `of` tells what multiplies it, its pattern and its signs.
fn eights(grid: Grid, of: impl Fn(usize) -> (f32, usize, u8)) -> [f32; 256] {
    let mut elements = [0.0; 256];
    for (i, eight) in elements.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (scale, pattern, signs) = of(i);
        let levels = grid.eight(pattern, LEVELS);
        *eight = std::array::from_fn(|j| scale * levels[j] * sign(signs, j));
    }
    elements
}
