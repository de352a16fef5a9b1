//! An allocator that lets large arrays begin at a line of the cache.

use std::alloc::{GlobalAlloc, Layout};

#[cfg(target_os = "linux")]
use super::MAPPED_BYTES;

/// Bytes of a line of the cache.
const LINE_BYTES: usize = 64;
/// Bytes from which on an array is large.
const LARGE_BYTES: usize = 4096;
/// What `malloc` aligns to on every system of 64 bits.
const MALLOC_ALIGN: usize = 16;

/// The C library's allocator, but large arrays begin at a line of the cache, unless they are
/// asked for as zeros (which the system has at no cost) or have grown, and those that are mapped
/// for themselves ask for huge pages.
///
/// Elsewhere every vector of sixteen f32 crosses a line, and threads that write neighbouring
/// columns share one in each row: products of 512 rows took up to 1.3 times as long. For binaries,
/// as their `#[global_allocator]`; results do not depend on it.
pub struct LineAligned;

/// The alignment that a block of this layout is asked for with.
fn alignment(layout: Layout) -> usize {
    match layout.size() {
        LARGE_BYTES.. => layout.align().max(LINE_BYTES),
        _ => layout.align(),
    }
}

/// # Safety
/// The size is not zero.
unsafe fn allocate(size: usize, align: usize) -> *mut u8 {
    let mut block = std::ptr::null_mut();
    // SAFETY: the size is the caller's; the alignment is a power of two and, where it is handed
    // on, at least a pointer's size.
    unsafe {
        if align <= MALLOC_ALIGN {
            return libc::malloc(size).cast();
        }
        match libc::posix_memalign(&mut block, align, size) {
            0 => block.cast(),
            _ => std::ptr::null_mut(),
        }
    }
}

/// Asks the system for huge pages in a block, which it may refuse: a result of 50 MB is mapped
/// anew each time, and 12,000 small pages cost a third of the product that writes them.
///
/// # Safety
/// The block has so many bytes.
#[cfg(target_os = "linux")]
unsafe fn advise(block: *mut u8, size: usize) {
    const PAGE_BYTES: usize = 4096;
    let first = block.addr().next_multiple_of(PAGE_BYTES) - block.addr();
    let whole = (size - first) / PAGE_BYTES * PAGE_BYTES;
    // SAFETY: pages of the block alone; the advice changes no byte.
    unsafe { libc::madvise(block.add(first).cast(), whole, libc::MADV_HUGEPAGE) };
}

// SAFETY: blocks are of the size and at least of the alignment that are asked for, all of them
// may be given to `free`, and null says that there is no memory.
unsafe impl GlobalAlloc for LineAligned {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's; the block has the size that it was asked for with.
        unsafe {
            let block = allocate(layout.size(), alignment(layout));
            #[cfg(target_os = "linux")]
            if layout.size() >= MAPPED_BYTES && !block.is_null() {
                advise(block, layout.size());
            }
            block
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_blocks_begin_at_a_line() {
        for size in [LARGE_BYTES - 1, LARGE_BYTES, 100_000, 40 << 20] {
            for align in [1, 4, 16, 32, 256] {
                let layout = Layout::from_size_align(size, align).unwrap();
                // SAFETY: the size is not zero; the block is given back once, with its layout.
                unsafe {
                    let block = LineAligned.alloc(layout);
                    let least = if size < LARGE_BYTES { align } else { align.max(LINE_BYTES) };
                    assert!(block.addr().is_multiple_of(least), "{size} bytes at {block:?}");
                    LineAligned.dealloc(block, layout);
                }
            }
        }
    }

    #[test]
    fn blocks_keep_their_bytes_when_they_grow_or_shrink() {
        let sizes = [1, 100, LARGE_BYTES - 1, LARGE_BYTES, 100_000, 40 << 20, 5000, 17];
        for align in [1, 16, 64, 256] {
            let layout = |size| Layout::from_size_align(size, align).unwrap();
            // SAFETY: as above; bytes are written before they are read.
            unsafe {
                let mut size = 5;
                let mut block = LineAligned.alloc_zeroed(layout(size));
                assert_eq!(std::slice::from_raw_parts(block, size), [0; 5]);
                for next in sizes {
                    block.write_bytes(next as u8, size);
                    block = LineAligned.realloc(block, layout(size), next);
                    assert!(block.addr().is_multiple_of(align), "{next} bytes at {block:?}");
                    let kept = std::slice::from_raw_parts(block, size.min(next));
                    assert!(kept.iter().all(|&byte| byte == next as u8), "{size} to {next}");
                    size = next;
                }
                LineAligned.dealloc(block, layout(size));
            }
        }
    }
}
