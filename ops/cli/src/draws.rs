//! Numbers drawn from a seed: the same in every run and on every machine.

use std::time::Duration;

/// A stream of numbers (SplitMix64: Steele, Lea and Flood 2014).
#[derive(Debug, Clone)]
pub(crate) struct Draws(u64);

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Draws {
    /// The stream of `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A stream of its own for each caller.
    pub(crate) fn of(&self, caller: u32) -> Self {
        let mut stream = Self(self.0 ^ (u64::from(caller) + 1).wrapping_mul(STEP));
        Self(stream.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// 0 to below 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// 0 to below `bound`, which is at least 1.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.unit() * bound as f64) as usize
    }

    /// An index, in proportion to its weight.
    pub(crate) fn weighted(&mut self, weights: &[f64]) -> usize {
        let mut left = self.unit() * weights.iter().sum::<f64>();
        let fits = |weight: &f64| {
            left -= weight;
            left < 0.0
        };
        weights.iter().position(fits).unwrap_or(weights.len() - 1)
    }

    /// The time to the next of `rate` arrivals a second that know nothing of each other.
    pub(crate) fn wait(&mut self, rate: f64) -> Duration {
        Duration::from_secs_f64(-(1.0 - self.unit()).ln() / rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_stream_and_every_caller_has_its_own() {
        let stream = |mut draws: Draws| (0..5).map(|_| draws.next()).collect::<Vec<_>>();
        assert_eq!(stream(Draws::new(7)), stream(Draws::new(7)));
        assert_ne!(stream(Draws::new(7)), stream(Draws::new(8)));
        assert_ne!(stream(Draws::new(7).of(0)), stream(Draws::new(7).of(1)));
    }

    #[test]
    fn draws_are_as_frequent_as_asked() {
        let mut draws = Draws::new(1);
        let often = (0..10_000).filter(|_| draws.weighted(&[9.0, 1.0]) == 0).count();
        assert!((8_800..9_200).contains(&often), "{often}");
        assert!((0..1000).all(|_| draws.below(3) < 3));
        let seconds: f64 = (0..10_000).map(|_| draws.wait(20.0).as_secs_f64()).sum();
        assert!((480.0..520.0).contains(&seconds), "{seconds}");
    }
}
