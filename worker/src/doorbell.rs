//! What wakes the device thread: one bell for commands, memory sets, receipts and room.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Wake;
use std::time::{Duration, Instant};

/// A bell that stays rung until somebody has waited for it, so that no ring is ever missed.
///
/// It is also a [`std::task::Waker`]: the device thread polls tokio channels with it and needs
/// no runtime of its own.
#[derive(Debug, Default)]
pub struct Doorbell {
    rung: Mutex<bool>,
    bell: Condvar,
}

impl Doorbell {
    /// Wakes whoever waits, now or next.
    pub fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.bell.notify_all();
    }

    /// Whether it was rung since the last wait.
    #[cfg(test)]
    pub(crate) fn is_rung(&self) -> bool {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the bell was rung since the last wait, or at `deadline`.
    pub fn wait_until(&self, deadline: Option<Instant>) {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        while !*rung {
            let left = match deadline.map(|at| at.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => break,
                Some(left) => left,
                None => Duration::MAX,
            };
            rung = self.bell.wait_timeout(rung, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *rung = false;
    }
}

impl Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_before_the_wait_is_not_missed() {
        let doorbell = Arc::new(Doorbell::default());
        std::task::Waker::from(doorbell.clone()).wake();
        doorbell.wait_until(None);
        let soon = Instant::now() + Duration::from_millis(5);
        doorbell.wait_until(Some(soon));
        assert!(Instant::now() >= soon);
    }

    #[test]
    fn a_ring_from_another_thread_wakes() {
        let doorbell = Arc::new(Doorbell::default());
        let other = doorbell.clone();
        let ringer = std::thread::spawn(move || other.ring());
        doorbell.wait_until(None);
        ringer.join().unwrap();
    }
}
