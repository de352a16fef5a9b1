//! What is held of one layer.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use aqueduct_core::Epoch;
use aqueduct_core::work::RetainedMass;
use aqueduct_kernels::Shard;

use crate::shards::place::Place;
use crate::shards::round::{Round, RoundStep, Settled};

/// Rounds of a layer of which it is remembered what they settled: as many blocks of a request may
/// be under way one behind the other, and more.
const SETTLED_MAX: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Layer {
    pub(super) shards: BTreeMap<u32, (Epoch, Arc<Shard>)>,
    pub(super) round: Option<Round>,
    /// What the rounds before it settled, the last ones.
    settled: VecDeque<Settled>,
}

impl Layer {
    /// Begins `round`. What the one before settled is kept, for its asker may not know it yet:
    /// blocks follow each other closely, and an answer may be lost on its way.
    pub(super) fn begin(&mut self, round: Round) {
        let before = self.round.replace(round).and_then(Round::settled);
        self.settled.extend(before);
        if self.settled.len() > SETTLED_MAX {
            self.settled.pop_front();
        }
    }

    /// The mass that each chunk's shard kept of `place`'s block, where that is settled.
    pub(super) fn settled(&self, place: &Place) -> Option<&Vec<(u32, RetainedMass)>> {
        let of_round = self.round.as_ref().filter(|round| round.is_of(place));
        match of_round.map(|round| &round.step) {
            Some(RoundStep::Settled(masses)) => Some(masses),
            Some(RoundStep::Asked(_) | RoundStep::Counted(_)) => None,
            None => {
                let settled = self.settled.iter().rev().find(|settled| settled.is_of(place));
                settled.map(|settled| &settled.masses)
            }
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        let shards = self.shards.values().map(|(_, shard)| shard.bytes() as u64);
        shards.sum::<u64>() + self.round.as_ref().map_or(0, Round::bytes)
    }
}
