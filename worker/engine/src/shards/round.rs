//! The two rounds of one block in one layer, as a holder sees them.

use std::collections::BTreeMap;
use std::sync::Arc;

use aqueduct_core::Epoch;
use aqueduct_core::work::RetainedMass;
use aqueduct_kernels::{Heads, Tally};

use super::place::Place;

/// What a holder remembers of the block that asked last: each step may be asked for again,
/// because an answer may be lost on its way, and counts once.
#[derive(Debug)]
pub(super) struct Round {
    epoch: Epoch,
    start: u32,
    pub(super) step: RoundStep,
}

#[derive(Debug)]
pub(super) enum RoundStep {
    /// The queries are here.
    Asked(Arc<Heads>),
    /// Every shard has been counted.
    Counted(Arc<BTreeMap<u32, Tally>>),
    /// What stays was decided; the mass that each chunk's shard kept.
    Settled(Vec<(u32, RetainedMass)>),
}

/// What one block's rounds came to.
#[derive(Debug)]
pub(super) struct Settled {
    epoch: Epoch,
    start: u32,
    pub(super) masses: Vec<(u32, RetainedMass)>,
}

impl Settled {
    /// Whether it was `place`'s block that asked.
    pub(super) fn is_of(&self, place: &Place) -> bool {
        (self.epoch, self.start) == (place.epoch, place.start)
    }
}

impl Round {
    /// What it came to, if it did.
    pub(super) fn settled(self) -> Option<Settled> {
        let Self { epoch, start, step } = self;
        match step {
            RoundStep::Settled(masses) => Some(Settled { epoch, start, masses }),
            RoundStep::Asked(_) | RoundStep::Counted(_) => None,
        }
    }

    pub(super) fn asked(place: &Place, q: Arc<Heads>) -> Self {
        Self { epoch: place.epoch, start: place.start, step: RoundStep::Asked(q) }
    }

    pub(super) fn counted(place: &Place, tallies: Arc<BTreeMap<u32, Tally>>) -> Self {
        Self { epoch: place.epoch, start: place.start, step: RoundStep::Counted(tallies) }
    }

    /// Whether it is `place`'s block that asked.
    pub(super) fn is_of(&self, place: &Place) -> bool {
        (self.epoch, self.start) == (place.epoch, place.start)
    }

    pub(super) fn bytes(&self) -> u64 {
        match &self.step {
            RoundStep::Asked(q) => q.data.bytes() as u64,
            RoundStep::Counted(_) | RoundStep::Settled(_) => 0,
        }
    }
}
