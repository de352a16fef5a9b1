//! Integers of a few bits, many in a row of 32-bit words, with a scale and a zero for each group of
//! a row's inputs (GPTQ: Frantar et al. 2022; AWQ: Lin et al. 2023).

use std::ops::Range;

use super::encoding::Encoding;

/// AWQ's order inside a word, whose first half are the even ones of eight: where each of them is.
const BY_HALVES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Streams of integers in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Words<'a> {
    /// Little-endian.
    pub(crate) bytes: &'a [u8],
    /// Of an integer, 1 to 8. One may begin in a word and end in the next.
    pub(crate) bits: usize,
    /// Words from a stream to the next, and from a word of it to the next.
    pub(crate) strides: [usize; 2],
    /// Eight integers of a word stand as AWQ has them.
    pub(crate) by_halves: bool,
}

impl Words<'_> {
    fn at(&self, stream: usize, idx: usize) -> u32 {
        let idx = if self.by_halves { idx / 8 * 8 + BY_HALVES[idx % 8] } else { idx };
        let (word, shift) = (idx * self.bits / 32, idx * self.bits % 32);
        let word_at = |word: usize| {
            let at = stream * self.strides[0] + word * self.strides[1];
            let bytes = &self.bytes[4 * at..][..4];
            u64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        };
        let ends_beyond = shift + self.bits > 32;
        let next = if ends_beyond { word_at(word + 1) << 32 } else { 0 };
        ((next | word_at(word)) >> shift) as u32 & self.mask()
    }

    fn mask(&self) -> u32 {
        (1 << self.bits) - 1
    }
}

/// What is taken from an integer before its scale multiplies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Zeros<'a> {
    /// Half of what the bits can say.
    Middle,
    /// A stream for each group, of all outputs, to which this is added.
    Each(Words<'a>, u32),
}

/// A scale for each group of each output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupScales<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) encoding: Encoding,
    /// Scales from a group to the next, and from an output to the next.
    pub(crate) strides: [usize; 2],
    /// Groups of an output's inputs, at least one.
    pub(crate) groups: usize,
}

impl GroupScales<'_> {
    fn at(&self, group: usize, output: usize) -> f32 {
        let (size, [of_group, of_output]) = (self.encoding.element_bytes(), self.strides);
        let at = (group * of_group + output * of_output) * size;
        let mut scale = [0.0];
        self.encoding.widen(&self.bytes[at..][..size], &mut scale);
        scale[0]
    }
}

/// A matrix of integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FewBits<'a> {
    pub(crate) weights: Words<'a>,
    /// A stream is of an input, and else of an output.
    pub(crate) by_input: bool,
    pub(crate) zeros: Zeros<'a>,
    pub(crate) scales: GroupScales<'a>,
    /// Inputs of a group, where they stand together.
    pub(crate) group: usize,
    /// `[inputs]` of i32: each one's group, where that is said.
    pub(crate) group_of: Option<&'a [u8]>,
}

impl FewBits<'_> {
    /// Row `output`, exactly but for the rounding of each product to f32.
    pub(super) fn widen(&self, output: usize, to: &mut [f32]) {
        let of_groups: Vec<_> =
            (0..self.scales.groups).map(|group| self.of_group(group, output)).collect();
        for (input, to) in to.iter_mut().enumerate() {
            let (zero, scale) = of_groups[self.group_of(input)];
            let weight = match self.by_input {
                true => self.weights.at(input, output),
                false => self.weights.at(output, input),
            };
            *to = (weight as i32 - zero) as f32 * scale;
        }
    }

    /// What these inputs of row `output` are multiples of, where they are of one group.
    pub(super) fn step(&self, output: usize, inputs: Range<usize>) -> Option<f32> {
        let group = self.group_of(inputs.start);
        let is_one = inputs.into_iter().all(|input| self.group_of(input) == group);
        is_one.then(|| self.scales.at(group, output))
    }

    fn of_group(&self, group: usize, output: usize) -> (i32, f32) {
        let zero = match &self.zeros {
            Zeros::Middle => 1 << (self.weights.bits - 1),
            // As files have it, a zero of 0 was stored as all bits.
            Zeros::Each(zeros, added) => (zeros.at(group, output) + added) & zeros.mask(),
        };
        (zero as i32, self.scales.at(group, output))
    }

    fn group_of(&self, input: usize) -> usize {
        match self.group_of {
            None => input / self.group,
            Some(all) => {
                let bytes = &all[4 * input..][..4];
                u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize
            }
        }
    }

    /// What goes into the fingerprint besides the words.
    pub(super) fn beside(&self) -> impl Iterator<Item = &[u8]> {
        let zeros = match &self.zeros {
            Zeros::Middle => None,
            Zeros::Each(zeros, _) => Some(zeros.bytes),
        };
        [Some(self.scales.bytes), zeros, self.group_of].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn integers_may_end_in_the_next_word() {
        // 0 to 7 and again, of three bits: the eleventh lies in two words.
        let all: Vec<u32> = (0..32).map(|i| i % 8).collect();
        let mut words = [0_u32; 3];
        for (i, x) in all.iter().enumerate() {
            for bit in 0..3 {
                words[(3 * i + bit) / 32] |= (x >> bit & 1) << ((3 * i + bit) % 32);
            }
        }
        let bytes = bytes(&words);
        let words = Words { bytes: &bytes, bits: 3, strides: [3, 1], by_halves: false };
        assert_eq!((0..32).map(|i| words.at(0, i)).collect::<Vec<_>>(), all);
    }

    #[test]
    fn halves_of_a_word_are_even_and_odd() {
        // Nibbles 0, 2, 4, 6, 1, 3, 5, 7 from the lowest.
        let bytes = bytes(&[0x7531_6420, 0xfdb9_eca8]);
        let words = Words { bytes: &bytes, bits: 4, strides: [2, 1], by_halves: true };
        assert_eq!((0..16).map(|i| words.at(0, i)).collect::<Vec<_>>(), Vec::from_iter(0..16));
    }

    #[test]
    fn a_zero_of_0_was_stored_as_all_bits() {
        let (weights, zeros) = (bytes(&[0x0000_0f50]), bytes(&[0xf, 0x0]));
        let scales: Vec<u8> = [2.0_f32, 3.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let words = |bytes| Words { bytes, bits: 4, strides: [1, 1], by_halves: false };
        let few = |zeros| FewBits {
            weights: words(&weights),
            by_input: false,
            zeros,
            scales: GroupScales {
                bytes: &scales,
                encoding: Encoding::F32,
                strides: [1, 1],
                groups: 2,
            },
            group: 2,
            group_of: None,
        };
        let check = |zeros, want: [f32; 4]| {
            let mut row = [0.0; 4];
            few(zeros).widen(0, &mut row);
            assert_eq!(row, want);
        };
        check(Zeros::Middle, [-16.0, -6.0, 21.0, -24.0]);
        check(Zeros::Each(words(&zeros), 1), [0.0, 10.0, 42.0, -3.0]);
    }
}
