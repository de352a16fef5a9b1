//! Shards that outlive their request, and come back for another.

use std::sync::Arc;

use aqueduct_core::RequestId;
use aqueduct_kernels::{MemorySet, Shard};

use super::{ShardError, ShardStore};
use crate::model::Model;
use crate::shards::place::{Branch, ShardKey};

impl ShardStore {
    /// What is held of a chunk of the prompt of `request`, layer by layer.
    pub fn of_chunk(&self, request: RequestId, chunk_idx: u32) -> Vec<Arc<Shard>> {
        let state = self.lock();
        let first = (request, Branch::PROMPT, 0);
        let layers = state.layers.range(first..=(request, Branch::PROMPT, u32::MAX));
        let shards = layers.filter_map(|(_, layer)| layer.shards.get(&chunk_idx));
        shards.map(|(_, shard)| shard.clone()).collect()
    }

    /// Keeps a copy of the keys of `set`, those that a chunk has in one layer, as the shard of
    /// `key`: as many as are kept of a chunk that is computed, even if there are more.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn restore(&self, model: &Model, key: ShardKey, set: &MemorySet) -> Result<(), ShardError> {
        let shard = Arc::new(Shard::of_parts(vec![set.clone()], set.end));
        let window = model.window(key.layer as usize);
        self.put(key, shard.seen_behind(model.backend(), window)?)
    }
}
