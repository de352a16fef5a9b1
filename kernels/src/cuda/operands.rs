//! Queries, keys and states as the kernels of attention take them.

use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;

use half::bf16;

use super::device::Address;
use super::fast::{self, Sight, StateAt, Stretch};
use super::in_order::lay_in_order;
use super::params::attention::{KeyArrays, QueryArray, StateArrays};
use super::resident::{OnDevice, Rounded};
use super::sight::Found;
use super::{Cuda, Shared};
use crate::array::Array;
use crate::backend::{BackendError, Queries};
use crate::memory::Keys;
use crate::state::AttentionState;
use crate::tensor::{KvData, KvDtype};
use crate::window::Window;

/// Elements of either dtype.
pub(super) enum Elements {
    F32(OnDevice<f32>),
    Bf16(OnDevice<bf16>),
}

impl Elements {
    /// Room for `len`.
    pub(super) fn room(
        shared: &Arc<Shared>,
        dtype: KvDtype,
        len: usize,
    ) -> Result<Self, BackendError> {
        match dtype {
            KvDtype::F32 => OnDevice::room(shared, len).map(Self::F32),
            KvDtype::Bf16 => OnDevice::room(shared, len).map(Self::Bf16),
        }
    }

    /// Room for `len` of the same dtype.
    pub(super) fn alike(&self, shared: &Arc<Shared>, len: usize) -> Result<Self, BackendError> {
        Self::room(shared, self.of_dtype(KvDtype::F32, KvDtype::Bf16), len)
    }

    /// f32 that pass between operations, in the form that they have on the device.
    pub(super) fn of_rows(shared: &Arc<Shared>, rows: &Array<f32>) -> Result<Self, BackendError> {
        match shared.placed_rounded(rows) {
            Some(rounded) => Ok(Self::Bf16(rounded)),
            None => shared.place(rows).map(Self::F32),
        }
    }

    pub(super) fn address(&self) -> u64 {
        match self {
            Self::F32(elements) => elements.address(),
            Self::Bf16(elements) => elements.address(),
        }
    }

    fn of(shared: &Arc<Shared>, data: &KvData) -> Result<Self, BackendError> {
        match data {
            KvData::F32(data) => shared.place(data).map(Self::F32),
            KvData::Bf16(data) => shared.place(data).map(Self::Bf16),
        }
    }

    /// The one that belongs to how the elements are stored.
    pub(super) fn of_dtype<T>(&self, f32: T, bf16: T) -> T {
        match self {
            Self::F32(_) => f32,
            Self::Bf16(_) => bf16,
        }
    }

    /// As keys or values that pass between operations.
    pub(super) fn into_kv(self) -> KvData {
        match self {
            Self::F32(elements) => KvData::F32(elements.into_array()),
            Self::Bf16(elements) => KvData::Bf16(elements.into_array()),
        }
    }

    /// As f32 that pass between operations.
    pub(super) fn into_array(self) -> Array<f32> {
        match self {
            Self::F32(elements) => elements.into_array(),
            Self::Bf16(elements) => Array::on_device(Arc::new(Rounded(elements))),
        }
    }
}

/// Queries on the device.
pub(super) struct PlacedQueries<'a> {
    pub(super) queries: Queries<'a>,
    q: Elements,
    slopes: Option<OnDevice<f32>>,
}

impl<'a> PlacedQueries<'a> {
    /// `queries` as they are multiplied with keys of `dtype`.
    pub(super) fn new(
        cuda: &Cuda,
        queries: Queries<'a>,
        dtype: KvDtype,
    ) -> Result<Self, BackendError> {
        let shared = &cuda.shared;
        let data = &queries.q.data;
        let rounded = shared.placed_rounded(data);
        let q = match (dtype, rounded) {
            (KvDtype::F32, None) => Elements::F32(shared.place(data)?),
            (KvDtype::F32, Some(q)) => Elements::F32(shared.widened(&q)?),
            (KvDtype::Bf16, Some(q)) => Elements::Bf16(q),
            (KvDtype::Bf16, None) => Elements::Bf16(shared.narrowed(&shared.place(data)?)?),
        };
        let slopes = queries.slopes.map(|slopes| cuda.slopes.equal_on_device(shared, slopes));
        Ok(Self { queries, q, slopes: slopes.transpose()? })
    }

    /// As plain kernels take them.
    pub(super) fn array(&self) -> QueryArray {
        let Queries { q, start, scale, window, softcap, .. } = self.queries;
        let (window, blocks) = match window {
            None => (u32::MAX, 0),
            Some(Window::Last(count)) => (count, 0),
            Some(Window::Block(count)) => (u32::MAX, count),
        };
        QueryArray {
            q: self.q.address(),
            heads: q.heads as u32,
            tokens: q.tokens as u32,
            start,
            window,
            scale,
            head_dim: q.head_dim as u32,
            softcap: softcap.unwrap_or(0.0),
            blocks,
            slopes: self.slopes.as_ref().map_or(0, OnDevice::address),
        }
    }

    /// As a chip's own kernels take them, which want bf16 and know neither cap nor slopes.
    pub(super) fn rows(&self, kv_heads: usize) -> Option<fast::Rows> {
        let Elements::Bf16(q) = &self.q else { return None };
        let Queries { q: heads, scale, softcap: None, slopes: None, .. } = self.queries else {
            return None;
        };
        let (tokens, head_dim) = (heads.tokens, heads.head_dim);
        let shape = fast::Shape { heads: heads.heads, kv_heads, tokens, head_dim };
        Some(fast::Rows { shape, q: Address(q.address()), scale })
    }

    /// Whether row t sees keys `0..=t` of as many as rows, but for those too far back.
    pub(super) fn see_causally(&self, keys: &PlacedKeys) -> bool {
        let Queries { q, start, .. } = self.queries;
        keys.len() == q.tokens
            && keys.within.as_ref().is_some_and(|it| *it == (start..start + q.tokens as u32))
    }

    /// Whether every row sees every key, but for those too far back.
    pub(super) fn see_all(&self, keys: &PlacedKeys) -> bool {
        let end = self.queries.start.saturating_add(1);
        keys.within.as_ref().is_some_and(|within| within.end <= end)
    }

    /// Whether any key may be too far back for the last row, and so for others.
    fn lose_sight_of(&self, keys: &PlacedKeys) -> bool {
        let first = *self.queries.sight(self.queries.q.tokens - 1).start();
        keys.within.as_ref().is_none_or(|within| within.start < first)
    }
}

/// Keys with their values on the device.
pub(super) struct PlacedKeys {
    k: Elements,
    v: Elements,
    positions: OnDevice<u32>,
    table: Option<OnDevice<u32>>,
    kv_heads: usize,
    keys: usize,
    cells: usize,
    /// What is known without reading a position: all lie in it.
    within: Option<Range<u32>>,
    /// k and v without a table, once somebody has asked for them.
    laid: OnceCell<[OnDevice<bf16>; 2]>,
    /// What the rows that look at them see of them, once somebody has asked for it.
    sight: OnceCell<Found>,
}

impl PlacedKeys {
    pub(super) fn new(shared: &Arc<Shared>, keys: &Keys) -> Result<Self, BackendError> {
        Ok(Self {
            k: Elements::of(shared, &keys.k.data)?,
            v: Elements::of(shared, &keys.v.data)?,
            positions: shared.place(&keys.positions)?,
            table: keys.table.as_ref().map(|table| shared.place(table)).transpose()?,
            kv_heads: keys.kv_heads(),
            keys: keys.len(),
            cells: keys.k.tokens,
            within: within(keys),
            laid: OnceCell::new(),
            sight: OnceCell::new(),
        })
    }

    /// Keys of each KV head.
    pub(super) fn len(&self) -> usize {
        self.keys
    }

    pub(super) fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    pub(super) fn dtype(&self) -> KvDtype {
        match self.k {
            Elements::F32(_) => KvDtype::F32,
            Elements::Bf16(_) => KvDtype::Bf16,
        }
    }

    /// As kernels take them that read positions and tables.
    pub(super) fn arrays(&self) -> KeyArrays {
        KeyArrays {
            k: self.k.address(),
            v: self.v.address(),
            table: self.table.as_ref().map_or(0, OnDevice::address),
            positions: self.positions.address(),
            kv_heads: self.kv_heads as u32,
            keys: self.keys as u32,
            cells: self.cells as u32,
            unused: 0,
        }
    }

    /// As kernels of bf16 take them that read neither: in order, which costs a copy where they
    /// are not. `None` for f32. Always for the same rows.
    pub(super) fn stretch(
        &self,
        shared: &Arc<Shared>,
        rows: &PlacedQueries<'_>,
    ) -> Result<Option<Stretch>, BackendError> {
        let (Elements::Bf16(k), Elements::Bf16(v)) = (&self.k, &self.v) else { return Ok(None) };
        let sight = self.sight(shared, rows)?;
        let at = |k: &OnDevice<bf16>, v: &OnDevice<bf16>, cells| {
            let (k, v) = (Address(k.address()), Address(v.address()));
            Some(Stretch { k, v, keys: self.keys, cells, sight })
        };
        let Some(table) = &self.table else { return Ok(at(k, v, self.cells)) };
        if self.laid.get().is_none() {
            let made = lay_in_order(shared, [k, v], table, [self.kv_heads, self.cells, self.keys])?;
            self.laid.get_or_init(|| made);
        }
        Ok(self.laid.get().and_then(|[k, v]| at(k, v, self.keys)))
    }

    fn sight(
        &self,
        shared: &Arc<Shared>,
        rows: &PlacedQueries<'_>,
    ) -> Result<Option<Sight>, BackendError> {
        if !rows.lose_sight_of(self) {
            return Ok(None);
        }
        if self.sight.get().is_none() {
            let size = [self.kv_heads, self.keys];
            let found = Found::new(shared, rows.array(), &self.positions, size)?;
            self.sight.get_or_init(|| found);
        }
        Ok(self.sight.get().map(Found::at))
    }
}

/// A range that all positions lie in, if nothing needs to be copied to say so.
fn within(keys: &Keys) -> Option<Range<u32>> {
    if let Some(known) =
        keys.positions.resident::<OnDevice<u32>>().and_then(|it| it.within().cloned())
    {
        return Some(known);
    }
    // Ascending within each head.
    let heads = keys.positions.on_host()?.chunks(keys.len().max(1));
    let ends = heads.filter_map(|head| Some((*head.first()?, *head.last()? + 1)));
    ends.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).map(|(start, end)| start..end)
}

/// A partial state on the device.
pub(super) struct PlacedState {
    pub(super) m: OnDevice<f32>,
    pub(super) l: OnDevice<f32>,
    pub(super) o: OnDevice<f32>,
}

impl PlacedState {
    /// Room for the state of `queries`.
    pub(super) fn room(shared: &Arc<Shared>, queries: &Queries<'_>) -> Result<Self, BackendError> {
        Self::parts(shared, queries, 1)
    }

    /// Room for so many states of `queries`.
    pub(super) fn parts(
        shared: &Arc<Shared>,
        queries: &Queries<'_>,
        count: usize,
    ) -> Result<Self, BackendError> {
        let rows = count * queries.q.heads * queries.q.tokens;
        let room = |elements| OnDevice::room(shared, elements);
        Ok(Self { m: room(rows)?, l: room(rows)?, o: room(rows * queries.q.head_dim)? })
    }

    pub(super) fn of(shared: &Arc<Shared>, state: &AttentionState) -> Result<Self, BackendError> {
        let place = |array: &Array<f32>| shared.place(array);
        Ok(Self { m: place(&state.m)?, l: place(&state.l)?, o: place(&state.o)? })
    }

    /// As plain kernels take it.
    pub(super) fn arrays(&self) -> StateArrays {
        StateArrays { m: self.m.address(), l: self.l.address(), o: self.o.address() }
    }

    /// As a chip's own kernels take it.
    pub(super) fn at(&self) -> StateAt {
        let StateArrays { m, l, o } = self.arrays();
        StateAt { m: Address(m), l: Address(l), o: Address(o) }
    }

    /// As what passes between operations.
    pub(super) fn into_state(self, queries: &Queries<'_>) -> AttentionState {
        let q = queries.q;
        AttentionState {
            heads: q.heads,
            tokens: q.tokens,
            head_dim: q.head_dim,
            m: self.m.into_array(),
            l: self.l.into_array(),
            o: self.o.into_array(),
        }
    }
}

/// What rows make of all their keys.
pub(super) struct Output {
    /// `[tokens, heads * head_dim]`: bf16 where that is what it is multiplied as next.
    pub(super) data: Elements,
    /// `[heads, tokens]`.
    pub(super) lse: OnDevice<f32>,
}

impl Output {
    pub(super) fn room(
        shared: &Arc<Shared>,
        rows: &PlacedQueries<'_>,
        dtype: KvDtype,
    ) -> Result<Self, BackendError> {
        let q = rows.queries.q;
        let data = Elements::room(shared, dtype, q.data.len())?;
        Ok(Self { data, lse: OnDevice::room(shared, q.heads * q.tokens)? })
    }

    /// Of the first element.
    pub(super) fn address(&self) -> u64 {
        self.data.address()
    }

    /// The one that belongs to how the elements are stored.
    pub(super) fn of_dtype<T>(&self, f32: T, bf16: T) -> T {
        self.data.of_dtype(f32, bf16)
    }
}

/// What the rows of a block weigh, and what their masses are measured by.
pub(super) struct Votes<'a> {
    /// `[heads, tokens]`, of the merged state.
    pub(super) lse: OnDevice<f32>,
    /// `[tokens]`.
    pub(super) row_weights: OnDevice<f32>,
    /// The same on the host.
    pub(super) weights: &'a [f32],
}

impl<'a> Votes<'a> {
    pub(super) fn new(
        cuda: &Cuda,
        lse: OnDevice<f32>,
        weights: &'a [f32],
    ) -> Result<Self, BackendError> {
        let row_weights = cuda.row_weights.equal_on_device(&cuda.shared, weights)?;
        Ok(Self { lse, row_weights, weights })
    }
}

impl Shared {
    /// The form of `array` that lies on this device as bf16, if one does.
    fn placed_rounded(self: &Arc<Self>, array: &Array<f32>) -> Option<OnDevice<bf16>> {
        let Rounded(elements) = &*array.resident::<Rounded>()?;
        elements.is_on(self).then(|| elements.clone())
    }
}
