//! Prefixes that are whole are kept where they were computed; what workers have is told the plan.

use aqueduct_core::snapshot::{Keep, SnapshotNews};
use aqueduct_core::work::Command as Order;
use aqueduct_core::{RequestId, SnapshotsHeld, WorkerId};
use aqueduct_plan::Event;

use super::EventLoop;

impl EventLoop {
    /// Has workers keep what is known to be whole of a prompt and is nowhere yet. The plan counts
    /// on it at once: a worker reads this before anything that the plan asks of it later.
    pub(super) fn keep_prefixes(&mut self, request: RequestId) {
        let Some(live) = self.live.get_mut(&request) else { return };
        for (worker, whole) in live.whole_prefixes() {
            let snapshot = whole.name;
            if !self.keepers.contains_key(&worker) || self.plan.has_snapshot(&snapshot) {
                continue;
            }
            let Some(orders) = self.orders.get(&worker) else { continue };
            let (chunk_idx, retained) = (whole.chunk_idx, whole.retained);
            let keep = Keep { request, chunk_idx, snapshot, retained };
            if orders.try_send(Order::Keep(Box::new(keep))).is_ok() {
                self.step(Event::Snapshots { worker, kept: vec![snapshot], dropped: Vec::new() });
            }
        }
    }

    /// A worker says what it has and what not.
    pub(super) fn snapshots_changed(&mut self, worker: WorkerId, news: SnapshotNews) {
        let SnapshotNews { kept, dropped, held } = news;
        tracing::debug!(%worker, kept = kept.len(), dropped = dropped.len(), ?held, "snapshots");
        self.keepers.insert(worker, held);
        self.step(Event::Snapshots { worker, kept, dropped });
    }

    /// What all workers have together.
    pub(super) fn snapshots_held(&self) -> SnapshotsHeld {
        self.keepers.values().fold(SnapshotsHeld::default(), |mut sum, held| {
            sum.add(*held);
            sum
        })
    }
}
