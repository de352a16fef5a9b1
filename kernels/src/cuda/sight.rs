//! What rows see of keys where a window or blocks bound it, for kernels that read no position.

use std::sync::Arc;

use super::Shared;
use super::device::{Address, Launch};
use super::fast::Sight;
use super::params::attention::{FindSight, QueryArray};
use super::resident::OnDevice;
use crate::backend::BackendError;

/// A [`Sight`] with its arrays.
pub(super) struct Found {
    first: OnDevice<u32>,
    end: OnDevice<u32>,
}

impl Found {
    /// Of rows over keys at or before them, at `positions` `[kv_heads, keys]`.
    pub(super) fn new(
        shared: &Arc<Shared>,
        queries: QueryArray,
        positions: &OnDevice<u32>,
        [kv_heads, keys]: [usize; 2],
    ) -> Result<Self, BackendError> {
        const THREADS: usize = 256;
        let tokens = queries.tokens as usize;
        let room = |each| OnDevice::room(shared, kv_heads * each);
        let found = Self { first: room(tokens)?, end: room(keys)? };
        let params = FindSight {
            queries,
            positions: positions.address(),
            first: found.first.address(),
            end: found.end.address(),
            keys: keys as u32,
            unused: 0,
        };
        shared.run(&Launch {
            kernel: "find_sight",
            grid: [tokens.max(keys).div_ceil(THREADS) as u32, kv_heads as u32, 1],
            threads: THREADS as u32,
            shared_bytes: 0,
            params: bytemuck::bytes_of(&params),
        })?;
        Ok(found)
    }

    pub(super) fn at(&self) -> Sight {
        Sight { first: Address(self.first.address()), end: Address(self.end.address()) }
    }
}
