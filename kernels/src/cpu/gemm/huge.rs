//! Arrays in huge pages, where the system has them: a weight is read from end to end for every
//! token, and a small page ends the processor's own reading ahead every 4 KiB.

use std::alloc::{Layout, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytemuck::Pod;
use memmap2::{MmapMut, MmapRaw};

/// A huge page.
const PAGE_BYTES: usize = 2 << 20;
/// Arrays of fewer bytes lie one behind the other in maps that they share: the system gives whole
/// pages, and a model of experts has tens of thousands of arrays of one or two.
const SHARED_BYTES_MAX: usize = 16 << 20;
/// Bytes of such a map, of which nothing is taken before it is written.
const MAP_BYTES: usize = 64 << 20;
/// Where arrays begin in it: a line of the caches.
const ALIGNMENT: usize = 64;

/// The map that arrays are put into now.
static OPEN: Mutex<Open> = Mutex::new(Open { map: Weak::new(), used: 0 });

struct Open {
    map: Weak<MmapRaw>,
    /// Bytes that belong to arrays already, also to those that are gone: they are not zero.
    used: usize,
}

impl Open {
    /// Room for so many bytes that nobody has written to, and where it begins.
    fn room(&mut self, bytes: usize) -> (Arc<MmapRaw>, usize) {
        let open = self.map.upgrade().filter(|map| bytes <= map.len() - self.used);
        let map = open.unwrap_or_else(|| {
            let map = Arc::new(zero_pages(MAP_BYTES));
            (self.map, self.used) = (Arc::downgrade(&map), 0);
            map
        });
        let offset = self.used;
        self.used = (offset + bytes).next_multiple_of(ALIGNMENT);
        (map, offset)
    }
}

/// A map of so many bytes, in huge pages where the system has them.
fn zero_pages(bytes: usize) -> MmapRaw {
    let Ok(map) = MmapMut::map_anon(bytes) else {
        handle_alloc_error(Layout::array::<u8>(bytes).expect("less than all memory"));
    };
    #[cfg(target_os = "linux")]
    map.advise(memmap2::Advice::HugePage).ok(); // a system without them works as well
    map.into()
}

/// `[len]` of T.
pub(in crate::cpu) struct HugeArray<T> {
    map: Arc<MmapRaw>,
    /// Of the first element.
    offset: usize,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Pod> HugeArray<T> {
    /// All zero.
    pub(super) fn zeroed(len: usize) -> Self {
        const { assert!(align_of::<T>() <= ALIGNMENT) };
        let bytes = len.checked_mul(size_of::<T>()).expect("less than all memory");
        let (map, offset) = if bytes < SHARED_BYTES_MAX {
            OPEN.lock().unwrap_or_else(PoisonError::into_inner).room(bytes)
        } else {
            // The system may put the map anywhere: room to begin at a huge page.
            let map = zero_pages(bytes + PAGE_BYTES);
            let offset = map.as_ptr().addr().wrapping_neg() % PAGE_BYTES;
            (Arc::new(map), offset)
        };
        assert!(offset + bytes <= map.len(), "the room that was asked for");
        Self { map, offset, len, elements: PhantomData }
    }
}

impl<T: Pod> Deref for HugeArray<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: so many elements lie in the map from here on, as `zeroed` has seen; no other
        // array has a part of them, for `room` gives no byte twice; any bits are a T, which begins
        // at a multiple of its alignment.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(self.offset).cast(), self.len) }
    }
}

impl<T: Pod> DerefMut for HugeArray<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; and whoever has this array has it alone.
        unsafe {
            std::slice::from_raw_parts_mut(self.map.as_mut_ptr().add(self.offset).cast(), self.len)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_of_all_sizes_are_zero_and_can_be_written() {
        const MOST: usize = SHARED_BYTES_MAX / 4;
        let check = |len: usize, value: u32| {
            let mut array = HugeArray::<u32>::zeroed(len);
            assert!(array.len() == len && array.iter().all(|&x| x == 0), "{len}");
            array.fill(value);
            assert!(array.as_ptr().addr().is_multiple_of(ALIGNMENT));
            assert!(len < MOST || array.as_ptr().addr().is_multiple_of(PAGE_BYTES));
            (array, value)
        };
        let lens = [0, 1, 1000, PAGE_BYTES / 4, MOST - 1, MOST - 1, MOST, 3, MOST - 1, MOST - 1, 5];
        let arrays: Vec<_> = lens.iter().zip(1..).map(|(&len, value)| check(len, value)).collect();
        for (array, value) in &arrays {
            assert!(array.iter().all(|x| x == value), "no array writes into another");
        }
        drop(arrays);
        check(MOST - 1, 7); // whoever lay there before
    }
}
