//! Where large arrays begin, and what the allocator does with memory that is given back.

#[cfg(unix)]
mod aligned;

#[cfg(unix)]
pub use self::aligned::LineAligned;

/// From so many bytes on an array is mapped for itself: the most that glibc takes.
#[cfg(target_os = "linux")]
const MAPPED_BYTES: usize = 32 << 20;

/// Lets the process keep what it frees, up to 512 MiB, instead of returning it to the system.
///
/// A layer's activations are tens of megabytes that live for milliseconds. By default they are
/// mapped anew each time, and the system clears every page again: a twentieth of a prefill.
/// For binaries, before anything else: it holds for the whole process. Does nothing where the
/// allocator is not glibc's.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const KEPT_BYTES: i32 = 512 << 20;
        // SAFETY: the two calls set numbers of the allocator; refused numbers change nothing.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES as i32);
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
        }
    }
}
