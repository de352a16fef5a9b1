//! Workers that are to be left: they get nothing new, and what they have comes to its end.

use aqueduct_core::work::NextHop;
use aqueduct_core::{RequestId, WorkerId};

use super::{Plan, Worker};
use crate::request::Phase;
use crate::words::{Command, Failure};

/// Why something leaves such a worker.
const WHY: &str = "it is to be left";

impl Plan {
    /// Requests that need something that `worker` has, or is at.
    pub fn needing(&self, worker: WorkerId) -> usize {
        self.running.iter().filter(|request| request.needs(worker)).count()
    }

    /// Moves the chunks that wait for `worker` elsewhere, and what it decodes from memory sets.
    /// Chunks that it is at, and what it decodes where keys are in shards or where nobody else
    /// could be told how far it came, end there.
    pub(super) fn drain(&mut self, worker: WorkerId, draining: bool) {
        let Some(known) = self.workers.get_mut(&worker) else { return };
        known.draining = draining;
        if draining {
            // One that takes its place may come, or it may stay after all.
            self.wait_for_workers();
            if self.is_open() {
                self.move_waiting(worker);
            }
        }
        self.fail_those_without_a_place();
    }

    /// Has what is decoded on workers that are to be left go elsewhere, and has them keep nothing
    /// that is only there in case of a loss.
    pub(super) fn leave_drained(&mut self) {
        if !self.is_open() {
            return;
        }
        let drained = self.workers.iter().filter(|(_, worker)| worker.up && worker.draining);
        for worker in drained.map(|(id, _)| *id).collect::<Vec<_>>() {
            for pos in 0..self.running.len() {
                if self.running[pos].phase == (Phase::Decode { home: worker }) {
                    self.send_away(pos, worker);
                } else if let Some(giver) = self.running[pos].let_go(worker) {
                    let (request, chunk_idx) = (self.running[pos].id, giver as u32);
                    self.commands.push(Command::Confirm { worker, request, chunk_idx });
                }
            }
        }
    }

    /// Has the completions that `home` decodes go to another worker, if they can and do not yet.
    fn send_away(&mut self, pos: usize, home: WorkerId) {
        let request = &self.running[pos];
        let last = request.chunk_count() - 1;
        if request.is_sharded() || request.stays || request.departure.is_some() {
            return;
        }
        let Ok(chosen) = self.places_again(pos, &[last], home, WHY) else { return };
        let Some(to) = chosen.first().copied().filter(|to| *to != home) else { return };
        // What follows goes elsewhere, if it can.
        self.rotation = self.rotation.wrapping_add(1);
        let request = &mut self.running[pos];
        let (epoch, id) = (request.depart(to).epoch, request.id);
        let next = NextHop { peer: self.workers[&to].peer.clone(), epoch, base: None };
        self.commands.push(Command::HandOver { worker: home, request: id, next });
    }

    /// Nobody else could go on with the completions of `id`, if it `stays`.
    pub(super) fn stays(&mut self, id: RequestId, stays: bool) {
        if let Some(pos) = self.position(id) {
            self.running[pos].stays = stays;
        }
    }

    /// What completions go on from has arrived where it was to go.
    pub(super) fn handed_over(&mut self, worker: WorkerId, id: RequestId) {
        let Some(pos) = self.position(id) else { return };
        let request = &mut self.running[pos];
        if request.phase != (Phase::Decode { home: worker }) {
            return;
        }
        if let Some(departure) = request.departure.take() {
            request.arrive(departure);
            let (worker, handed_over) = (departure.to, Some(departure.epoch));
            let gathers = false; // what is in shards goes nowhere
            self.commands.push(Command::Decode { worker, request: id, handed_over, gathers });
        }
    }

    /// What `worker` did of the chunks `lost` is gone. If it is where completions are on their way
    /// to, the last chunk is too: what arrived is gone, and their home has let go of them.
    pub(super) fn lost_under_way(
        &mut self,
        pos: usize,
        mut lost: Vec<usize>,
        worker: WorkerId,
    ) -> Vec<usize> {
        let request = &mut self.running[pos];
        let last = request.chunk_count() - 1;
        if request.departure.is_some_and(|departure| departure.to == worker) {
            let (id, home) = (request.id, request.home());
            self.drop_chunks(id, vec![(home, last)]);
            if !lost.contains(&last) {
                lost.push(last);
            }
        }
        if lost.contains(&last) {
            self.running[pos].departure = None;
        }
        lost
    }

    fn move_waiting(&mut self, worker: WorkerId) {
        for pos in (0..self.running.len()).rev() {
            let request = &self.running[pos];
            let waiting = request.waiting_on(worker);
            let may_leave = self.takers().any(|(other, _)| !request.left.contains(&other));
            if request.phase == Phase::Prefill && !waiting.is_empty() && may_leave {
                self.place_again(pos, &waiting, worker, WHY);
            }
        }
    }

    /// Why nothing new begins, if it does not: no worker stays.
    pub(super) fn closed(&self) -> Option<Failure> {
        let is_drained = self.workers.values().any(|worker| worker.up);
        (!self.is_open()).then(|| match is_drained {
            true => Failure::Unavailable("every worker is drained".into()),
            false => Failure::no_worker(),
        })
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
