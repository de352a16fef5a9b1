//! A coordinator that leads and is going to stop hands the lead over first: it takes requests until
//! another one does, and what is under way then goes on there, for callers who stay here.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_core::RequestId;
use tokio::sync::{Notify, watch};

use super::seat::{Office, Seat};
use super::{Coordinator, WORKERS_COME};
use crate::peers::Passage;

/// Whether a coordinator hands the lead over when it has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// It stays, as there is nobody else or for no reason to go.
    No,
    /// It goes: by the second one at the latest, and from the first one on it waits for those
    /// alone whose callers would hear no more.
    By(Instant, Instant),
    /// At this moment: callers wait for the next one.
    Now,
}

/// What ends before a loop does, which is going to. When it has, `over` is told, and the loop ends
/// when that says so.
#[derive(Debug)]
pub(super) struct Farewell {
    over: Arc<Notify>,
    /// What was under way when that was said.
    before: BTreeSet<RequestId>,
    from: Instant,
    by: Instant,
}

impl Farewell {
    pub(super) fn new(
        before: BTreeSet<RequestId>,
        (from, by): (Instant, Instant),
        over: Arc<Notify>,
    ) -> Self {
        Self { over, before, from, by }
    }

    /// Says that the time has come.
    pub(super) fn tell(self) {
        self.over.notify_one();
    }

    /// Whether the time has come, with these under way, of which each can be carried on to
    /// another coordinator or not.
    pub(super) fn is_over(
        &self,
        now: Instant,
        mut under_way: impl Iterator<Item = (RequestId, bool)>,
    ) -> bool {
        let is_awaited = |(request, can_be_carried): (RequestId, bool)| {
            self.before.contains(&request) && (now < self.from || !can_be_carried)
        };
        now >= self.by || !under_way.any(is_awaited)
    }

    /// When the time may have come, though nothing happens.
    pub(super) fn due(&self) -> Instant {
        if Instant::now() < self.from { self.from } else { self.by }
    }
}

impl Coordinator {
    /// Hands the lead over, if this one leads and another may; for at most `grace`. What is under
    /// way may end here for half of that, and what nobody else could go on with, for three
    /// quarters; what comes meanwhile is taken. Callers of the rest stay, and hear of it from here.
    pub async fn leave(&self, grace: Duration) {
        if !self.passage.get().is_some_and(Passage::carries) {
            return;
        }
        let leads = |seat: &Seat| matches!(seat, Seat::Here(Office { term: Some(_), .. }));
        let now = Instant::now();
        let by = now + grace;
        // Who follows may come to lead.
        self.leaving.send_replace(Leaving::By(now + grace / 2, now + grace * 3 / 4));
        if !leads(&self.seat.borrow()) {
            return;
        }
        let (mut seat, mut leaving) = (self.seat.clone(), self.leaving.subscribe());
        let left = async {
            tokio::select! {
                _ = seat.wait_for(|seat| !leads(seat)) => {}
                _ = leaving.wait_for(|leaving| *leaving == Leaving::No) => {}
            }
            // Callers who were held meanwhile are sent on before doors close.
            leaving.wait_for(|leaving| *leaving != Leaving::Now).await.ok();
        };
        tokio::time::timeout_at(by.into(), left).await.ok();
    }

    /// Takes no more requests; those that it has go on.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Whether it takes requests.
    pub fn is_open(&self) -> bool {
        !*self.closing.borrow()
    }

    /// Whether it is about to hand the lead over, to be watched.
    pub(crate) fn leaving(&self) -> watch::Receiver<Leaving> {
        self.leaving.subscribe()
    }

    /// Told when it is closed.
    pub(crate) fn closing(&self) -> watch::Receiver<bool> {
        self.closing.subscribe()
    }

    /// Whether it is about to hand the lead over.
    pub(super) fn is_leaving(&self) -> bool {
        *self.leaving.borrow() != Leaving::No
    }

    /// Waits until it is known who leads, where that may be soon.
    pub(crate) async fn settled(&self) {
        if self.passage.get().is_some() {
            let (mut leaving, mut seat) = (self.leaving.subscribe(), self.seat.clone());
            let known = async {
                leaving.wait_for(|leaving| *leaving != Leaving::Now).await.ok();
                seat.wait_for(|seat| !matches!(seat, Seat::Elsewhere(None))).await.ok();
            };
            tokio::time::timeout(WORKERS_COME, known).await.ok();
        }
    }

    /// Waits for the first workers of a term that has just begun.
    pub(super) async fn workers_come(&self, office: &Office) {
        let Office { term: Some(_), since, .. } = office else { return };
        let until = *since + WORKERS_COME;
        let mut cluster = self.cluster.clone();
        let come = cluster.wait_for(|cluster| cluster.workers_open() > 0);
        tokio::time::timeout_at(until.into(), come).await.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_waits_for_what_there_was() {
        let now = Instant::now();
        let (from, by) = (now + Duration::from_secs(10), now + Duration::from_secs(20));
        let before = [RequestId(1), RequestId(2)].into();
        let farewell = Farewell::new(before, (from, by), Arc::default());
        let check = |after_s: u64, under_way: &[(u64, bool)], want: bool| {
            let under_way = under_way.iter().map(|(request, can)| (RequestId(*request), *can));
            let now = now + Duration::from_secs(after_s);
            assert_eq!(farewell.is_over(now, under_way.clone()), want, "{after_s}");
        };
        check(0, &[], true);
        check(0, &[(3, true), (4, false)], true); // they came later
        check(0, &[(2, true), (3, true)], false);
        check(10, &[(1, true), (2, true)], true);
        check(10, &[(1, true), (2, false)], false);
        check(20, &[(1, true), (2, false)], true);
    }
}
