//! Rows of sixteen, each a line of the cache.

use std::ops::{Deref, DerefMut};

use crate::cpu::simd::LANES;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line<T>([T; LANES]);

/// Rows of sixteen elements of four bytes that no read or write of a row tears apart.
#[derive(Clone)]
pub(super) struct Lines<T>(Vec<Line<T>>);

impl<T: Copy + Default> Lines<T> {
    /// `count` rows of zeros.
    pub(super) fn zeros(count: usize) -> Self {
        Self(vec![Line([T::default(); LANES]); count])
    }

    /// `count` rows, those that are new zeros.
    pub(super) fn resize(&mut self, count: usize) {
        self.0.resize(count, Line([T::default(); LANES]));
    }

    /// `count` rows of zeros.
    pub(super) fn reset(&mut self, count: usize) {
        self.0.clear();
        self.resize(count);
    }
}

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Deref for Lines<T> {
    type Target = [[T; LANES]];

    fn deref(&self) -> &Self::Target {
        const { assert!(size_of::<Line<T>>() == size_of::<[T; LANES]>()) };
        // SAFETY: a line is a row and nothing else, as the assertion says of its size.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len()) }
    }
}

impl<T> DerefMut for Lines<T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        const { assert!(size_of::<Line<T>>() == size_of::<[T; LANES]>()) };
        // SAFETY: as above; the borrow is as exclusive as that of `self`.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len()) }
    }
}
