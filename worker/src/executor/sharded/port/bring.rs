//! Keys that come here to stay, before the first step of a completion.

use std::sync::Arc;
use std::time::Instant;

use aqueduct_core::Epoch;
use aqueduct_engine::PortError;
use aqueduct_engine::shards::{Branch, Place, ShardKey};

use super::{ShardsPort, Wait, not_kept, unexpected};
use crate::exchange::{Ask, Reply};

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
        let (holders, request) = (self.holders, self.holders.request);
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
                self.deadline = Instant::now() + holders.deadline;
                let place = self.place(layer, &shards);
                let call = self.call(layer, peer, Ask::Keys { place })?;
                let mut brought = match self.reply(layer, peer, call)? {
                    Reply::Keys(brought) => brought,
                    other => return Err(unexpected(layer, &other)),
                };
                for &(chunk_idx, epoch) in &*shards {
                    let Some(shard) = brought.remove(&chunk_idx) else { continue };
                    let key = ShardKey { request, branch, layer: layer as u32, chunk_idx, epoch };
                    let kept = self.wait.exchange().holder.store().put(key, shard);
                    kept.map_err(|error| not_kept(layer, error))?;
                }
            }
            all.extend_from_slice(&shards);
        }
        Ok(all)
    }
}
