//! What a shard's keys have drawn that rows to come still see.

use super::{Passed, Shard, Tally};
use crate::memory::MemorySet;
use crate::select::in_sight;

impl Shard {
    /// Sum of the scores of keys that a row to come sees.
    pub fn mass(&self, passed: Passed<'_>) -> f64 {
        self.mass_of(self.parts.iter().map(|part| &*part.score), passed)
    }

    /// The same of what the keys score in `tally`.
    pub fn mass_in(&self, tally: &Tally, passed: Passed<'_>) -> f64 {
        self.mass_of(tally.score.iter().map(Vec::as_slice), passed)
    }

    fn mass_of<'a>(&self, scores: impl Iterator<Item = &'a [f32]>, passed: Passed<'_>) -> f64 {
        let of_part =
            |(part, score): (&MemorySet, &[f32])| in_sight(&part.keys, score, passed.first_seen());
        self.parts.iter().zip(scores).map(of_part).sum()
    }
}
