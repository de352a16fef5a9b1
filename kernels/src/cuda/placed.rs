//! Memory sets as arrays that leave a device, or arrive there.

use std::sync::Arc;

use bytemuck::Pod;

use super::device::{Address, Fault};
use super::resident::OnDevice;
use super::{Cuda, Shared};
use crate::array::Array;
use crate::backend::BackendError;
use crate::fabric::SetShape;
use crate::memory::{Keys, MemorySet, Ranking, Selection};
use crate::tensor::{KvData, KvDtype, KvHeads};

/// A set's arrays on the device, in order of position.
pub(crate) struct Placed {
    positions: OnDevice<u32>,
    score: OnDevice<f32>,
    votes: OnDevice<f32>,
    k: Rows,
    v: Rows,
}

enum Rows {
    F32(OnDevice<f32>),
    Bf16(OnDevice<half::bf16>),
}

impl Rows {
    fn room(shared: &Arc<Shared>, len: usize, kv: KvDtype) -> Result<Self, BackendError> {
        Ok(match kv {
            KvDtype::F32 => Self::F32(OnDevice::room(shared, len)?),
            KvDtype::Bf16 => Self::Bf16(OnDevice::room(shared, len)?),
        })
    }

    fn of(shared: &Arc<Shared>, heads: &KvHeads) -> Result<Self, BackendError> {
        Ok(match &heads.data {
            KvData::F32(data) => Self::F32(shared.place(data)?),
            KvData::Bf16(data) => Self::Bf16(shared.place(data)?),
        })
    }

    /// Address and bytes.
    fn span(&self) -> (Address, usize) {
        match self {
            Self::F32(data) => span(data),
            Self::Bf16(data) => span(data),
        }
    }

    fn into_heads(self, shape: &SetShape) -> KvHeads {
        let data = match self {
            Self::F32(data) => KvData::F32(data.into_array()),
            Self::Bf16(data) => KvData::Bf16(data.into_array()),
        };
        let SetShape { kv_heads, keys, head_dim, .. } = *shape;
        KvHeads { kv_heads, tokens: keys, head_dim, data }
    }
}

fn span<T: Pod + Send + Sync>(array: &OnDevice<T>) -> (Address, usize) {
    (Address(array.address()), array.len() * size_of::<T>())
}

/// Copies so many bytes from the device.
pub(crate) type ReadBytes<'a> = &'a dyn Fn(Address, &mut [u8]) -> Result<(), Fault>;

/// The elements of `array`, as `read` copies them.
fn read_with<T: Pod + Send + Sync>(
    array: &OnDevice<T>,
    read: ReadBytes<'_>,
) -> Result<Vec<T>, Fault> {
    let mut elements = vec![T::zeroed(); array.len()];
    read(Address(array.address()), bytemuck::cast_slice_mut(&mut elements))?;
    Ok(elements)
}

/// Leaves a copy of `set`'s lists on the host, as `read` copies them from `shared`'s device.
pub(crate) fn fetch_lists(
    shared: &Arc<Shared>,
    set: &MemorySet,
    read: ReadBytes<'_>,
) -> Result<(), BackendError> {
    fetch(shared, &set.keys.positions, read)?;
    fetch(shared, &set.score, read)?;
    fetch(shared, &set.votes, read)
}

fn fetch<T: Pod + Send + Sync>(
    shared: &Arc<Shared>,
    array: &Array<T>,
    read: ReadBytes<'_>,
) -> Result<(), BackendError> {
    match array.resident::<OnDevice<T>>() {
        _ if array.on_host().is_some() => {}
        Some(resident) if resident.is_on(shared) => {
            array.keep_on_host(read_with(&resident, read).map_err(|it| shared.fault(it))?);
        }
        _ => {
            array.host()?;
        }
    }
    Ok(())
}

/// Whether all arrays of `set` lie on `shared`'s device in order of position, so that nothing
/// has to be done before they can leave.
pub(crate) fn lies_ready(shared: &Arc<Shared>, set: &MemorySet) -> bool {
    fn is_here<T: Pod + Send + Sync>(shared: &Arc<Shared>, array: &Array<T>) -> bool {
        array.resident::<OnDevice<T>>().is_some_and(|it| it.is_on(shared))
    }
    let rows_here = |heads: &KvHeads| match &heads.data {
        KvData::F32(data) => is_here(shared, data),
        KvData::Bf16(data) => is_here(shared, data),
    };
    let keys = &set.keys;
    is_in_order(keys)
        && is_here(shared, &keys.positions)
        && is_here(shared, &set.score)
        && is_here(shared, &set.votes)
        && rows_here(&keys.k)
        && rows_here(&keys.v)
}

fn is_in_order(keys: &Keys) -> bool {
    keys.table.is_none() && keys.k.tokens == keys.len()
}

impl Placed {
    /// Room for a set that is to come.
    pub(crate) fn room(shared: &Arc<Shared>, shape: &SetShape) -> Result<Self, BackendError> {
        let count = shape.kv_heads * shape.keys;
        let rows = || Rows::room(shared, count * shape.head_dim, shape.kv);
        Ok(Self {
            positions: OnDevice::room(shared, count)?,
            score: OnDevice::room(shared, count)?,
            votes: OnDevice::room(shared, count)?,
            k: rows()?,
            v: rows()?,
        })
    }

    /// `set` where it lies, or a copy in order of position.
    pub(crate) fn of(cuda: &Cuda, set: &MemorySet) -> Result<Self, BackendError> {
        let in_order = cuda.in_order(set)?;
        let (shared, keys) = (&cuda.shared, &in_order.keys);
        Ok(Self {
            positions: shared.place(&keys.positions)?,
            score: shared.place(&in_order.score)?,
            votes: shared.place(&in_order.votes)?,
            k: Rows::of(shared, &keys.k)?,
            v: Rows::of(shared, &keys.v)?,
        })
    }

    /// What goes from device to device, in this order: address and bytes.
    pub(crate) fn spans(&self) -> impl Iterator<Item = (Address, usize)> {
        let lists = [span(&self.positions), span(&self.score), span(&self.votes)];
        let rows = [self.k.span(), self.v.span()];
        lists.into_iter().chain(rows).filter(|(_, bytes)| *bytes > 0)
    }

    /// The set, its positions, scores and votes on the host too, as `read` copies them.
    pub(crate) fn into_set(
        self,
        shape: &SetShape,
        read: ReadBytes<'_>,
    ) -> Result<MemorySet, Fault> {
        let on_host = read_with(&self.positions, read)?;
        let positions = Array::on_both(Arc::new(self.positions), on_host);
        let both = |list: OnDevice<f32>| {
            let on_host = read_with(&list, read)?;
            Ok::<_, Fault>(Array::on_both(Arc::new(list), on_host))
        };
        let (k, v) = (self.k.into_heads(shape), self.v.into_heads(shape));
        Ok(MemorySet {
            keys: Keys::new(positions, k, v),
            score: both(self.score)?,
            votes: both(self.votes)?,
            state: Array::default(),
            end: shape.end,
        })
    }
}

impl Cuda {
    /// The set without tables or cells to spare; gathered on the device where it must be.
    fn in_order(&self, set: &MemorySet) -> Result<MemorySet, BackendError> {
        let keys = &set.keys;
        if is_in_order(keys) {
            return Ok(set.clone());
        }
        let nothing = Keys::empty(keys.kv_heads(), keys.k.head_dim, keys.k.dtype());
        let ranking = Ranking { decay: 1.0, window: 0, age_normalised: false };
        let all = Selection { keep_all: true, sinks: 0, local: 0, heavy: 0, ranking, window: None };
        let no_masses = Array::default();
        let copy =
            self.select_keys(Arc::new(set.clone()), &nothing, (&no_masses, &no_masses), &all)?;
        Ok(copy.memory)
    }
}
