//! Keys and values, side by side or in pages.

use std::sync::Arc;

use bytemuck::Pod;
use half::bf16;

use super::rows_of_token;
use crate::array::Array;
use crate::backend::BackendError;
use crate::cells::{HeadRows, Lain};
use crate::pool::{Page, Paged, Pool};

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// Four bytes an element.
    F32,
    /// Two bytes an element, rounded to nearest even where they are computed.
    Bf16,
}

impl KvDtype {
    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// Elements of keys or values.
#[derive(Debug, Clone, PartialEq)]
pub enum KvData {
    /// f32.
    F32(Array<f32>),
    /// bf16.
    Bf16(Array<bf16>),
}

impl KvData {
    /// Brings the elements to the host.
    ///
    /// # Errors
    /// As [`Array::host`] has it.
    pub(crate) fn host(&self) -> Result<(), BackendError> {
        match self {
            Self::F32(data) => data.host().map(drop),
            Self::Bf16(data) => data.host().map(drop),
        }
    }
}

/// One key or value, `[head_dim]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KvRow<'a> {
    /// f32.
    F32(&'a [f32]),
    /// bf16.
    Bf16(&'a [bf16]),
}

/// Keys or values: `[kv_heads, tokens, head_dim]`. Keys are rotated at absolute positions.
/// Where they belong to a memory set, a row is a cell (see [`Keys`](crate::Keys)).
#[derive(Debug, Clone, PartialEq)]
pub struct KvHeads {
    /// G.
    pub kv_heads: usize,
    /// N.
    pub tokens: usize,
    /// D.
    pub head_dim: usize,
    /// `[kv_heads, tokens, head_dim]`.
    pub data: KvData,
}

impl KvHeads {
    /// Rows like these, side by side: for each KV head those of all its pieces, one behind the
    /// other, and zeros behind them up to `tokens`.
    pub(crate) fn gathered<'a, P: IntoIterator<Item = HeadRows<'a>>>(
        &self,
        tokens: usize,
        heads: impl ExactSizeIterator<Item = P>,
    ) -> Self {
        let (kv_heads, size) = (heads.len(), tokens * self.head_dim);
        let (mut f32s, mut bf16s) = (Vec::new(), Vec::new());
        for (g, pieces) in heads.enumerate() {
            for rows in pieces {
                match rows {
                    HeadRows::F32(rows) => rows.append_to(&mut f32s, kv_heads * size),
                    HeadRows::Bf16(rows) => rows.append_to(&mut bf16s, kv_heads * size),
                }
            }
            match &self.data {
                KvData::F32(_) => f32s.resize((g + 1) * size, 0.0),
                KvData::Bf16(_) => bf16s.resize((g + 1) * size, bf16::ZERO),
            }
        }
        let data = match &self.data {
            KvData::F32(_) => KvData::F32(f32s.into()),
            KvData::Bf16(_) => KvData::Bf16(bf16s.into()),
        };
        Self { kv_heads, tokens, head_dim: self.head_dim, data }
    }

    /// No keys at all.
    pub fn empty(kv_heads: usize, head_dim: usize, dtype: KvDtype) -> Self {
        Self::from_f32(kv_heads, 0, head_dim, &[], dtype)
    }

    /// Stores `data` (`[kv_heads, tokens, head_dim]`) as `dtype`, rounding to nearest even.
    ///
    /// # Panics
    /// When `data` does not have the elements that the shape asks for.
    pub fn from_f32(
        kv_heads: usize,
        tokens: usize,
        head_dim: usize,
        data: &[f32],
        dtype: KvDtype,
    ) -> Self {
        assert_eq!(data.len(), kv_heads * tokens * head_dim);
        let data = match dtype {
            KvDtype::F32 => KvData::F32(data.to_vec().into()),
            KvDtype::Bf16 => KvData::Bf16(data.iter().map(|&x| bf16::from_f32(x)).collect()),
        };
        Self { kv_heads, tokens, head_dim, data }
    }

    /// How the elements are stored.
    pub fn dtype(&self) -> KvDtype {
        match self.data {
            KvData::F32(_) => KvDtype::F32,
            KvData::Bf16(_) => KvDtype::Bf16,
        }
    }

    /// Token `t` alone, copied.
    pub(crate) fn token(&self, t: usize) -> Self {
        let shape = (self.tokens, self.head_dim);
        let data = match &self.data {
            KvData::F32(data) => KvData::F32(rows_of_token(data, shape, t).into()),
            KvData::Bf16(data) => KvData::Bf16(rows_of_token(data, shape, t).into()),
        };
        Self { tokens: 1, data, ..*self }
    }

    /// No keys, in pages of `pool`.
    ///
    /// # Panics
    /// Where the pool's pages are not full of such rows: a bug of the caller.
    pub(crate) fn empty_in(pool: &Pool, kv_heads: usize, head_dim: usize, dtype: KvDtype) -> Self {
        let data = match dtype {
            KvDtype::F32 => KvData::F32(Array::on_device(Arc::new(Paged::empty(pool, head_dim)))),
            KvDtype::Bf16 => KvData::Bf16(Array::on_device(Arc::new(Paged::empty(pool, head_dim)))),
        };
        Self { kv_heads, tokens: 0, head_dim, data }
    }

    /// The pool in whose pages the rows lie; `None` where they lie side by side.
    pub fn pool(&self) -> Option<&Pool> {
        match &self.data {
            KvData::F32(data) => data.as_resident().map(Paged::<f32>::pool),
            KvData::Bf16(data) => data.as_resident().map(Paged::<bf16>::pool),
        }
    }

    /// Rows of a page; 1 where they lie side by side.
    pub(crate) fn page_cells(&self) -> usize {
        match &self.data {
            KvData::F32(data) => data.as_resident().map_or(1, Paged::<f32>::cells),
            KvData::Bf16(data) => data.as_resident().map_or(1, Paged::<bf16>::cells),
        }
    }

    /// Has handles of its own of the pages in which the rows lie, whoever has others: only then
    /// do the pages themselves know that they are shared.
    pub(crate) fn hold_pages(&mut self) {
        match &mut self.data {
            KvData::F32(data) => _ = data.make_resident_mut::<Paged<f32>>(),
            KvData::Bf16(data) => _ = data.make_resident_mut::<Paged<bf16>>(),
        }
    }

    /// Whether row `idx` lies in a page that somebody else holds too.
    pub(crate) fn is_shared(&self, idx: usize) -> bool {
        match &self.data {
            KvData::F32(data) => data.as_resident().is_some_and(|p: &Paged<f32>| p.is_shared(idx)),
            KvData::Bf16(data) => {
                data.as_resident().is_some_and(|p: &Paged<bf16>| p.is_shared(idx))
            }
        }
    }

    /// Gives each KV head `cells` rows, of the first of which the contents stay. What lies in
    /// pages takes new ones out of `fresh` and has whole pages.
    pub(crate) fn restride(&mut self, cells: usize, fresh: &mut Vec<Page>) {
        if cells == self.tokens {
            return;
        }
        let strides = Strides { heads: self.kv_heads, from: self.tokens, to: cells };
        match &mut self.data {
            KvData::F32(data) => strides.apply(data, self.head_dim, fresh),
            KvData::Bf16(data) => strides.apply(data, self.head_dim, fresh),
        }
        self.tokens = cells;
    }

    /// Row `idx` of `[kv_heads * tokens, head_dim]`, wherever it lies.
    pub fn row(&self, idx: usize) -> KvRow<'_> {
        match &self.data {
            KvData::F32(data) => KvRow::F32(Lain::of(data).row(idx, self.head_dim)),
            KvData::Bf16(data) => KvRow::Bf16(Lain::of(data).row(idx, self.head_dim)),
        }
    }

    /// Bytes of the elements.
    pub fn bytes(&self) -> usize {
        match &self.data {
            KvData::F32(data) => data.bytes(),
            KvData::Bf16(data) => data.bytes(),
        }
    }

    /// `[tokens, head_dim]` of KV head `g`, widened to f32.
    pub fn head_f32(&self, g: usize) -> Vec<f32> {
        let size = self.tokens * self.head_dim;
        let span = g * size..(g + 1) * size;
        match &self.data {
            KvData::F32(data) => data[span].to_vec(),
            KvData::Bf16(data) => data[span].iter().map(|x| x.to_f32()).collect(),
        }
    }
}

/// Rows that each of some heads has, and is to have.
struct Strides {
    heads: usize,
    from: usize,
    to: usize,
}

impl Strides {
    fn apply<T: Pod + Default + Send + Sync>(
        &self,
        data: &mut Array<T>,
        width: usize,
        fresh: &mut Vec<Page>,
    ) {
        if let Some(pages) = data.make_resident_mut::<Paged<T>>() {
            return pages.restride(self.heads, self.to / pages.cells(), fresh);
        }
        let (from, to) = (self.from * width, self.to * width);
        let mut rows = Vec::with_capacity(self.heads * to);
        for head in 0..self.heads {
            rows.extend_from_slice(&data[head * from..][..from.min(to)]);
            rows.resize((head + 1) * to, T::default());
        }
        *data = rows.into();
    }
}
