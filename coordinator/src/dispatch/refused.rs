//! What a worker hears that is refused: whoever looks after it reads its log, and not this one's.
//! A session that its coordinator ends has no last word, so the next one begins with it.

use aqueduct_core::WorkerId;

use crate::runtime::{Cluster, WorkerState};

/// Why `worker` is refused, if it is.
pub(super) fn reason(cluster: &Cluster, worker: WorkerId) -> Option<String> {
    let status = cluster.workers.get(worker.0 as usize);
    let refused = status.filter(|status| status.state == WorkerState::Refused)?;
    refused.reason.clone()
}
