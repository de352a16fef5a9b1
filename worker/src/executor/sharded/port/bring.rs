//! Keys that come here to stay, before the first step of a completion.

use std::sync::Arc;

use aqueduct_core::Epoch;
use aqueduct_core::exchange::keys_bytes;
use aqueduct_core::work::Peer;
use aqueduct_engine::PortError;
use aqueduct_engine::shards::{Branch, Place, ShardKey};

use super::{ShardsPort, Wait, not_kept};
use crate::exchange::Ask;
use crate::link::codec;

/// Batches that the bound on what is on its way is cut into.
const BATCHES: u64 = 4;

/// Which of the prompt's shards come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Brought {
    /// All, to stay as they are: every completion sees the same.
    All,
    /// Those of [torn](Place::torn) leaves, for one completion that changes them.
    Torn,
}

impl Brought {
    /// Those that come of `place`.
    pub(in super::super) fn of(self, place: &Place) -> Arc<[(u32, Epoch)]> {
        match self {
            Self::All => place.shards.clone(),
            Self::Torn => place.torn(),
        }
    }
}

impl<W: Wait> ShardsPort<'_, W> {
    /// Brings the prompt's shards of every other holder into this worker's store. Returns those
    /// that came.
    pub(in super::super) fn bring(
        &mut self,
        layers: usize,
        which: Brought,
    ) -> Result<Vec<(u32, Epoch)>, PortError> {
        let holders = self.holders;
        let branch = match which {
            Brought::All => Branch::PROMPT,
            Brought::Torn => self.asker.branch,
        };
        let mut all = Vec::new();
        for (peer, shards) in &holders.shards {
            let shards = which.of(&self.place(0, shards));
            if self.wait.exchange().is_here(peer) || shards.is_empty() {
                continue;
            }
            for layer in 0..layers {
                let place = self.in_sight(&self.place(layer, &shards));
                for place in self.batches(&place) {
                    self.begin_round();
                    self.bring_here((layer, branch), peer, place)?;
                }
            }
            all.extend_from_slice(&shards);
        }
        Ok(all)
    }

    /// Brings the shards of `place` here, as those of a branch.
    fn bring_here(
        &mut self,
        (layer, branch): (usize, Branch),
        peer: &Peer,
        place: Place,
    ) -> Result<(), PortError> {
        let (request, shards) = (place.request, place.shards.clone());
        let call = Some(self.call(layer, peer, Ask::Keys { place: place.clone() })?);
        let mut brought = self.shards_of(layer, (peer, place), call)?;
        for &(chunk_idx, epoch) in &*shards {
            let Some(shard) = brought.remove(&chunk_idx) else { continue };
            let key = ShardKey { request, branch, layer: layer as u32, chunk_idx, epoch };
            let kept = self.wait.exchange().holder.store().put(key, shard);
            kept.map_err(|error| not_kept(layer, error))?;
        }
        Ok(())
    }

    /// The shards of `place`, in as many batches as keys come in.
    pub(super) fn batches(&mut self, place: &Place) -> Vec<Place> {
        if place.is_scored() {
            return vec![place.clone()]; // what is kept of all is bounded
        }
        let exchange = self.wait.exchange();
        let model = exchange.holder.model();
        let kv = codec::to_core(model.kv());
        let shard_bytes =
            keys_bytes((&model.shape_of(place.layer as usize), kv), self.holders.chunk_tokens);
        let count = exchange.ahead_bytes / BATCHES / shard_bytes.max(1);
        let batch = |shards: &[_]| Place { shards: shards.into(), ..place.clone() };
        place.shards.chunks(count.max(1) as usize).map(batch).collect()
    }
}
