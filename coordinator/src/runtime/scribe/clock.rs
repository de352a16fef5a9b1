//! What time it is for the journal.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Goes on where the journal's own time is, by this machine's steps. In a group the machine's clock
/// is asked only before anything was written: one that is an hour ahead of the last leader's would
/// find that everything under way is over. Where nobody else writes it is the same clock as before,
/// and also knows for how long nobody ran.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    began_ms: u64,
    began: Instant,
}

impl Clock {
    /// From `journal_ms` on, that of the journal; `is_alone`: nobody else writes.
    pub(crate) fn new(journal_ms: Option<u64>, is_alone: bool) -> Self {
        let began_ms = first_ms(journal_ms, is_alone, wall_ms());
        Self { began_ms, began: Instant::now() }
    }

    /// Milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> u64 {
        self.began_ms.saturating_add(millis(self.began.elapsed()))
    }

    /// What it will be then.
    pub(crate) fn after_ms(&self, passed: Duration) -> u64 {
        self.now_ms().saturating_add(millis(passed))
    }

    /// When it is `at_ms`; `None`: in no time that can be counted.
    pub(crate) fn when(&self, at_ms: u64) -> Option<Instant> {
        self.began.checked_add(Duration::from_millis(at_ms.saturating_sub(self.began_ms)))
    }
}

fn first_ms(journal_ms: Option<u64>, is_alone: bool, wall_ms: u64) -> u64 {
    match journal_ms {
        None => wall_ms,
        // It may have been set back.
        Some(journal_ms) if is_alone => journal_ms.max(wall_ms),
        Some(journal_ms) => journal_ms,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// By this machine's clock.
fn wall_ms() -> u64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_is_alone_believes_its_own_clock() {
        let check = |journal_ms: Option<u64>, is_alone: bool, wall_ms: u64, want: u64| {
            let first = first_ms(journal_ms, is_alone, wall_ms);
            assert_eq!(first, want, "{journal_ms:?} {is_alone} {wall_ms}");
        };
        check(None, true, 500, 500);
        check(None, false, 500, 500);
        // A clock that is ahead, and one that is behind.
        check(Some(100), false, 500, 100);
        check(Some(900), false, 500, 900);
        check(Some(100), true, 500, 500);
        check(Some(900), true, 500, 900);
    }

    #[test]
    fn it_goes_on_by_this_machines_steps() {
        let clock = Clock::new(Some(1_000), false);
        assert!((1_000..60_000).contains(&clock.now_ms()));
        assert!(clock.after_ms(Duration::from_secs(60)) >= 61_000);
        let in_a_minute = clock.when(61_000).unwrap();
        assert_eq!(in_a_minute - clock.began, Duration::from_secs(60));
        assert_eq!(clock.when(5), Some(clock.began), "it is over");
        assert_eq!(clock.after_ms(Duration::MAX), u64::MAX);
    }
}
