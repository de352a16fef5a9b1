//! How long what has no place, or cannot reach others from it, is waited for.

use super::Request;

/// The first pause of a request; each later one is twice as long as the one before it.
const PAUSE_LEAST_MS: u64 = 250;
/// None is longer.
const PAUSE_MOST_MS: u64 = 4000;

/// How long stranded chunks of a request wait.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Patience {
    /// While others cannot be reached: when they are tried again.
    again_at_ms: Option<u64>,
    /// How long all such pauses of the request were.
    paused_ms: u64,
    pauses: u32,
    /// While nobody has room: when it is given up.
    until_ms: Option<u64>,
}

impl Patience {
    /// Has the request wait a while before it tries to reach others again; false if it has waited
    /// for `most_ms` in all. What it waits for is counted over its whole life, as it cannot be
    /// told from outside whether they can be reached.
    pub(crate) fn pause(&mut self, now_ms: u64, most_ms: u64) -> bool {
        if self.pauses() {
            return true;
        }
        let pause_ms = (PAUSE_LEAST_MS << self.pauses.min(16)).min(PAUSE_MOST_MS);
        let pause_ms = pause_ms.min(most_ms.saturating_sub(self.paused_ms));
        if pause_ms == 0 {
            return false;
        }
        self.pauses += 1;
        self.paused_ms += pause_ms;
        self.again_at_ms = Some(now_ms.saturating_add(pause_ms));
        true
    }

    /// Whether such a while is not over.
    pub(crate) fn pauses(&self) -> bool {
        self.again_at_ms.is_some()
    }

    /// Whether the request, for which nobody has room, may wait on: for `most_ms` in all.
    pub(crate) fn may_wait(&mut self, now_ms: u64, most_ms: u64) -> bool {
        now_ms < *self.until_ms.get_or_insert(now_ms.saturating_add(most_ms))
    }

    /// Somebody has.
    pub(crate) fn has_a_place(&mut self) {
        self.until_ms = None;
    }

    pub(crate) fn tick(&mut self, now_ms: u64) {
        self.again_at_ms.take_if(|again_at_ms| *again_at_ms <= now_ms);
    }
}

impl Request {
    /// When, after `now_ms`, its stranded chunks are tried again, or given up.
    pub(crate) fn waits_until_ms(&self, now_ms: u64) -> Option<u64> {
        let Patience { again_at_ms, until_ms, .. } = self.patience;
        let all = again_at_ms.into_iter().chain(until_ms);
        all.filter(|at_ms| *at_ms > now_ms && !self.stranded.is_empty()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end() {
        let mut patience = Patience::default();
        let mut now_ms = 0;
        let mut pauses = Vec::new();
        while patience.pause(now_ms, 12_000) {
            let again_at_ms = patience.again_at_ms.unwrap();
            pauses.push(again_at_ms - now_ms);
            patience.tick(again_at_ms - 1);
            assert!(patience.pauses());
            patience.tick(again_at_ms);
            assert!(!patience.pauses());
            now_ms = again_at_ms;
        }
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 4000, 250]);
        assert!(!Patience::default().pause(0, 0));
    }

    #[test]
    fn who_has_had_a_place_waits_anew() {
        let mut patience = Patience::default();
        let may_wait = [0, 99, 100].map(|now_ms| patience.may_wait(now_ms, 100));
        assert_eq!(may_wait, [true, true, false]);
        patience.has_a_place();
        assert!(patience.may_wait(150, 100));
        assert!(!Patience::default().may_wait(0, 0));
    }
}
