//! Host arrays that operations ask for again and again, and that the device therefore has.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use super::Shared;
use super::resident::OnDevice;
use crate::backend::BackendError;

/// An array and its copy on the device.
type Copied = (Arc<[f32]>, OnDevice<f32>);

/// The last arrays that were asked for, with their copies on the device. An array is known by
/// where it lies, which nobody else can while it is held here.
pub(crate) struct Kept {
    limit: usize,
    arrays: Mutex<VecDeque<Copied>>,
}

impl Kept {
    /// At most `limit` arrays.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, arrays: Mutex::default() }
    }

    /// `array` on the device, copied there unless it was.
    pub(crate) fn on_device(
        &self,
        shared: &Arc<Shared>,
        array: &Arc<[f32]>,
    ) -> Result<OnDevice<f32>, BackendError> {
        let mut arrays = self.arrays.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, copy)) = arrays.iter().find(|(host, _)| Arc::ptr_eq(host, array)) {
            return Ok(copy.clone());
        }
        let copy = OnDevice::of(shared, array)?;
        if arrays.len() == self.limit {
            arrays.pop_front();
        }
        arrays.push_back((array.clone(), copy.clone()));
        Ok(copy)
    }
}
