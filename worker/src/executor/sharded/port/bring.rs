//! Keys that come here to stay, before a completion that asks nobody.

use std::time::Instant;

use aqueduct_engine::PortError;
use aqueduct_engine::shards::{Branch, ShardKey};

use super::{ShardsPort, Wait, not_kept, unexpected};
use crate::exchange::{Ask, Reply};

impl<W: Wait> ShardsPort<'_, W> {
    /// Brings the prompt's shards of every other holder into this worker's store.
    pub(in super::super) fn bring(&mut self, layers: usize) -> Result<(), PortError> {
        let (holders, request) = (self.holders, self.holders.request);
        for (peer, shards) in &holders.shards {
            if self.wait.exchange().is_here(peer) {
                continue;
            }
            for layer in 0..layers {
                self.deadline = Instant::now() + holders.deadline;
                let place = self.place(layer, shards);
                let call = self.call(layer, peer, Ask::Keys { place })?;
                let mut brought = match self.reply(layer, peer, call)? {
                    Reply::Keys(brought) => brought,
                    other => return Err(unexpected(layer, &other)),
                };
                for &(chunk_idx, epoch) in shards {
                    let Some(shard) = brought.remove(&chunk_idx) else { continue };
                    let (branch, layer_idx) = (Branch::PROMPT, layer as u32);
                    let key = ShardKey { request, branch, layer: layer_idx, chunk_idx, epoch };
                    let kept = self.wait.exchange().holder.store().put(key, shard);
                    kept.map_err(|error| not_kept(layer, error))?;
                }
            }
        }
        Ok(())
    }
}
