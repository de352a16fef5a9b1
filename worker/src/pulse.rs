//! Whether the device thread still gets anywhere: a device that hangs says nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often is looked before the thread is given up. Looks are counted rather than time: a
/// process that was stopped for a while has not looked meanwhile.
const LOOKS: u32 = 16;

/// Counts what the device thread has done: layers, rounds of decode steps, and waits, of which
/// the beginning counts too. So it is odd while the thread waits for others.
#[derive(Debug, Default)]
pub(crate) struct Pulse(AtomicU64);

impl Pulse {
    /// A layer or a round is done.
    pub(crate) fn beat(&self) {
        self.0.fetch_add(2, Ordering::Relaxed);
    }

    /// Waits, for as long as it likes: that what is waited for comes is for others to see to.
    pub(crate) fn rest(&self, wait: impl FnOnce()) {
        self.0.fetch_add(1, Ordering::Relaxed);
        wait();
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Resolves when the thread has neither done anything nor waited for `within`.
    pub(crate) async fn stops(&self, within: Duration) {
        let mut looker = Looker::default();
        while !looker.sees_a_standstill(self.0.load(Ordering::Relaxed)) {
            tokio::time::sleep(within / LOOKS).await;
        }
    }
}

/// Who looks at a pulse time and again.
#[derive(Debug, Default)]
struct Looker {
    last: u64,
    alike: u32,
}

impl Looker {
    fn sees_a_standstill(&mut self, now: u64) -> bool {
        let is_stuck = now == self.last && now.is_multiple_of(2);
        self.alike = if is_stuck { self.alike + 1 } else { 0 };
        self.last = now;
        self.alike > LOOKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many looks `looker` sees a standstill, where each is of what `act` leaves.
    fn check(mut act: impl FnMut(&Pulse), want: Option<u32>) {
        let (pulse, mut looker) = (Pulse::default(), Looker::default());
        pulse.beat();
        let mut looks = 0..10 * LOOKS;
        let seen = looks.find(|_| {
            act(&pulse);
            looker.sees_a_standstill(pulse.0.load(Ordering::Relaxed))
        });
        assert_eq!(seen, want);
    }

    #[test]
    fn neither_a_wait_nor_work_is_a_standstill() {
        check(|_| {}, Some(LOOKS + 1));
        check(Pulse::beat, None);
        check(|pulse| pulse.rest(|| {}), None);
        let mut looks = 0;
        let now_and_then = |pulse: &Pulse| {
            looks += 1;
            if looks % LOOKS == 0 {
                pulse.beat();
            }
        };
        check(now_and_then, None);
    }

    #[test]
    fn a_wait_may_last() {
        let (pulse, mut looker) = (Pulse::default(), Looker::default());
        pulse.rest(|| {
            let now = pulse.0.load(Ordering::Relaxed);
            assert!((0..10 * LOOKS).all(|_| !looker.sees_a_standstill(now)));
        });
    }
}
