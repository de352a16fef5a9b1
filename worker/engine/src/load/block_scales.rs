//! Scales of the blocks of a matrix.

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
        let Self { bytes, encoding, block: [rows, columns], factor: of_all } = *self;
        let (row, count) = (row / rows, to.len().div_ceil(columns));
        let size = encoding.element_bytes();
        let scales = &bytes[row * count * size..][..count * size];
        for (scale, to) in scales.chunks_exact(size).zip(to.chunks_mut(columns)) {
            let mut factor = [0.0];
            encoding.widen(scale, &mut factor);
            let factor = factor[0] * of_all;
            to.iter_mut().for_each(|x| *x *= factor);
        }
    }

    /// Those of matrix `idx` of `count`.
    pub(super) fn of_matrix(self, idx: usize, count: usize) -> Self {
        let is_of_all = self.bytes.len() <= self.encoding.element_bytes();
        let each = self.bytes.len() / count.max(1);
        let bytes = if is_of_all { self.bytes } else { &self.bytes[idx * each..][..each] };
        Self { bytes, ..self }
    }
}
