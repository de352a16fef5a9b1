//! Patterns of several elements, which IQ1 to IQ3 store as indices. `grids.bin` is written by
//! `ops/parity/make_grids.py` of what the gguf package has: 16-bit words, of which each has the
//! levels of eight elements in 2 bits each, or of four in 3.

/// All formats' patterns, one after the other.
static WORDS: &[u8; 2 * 4608] = include_bytes!("grids.bin");

/// The patterns of a format: where they begin, counted in words.
#[derive(Clone, Copy)]
pub(super) struct Grid(usize);

pub(super) const IQ2_XXS: Grid = Grid(0);
pub(super) const IQ2_XS: Grid = Grid(256);
pub(super) const IQ2_S: Grid = Grid(768);
pub(super) const IQ3_XXS: Grid = Grid(1792);
pub(super) const IQ3_S: Grid = Grid(2048);
/// Of IQ1_S and IQ1_M.
pub(super) const IQ1: Grid = Grid(2560);

impl Grid {
    fn word(self, idx: usize) -> u16 {
        let at = 2 * (self.0 + idx);
        u16::from_le_bytes([WORDS[at], WORDS[at + 1]])
    }

    /// Eight elements of three levels.
    pub(super) fn eight(self, idx: usize, levels: [f32; 3]) -> [f32; 8] {
        let word = self.word(idx);
        std::array::from_fn(|i| levels[usize::from(word >> (2 * i) & 3)])
    }

    /// Four elements of eight levels.
    pub(super) fn four(self, idx: usize, levels: [f32; 8]) -> [f32; 4] {
        let word = self.word(idx);
        std::array::from_fn(|i| levels[usize::from(word >> (3 * i) & 7)])
    }
}

/// The sign of element `i` of eight: -1 where its bit is 1.
pub(super) fn sign(signs: u8, i: usize) -> f32 {
    if signs >> i & 1 == 1 { -1.0 } else { 1.0 }
}

/// Eight signs of seven bits: an even number of them is -1.
pub(super) fn eight_signs(seven: u32) -> u8 {
    let seven = (seven & 0x7f) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_of_a_pattern_is_one() {
        let of = |grid: Grid, count: usize, next: usize| {
            assert_eq!(grid.0 + count, next);
            (0..count).map(move |idx| grid.word(idx))
        };
        let eights = of(IQ2_XXS, 256, IQ2_XS.0)
            .chain(of(IQ2_XS, 512, IQ2_S.0))
            .chain(of(IQ2_S, 1024, IQ3_XXS.0))
            .chain(of(IQ1, 2048, WORDS.len() / 2));
        for word in eights {
            assert!((0..8).all(|i| word >> (2 * i) & 3 < 3), "{word:x}");
        }
        let fours = of(IQ3_XXS, 256, IQ3_S.0).chain(of(IQ3_S, 512, IQ1.0));
        fours.for_each(|word| assert!(word < 1 << 12, "{word:x}"));
    }

    #[test]
    fn signs_are_even() {
        for seven in 0..128 {
            let signs = eight_signs(seven);
            assert_eq!((u32::from(signs) & 0x7f, signs.count_ones() % 2), (seven, 0));
        }
        assert_eq!([sign(0b10, 0), sign(0b10, 1)], [1.0, -1.0]);
    }
}
