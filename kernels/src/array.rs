//! Elements that lie on the host, on a device, or on both.
//!
//! What passes between operations is an [`Array`]. A backend whose memory is not the host's
//! leaves its results where they are; the first who reads one on the host copies it, once. So
//! every array can be read by everybody, and what only the device reads never leaves it.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

use crate::backend::BackendError;

/// Elements in a device's memory that never change again.
pub trait Resident<T>: Any + Send + Sync {
    /// Number of elements.
    fn count(&self) -> usize;

    /// Waits for the work that makes the elements and copies them to the host.
    ///
    /// # Errors
    /// [`BackendError::Device`] where that work or the copy failed, and
    /// [`BackendError::NotFinite`] where the work met broken weights.
    fn fetch(&self) -> Result<Vec<T>, BackendError>;
}

/// Elements, row-major, wherever they lie; reads like a slice.
///
/// Reading as a slice copies from the device where nobody did before, and panics when that
/// fails. Where a failing device must be an error, [`host`](Self::host) comes first.
#[derive(Clone)]
pub struct Array<T> {
    host: OnceLock<Vec<T>>,
    device: Option<Arc<dyn Resident<T>>>,
}

impl<T: Clone + 'static> Array<T> {
    /// Elements that lie on a device alone.
    pub fn on_device(elements: Arc<dyn Resident<T>>) -> Self {
        Self { host: OnceLock::new(), device: Some(elements) }
    }

    /// Elements that lie on a device, and the same on the host.
    pub(crate) fn on_both(elements: Arc<dyn Resident<T>>, host: Vec<T>) -> Self {
        Self { host: OnceLock::from(host), device: Some(elements) }
    }

    /// Leaves a copy on the host, which the caller has made of what lies on the device.
    pub(crate) fn keep_on_host(&self, host: Vec<T>) {
        debug_assert_eq!(host.len(), self.len(), "a copy of the same elements");
        self.host.get_or_init(|| host);
    }

    /// Number of elements; copies nothing.
    pub fn len(&self) -> usize {
        match (self.host.get(), &self.device) {
            (Some(host), _) => host.len(),
            (None, Some(device)) => device.count(),
            (None, None) => 0,
        }
    }

    /// Whether there is no element; copies nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the elements on the host; copies nothing.
    pub fn bytes(&self) -> usize {
        self.len() * size_of::<T>()
    }

    /// The elements on the host, copied there if they were not.
    ///
    /// # Errors
    /// What [`Resident::fetch`] says.
    pub fn host(&self) -> Result<&[T], BackendError> {
        if let Some(host) = self.host.get() {
            return Ok(host);
        }
        let fetched = match &self.device {
            Some(device) => device.fetch()?,
            None => Vec::new(),
        };
        Ok(self.host.get_or_init(|| fetched))
    }

    /// The elements where they are on the host already; copies nothing.
    pub fn on_host(&self) -> Option<&[T]> {
        match (self.host.get(), &self.device) {
            (Some(host), _) => Some(host),
            (None, Some(_)) => None,
            (None, None) => Some(&[]),
        }
    }

    /// The elements on a device whose form of them is `R`.
    pub fn resident<R: Resident<T>>(&self) -> Option<Arc<R>> {
        let device: Arc<dyn Any + Send + Sync> = self.device.clone()?;
        device.downcast().ok()
    }

    /// The same to read, for as long as the array is.
    pub(crate) fn as_resident<R: Resident<T>>(&self) -> Option<&R> {
        let device: &dyn Any = self.device.as_deref()?;
        device.downcast_ref()
    }

    /// The same to be changed: a clone of them where another array shares them. What was copied
    /// to the host is given up.
    pub(crate) fn make_resident_mut<R: Resident<T> + Clone>(&mut self) -> Option<&mut R> {
        self.as_resident::<R>()?;
        if Arc::get_mut(self.device.as_mut()?).is_none() {
            self.device = Some(Arc::new(self.as_resident::<R>()?.clone()));
        }
        self.host = OnceLock::new();
        self.sole_resident()
    }

    /// The same where no other array shares them.
    pub fn sole_resident<R: Resident<T>>(&mut self) -> Option<&mut R> {
        let device: &mut dyn Any = Arc::get_mut(self.device.as_mut()?)?;
        device.downcast_mut()
    }

    /// The elements on the host, to be changed; what lies on a device is given up.
    pub fn make_mut(&mut self) -> &mut Vec<T> {
        self.fetched();
        self.device = None;
        self.host.get_mut().expect("fetched above")
    }

    /// The elements, without a copy where they are on the host.
    pub fn into_vec(mut self) -> Vec<T> {
        self.fetched();
        self.host.take().expect("fetched above")
    }

    fn fetched(&self) -> &[T] {
        self.host().unwrap_or_else(|error| panic!("an array could not be read: {error}"))
    }
}

impl<T> Default for Array<T> {
    fn default() -> Self {
        Self::from(Vec::new())
    }
}

impl<T> From<Vec<T>> for Array<T> {
    fn from(elements: Vec<T>) -> Self {
        Self { host: OnceLock::from(elements), device: None }
    }
}

impl<T> FromIterator<T> for Array<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        Self::from(Vec::from_iter(elements))
    }
}

impl<T: Clone + 'static> Deref for Array<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.fetched()
    }
}

impl<T: Clone + 'static> DerefMut for Array<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.make_mut()
    }
}

impl<T: Clone + PartialEq + 'static> PartialEq for Array<T> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && **self == **other
    }
}

impl<T: Clone + PartialEq + 'static> PartialEq<Vec<T>> for Array<T> {
    fn eq(&self, other: &Vec<T>) -> bool {
        self.len() == other.len() && **self == **other
    }
}

impl<T: Clone + PartialEq + 'static, const N: usize> PartialEq<[T; N]> for Array<T> {
    fn eq(&self, other: &[T; N]) -> bool {
        self.len() == N && **self == *other
    }
}

impl<'a, T: Clone + 'static> IntoIterator for &'a Array<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: fmt::Debug> fmt::Debug for Array<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.get() {
            Some(host) => host.fmt(f),
            None => f.write_str("elsewhere"),
        }
    }
}

/// So many elements, of any kind, that a device failed to make.
#[cfg(test)]
pub(crate) struct Lost(pub(crate) usize);

#[cfg(test)]
impl<T> Resident<T> for Lost {
    fn count(&self) -> usize {
        self.0
    }

    fn fetch(&self) -> Result<Vec<T>, BackendError> {
        Err(BackendError::NotFinite { op: "test", what: "an element" })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Far away: counts how often it is copied, and may fail.
    struct Far {
        elements: Vec<u32>,
        copies: AtomicUsize,
        broken: bool,
    }

    impl Resident<u32> for Far {
        fn count(&self) -> usize {
            self.elements.len()
        }

        fn fetch(&self) -> Result<Vec<u32>, BackendError> {
            self.copies.fetch_add(1, Ordering::Relaxed);
            match self.broken {
                true => Err(BackendError::Device { device: "far".into(), what: "lost".into() }),
                false => Ok(self.elements.clone()),
            }
        }
    }

    fn far(elements: &[u32], broken: bool) -> (Arc<Far>, Array<u32>) {
        let far = Far { elements: elements.to_vec(), copies: AtomicUsize::new(0), broken };
        let far = Arc::new(far);
        (far.clone(), Array::on_device(far))
    }

    #[test]
    fn elements_come_to_the_host_once_and_only_when_they_are_read() {
        let (far, array) = far(&[3, 1, 4], false);
        assert_eq!((array.len(), array.bytes(), array.is_empty()), (3, 12, false));
        assert!(array.on_host().is_none());
        assert_eq!(far.copies.load(Ordering::Relaxed), 0);
        assert_eq!(array[1..], [1, 4]);
        assert_eq!(array.on_host(), Some(&[3, 1, 4][..]));
        assert_eq!(array.iter().sum::<u32>(), 8);
        assert_eq!(far.copies.load(Ordering::Relaxed), 1);
        assert!(Arc::ptr_eq(&array.resident::<Far>().unwrap(), &far), "still there");
    }

    #[test]
    fn what_is_changed_on_the_host_is_no_longer_what_the_device_has() {
        let (far, mut array) = far(&[3, 1, 4], false);
        let before = array.clone();
        array.make_mut().push(1);
        array[0] = 2;
        assert_eq!(array, [2, 1, 4, 1]);
        assert!(array.resident::<Far>().is_none());
        assert_eq!(before, far.elements);
        assert_eq!(array.into_vec(), [2, 1, 4, 1]);
    }

    #[test]
    fn who_shares_elements_has_them_not_alone() {
        let (far, mut array) = far(&[3, 1, 4], false);
        assert!(array.on_host().is_none());
        assert!(array.sole_resident::<Far>().is_none(), "the test holds them too");
        drop(far);
        assert!(array.sole_resident::<Far>().is_some());
        let mut other = array.clone();
        assert!(other.sole_resident::<Far>().is_none() && array.sole_resident::<Far>().is_none());
        assert_eq!(array[..], [3, 1, 4]);
        assert_eq!(array.on_host(), Some(&[3, 1, 4][..]));
        assert_eq!(Array::<u32>::default().on_host(), Some(&[][..]));
    }

    #[test]
    fn a_lost_device_is_an_error_where_it_is_asked_for() {
        let (_, array) = far(&[1], true);
        assert!(matches!(array.host(), Err(BackendError::Device { .. })));
        let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| array[0]));
        let text = *read.unwrap_err().downcast::<String>().unwrap();
        assert!(text.contains("far: lost"), "{text}");
    }

    #[test]
    fn no_elements() {
        let array = Array::<f32>::default();
        assert!(array.is_empty() && array.host().unwrap().is_empty());
        assert_eq!(array, []);
    }
}
