//! How long chunks take: what a chunk that takes longer is measured by.

use std::collections::VecDeque;

/// So many of the last chunks count.
const SAMPLES: usize = 32;
/// Before there are so many, nobody is found to be slow.
const SAMPLES_LEAST: usize = 3;

/// The last chunks' own times, in nanoseconds for each token, or unit of work.
#[derive(Debug, Default)]
pub(crate) struct Pace(VecDeque<u64>);

impl Pace {
    /// A chunk of so many tokens took so long; one without tokens was not computed.
    pub(crate) fn took(&mut self, tokens: u64, busy_us: u64) {
        if tokens == 0 {
            return;
        }
        self.0.truncate(SAMPLES - 1);
        self.0.push_front(busy_us.saturating_mul(1000) / tokens);
    }

    /// How long a chunk of so many tokens takes: the median and, where there are two, the faster
    /// of them, so that one slow worker of two does not pass for the rule.
    pub(crate) fn expected_ms(&self, tokens: u64) -> Option<u64> {
        Some(self.expected_us(tokens)? / 1000)
    }

    pub(crate) fn expected_us(&self, tokens: u64) -> Option<u64> {
        if self.0.len() < SAMPLES_LEAST {
            return None;
        }
        let mut sorted: Vec<u64> = self.0.iter().copied().collect();
        sorted.sort_unstable();
        Some(sorted[(sorted.len() - 1) / 2].saturating_mul(tokens) / 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faster_half_says_how_long_chunks_take() {
        let mut pace = Pace::default();
        pace.took(0, 1);
        for busy_us in [10_000, 500_000] {
            pace.took(10, busy_us);
            assert_eq!(pace.expected_ms(10), None);
        }
        pace.took(5, 6_000);
        assert_eq!((pace.expected_ms(10), pace.expected_ms(20)), (Some(12), Some(24)));
        pace.took(10, 500_000);
        assert_eq!(pace.expected_ms(10), Some(12), "one of two workers is slow");
        (0..SAMPLES).for_each(|_| pace.took(10, 700_000));
        assert_eq!((pace.expected_ms(10), pace.0.len()), (Some(700), SAMPLES));
        pace.took(1, u64::MAX);
        assert!(pace.expected_ms(u64::MAX).is_some());
    }
}
