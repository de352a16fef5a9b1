//! What is between processes: links that are cut and heal, and delays.

use crate::dice::Dice;

/// Links between pairs of nodes; the coordinator is the node behind the last worker.
#[derive(Debug, Default)]
pub(crate) struct Network {
    cuts: Vec<Cut>,
}

#[derive(Debug)]
struct Cut {
    ends: (usize, usize),
    until: u64,
}

impl Network {
    /// Nothing passes between `a` and `b` until then.
    pub(crate) fn cut(&mut self, a: usize, b: usize, until: u64) {
        self.cuts.push(Cut { ends: (a.min(b), a.max(b)), until });
    }

    /// When something can pass between `a` and `b`: now, or when what cuts them off has healed.
    pub(crate) fn open_at(&self, a: usize, b: usize, now: u64) -> u64 {
        let ends = (a.min(b), a.max(b));
        let cuts = self.cuts.iter().filter(|cut| cut.ends == ends);
        cuts.map(|cut| cut.until).fold(now, u64::max)
    }

    /// Microseconds that something takes on its way: mostly little.
    pub(crate) fn delay(dice: &mut Dice) -> u64 {
        match dice.of(0..100) {
            0 => dice.of(100_000..2_000_000),
            1..10 => dice.of(2_000..50_000),
            _ => dice.of(100..2_000),
        }
    }
}
