//! Arrays in huge pages, where the system has them: a weight is read from end to end for every
//! token, and a small page ends the processor's own reading ahead every 4 KiB.

use std::alloc::{Layout, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::Pod;
use memmap2::MmapMut;

/// A huge page.
const PAGE_BYTES: usize = 2 << 20;

/// `[len]` of T.
pub(in crate::cpu) struct HugeArray<T> {
    map: MmapMut,
    /// Of the first element: a huge page begins there.
    offset: usize,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Pod> HugeArray<T> {
    /// All zero.
    pub(super) fn zeroed(len: usize) -> Self {
        let bytes = len * size_of::<T>();
        // The system may put the map anywhere: room to begin at a huge page.
        let room = if bytes < PAGE_BYTES { bytes } else { bytes + PAGE_BYTES };
        let Ok(map) = MmapMut::map_anon(room) else {
            handle_alloc_error(Layout::array::<T>(len).expect("less than all memory"));
        };
        let offset = match room - bytes {
            0 => 0,
            _ => map.as_ptr().addr().wrapping_neg() % PAGE_BYTES,
        };
        #[cfg(target_os = "linux")]
        map.advise(memmap2::Advice::HugePage).ok(); // a system without them works as well
        Self { map, offset, len, elements: PhantomData }
    }
}

impl<T: Pod> Deref for HugeArray<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&self.map[self.offset..][..self.len * size_of::<T>()])
    }
}

impl<T: Pod> DerefMut for HugeArray<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.map[self.offset..][..self.len * size_of::<T>()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_of_all_sizes_are_zero_and_can_be_written() {
        for len in [0, 1, 1000, PAGE_BYTES / 4, PAGE_BYTES / 4 + 1] {
            let mut array = HugeArray::<u32>::zeroed(len);
            assert!(array.len() == len && array.iter().all(|&x| x == 0));
            array.fill(7);
            assert!(array.iter().all(|&x| x == 7));
            assert!(len < PAGE_BYTES / 4 || array.as_ptr().addr().is_multiple_of(PAGE_BYTES));
        }
    }
}
