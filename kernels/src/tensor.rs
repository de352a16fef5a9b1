//! The few arrays that this system passes around.

mod kv;

use std::borrow::Cow;
use std::ops::Range;

pub use self::kv::{KvData, KvDtype, KvHeads, KvRow};
use crate::array::Array;
use crate::backend::BackendError;

/// Activations: `[rows, cols]` f32, one row per token.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rows {
    rows: usize,
    cols: usize,
    data: Array<f32>,
}

impl Rows {
    /// All zero.
    pub fn zeros(rows: usize, cols: usize) -> Self {
        Self::from_vec(rows, cols, vec![0.0; rows * cols])
    }

    /// Takes `data` as `[rows, cols]`.
    ///
    /// # Panics
    /// When `data` has not exactly `rows * cols` elements: a bug of the caller.
    pub fn from_vec(rows: usize, cols: usize, data: Vec<f32>) -> Self {
        Self::new(rows, cols, data.into())
    }

    /// Takes `data` as `[rows, cols]`, wherever it lies.
    ///
    /// # Panics
    /// When `data` has not exactly `rows * cols` elements: a bug of the caller.
    pub fn new(rows: usize, cols: usize, data: Array<f32>) -> Self {
        assert_eq!(data.len(), rows * cols, "[{rows}, {cols}] needs that many elements");
        Self { rows, cols, data }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// All elements, row-major.
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// All elements, row-major, wherever they lie.
    pub fn array(&self) -> &Array<f32> {
        &self.data
    }

    /// All elements, row-major, to be changed.
    pub fn data_mut(&mut self) -> &mut [f32] {
        &mut self.data
    }

    /// Row `i`.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.cols..(i + 1) * self.cols]
    }

    /// Row `i`, to be changed.
    pub fn row_mut(&mut self, i: usize) -> &mut [f32] {
        &mut self.data[i * self.cols..(i + 1) * self.cols]
    }

    /// The last row alone; the array must not be empty.
    pub fn last_row(&self) -> Self {
        self.some(self.rows - 1..self.rows)
    }

    /// Some of the rows.
    pub fn some(&self, rows: Range<usize>) -> Self {
        if rows == (0..self.rows) {
            return self.clone(); // wherever it lies
        }
        let data = self.data[rows.start * self.cols..rows.end * self.cols].to_vec();
        Self::from_vec(rows.len(), self.cols, data)
    }

    /// The rows that stay.
    pub fn kept(&self, stays: &[bool]) -> Self {
        let rows: Vec<usize> = (0..stays.len()).filter(|&row| stays[row]).collect();
        let data = rows.iter().flat_map(|&row| self.row(row)).copied().collect();
        Self::from_vec(rows.len(), self.cols, data)
    }

    /// The same, without a copy where they are all.
    pub fn part(&self, rows: Range<usize>) -> Cow<'_, Self> {
        match rows == (0..self.rows) {
            true => Cow::Borrowed(self),
            false => Cow::Owned(self.some(rows)),
        }
    }

    /// The last `rows` of them; neither all nor none are read, wherever they lie.
    ///
    /// # Errors
    /// As [`Array::host`] has it, where some are read.
    pub fn of_last(self, rows: usize) -> Result<Self, BackendError> {
        match rows {
            0 => Ok(Self::zeros(0, self.cols)),
            _ if rows == self.rows => Ok(self),
            _ => {
                self.data.host()?;
                Ok(self.some(self.rows - rows..self.rows))
            }
        }
    }

    /// The rows of `parts`, all of `cols` columns, one below the other.
    ///
    /// # Panics
    /// When one has other columns: a bug of the caller.
    pub fn stack(cols: usize, mut parts: Vec<Self>) -> Self {
        if parts.len() == 1 {
            return parts.swap_remove(0); // wherever it lies
        }
        let data = parts.iter().flat_map(|part| part.data()).copied().collect();
        Self::from_vec(parts.iter().map(Self::rows).sum(), cols, data)
    }

    /// The elements, without a copy.
    pub fn into_vec(self) -> Vec<f32> {
        self.data.into_vec()
    }
}

/// Queries: `[heads, tokens, head_dim]` f32, rotated.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Heads {
    /// H.
    pub heads: usize,
    /// T.
    pub tokens: usize,
    /// D.
    pub head_dim: usize,
    /// `[heads, tokens, head_dim]`.
    pub data: Array<f32>,
}

impl Heads {
    /// All zero.
    pub fn zeros(heads: usize, tokens: usize, head_dim: usize) -> Self {
        Self { heads, tokens, head_dim, data: vec![0.0; heads * tokens * head_dim].into() }
    }

    /// `[tokens, head_dim]` of head `h`.
    pub fn head(&self, h: usize) -> &[f32] {
        let size = self.tokens * self.head_dim;
        &self.data[h * size..(h + 1) * size]
    }

    /// Some of the heads, copied.
    pub fn some(&self, heads: Range<usize>) -> Self {
        let size = self.tokens * self.head_dim;
        let data = self.data[heads.start * size..heads.end * size].to_vec();
        Self { heads: heads.len(), data: data.into(), ..*self }
    }

    /// The last `tokens` of every head; neither all nor none are read, wherever they lie.
    ///
    /// # Errors
    /// As [`Array::host`] has it, where some are read.
    pub fn of_last(self, tokens: usize) -> Result<Self, BackendError> {
        if tokens == self.tokens {
            return Ok(self);
        }
        if tokens == 0 {
            return Ok(Self::zeros(self.heads, 0, self.head_dim));
        }
        self.data.host()?;
        let first = (self.tokens - tokens) * self.head_dim;
        let data: Vec<f32> =
            (0..self.heads).flat_map(|h| &self.head(h)[first..]).copied().collect();
        Ok(Self { tokens, data: data.into(), ..self })
    }

    /// `[head_dim]` of head `h` and token `t`.
    pub fn row(&self, h: usize, t: usize) -> &[f32] {
        &self.head(h)[t * self.head_dim..(t + 1) * self.head_dim]
    }

    /// Token `t` alone, copied.
    pub fn token(&self, t: usize) -> Self {
        let data = rows_of_token(&self.data, (self.tokens, self.head_dim), t).into();
        Self { tokens: 1, data, ..*self }
    }
}

/// Row `t` of each `[tokens, head_dim]`.
fn rows_of_token<T: Copy>(data: &[T], (tokens, head_dim): (usize, usize), t: usize) -> Vec<T> {
    let heads = data.chunks_exact((tokens * head_dim).max(1));
    heads.flat_map(|head| &head[t * head_dim..(t + 1) * head_dim]).copied().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::array::Lost;

    /// Whoever asks for a part of them is told, and does not panic.
    #[test]
    fn what_cannot_be_read_is_an_error_where_some_of_it_is() {
        let lost = |count| Array::<f32>::on_device(Arc::new(Lost(count)));
        let x = Rows::new(4, 3, lost(12));
        let told = x.clone().of_last(2);
        assert!(matches!(told, Err(BackendError::NotFinite { .. })), "{told:?}");
        assert_eq!(x.clone().of_last(0).unwrap(), Rows::zeros(0, 3));
        assert_eq!(x.of_last(4).unwrap().rows(), 4, "nothing was read");
        let q = Heads { heads: 2, tokens: 3, head_dim: 2, data: lost(12) };
        let told = q.clone().of_last(1);
        assert!(matches!(told, Err(BackendError::NotFinite { .. })), "{told:?}");
        assert_eq!(q.clone().of_last(0).unwrap(), Heads::zeros(2, 0, 2));
        assert_eq!(q.of_last(3).unwrap().tokens, 3, "nothing was read");
    }

    #[test]
    fn rows_are_those_of_their_parts() {
        let x = Rows::from_vec(4, 3, (0..12).map(|i| i as f32).collect());
        let parts = [x.some(0..1), x.some(1..1), x.some(1..4)];
        assert_eq!(Rows::stack(3, parts.to_vec()), x);
        assert_eq!(Rows::stack(3, Vec::new()), Rows::zeros(0, 3));
        assert_eq!(x.last_row().data(), [9.0, 10.0, 11.0]);
        let [none, some, all] = [0, 3, 4].map(|rows| x.clone().of_last(rows).unwrap());
        assert_eq!((none, some, all), (x.some(4..4), x.some(1..4), x));
    }

    #[test]
    fn the_last_tokens_of_every_head() {
        let data: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let q = Heads { heads: 2, tokens: 3, head_dim: 2, data: data.into() };
        assert_eq!(q.clone().of_last(3).unwrap(), q);
        assert_eq!(q.clone().of_last(0).unwrap(), Heads::zeros(2, 0, 2));
        let last = q.of_last(2).unwrap();
        assert_eq!((last.tokens, &last.data[..]), (2, &[2., 3., 4., 5., 8., 9., 10., 11.][..]));
    }
}
