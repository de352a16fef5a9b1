//! What a port says of answers that do not come, or are none.

use aqueduct_core::work::Peer;
use aqueduct_engine::PortError;
use aqueduct_engine::shards::ShardError;
use aqueduct_kernels::BackendError;

use crate::exchange::{CallError, Reply};

pub(super) fn failed(layer: usize, peer: &Peer, error: &CallError) -> PortError {
    PortError::Peer { layer, what: format!("shards at {peer}: {error}") }
}

/// Why a shard of `layer` is not here.
pub(super) fn not_kept(layer: usize, error: ShardError) -> PortError {
    match error {
        ShardError::Backend(
            source @ (BackendError::Exhausted { .. } | BackendError::Device { .. }),
        ) => PortError::Memory { layer, source },
        error => PortError::Peer { layer, what: error.to_string() },
    }
}

pub(super) fn unexpected(layer: usize, reply: &Reply) -> PortError {
    let kind = match reply {
        Reply::States(_) => "states",
        Reply::Standing(_) => "candidates",
        Reply::Settled(_) => "masses",
        Reply::Keys(_) => "keys",
    };
    PortError::Peer { layer, what: format!("{kind} are no answer to what was asked") }
}
