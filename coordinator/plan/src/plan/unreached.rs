//! What follows when workers that are up cannot reach each other.

use aqueduct_core::WorkerId;

use super::Plan;
use crate::words::Command;

impl Plan {
    /// `worker`, which is at chunk `idx` of the request at `pos`, could not reach what it needs of
    /// others. If it does not again and again, though they are there, the request leaves it, as
    /// others may; but where these have no room for what it has there, it stays, and tries again
    /// after a while: links that are cut are waited for as workers are that are lost.
    pub(super) fn cannot_reach(&mut self, pos: usize, idx: usize, worker: WorkerId, why: &str) {
        let is_rule = self.running[pos].complain(worker);
        let mut others = self.up();
        others.retain(|other| *other != worker);
        if !is_rule || others.is_empty() {
            return self.do_again(pos, &[idx], worker, why);
        }
        let request = &self.running[pos];
        others.retain(|other| !request.left.contains(other));
        let is_relieved = self.new_places(pos, &request.on(worker), &others).is_some();
        if is_relieved {
            self.leave(pos, worker, why);
        } else if self.running[pos].patience.pause(self.now_ms, self.limits.grace_ms) {
            self.do_again_later(pos, idx, worker);
        } else {
            self.do_again(pos, &[idx], worker, why);
        }
    }

    /// Takes a request away from a worker that is up but cannot be given its memory. Nothing
    /// of it may stay there: a chunk that waits in vain would block those behind it. Where memory
    /// is handed on it never returns: the cancellation could overtake, and wipe out, a memory
    /// sent there later.
    pub(super) fn leave(&mut self, pos: usize, worker: WorkerId, why: &str) {
        let request = &mut self.running[pos];
        self.commands.push(Command::Cancel { worker, request: request.id });
        let disruptions = request.leave(worker);
        let lost = request.on(worker);
        let moved = self.lose(pos, &lost, worker);
        let request = &mut self.running[pos];
        request.is_gone_from(worker);
        request.disruptions = disruptions;
        self.place_again(pos, &moved, worker, why);
    }

    /// What `worker` did of chunk `idx` is gone, and is done again when the pause of its request
    /// is over. That costs the request time and none of the failures that it survives.
    fn do_again_later(&mut self, pos: usize, idx: usize, worker: WorkerId) {
        let disruptions = self.running[pos].disruptions;
        let moved = self.lose(pos, &[idx], worker);
        let request = &mut self.running[pos];
        request.disruptions = disruptions;
        self.strand(pos, &moved);
    }

    /// Whether what has no place in the request at `pos` may wait for one.
    pub(super) fn may_wait(&mut self, pos: usize) -> bool {
        let is_patient = self.running[pos].patience.may_wait(self.now_ms, self.limits.grace_ms);
        is_patient || self.grace_until_ms.is_some() || self.running[pos].wants_room
    }
}
