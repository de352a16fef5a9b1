//! Large arrays: the C library's.

use std::alloc::{GlobalAlloc, Layout};

use super::LINE_BYTES;

/// Bytes from which on an array is mapped for itself: the most that glibc takes.
pub(super) const MAPPED_BYTES: usize = 32 << 20;
/// What `malloc` aligns to on every system of 64 bits.
const MALLOC_ALIGN: usize = 16;

/// The C library's allocator, but blocks begin at a line of the cache and ask for huge pages,
/// unless they are asked for as zeros (which the system has at no cost) or have grown.
pub(super) struct Large;

/// # Safety
/// The size is not zero.
unsafe fn allocate(size: usize, align: usize) -> *mut u8 {
    let mut block = std::ptr::null_mut();
    // SAFETY: the size is the caller's; the alignment is a power of two and more than a pointer's
    // size.
    match unsafe { libc::posix_memalign(&mut block, align.max(LINE_BYTES), size) } {
        0 => block.cast(),
        _ => std::ptr::null_mut(),
    }
}

/// Asks the system for huge pages where a block is, which it may refuse. Rows that many products
/// read then lie in one piece, and nothing of them falls out of a cache that has room for them: a
/// prefill takes 5 % less. A result of 50 MB is mapped anew each time, and 12,000 small pages cost
/// a third of the product that writes them.
#[cfg(target_os = "linux")]
fn advise(block: *mut u8, size: usize) {
    const HUGE_BYTES: usize = 2 << 20;
    if block.is_null() {
        return;
    }
    let first = block.map_addr(|addr| addr & !(HUGE_BYTES - 1));
    let whole = (block.addr() + size - first.addr()).next_multiple_of(HUGE_BYTES);
    // SAFETY: the advice changes no byte, neither of the block nor of what lies in the same huge
    // pages; where nothing does the system says so, and nobody minds.
    unsafe { libc::madvise(first.cast(), whole, libc::MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn advise(_: *mut u8, _: usize) {}

// SAFETY: blocks are of the size and at least of the alignment that are asked for, all of them
// may be given to `free`, and null says that there is no memory.
unsafe impl GlobalAlloc for Large {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        let block = unsafe { allocate(layout.size(), layout.align()) };
        advise(block, layout.size());
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's; a block that is there has room for the zeros.
        unsafe {
            if layout.align() <= MALLOC_ALIGN {
                return libc::calloc(layout.size(), 1).cast();
            }
            let block = allocate(layout.size(), layout.align());
            if !block.is_null() {
                block.write_bytes(0, layout.size());
            }
            block
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: the caller's: the block is one of this allocator's.
        unsafe { libc::free(block.cast()) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's; a new block has room for what is copied.
        unsafe {
            if layout.align() <= MALLOC_ALIGN {
                return libc::realloc(block.cast(), size).cast();
            }
            let moved = allocate(size, layout.align());
            if !moved.is_null() {
                std::ptr::copy_nonoverlapping(block, moved, size.min(layout.size()));
                libc::free(block.cast());
            }
            moved
        }
    }
}
