//! The end of a process that leaves something to a device's libraries.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// A device was lost, or a thread of a library's goes on.
static LEFT_BEHIND: AtomicBool = AtomicBool::new(false);

/// Notes that something goes on that nobody waits for.
#[cfg(feature = "cuda")]
pub(super) fn left_behind() {
    LEFT_BEHIND.store(true, Ordering::Release);
}

/// Ends the process here where that was noted, and returns where not. What libraries do behind
/// `main` may wait for a device that does not answer, or take from a thread of theirs what it uses.
pub fn end_process(code: u8) {
    if LEFT_BEHIND.load(Ordering::Acquire) {
        let _ = io::stdout().flush(); // who reads it may be gone
        // SAFETY: takes an integer, and does not return.
        unsafe { libc::_exit(code.into()) };
    }
}
