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

    /// `[keys, head_dim]`, widened to f32.
    pub fn to_f32(self) -> Vec<f32> {
        match self.data() {
            KvData::F32(data) => gather([self], data),
            KvData::Bf16(data) => gather([self], data).into_iter().map(|x| x.to_f32()).collect(),
        }
    }
}

/// All rows of all `heads`, which lie in `data`, one behind the other.
pub(crate) fn gather<'a, T: Copy>(
    heads: impl IntoIterator<Item = HeadRows<'a>>,
    data: &[T],
) -> Vec<T> {
    let mut rows = Vec::with_capacity(data.len());
    for head in heads {
        match head.span((0, head.keys)) {
            Some(span) => rows.extend_from_slice(&data[span]),
            None => (0..head.keys).for_each(|j| rows.extend_from_slice(&data[head.row(j)])),
        }
    }
    rows
}
