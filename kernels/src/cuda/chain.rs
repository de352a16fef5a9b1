//! Whose work is whose: what one thread enqueues is a chain of its own, in its own order.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Chains that are told from each other. Threads beyond share them, turn by turn: those of a
/// worker that compute are two, the device thread and the one that answers about shards.
pub(super) const CHAINS: usize = 128;

thread_local! {
    static CHAIN: Cell<Option<usize>> = const { Cell::new(None) };
}

/// That of the calling thread, which gets one when it first enqueues something.
pub(super) fn begun() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    CHAIN.get().unwrap_or_else(|| {
        let chain = NEXT.fetch_add(1, Ordering::Relaxed) % CHAINS;
        CHAIN.set(Some(chain));
        chain
    })
}

/// The same, where it has one.
pub(super) fn known() -> Option<usize> {
    CHAIN.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_its_own_once_it_enqueues() {
        let of_thread = || {
            let before = known();
            let chain = begun();
            assert_eq!((before, known(), begun()), (None, Some(chain), chain));
            chain
        };
        let chains = [(); 2].map(|()| std::thread::spawn(of_thread).join().unwrap());
        assert_ne!(chains[0], chains[1]);
    }
}
