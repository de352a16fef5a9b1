//! Arrays in a device's memory.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;
use half::bf16;

use super::Shared;
use super::device::{Address, Fault, Shortage};
use super::selection::held::Held;
use crate::array::{Array, Resident};
use crate::backend::BackendError;

/// Memory of a device, given back when the last who has it lets go of it.
pub(crate) struct Buffer {
    shared: Arc<Shared>,
    at: Address,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.shared.device.release(self.at);
    }
}

/// `len` elements of T in a device's memory.
#[derive(Clone)]
pub(crate) struct OnDevice<T> {
    buffer: Arc<Buffer>,
    len: usize,
    within: Option<Range<T>>,
    held: Option<Held>,
}

impl<T: Pod + Send + Sync> OnDevice<T> {
    /// Room for `len` elements, whatever was there before.
    pub(crate) fn room(shared: &Arc<Shared>, len: usize) -> Result<Self, BackendError> {
        let at = shared.device.allocate(len * size_of::<T>()).map_err(|it| shared.fault(it))?;
        if shared.options.checked {
            let poison = vec![0xff; len * size_of::<T>()]; // NaN, and positions beyond all
            shared.device.write(at, &poison).map_err(|it| shared.fault(it))?;
        }
        let buffer = Arc::new(Buffer { shared: shared.clone(), at });
        Ok(Self { buffer, len, within: None, held: None })
    }

    /// Says what the host knows of the elements without reading them: all lie in this range.
    ///
    /// Positions of own keys lie in `start..start + tokens`, those of a memory set in `0..end`:
    /// by that, attention knows the keys that need no mask.
    pub(crate) fn known_within(mut self, within: Range<T>) -> Self {
        self.within = Some(within);
        self
    }

    /// What [`known_within`](Self::known_within) was told.
    pub(crate) fn within(&self) -> Option<&Range<T>> {
        self.within.as_ref()
    }

    /// A copy of `elements`.
    pub(crate) fn of(shared: &Arc<Shared>, elements: &[T]) -> Result<Self, BackendError> {
        let room = Self::room(shared, elements.len())?;
        let bytes = bytemuck::cast_slice(elements);
        shared.device.write(room.buffer.at, bytes).map_err(|it| shared.fault(it))?;
        Ok(room)
    }

    /// Whether it lies on this device.
    pub(crate) fn is_on(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.buffer.shared, shared)
    }

    /// Says what else is known of elements that are the positions of a memory set. It lives and
    /// dies with them, so nobody can change them and keep it.
    pub(crate) fn known_held(self, held: Held) -> Self {
        Self { held: Some(held), ..self }
    }

    /// What [`known_held`](Self::known_held) was told.
    pub(crate) fn held(&self) -> Option<Held> {
        self.held
    }

    /// Whether they are on `shared`'s device and nobody else has them.
    pub(crate) fn is_sole(&mut self, shared: &Arc<Shared>) -> bool {
        self.is_on(shared) && Arc::get_mut(&mut self.buffer).is_some()
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Of the first element, as kernels take it.
    pub(crate) fn address(&self) -> u64 {
        self.buffer.at.0
    }

    /// The elements, copied to the host.
    pub(crate) fn read(&self) -> Result<Vec<T>, BackendError> {
        let shared = &self.buffer.shared;
        let mut elements = vec![T::zeroed(); self.len];
        let bytes = bytemuck::cast_slice_mut(&mut elements);
        shared.read(self.buffer.at, bytes)?;
        Ok(elements)
    }

    /// As what passes between operations.
    pub(crate) fn into_array(self) -> Array<T> {
        Array::on_device(Arc::new(self))
    }
}

impl<T: Pod + Send + Sync> Resident<T> for OnDevice<T> {
    fn count(&self) -> usize {
        self.len
    }

    fn fetch(&self) -> Result<Vec<T>, BackendError> {
        self.read()
    }
}

/// f32 that the device keeps as bf16, because nothing there asks for more of them.
pub(crate) struct Rounded(pub(crate) OnDevice<bf16>);

impl Resident<f32> for Rounded {
    fn count(&self) -> usize {
        self.0.len
    }

    fn fetch(&self) -> Result<Vec<f32>, BackendError> {
        Ok(self.0.read()?.into_iter().map(bf16::to_f32).collect())
    }
}

impl Shared {
    /// `array` on this device: where it lies, or a copy.
    pub(crate) fn place<T: Pod + Send + Sync>(
        self: &Arc<Self>,
        array: &Array<T>,
    ) -> Result<OnDevice<T>, BackendError> {
        if let Some(resident) = array.resident::<OnDevice<T>>()
            && resident.is_on(self)
        {
            return Ok((*resident).clone());
        }
        OnDevice::of(self, array.host()?)
    }

    /// A fault as callers of operations see it.
    pub(crate) fn fault(&self, fault: Fault) -> BackendError {
        if let Some(Shortage { wanted_bytes, free_bytes, bytes }) = fault.shortage {
            return BackendError::Exhausted {
                wanted_bytes: wanted_bytes as u64,
                free_bytes: free_bytes as u64,
                bytes: bytes as u64,
            };
        }
        let device = self.device.properties().name.clone();
        BackendError::Device { device, what: fault.to_string() }
    }
}
