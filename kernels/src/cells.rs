//! One KV head's keys or values in order of position, wherever their cells lie.

use std::ops::Range;

use crate::tensor::{KvData, KvHeads};

/// Rows of [`Keys`](crate::Keys)' `k` or `v` for one KV head: row j belongs to its key j.
#[derive(Debug, Clone, Copy)]
pub struct HeadRows<'a> {
    heads: &'a KvHeads,
    g: usize,
    keys: usize,
    /// `[keys]`; `None` where key j has cell j.
    cells: Option<&'a [u32]>,
}

impl<'a> HeadRows<'a> {
    pub(crate) fn new(heads: &'a KvHeads, g: usize, keys: usize, cells: Option<&'a [u32]>) -> Self {
        Self { heads, g, keys, cells }
    }

    /// The array in which the rows lie.
    pub fn data(self) -> &'a KvData {
        &self.heads.data
    }

    /// Elements of [`data`](Self::data) that hold row `j`.
    pub fn row(self, j: usize) -> Range<usize> {
        let cell = self.cells.map_or(j, |cells| cells[j] as usize);
        let first = (self.g * self.heads.tokens + cell) * self.heads.head_dim;
        first..first + self.heads.head_dim
    }

    /// Elements that hold rows `first..last`, where they lie one behind the other.
    pub fn span(self, (first, last): (usize, usize)) -> Option<Range<usize>> {
        let head = self.g * self.heads.tokens;
        let width = self.heads.head_dim;
        self.cells.is_none().then(|| (head + first) * width..(head + last) * width)
    }

    /// All rows of `data`, the elements of [`data`](Self::data).
    pub(crate) fn gather<T: Copy>(self, data: &'a [T]) -> impl Iterator<Item = T> {
        (0..self.keys).flat_map(move |j| data[self.row(j)].iter().copied())
    }

    /// `[keys, head_dim]`, widened to f32.
    pub fn to_f32(self) -> Vec<f32> {
        match self.data() {
            KvData::F32(data) => self.gather(data).collect(),
            KvData::Bf16(data) => self.gather(data).map(|x| x.to_f32()).collect(),
        }
    }
}
