//! What a store holds, and where it has room for more.

use std::sync::Arc;

use aqueduct_core::Refusal;
use aqueduct_kernels::pool::PAGE_CELLS;
use aqueduct_kernels::{BackendError, Shard};

use super::{ShardStore, State};

impl ShardStore {
    /// Tokens of a page: what is held takes whole ones.
    pub fn page_tokens(&self) -> u64 {
        self.pool.as_ref().map_or(1, |_| PAGE_CELLS as u64)
    }

    /// Bytes held: shards, and the queries of rounds under way.
    pub fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// `shard` where shards lie.
    pub(super) fn lay(&self, shard: Arc<Shard>) -> Result<Arc<Shard>, BackendError> {
        match &self.pool {
            Some(pool) => Ok(Arc::new(shard.put_in(pool)?)),
            None => Ok(shard),
        }
    }
}

impl State {
    pub(super) fn room_for(&self, bytes: u64, bytes_max: u64) -> Result<(), Refusal> {
        let left = bytes_max.saturating_sub(self.bytes);
        Refusal::unless_within("shard_bytes", bytes, 0, left).map(drop)
    }
}
