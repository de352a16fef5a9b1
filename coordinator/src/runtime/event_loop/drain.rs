//! Workers that are to be left: by an operator's order, or because they say that they go.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

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

/// Whom an operator has drained, by name, whether they are here or not; and since when those
/// have left the cluster that have.
#[derive(Debug, Default)]
pub(super) struct Drained(BTreeMap<String, Option<Instant>>);

impl Drained {
    /// Whoever has been out of the cluster for so long does not come back, or comes back as a new
    /// one: where pods come and go an address is soon another worker's.
    const GONE: Duration = Duration::from_secs(3600);

    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Since when the worker with this name is away, if it is drained; `None` if it is here.
    pub(super) fn seen(&mut self, name: &str, away: Option<Instant>) {
        if let Some(since) = self.0.get_mut(name) {
            *since = away;
        }
    }

    /// When [`forget`](Self::forget) has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        self.0.values().flatten().min().map(|since| *since + Self::GONE)
    }

    /// Forgets who is not coming back.
    fn forget(&mut self, now: Instant) -> Vec<String> {
        let is_gone =
            |since: &Option<Instant>| since.is_some_and(|since| since + Self::GONE <= now);
        self.0.extract_if(.., |_, since| is_gone(since)).map(|(name, _)| name).collect()
    }
}

impl EventLoop {
    pub(super) fn drain_as_ordered(&mut self, order: DrainOrder) {
        let DrainOrder { worker, draining, done } = order;
        let name = self.outputs.shown.cluster.borrow().name_of(worker);
        let away = self.away.contains(&worker).then(Instant::now);
        match draining {
            true => drop(self.drained.0.entry(name.clone()).or_insert(away)),
            false => drop(self.drained.0.remove(&name)),
        }
        self.drain(worker, draining);
        self.publish_stats();
        match &mut self.scribe {
            Some(scribe) => scribe.drained(name, draining, Some(done)),
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
        let now = Instant::now();
        self.drained.0.extend(names.into_iter().map(|name| (name, Some(now))));
        for worker in &self.outputs.shown.cluster.borrow().workers {
            self.drained.seen(&worker.name, None);
        }
        let count = self.outputs.shown.cluster.borrow().workers.len();
        (0..count).for_each(|idx| self.drain_again(WorkerId(idx as u32)));
    }

    /// Who has been away for long is not drained any more.
    pub(super) fn forget_drained(&mut self) {
        for name in self.drained.forget(Instant::now()) {
            tracing::info!(worker = name, "a drained worker is not coming back");
            if let Some(scribe) = &mut self.scribe {
                scribe.drained(name, false, None);
            }
        }
    }

    pub(super) fn is_drained(&self, worker: WorkerId) -> bool {
        self.drained.contains(&self.outputs.shown.cluster.borrow().name_of(worker))
    }

    /// Workers that are to be left, and how many requests still need each.
    pub(super) fn needed(&self) -> BTreeMap<WorkerId, usize> {
        let cluster = self.outputs.shown.cluster.borrow();
        let draining = cluster.workers.iter().filter(|status| status.draining);
        draining.map(|status| (status.worker, self.plan.needing(status.worker))).collect()
    }

    fn drain(&mut self, worker: WorkerId, draining: bool) {
        let name = self.name_of(worker);
        match draining {
            true => tracing::info!(%worker, name, "worker is drained: it is given nothing new"),
            false => tracing::info!(%worker, name, "worker takes work again"),
        }
        self.outputs.shown.cluster.send_modify(|cluster| {
            if let Some(status) = cluster.workers.get_mut(worker.0 as usize) {
                status.draining = draining;
            }
        });
        self.step(Event::Drain { worker, draining });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_away_for_long_is_forgotten() {
        let start = Instant::now();
        let at = |minutes: u64| start + Duration::from_secs(60 * minutes);
        let mut drained = Drained::default();
        drained.0.extend(["stays", "returns", "goes"].map(|name| (name.to_owned(), None)));
        assert_eq!((drained.due(), drained.forget(at(9999))), (None, vec![]));

        drained.seen("goes", Some(at(0)));
        drained.seen("returns", Some(at(1)));
        drained.seen("stranger", Some(at(2)));
        assert_eq!((drained.due(), drained.forget(at(59))), (Some(at(60)), vec![]));
        assert_eq!(drained.forget(at(60)), ["goes"]);
        assert_eq!(drained.due(), Some(at(61)));
        drained.seen("returns", None);
        assert_eq!((drained.due(), drained.forget(at(9999))), (None, vec![]));
        assert_eq!(
            ["stays", "returns", "goes"].map(|name| drained.contains(name)),
            [true, true, false]
        );
    }
}
