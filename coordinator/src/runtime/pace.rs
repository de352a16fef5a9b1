//! How fast prompts are prefilled just now, and so when there will be room for more.

use std::time::{Duration, Instant};

/// What is this old counts half.
const HALF_LIFE_SECONDS: f64 = 10.0;

/// What waits may be cancelled, so nobody stays away for longer.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Tokens prefilled over the time in which anything was, old ones forgotten by and by.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    tokens: f64,
    seconds: f64,
    /// Time is counted up to here; `None` while nothing is prefilled.
    counted: Option<Instant>,
}

impl Pace {
    /// Whether anything is prefilled from now on.
    pub(crate) fn look(&mut self, prefills: bool, now: Instant) {
        self.counted = prefills.then(|| self.counted.unwrap_or(now));
    }

    /// So many tokens were prefilled.
    pub(crate) fn done(&mut self, tokens: u32, now: Instant) {
        let Some(counted) = self.counted.replace(now) else { return };
        let seconds = now.saturating_duration_since(counted).as_secs_f64();
        let keep = (-seconds / HALF_LIFE_SECONDS).exp2();
        self.tokens = self.tokens * keep + f64::from(tokens);
        self.seconds = self.seconds * keep + seconds;
    }

    /// How long who finds so many tokens waiting is to stay away, as far as is known.
    pub(crate) fn wait_for(&self, tokens: u64) -> Duration {
        let seconds = tokens as f64 * self.seconds / self.tokens;
        Duration::try_from_secs_f64(seconds).unwrap_or_default().min(WAIT_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_what_was_done_and_leaves_idle_time_out() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut pace = Pace::default();
        assert_eq!(pace.wait_for(100), Duration::ZERO);
        pace.done(7, at(0));
        pace.look(true, at(0));
        pace.look(true, at(1));
        pace.done(100, at(2));
        assert_eq!(pace.wait_for(500), Duration::from_secs(10));
        pace.look(false, at(2));
        pace.look(true, at(1000));
        pace.done(100, at(1002));
        assert_eq!(pace.wait_for(500), Duration::from_secs(10));
        for second in 1003..1100 {
            pace.done(200, at(second));
        }
        assert_eq!(pace.wait_for(u64::MAX), WAIT_MAX);
        let seconds = pace.wait_for(1000).as_secs_f64();
        assert!((4.9..5.1).contains(&seconds), "{seconds}");
    }
}
