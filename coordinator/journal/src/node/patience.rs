//! How long a member waits before it stands for election, once it has not heard of a leader for
//! so long that it may: a random time, so that mostly one stands at a time.

use super::ELECTION_TICKS;

/// Whoever finds out first that nobody leads waits until the others have found out too, and vote.
const LEAST_TICKS: u64 = 2;

/// What is left of it.
pub(super) struct Patience {
    random: u64,
    ticks: u64,
    is_reluctant: bool,
}

impl Patience {
    /// That of a seed.
    pub(super) fn new(seed: u64) -> Self {
        let mut patience = Self { random: seed.max(1), ticks: 0, is_reluctant: false };
        patience.ticks = patience.draw();
        patience
    }

    /// Whether it lasts for one more tick; if not, the next one begins.
    pub(super) fn lasts(&mut self) -> bool {
        match self.ticks.checked_sub(1) {
            Some(left) => {
                self.ticks = left;
                true
            }
            None => {
                self.ticks = self.draw();
                false
            }
        }
    }

    /// From now on it lasts longer than that of any other.
    pub(super) fn be_reluctant(&mut self) {
        if !self.is_reluctant {
            self.is_reluctant = true;
            self.ticks += ELECTION_TICKS as u64;
        }
    }

    pub(super) fn is_reluctant(&self) -> bool {
        self.is_reluctant
    }

    /// By xorshift.
    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let most = ELECTION_TICKS as u64;
        let longer = if self.is_reluctant { most } else { 0 };
        longer + LEAST_TICKS + self.random % (most - LEAST_TICKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(patience: &mut Patience) -> u64 {
        (0..).find(|_| !patience.lasts()).unwrap()
    }

    #[test]
    fn who_is_reluctant_waits_longer_than_all_others() {
        let most = ELECTION_TICKS as u64;
        for seed in 0..100 {
            let mut patience = Patience::new(seed);
            let drawn: Vec<_> = (0..20).map(|_| ticks(&mut patience)).collect();
            let is_one = |ticks: &u64| (LEAST_TICKS..most).contains(ticks);
            assert!(drawn.iter().all(is_one), "{drawn:?}");
            patience.be_reluctant();
            patience.be_reluctant();
            let drawn: Vec<_> = (0..20).map(|_| ticks(&mut patience)).collect();
            let is_one = |ticks: &u64| (most + LEAST_TICKS..2 * most).contains(ticks);
            assert!(drawn.iter().all(is_one), "{drawn:?}");
        }
    }
}
