//! Workers that are to be left: by an operator's order, or because they say that they go.

use std::collections::BTreeMap;

use aqueduct_core::WorkerId;
use aqueduct_plan::Event;
use tokio::sync::oneshot;

use super::EventLoop;

/// A worker that is to be left, or not any more; `done` hears when that is so.
#[derive(Debug)]
pub(crate) struct DrainOrder {
    pub(crate) worker: WorkerId,
    pub(crate) draining: bool,
    pub(crate) done: oneshot::Sender<()>,
}

impl EventLoop {
    pub(super) fn drain_as_ordered(&mut self, order: DrainOrder) {
        self.drain(order.worker, order.draining);
        self.publish_stats();
        let _ = order.done.send(()); // whoever asked may be gone
    }

    /// `worker` says that it is going to stop.
    pub(super) fn leaves(&mut self, worker: WorkerId) {
        self.leaving.insert(worker);
        self.drain(worker, true);
    }

    /// The session is over: what the worker said of itself holds until then.
    pub(super) fn has_left(&mut self, worker: WorkerId) {
        if self.leaving.remove(&worker) {
            self.drain(worker, false);
        }
    }

    /// Who was drained by an operator remains so, also after a restart.
    pub(super) fn drain_again(&mut self, worker: WorkerId) {
        if self.outputs.shown.cluster.borrow().workers[worker.0 as usize].draining {
            self.step(Event::Drain { worker, draining: true });
        }
    }

    /// Workers that are to be left, and how many requests still need each.
    pub(super) fn drained(&self) -> BTreeMap<WorkerId, usize> {
        let cluster = self.outputs.shown.cluster.borrow();
        let draining = cluster.workers.iter().filter(|status| status.draining);
        draining.map(|status| (status.worker, self.plan.needing(status.worker))).collect()
    }

    fn drain(&mut self, worker: WorkerId, draining: bool) {
        tracing::info!(%worker, draining, "worker is to be left, or not any more");
        self.outputs.shown.cluster.send_modify(|cluster| {
            if let Some(status) = cluster.workers.get_mut(worker.0 as usize) {
                status.draining = draining;
            }
        });
        self.step(Event::Drain { worker, draining });
    }
}
