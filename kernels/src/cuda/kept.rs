//! Host arrays that operations ask for again and again, and that the device therefore has.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use super::Shared;
use super::resident::OnDevice;
use crate::backend::BackendError;

/// An array and its copy on the device.
type Copied = (Arc<[f32]>, OnDevice<f32>);

/// The last arrays that were asked for, with their copies on the device. An array that callers
/// share is known by where it lies, which nobody else can while it is held here.
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
        self.find_or_copy(shared, |host| Arc::ptr_eq(host, array), || array.clone())
    }

    /// The same of one that may not be there.
    pub(crate) fn each_on_device(
        &self,
        shared: &Arc<Shared>,
        array: &Option<Arc<[f32]>>,
    ) -> Result<Option<OnDevice<f32>>, BackendError> {
        array.as_ref().map(|array| self.on_device(shared, array)).transpose()
    }

    /// The same where callers have the elements, and no array that they share.
    pub(crate) fn equal_on_device(
        &self,
        shared: &Arc<Shared>,
        elements: &[f32],
    ) -> Result<OnDevice<f32>, BackendError> {
        self.find_or_copy(shared, |host| **host == *elements, || elements.into())
    }

    fn find_or_copy(
        &self,
        shared: &Arc<Shared>,
        is_it: impl Fn(&Arc<[f32]>) -> bool,
        array: impl FnOnce() -> Arc<[f32]>,
    ) -> Result<OnDevice<f32>, BackendError> {
        let mut arrays = self.arrays.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, copy)) = arrays.iter().find(|(host, _)| is_it(host)) {
            return Ok(copy.clone());
        }
        let array = array();
        let copy = OnDevice::of(shared, &array)?;
        if arrays.len() == self.limit {
            arrays.pop_front();
        }
        arrays.push_back((array, copy.clone()));
        Ok(copy)
    }
}
