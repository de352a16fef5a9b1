//! Arrays that are written once, without zeros before.

use std::mem::MaybeUninit;

/// An array to be written.
pub(super) fn unwritten<T>(len: usize) -> Vec<MaybeUninit<T>> {
    let mut values = Vec::with_capacity(len);
    // SAFETY: there is room, and what need not be initialised may be anything.
    unsafe { values.set_len(len) };
    values
}

/// An array of which tasks wrote every element.
///
/// # Safety
/// They did.
pub(super) unsafe fn written<T>(values: Vec<MaybeUninit<T>>) -> Vec<T> {
    let mut values = std::mem::ManuallyDrop::new(values);
    // SAFETY: the vector's own parts; T and a T that may be anything are laid out alike, and
    // all of them were written.
    unsafe { Vec::from_raw_parts(values.as_mut_ptr().cast(), values.len(), values.capacity()) }
}
