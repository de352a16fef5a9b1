//! What a port says of answers that do not come, or are none.

use aqueduct_core::work::Peer;
use aqueduct_engine::shards::ShardError;
use aqueduct_engine::{Model, PortError};
use aqueduct_kernels::BackendError;

use crate::exchange::{CallError, Reply};
use crate::inbox::Fit;

pub(super) fn failed(layer: usize, peer: &Peer, error: &CallError) -> PortError {
    PortError::Peer { layer, what: format!("shards at {peer}: {error}") }
}

/// What a peer has sent; keys that are not those of `model` are refused.
pub(super) fn fitting(model: &Model, layer: u32, reply: Reply) -> Result<Reply, CallError> {
    if let Reply::Keys(shards) = &reply {
        let fit = Fit::of(model);
        let checked = shards.values().try_for_each(|shard| fit.check_shard(layer, shard));
        checked.map_err(|refusal| CallError::Refused(refusal.to_string()))?;
    }
    Ok(reply)
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

/// Why this worker's own shards of `layer` do not answer. What the pool has no room for is no
/// other worker's fault: to do it again there would bring the same.
pub(super) fn unanswered(layer: usize, error: ShardError) -> PortError {
    match not_kept(layer, error) {
        PortError::Peer { layer, what } => {
            PortError::Peer { layer, what: format!("shards here: {what}") }
        }
        error => error,
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
