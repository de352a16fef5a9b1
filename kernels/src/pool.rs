//! Pages of cells: where remembered keys and values lie, within bytes that are fixed at start.
//!
//! A [`Pool`] reserves addresses for all of its pages when it is made; the system gives memory
//! to a page when it is first written. Whoever takes a [`Page`] holds it like an `Arc`: a clone
//! shares it, a page that is shared cannot be changed, and the last holder gives it back. So
//! eviction, a finished request and a lost one all free pages in the same way, and what is in
//! use is always known exactly.

mod paged;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::Pod;
use memmap2::{MmapOptions, MmapRaw};

pub(crate) use self::paged::Paged;
use crate::backend::BackendError;
use crate::tensor::KvDtype;

/// Cells of a page: rows of keys, or of values, of one KV head.
///
/// Few enough that half a page, which a set leaves unused in each KV head on average, is little
/// beside hundreds of keys; many enough that handles and tables are little beside rows.
pub const PAGE_CELLS: usize = 16;

/// A fixed number of pages. Clones are the same pool.
#[derive(Clone)]
pub struct Pool(Arc<Slab>);

/// What a pool has and what is in use of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolUsage {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Pages there are.
    pub pages: u64,
    /// Pages that somebody holds.
    pub used_pages: u64,
    /// Most that were ever held at once.
    pub peak_pages: u64,
}

impl PoolUsage {
    /// Bytes of all pages.
    pub fn bytes(&self) -> u64 {
        self.pages * self.page_bytes
    }

    /// Bytes of the pages that somebody holds.
    pub fn used_bytes(&self) -> u64 {
        self.used_pages * self.page_bytes
    }
}

/// All pages, side by side, and which of them are free.
struct Slab {
    map: MmapRaw,
    page_bytes: usize,
    pages: usize,
    free: Mutex<Free>,
}

/// Pages that nobody holds.
#[derive(Default)]
struct Free {
    /// Held before; the last one that was given back is the first one taken again, as it is
    /// the likeliest to be in a cache.
    returned: Vec<usize>,
    /// Pages from here on were never taken.
    untouched: usize,
    used: usize,
    peak: usize,
}

impl Slab {
    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    /// As many pages as fit into `bytes`, for rows of `head_dim` elements of `dtype`.
    ///
    /// # Errors
    /// [`BackendError::Exhausted`] where not one page fits, [`BackendError::Device`] where the
    /// system has no addresses for so many.
    pub fn new(head_dim: usize, dtype: KvDtype, bytes: u64) -> Result<Self, BackendError> {
        let page_bytes = page_bytes(head_dim, dtype);
        let pages = usize::try_from(bytes).unwrap_or(usize::MAX) / page_bytes.max(1);
        if page_bytes == 0 || pages == 0 {
            let wanted_bytes = page_bytes as u64;
            return Err(BackendError::Exhausted { wanted_bytes, free_bytes: bytes, bytes });
        }
        let map = MmapOptions::new().len(pages * page_bytes).no_reserve_swap().map_anon();
        let map = map.map_err(|source| BackendError::Device {
            device: "memory".into(),
            what: format!("no addresses for a pool of {bytes} bytes: {source}"),
        })?;
        Ok(Self(Arc::new(Slab { map: map.into(), page_bytes, pages, free: Mutex::default() })))
    }

    /// Takes `count` pages, or none where there are not so many. What was in them is still there.
    ///
    /// # Errors
    /// [`BackendError::Exhausted`]: too few are free.
    pub fn take(&self, count: usize) -> Result<Vec<Page>, BackendError> {
        let mut free = self.0.free();
        if count > self.0.pages - free.used {
            let bytes_of = |pages: usize| pages as u64 * self.0.page_bytes as u64;
            return Err(BackendError::Exhausted {
                wanted_bytes: bytes_of(count),
                free_bytes: bytes_of(self.0.pages - free.used),
                bytes: bytes_of(self.0.pages),
            });
        }
        free.used += count;
        free.peak = free.peak.max(free.used);
        let mut next = || {
            free.returned.pop().unwrap_or_else(|| {
                free.untouched += 1;
                free.untouched - 1
            })
        };
        Ok((0..count).map(|_| Page::new(self.clone(), next())).collect())
    }

    /// What there is and what is in use.
    pub fn usage(&self) -> PoolUsage {
        let free = self.0.free();
        PoolUsage {
            page_bytes: self.0.page_bytes as u64,
            pages: self.0.pages as u64,
            used_pages: free.used as u64,
            peak_pages: free.peak as u64,
        }
    }

    /// Whether `other` is the same pool.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.usage().fmt(f)
    }
}

/// Bytes of a page for rows of `head_dim` elements of `dtype`.
pub fn page_bytes(head_dim: usize, dtype: KvDtype) -> usize {
    PAGE_CELLS * head_dim * dtype.bytes()
}

/// One page of a [`Pool`]. A clone shares it; the last one that is dropped gives it back.
#[derive(Clone)]
pub struct Page {
    lease: Arc<Lease>,
    /// Where the page lies; kept beside the lease because every row that is read asks for it.
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a page is a part of the slab that its lease alone names, and the lease (with the slab
// behind it) may go to other threads. What is shared is only read, and what is changed is
// reached through `&mut` to the only page of the lease.
unsafe impl Send for Page {}
// SAFETY: as above; `&Page` only reads.
unsafe impl Sync for Page {}

/// The right to use page `idx`. There is one lease for every page in use.
struct Lease {
    pool: Pool,
    idx: usize,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut free = self.pool.0.free();
        free.used -= 1;
        free.returned.push(self.idx);
    }
}

impl Page {
    /// Page `idx` of `pool`, which nobody else has.
    fn new(pool: Pool, idx: usize) -> Self {
        let bytes = pool.0.page_bytes;
        debug_assert!(idx < pool.0.pages, "pages are counted before they are taken");
        let start = pool.0.map.as_mut_ptr().wrapping_add(idx * bytes);
        let start = NonNull::new(start).expect("no map begins at address zero");
        Self { lease: Arc::new(Lease { pool, idx }), start, bytes }
    }

    /// All elements.
    #[inline(always)]
    pub fn elements<T: Pod>(&self) -> &[T] {
        const { assert!(align_of::<T>() <= PAGE_CELLS && size_of::<T>() > 0) };
        // SAFETY: the `bytes` from `start` on are one page of the slab, which the lease keeps
        // mapped and which is initialised: the system hands out zeros, and any bytes are a `Pod`.
        // The map begins at a page of the system and every page of ours is a multiple of
        // `PAGE_CELLS` bytes, so `start` is aligned. Nobody changes the page meanwhile: that takes
        // `&mut` to the only `Page` of the lease, and this one is borrowed.
        unsafe {
            std::slice::from_raw_parts(self.start.as_ptr().cast(), self.bytes / size_of::<T>())
        }
    }

    /// All elements, to be changed; `None` where the page is shared.
    #[inline]
    pub fn elements_mut<T: Pod>(&mut self) -> Option<&mut [T]> {
        const { assert!(align_of::<T>() <= PAGE_CELLS && size_of::<T>() > 0) };
        // `Arc::get_mut` would tell the same, but locks: behind every row that is written it waits
        // until all rows before it have reached the cache.
        if self.is_shared() {
            return None;
        }
        fence(Ordering::Acquire); // with the drop of the last other one, which releases
        // SAFETY: as in `elements`; and this is the only `Page` of the only lease of these bytes
        // (which has no weak references), borrowed mutably, so nothing else refers to them or can
        // begin to. What others did with them before they dropped their clones is over: the fence.
        Some(unsafe {
            std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.bytes / size_of::<T>())
        })
    }

    /// Whether somebody else holds it too.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.lease) > 1
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {}", self.lease.idx)
    }
}
