//! Scales of the blocks of a matrix.

use std::ops::Range;

use super::encoding::Encoding;

/// Scales of the blocks of a matrix, or of several that lie one after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scales<'a> {
    /// `[rows / block rows, inputs / block columns]`, both rounded up; of several matrices so many
    /// of each, or one of all.
    pub(crate) bytes: &'a [u8],
    pub(crate) encoding: Encoding,
    /// Rows and columns of a block.
    pub(crate) block: [usize; 2],
    /// Multiplies every scale.
    pub(crate) factor: f32,
}

impl Scales<'_> {
    /// Multiplies row `row`.
    pub(super) fn apply(&self, row: usize, to: &mut [f32]) {
        let inputs = to.len();
        for (block, to) in to.chunks_mut(self.block[1]).enumerate() {
            let factor = self.at(row, block, inputs);
            to.iter_mut().for_each(|x| *x *= factor);
        }
    }

    /// What multiplies `of` the inputs of row `row`, where they are of one block.
    pub(super) fn step(&self, row: usize, of: Range<usize>, inputs: usize) -> Option<f32> {
        let block = of.start / self.block[1];
        (of.end <= (block + 1) * self.block[1]).then(|| self.at(row, block, inputs))
    }

    /// Of so many inputs.
    fn at(&self, row: usize, block: usize, inputs: usize) -> f32 {
        let Self { bytes, encoding, block: [rows, columns], factor } = *self;
        let (row, count, size) = (row / rows, inputs.div_ceil(columns), encoding.element_bytes());
        let mut scale = [0.0];
        encoding.widen(&bytes[(row * count + block) * size..][..size], &mut scale);
        scale[0] * factor
    }

    /// Those of matrix `idx` of `count`.
    pub(super) fn of_matrix(self, idx: usize, count: usize) -> Self {
        let is_of_all = self.bytes.len() <= self.encoding.element_bytes();
        let each = self.bytes.len() / count.max(1);
        let bytes = if is_of_all { self.bytes } else { &self.bytes[idx * each..][..each] };
        Self { bytes, ..self }
    }
}
