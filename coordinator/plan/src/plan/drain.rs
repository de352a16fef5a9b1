//! Workers that are to be left: they get nothing new, and what they have comes to its end.

use aqueduct_core::WorkerId;

use super::{Plan, Worker};
use crate::request::Phase;
use crate::words::Failure;

impl Plan {
    /// Requests that need something that `worker` has, or is at.
    pub fn needing(&self, worker: WorkerId) -> usize {
        self.running.iter().filter(|request| request.needs(worker)).count()
    }

    /// Moves the chunks that wait for `worker` elsewhere. Those that it is at, and what is decoded
    /// there, end there.
    pub(super) fn drain(&mut self, worker: WorkerId, draining: bool) {
        let Some(known) = self.workers.get_mut(&worker) else { return };
        known.draining = draining;
        if draining && self.is_open() {
            self.move_waiting(worker);
        }
        self.fail_those_without_a_place();
    }

    fn move_waiting(&mut self, worker: WorkerId) {
        for pos in (0..self.running.len()).rev() {
            let request = &self.running[pos];
            let waiting = request.waiting_on(worker);
            let may_leave = self.takers().any(|(other, _)| !request.left.contains(&other));
            if request.phase == Phase::Prefill && !waiting.is_empty() && may_leave {
                self.place_again(pos, &waiting, worker, "it is to be left");
            }
        }
    }

    /// Why nothing new begins, if it does not: no worker stays.
    pub(super) fn closed(&self) -> Option<Failure> {
        (!self.is_open()).then(Failure::no_worker)
    }

    fn is_open(&self) -> bool {
        self.workers.values().any(|worker| worker.up && !worker.draining)
    }

    pub(super) fn is_up(&self, worker: WorkerId) -> bool {
        self.workers.get(&worker).is_some_and(|known| known.up)
    }

    /// Workers that may be given something new.
    pub(super) fn up(&self) -> Vec<WorkerId> {
        self.takers().map(|(id, _)| id).collect()
    }

    /// The same, with what is known of them: those that stay or, so that what has begun comes
    /// to its end, all while none does.
    pub(super) fn takers(&self) -> impl Iterator<Item = (WorkerId, &Worker)> {
        let all = !self.is_open();
        let may = move |worker: &&Worker| worker.up && (all || !worker.draining);
        self.workers.iter().map(|(id, worker)| (*id, worker)).filter(move |(_, worker)| may(worker))
    }
}
