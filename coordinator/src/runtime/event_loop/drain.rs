//! Workers that are to be left: by an operator's order, or because they say that they go.

use std::collections::BTreeMap;

use aqueduct_core::WorkerId;
use aqueduct_plan::Event;

use super::super::scribe::Reply;
use super::EventLoop;

/// A worker that is to be left, or not any more; `done` hears when that is so, and written down.
#[derive(Debug)]
pub(crate) struct DrainOrder {
    pub(crate) worker: WorkerId,
    pub(crate) draining: bool,
    pub(crate) done: Reply,
}

impl EventLoop {
    pub(super) fn drain_as_ordered(&mut self, order: DrainOrder) {
        let DrainOrder { worker, draining, done } = order;
        let name = self.outputs.shown.cluster.borrow().name_of(worker);
        match draining {
            true => drop(self.drained.insert(name.clone())),
            false => drop(self.drained.remove(&name)),
        }
        self.drain(worker, draining);
        self.publish_stats();
        match &mut self.scribe {
            Some(scribe) => scribe.drained(name, draining, done),
            None => drop(done.send(Ok(()))), // whoever asked may be gone
        }
    }

    /// `worker` says that it is going to stop.
    pub(super) fn leaves(&mut self, worker: WorkerId) {
        self.leaving.insert(worker);
        self.drain(worker, true);
    }

    /// The session is over: what the worker said of itself holds until then.
    pub(super) fn has_left(&mut self, worker: WorkerId) {
        if self.leaving.remove(&worker) && !self.is_drained(worker) {
            self.drain(worker, false);
        }
    }

    /// Who was drained by an operator remains so, also after a restart, its own or ours.
    pub(super) fn drain_again(&mut self, worker: WorkerId) {
        if self.is_drained(worker) {
            self.drain(worker, true);
        }
    }

    /// The journal says whom an operator has drained.
    pub(super) fn drain_those(&mut self, names: Vec<String>) {
        self.drained.extend(names);
        let count = self.outputs.shown.cluster.borrow().workers.len();
        (0..count).for_each(|idx| self.drain_again(WorkerId(idx as u32)));
    }

    fn is_drained(&self, worker: WorkerId) -> bool {
        self.drained.contains(&self.outputs.shown.cluster.borrow().name_of(worker))
    }

    /// Workers that are to be left, and how many requests still need each.
    pub(super) fn needed(&self) -> BTreeMap<WorkerId, usize> {
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
