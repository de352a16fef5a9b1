//! Workers that come and go.

use std::time::Instant;

use aqueduct_core::WorkerId;
use aqueduct_core::snapshot::SnapshotNews;
use aqueduct_core::work::{Command as Order, WorkerInfo};
use aqueduct_plan::Event;
use tokio::sync::mpsc;

use super::super::status::{ModelInfo, WorkerState, WorkerStatus, reached_there};
use super::EventLoop;
use crate::dispatch::Notice;

impl EventLoop {
    pub(super) fn hear(&mut self, worker: WorkerId, notice: Notice) {
        match notice {
            Notice::Joined { name } => self.worker_joined(worker, name),
            Notice::Left => self.worker_left(worker),
            Notice::Up { info, snapshots, commands } => {
                self.worker_up(worker, *info, snapshots, commands);
            }
            // The session of a refused worker ends because it was refused.
            Notice::Down { .. } if self.is_refused(worker) => {}
            Notice::Down { reason } => self.worker_down(worker, WorkerState::Down, &reason),
            Notice::Event(_) if !self.orders.contains_key(&worker) => {}
            Notice::Event(said) => self.worker_said(worker, said),
        }
    }

    pub(super) fn worker_joined(&mut self, worker: WorkerId, name: String) {
        tracing::info!(%worker, name, "worker is a member");
        self.outputs.shown.cluster.send_modify(|cluster| {
            self.away.remove(&worker);
            self.drained.seen(&name, None);
            let draining = self.drained.contains(&name);
            let status = WorkerStatus { draining, ..WorkerStatus::connecting(worker, name) };
            match cluster.workers.get_mut(worker.0 as usize) {
                Some(known) => *known = status,
                None => cluster.workers.push(status), // ids ascend from 0 without a gap
            }
        });
    }

    pub(super) fn worker_left(&mut self, worker: WorkerId) {
        let name = self.outputs.shown.cluster.borrow().name_of(worker);
        self.drained.seen(&name, Some(Instant::now()));
        self.away.insert(worker);
        self.worker_down(worker, WorkerState::Down, "it has left the cluster");
    }

    pub(super) fn is_refused(&self, worker: WorkerId) -> bool {
        let cluster = self.outputs.shown.cluster.borrow();
        let status = cluster.workers.get(worker.0 as usize);
        status.is_some_and(|status| status.state == WorkerState::Refused)
    }

    pub(super) fn worker_up(
        &mut self,
        worker: WorkerId,
        info: WorkerInfo,
        snapshots: Option<Box<SnapshotNews>>,
        orders: mpsc::Sender<Order>,
    ) {
        self.forget_model(&info);
        let accepted = self.outputs.shown.cluster.borrow().accepts(worker, &info);
        let twin = match accepted {
            Ok(twin) => twin,
            Err(reason) => return self.worker_down(worker, WorkerState::Refused, &reason),
        };
        if let Some(twin) = twin {
            self.worker_down(twin, WorkerState::Refused, &reached_there(&info, worker));
        }
        let WorkerInfo { threads, pool_tokens, device, .. } = &info;
        let pool_tokens = *pool_tokens;
        tracing::info!(%worker, peer = %info.peer, threads, device, pool_tokens, "worker is up");
        if let Some(other) = self.outputs.shown.cluster.borrow().unlike(&info) {
            let others = other.info.as_ref().map_or("", |info| &info.device);
            tracing::warn!(
                %worker, device, other = %other.worker, others,
                "workers compute with different things: the last bits of answers depend on whom \
                 they come from"
            );
        }
        let peer = info.peer.clone();
        self.outputs.shown.cluster.send_modify(|cluster| {
            cluster.set(worker, WorkerState::Up, None);
            cluster.welcome(worker, info);
        });
        self.orders.insert(worker, orders);
        self.unserved_since = None;
        let draining = self.is_drained(worker);
        let kept = snapshots.as_ref().map_or(Vec::new(), |news| news.kept.clone());
        self.step(Event::WorkerUp { worker, peer, pool_tokens, draining, kept });
        snapshots.into_iter().for_each(|news| self.snapshots_changed(worker, *news));
        self.resume_soon();
        self.drain_again(worker);
    }

    /// A model that no worker has had for so long that its requests have failed gives way to that
    /// of the worker that says hello: it was changed, a worker at a time.
    fn forget_model(&self, info: &WorkerInfo) {
        let grace = self.config.worker_grace;
        let is_over = self.unserved_since.is_some_and(|since| since.elapsed() >= grace);
        if !is_over || !self.live.is_empty() {
            return;
        }
        self.outputs.shown.cluster.send_if_modified(|cluster| {
            let given_up = cluster.model.take_if(|model| model.fingerprint != info.fingerprint);
            if let Some(model) = &given_up {
                let ModelInfo { fingerprint: before, .. } = model;
                tracing::warn!(
                    before,
                    now = info.fingerprint,
                    "another model is served from now on"
                );
            }
            given_up.is_some()
        });
    }

    /// `orders` dropped here end the session.
    pub(super) fn worker_down(&mut self, worker: WorkerId, state: WorkerState, reason: &str) {
        let was_up = self.orders.remove(&worker).is_some();
        self.keepers.remove(&worker);
        self.desk.asks.forget(worker);
        self.stats.pools.remove(&worker);
        if was_up {
            self.live.values_mut().for_each(|live| live.lost(worker, reason));
        }
        if was_up && self.orders.is_empty() {
            self.unserved_since = Some(Instant::now());
        }
        let changed = self
            .outputs
            .shown
            .cluster
            .send_if_modified(|cluster| cluster.set(worker, state, Some(reason.to_owned())));
        if was_up || changed {
            let name = self.name_of(worker);
            tracing::warn!(%worker, name, ?state, reason, "worker is not available");
        }
        self.step(Event::WorkerDown { worker });
        // Before that it would be given what is new, and is gone.
        self.has_left(worker);
    }

    /// What people call a worker, and commands know.
    pub(super) fn name_of(&self, worker: WorkerId) -> String {
        self.outputs.shown.cluster.borrow().name_of(worker)
    }
}
