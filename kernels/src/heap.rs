//! The allocator of our binaries.

mod large;

use std::alloc::{GlobalAlloc, Layout};

use self::large::Large;

/// Bytes of a line of the cache.
const LINE_BYTES: usize = 64;
/// Bytes from which on an array is not tiny.
const ALIGNED_BYTES: usize = 4096;
/// Bytes from which on an array is large.
const LARGE_BYTES: usize = 1 << 20;

/// What decides whose a block is and where it begins.
#[derive(PartialEq)]
enum Class {
    Tiny,
    Small,
    Large,
}

impl Class {
    /// Of blocks of so many bytes.
    fn of(size: usize) -> Self {
        match size {
            LARGE_BYTES.. => Self::Large,
            ALIGNED_BYTES.. => Self::Small,
            _ => Self::Tiny,
        }
    }
}

/// Lets the process keep what it frees of large arrays, up to 512 MiB, instead of returning it to
/// the system.
///
/// A layer's activations are tens of megabytes that live for milliseconds. By default they are
/// mapped anew each time, and the system clears every page again: a twentieth of a prefill.
/// For binaries, before anything else: it holds for the whole process. Does nothing where the
/// C library is not glibc.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const KEPT_BYTES: i32 = 512 << 20;
        // SAFETY: the two calls set numbers of the allocator; refused numbers change nothing.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, large::MAPPED_BYTES as i32);
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
        }
    }
}

/// `A` for small arrays, the C library for large ones, from 1 MiB on. From 4 KiB on an array begins
/// at a line of the cache, unless it is large and asked for as zeros, or has grown.
///
/// Elsewhere every vector of sixteen f32 crosses a line, and threads that write neighbouring
/// columns share one in each row: products of 512 rows took up to 1.3 times as long.
///
/// `A` is to find aligned blocks as fast as others. A decode step asks for many, and glibc (2.36)
/// cuts each out of a larger one, then looks through what is left of all those the next time: 10 us
/// for some of them, 3 to 4 % of a step. Of large blocks it keeps as much as it is told to, where
/// an allocator that is made for small ones returns them page by page: with mimalloc for all, the
/// system cleared pages for a tenth of a prefill of 8,192 tokens.
///
/// For binaries, as their `#[global_allocator]`; results do not depend on it.
pub struct Heap<A>(pub A);

impl<A: GlobalAlloc> Heap<A> {
    /// Whose blocks of this layout are, and the layout that they are asked for with.
    fn owner(&self, layout: Layout) -> (&dyn GlobalAlloc, Layout) {
        match Class::of(layout.size()) {
            Class::Large => (&Large, layout),
            Class::Small => (&self.0, layout.align_to(LINE_BYTES).unwrap_or(layout)),
            Class::Tiny => (&self.0, layout),
        }
    }
}

// SAFETY: whose a block is, and the layout that it is asked for with, which is at least as strict
// as the caller's, depend on the caller's layout alone; so it goes back to its owner with the
// layout that the owner knows.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Heap<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (owner, layout) = self.owner(layout);
        // SAFETY: the caller's.
        unsafe { owner.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (owner, layout) = self.owner(layout);
        // SAFETY: the caller's.
        unsafe { owner.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let (owner, layout) = self.owner(layout);
        // SAFETY: the caller's; the owner gave the block for this layout.
        unsafe { owner.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if Class::of(size) == Class::of(layout.size()) {
            let (owner, layout) = self.owner(layout);
            // SAFETY: the caller's; the owner gave the block for this layout.
            return unsafe { owner.realloc(block, layout, size) };
        }
        // SAFETY: the size is not zero and does not overflow with this alignment: the caller's. A
        // new block has room for what is copied; the old one is given back once.
        unsafe {
            let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !moved.is_null() {
                std::ptr::copy_nonoverlapping(block, moved, size.min(layout.size()));
                self.dealloc(block, layout);
            }
            moved
        }
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::System;

    use super::*;

    const HEAP: Heap<System> = Heap(System);

    #[test]
    fn all_but_tiny_blocks_begin_at_a_line() {
        for size in [ALIGNED_BYTES - 1, ALIGNED_BYTES, LARGE_BYTES - 1, LARGE_BYTES, 40 << 20] {
            for align in [1, 4, 16, 32, 256] {
                let layout = Layout::from_size_align(size, align).unwrap();
                // SAFETY: the size is not zero; the blocks are given back once, with their layout.
                unsafe {
                    let block = HEAP.alloc(layout);
                    let least = if size < ALIGNED_BYTES { align } else { align.max(LINE_BYTES) };
                    assert!(block.addr().is_multiple_of(least), "{size} bytes at {block:?}");
                    HEAP.dealloc(block, layout);
                    let zeros = HEAP.alloc_zeroed(layout);
                    assert!(zeros.addr().is_multiple_of(align), "{size} bytes at {zeros:?}");
                    assert!(std::slice::from_raw_parts(zeros, size).iter().all(|&x| x == 0));
                    HEAP.dealloc(zeros, layout);
                }
            }
        }
    }

    #[test]
    fn blocks_keep_their_bytes_when_they_grow_or_shrink() {
        let sizes = [1, 100, ALIGNED_BYTES - 1, ALIGNED_BYTES, 100_000, 40 << 20, 5000, 17];
        for align in [1, 16, 64, 256] {
            let layout = |size| Layout::from_size_align(size, align).unwrap();
            // SAFETY: as above; bytes are written before they are read.
            unsafe {
                let mut size = 5;
                let mut block = HEAP.alloc_zeroed(layout(size));
                assert_eq!(std::slice::from_raw_parts(block, size), [0; 5]);
                for next in sizes.into_iter().chain([LARGE_BYTES - 1, LARGE_BYTES, 8 << 20, 9]) {
                    block.write_bytes(next as u8, size);
                    block = HEAP.realloc(block, layout(size), next);
                    assert!(block.addr().is_multiple_of(align), "{next} bytes at {block:?}");
                    let kept = std::slice::from_raw_parts(block, size.min(next));
                    assert!(kept.iter().all(|&byte| byte == next as u8), "{size} to {next}");
                    size = next;
                }
                HEAP.dealloc(block, layout(size));
            }
        }
    }
}
