//! What a worker hears that is refused: whoever looks after it reads its log, and not this one's.
//! A session that its coordinator ends has no last word, so the next one begins with it.

use aqueduct_core::WorkerId;
use aqueduct_proto::REFUSED_METADATA;
use tonic::metadata::{MetadataMap, MetadataValue};

use crate::runtime::{Cluster, WorkerState};

/// Most bytes of [`REFUSED_METADATA`].
const REASON_BYTES_MAX: usize = 512;

/// Why `worker` is refused, if it is.
pub(super) fn reason(cluster: &Cluster, worker: WorkerId) -> Option<String> {
    let status = cluster.workers.get(worker.0 as usize);
    let refused = status.filter(|status| status.state == WorkerState::Refused)?;
    refused.reason.clone()
}

/// Says so in the metadata of a session.
pub(super) fn put(reason: &str, metadata: &mut MetadataMap) {
    let end = reason.floor_char_boundary(REASON_BYTES_MAX);
    let reason = &reason.as_bytes()[..end];
    metadata.insert_bin(REFUSED_METADATA, MetadataValue::from_bytes(reason));
}
