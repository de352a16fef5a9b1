//! Which layers are audited, and the shards for it.

use aqueduct_engine::PortError;
use aqueduct_engine::shards::Shards;

use super::{Part, ShardsPort, Wait};
use crate::exchange::Ask;

/// Which layers of a chunk are audited.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::executor::sharded) struct Sampling {
    /// One of so many; none if 0.
    pub(in crate::executor::sharded) every: u32,
    /// Layers of the chunks before.
    pub(in crate::executor::sharded) before: u32,
}

impl Sampling {
    fn has(self, layer: usize) -> bool {
        self.every > 0 && self.before.wrapping_add(layer as u32).is_multiple_of(self.every)
    }
}

impl<W: Wait> ShardsPort<'_, W> {
    /// Asks another worker for its shards, as they are now, where `layer` is audited.
    pub(super) fn ask_to_audit(&mut self, layer: usize, part: &mut Part) -> Result<(), PortError> {
        if self.sampling.has(layer) {
            let ask = Ask::Keys { place: part.place.clone() };
            part.audit = Some(self.call(layer, &part.peer, ask)?);
        }
        Ok(())
    }

    /// All shards of round one, where `layer` is audited.
    pub(super) fn audited(&mut self, layer: usize) -> Result<Option<Shards>, PortError> {
        if !self.sampling.has(layer) {
            return Ok(None);
        }
        let mut all = Shards::new();
        for idx in 0..self.parts.len() {
            let (peer, place) = (self.parts[idx].peer.clone(), self.parts[idx].place.clone());
            let call = self.parts[idx].audit.take();
            all.extend(self.shards_of(layer, (&peer, place), call)?);
        }
        Ok(Some(all))
    }

    /// The same where every key is kept: shards are as they were, and may be asked for one batch
    /// after the other.
    pub(super) fn all_audited(&mut self, layer: usize) -> Result<Option<Shards>, PortError> {
        if !self.sampling.has(layer) {
            return Ok(None);
        }
        let (mut all, holders) = (Shards::new(), self.holders);
        for (peer, shards) in &holders.shards {
            let place = self.in_sight(&self.place(layer, shards));
            for place in self.batches(&place) {
                self.begin_round();
                let mut call = None;
                if !self.wait.exchange().is_here(peer) {
                    call = Some(self.call(layer, peer, Ask::Keys { place: place.clone() })?);
                }
                all.extend(self.shards_of(layer, (peer, place), call)?);
            }
        }
        Ok(Some(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layer_has_its_turn() {
        let layers = |every, chunk: u32| -> Vec<usize> {
            let sampling = Sampling { every, before: chunk * 4 };
            (0..4).filter(|&layer| sampling.has(layer)).collect()
        };
        assert!(layers(0, 0).is_empty());
        assert_eq!(layers(1, 3), [0, 1, 2, 3]);
        assert_eq!([layers(3, 0), layers(3, 1), layers(3, 2)], [vec![0, 3], vec![2], vec![1]]);
    }
}
