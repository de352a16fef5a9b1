//! How far the device has come in what it was given: a long queue takes long, and is not lost.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::handles::{Event, Stream};
use super::locked;
use crate::cuda::device::Fault;

/// Kernels from one point to the next: less than a layer or two.
const KERNELS_APART: u64 = 8;
/// Points that the device may be behind by; of what comes beyond, it gets along without. The
/// driver takes no more than about a thousand kernels anyway before it waits.
const POINTS_MAX: usize = 256;

/// Points in the work of a stream, and how many of them the device has passed.
#[derive(Default)]
pub(super) struct Progress {
    kernels: AtomicU64,
    points: Mutex<Points<Event>>,
}

impl Progress {
    /// After each kernel that `stream` was given. Nothing is locked while the driver is called
    /// that may wait for the device.
    pub(super) fn kernel_went_to(&self, stream: &Stream) -> Result<(), Fault> {
        let kernels = self.kernels.fetch_add(1, Ordering::Relaxed) + 1;
        if !kernels.is_multiple_of(KERNELS_APART) {
            return Ok(());
        }
        let spare = {
            let mut points = self.points();
            points.pass(is_reached);
            if points.ahead.len() >= POINTS_MAX {
                return Ok(());
            }
            points.spare.pop()
        };
        let point = spare.map_or_else(|| Event::new(false), Ok)?;
        point.record(stream)?;
        self.points().ahead.push_back(point);
        Ok(())
    }

    /// Points so far, passed or not.
    pub(super) fn made(&self) -> u64 {
        let points = self.points();
        points.passed + points.ahead.len() as u64
    }

    /// Points that the device has passed.
    pub(super) fn passed(&self) -> u64 {
        self.points().pass(is_reached)
    }

    fn points(&self) -> MutexGuard<'_, Points<Event>> {
        locked(&self.points)
    }
}

/// What goes wrong with the device is told by whatever is waited for.
fn is_reached(point: &Event) -> bool {
    point.reached().unwrap_or(false)
}

struct Points<E> {
    /// Not passed yet, the oldest first.
    ahead: VecDeque<E>,
    passed: u64,
    /// Passed, and ready to be points again.
    spare: Vec<E>,
}

impl<E> Default for Points<E> {
    fn default() -> Self {
        Self { ahead: VecDeque::new(), passed: 0, spare: Vec::new() }
    }
}

impl<E> Points<E> {
    /// Looks which have been passed; how many so far.
    fn pass(&mut self, is_reached: impl Fn(&E) -> bool) -> u64 {
        while self.ahead.front().is_some_and(&is_reached) {
            self.spare.extend(self.ahead.pop_front());
            self.passed += 1;
        }
        self.passed
    }
}

/// How long the device has got no further, to whoever waits for it.
pub(super) struct Stall {
    since: Instant,
    passed: u64,
    /// Points that there were when the wait began. What is passed of others' work since is no
    /// progress: what is waited for stands before it, or on another stream.
    made: u64,
}

impl Stall {
    /// A wait that begins `now`, behind `made` points.
    pub(super) fn new(now: Instant, made: u64) -> Self {
        Self { since: now, passed: 0, made }
    }

    /// How long it lasts `now` that `passed` points have been passed.
    pub(super) fn lasts(&mut self, now: Instant, passed: u64) -> Duration {
        let passed = passed.min(self.made);
        if passed > self.passed {
            (self.since, self.passed) = (now, passed);
        }
        now.saturating_duration_since(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn points_are_passed_in_their_order_and_serve_again() {
        let mut points = Points { ahead: (1..=5).collect(), ..Points::default() };
        assert_eq!(points.pass(|_| false), 0);
        assert_eq!(points.pass(|&point| point != 3), 2, "4 and 5 are behind 3");
        assert_eq!((points.spare.as_slice(), points.ahead.len()), (&[1, 2][..], 3));
        assert_eq!(points.pass(|_| true), 5);
        assert_eq!(points.pass(|_| true), 5);
    }

    #[test]
    fn progress_begins_the_wait_anew() {
        let start = Instant::now();
        let mut stall = Stall::new(start, 7);
        assert_eq!(stall.lasts(start + SECOND, 3), Duration::ZERO, "the first that is seen");
        assert_eq!(stall.lasts(start + 100 * SECOND, 3), 99 * SECOND);
        assert_eq!(stall.lasts(start + 119 * SECOND, 4), Duration::ZERO);
        assert_eq!(stall.lasts(start + 200 * SECOND, 4), 81 * SECOND);
    }

    #[test]
    fn a_device_that_gets_no_further_is_waited_for_once() {
        let start = Instant::now();
        let mut stall = Stall::new(start, 0);
        assert_eq!(stall.lasts(start + 60 * SECOND, 0), 60 * SECOND);
        assert_eq!(stall.lasts(start + 121 * SECOND, 0), 121 * SECOND);
    }

    #[test]
    fn what_was_asked_for_since_is_no_progress() {
        let start = Instant::now();
        let mut stall = Stall::new(start, 4);
        assert_eq!(stall.lasts(start + 10 * SECOND, 4), Duration::ZERO);
        assert_eq!(stall.lasts(start + 30 * SECOND, 9), 20 * SECOND);
        assert_eq!(stall.lasts(start + 140 * SECOND, 50), 130 * SECOND);
    }
}
