//! One KV head's keys or values in order of position, wherever their cells lie.

use std::ops::Range;

use bytemuck::Pod;
use half::bf16;

use crate::array::Array;
use crate::pool::{PAGE_CELLS, Page, Paged};
use crate::tensor::{KvData, KvHeads};

/// Rows of [`Keys`](crate::Keys)' `k` or `v` for one KV head: row j belongs to its key j.
#[derive(Debug, Clone, Copy)]
pub enum HeadRows<'a> {
    /// f32.
    F32(RowsOf<'a, f32>),
    /// bf16.
    Bf16(RowsOf<'a, bf16>),
}

/// The same, of one element type.
#[derive(Debug, Clone, Copy)]
pub struct RowsOf<'a, T> {
    lain: Lain<'a, T>,
    /// The KV head's first row.
    first: usize,
    keys: usize,
    width: usize,
    /// `[keys]`; `None` where key j has cell j.
    cells: Option<&'a [u32]>,
}

/// `[rows, width]`, side by side or in pages. What computes asks for a row, or for rows that lie
/// one behind the other, and so is the same for both.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lain<'a, T> {
    Flat(&'a [T]),
    Paged(&'a Paged<T>),
}

impl<'a, T: Pod + Send + Sync> Lain<'a, T> {
    pub(crate) fn of(array: &'a Array<T>) -> Self {
        array.as_resident().map_or_else(|| Self::Flat(array), Self::Paged)
    }

    /// Row `idx` of `width` elements.
    #[inline(always)]
    pub(crate) fn row(self, idx: usize, width: usize) -> &'a [T] {
        self.rows(idx, 1, width)
    }

    /// How many rows from `idx` on lie one behind the other, of so many that there are.
    pub(crate) fn reach(self, idx: usize, count: usize) -> usize {
        match self {
            Self::Flat(_) => count,
            Self::Paged(pages) => count.min(pages.cells() - idx % pages.cells()),
        }
    }

    /// Rows from `idx` on, within [`Self::reach`].
    #[inline(always)]
    pub(crate) fn rows(self, idx: usize, count: usize, width: usize) -> &'a [T] {
        match self {
            Self::Flat(data) => &data[idx * width..][..count * width],
            Self::Paged(pages) => pages.rows(idx, count),
        }
    }
}

/// The same, to be changed.
pub(crate) enum LainMut<'a, T> {
    Flat(&'a mut [T]),
    Paged(&'a mut Paged<T>),
}

impl<'a, T: Pod + Send + Sync> LainMut<'a, T> {
    pub(crate) fn of(array: &'a mut Array<T>) -> Self {
        match array.as_resident::<Paged<T>>().is_some() {
            true => Self::Paged(array.make_resident_mut().expect("they are pages")),
            false => Self::Flat(array),
        }
    }

    /// To read.
    pub(crate) fn lain(&self) -> Lain<'_, T> {
        match self {
            Self::Flat(data) => Lain::Flat(data),
            Self::Paged(pages) => Lain::Paged(pages),
        }
    }

    /// Puts `rows` in the place of as many from `idx` on, within [`Lain::reach`]; in a page out of
    /// `fresh` where they are in a shared one.
    ///
    /// # Panics
    /// When a row or a page is not there: a bug of the caller.
    pub(crate) fn put(&mut self, idx: usize, rows: &[T], width: usize, fresh: &mut Vec<Page>) {
        let place = match self {
            Self::Flat(data) => &mut data[idx * width..][..rows.len()],
            Self::Paged(pages) => pages.rows_mut((idx, rows.len() / width.max(1)), fresh),
        };
        place.copy_from_slice(rows);
    }
}

impl<'a> HeadRows<'a> {
    pub(crate) fn new(heads: &'a KvHeads, g: usize, keys: usize, cells: Option<&'a [u32]>) -> Self {
        match &heads.data {
            KvData::F32(data) => Self::F32(RowsOf::new(heads, Lain::of(data), g, (keys, cells))),
            KvData::Bf16(data) => Self::Bf16(RowsOf::new(heads, Lain::of(data), g, (keys, cells))),
        }
    }

    /// Those of some of the keys.
    pub(crate) fn part(self, keys: Range<usize>) -> Self {
        match self {
            Self::F32(rows) => Self::F32(rows.part(keys)),
            Self::Bf16(rows) => Self::Bf16(rows.part(keys)),
        }
    }

    /// `[keys, head_dim]`, widened to f32.
    pub fn to_f32(self) -> Vec<f32> {
        let mut all = Vec::new();
        match self {
            Self::F32(rows) => rows.append_to(&mut all, rows.keys * rows.width),
            Self::Bf16(rows) => {
                (0..rows.keys).for_each(|j| all.extend(rows.row(j).iter().map(|x| x.to_f32())));
            }
        }
        all
    }
}

impl<'a, T: Pod + Send + Sync> RowsOf<'a, T> {
    fn new(
        heads: &KvHeads,
        lain: Lain<'a, T>,
        g: usize,
        (keys, cells): (usize, Option<&'a [u32]>),
    ) -> Self {
        Self { lain, first: g * heads.tokens, keys, width: heads.head_dim, cells }
    }

    fn part(self, keys: Range<usize>) -> Self {
        assert!(keys.end <= self.keys, "{keys:?} of {} keys", self.keys);
        let count = keys.len();
        match self.cells {
            Some(cells) => Self { keys: count, cells: Some(&cells[keys]), ..self },
            None => Self { keys: count, first: self.first + keys.start, ..self },
        }
    }

    /// Elements of a row.
    pub fn width(self) -> usize {
        self.width
    }

    /// Row `j`, `[head_dim]`.
    #[inline(always)]
    pub fn row(self, j: usize) -> &'a [T] {
        let cell = self.cells.map_or(j, |cells| cells[j] as usize);
        self.lain.row(self.first + cell, self.width)
    }

    /// Rows `first..last`, where they lie one behind the other.
    pub fn span(self, (first, last): (usize, usize)) -> Option<&'a [T]> {
        match (self.lain, self.cells) {
            (Lain::Flat(data), None) => {
                let elements = (self.first + first) * self.width..(self.first + last) * self.width;
                Some(&data[elements])
            }
            _ => None,
        }
    }

    /// Puts all rows behind those in `to`, which makes room for `elements` before the first.
    pub(crate) fn append_to(self, to: &mut Vec<T>, elements: usize) {
        to.reserve_exact(elements - to.len());
        let mut j = 0;
        while j < self.keys {
            let (row, neighbours) = self.neighbours(j);
            let count = self.lain.reach(row, neighbours);
            to.extend_from_slice(self.lain.rows(row, count, self.width));
            j += count;
        }
    }

    /// The row of key j, and how many keys from there on have rows that follow each other.
    fn neighbours(self, j: usize) -> (usize, usize) {
        match self.cells {
            None => (self.first + j, self.keys - j),
            Some(cells) => {
                let pairs = cells[j..self.keys].windows(2).take(PAGE_CELLS);
                let follow = pairs.take_while(|pair| pair[1] == pair[0] + 1).count();
                (self.first + cells[j] as usize, follow + 1)
            }
        }
    }
}
