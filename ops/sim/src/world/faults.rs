//! Sessions that begin and end, and what goes wrong with processes and links.

use super::{At, Happening, Host, World};
use crate::coordinator::Violation;
use crate::fault::Fault;

/// A peer that does not answer for so long is given up.
const PING_TIMEOUT_US: u64 = 3_000_000;
/// A worker that could not be reached is tried again after so long.
const REDIAL_US: u64 = 1_000_000;

impl World {
    /// The coordinator opens a session where a process listens.
    pub(super) fn dial(&mut self, worker: usize) -> Result<(), Violation> {
        let open_at = self.network.open_at(worker, self.coordinator_node(), self.now);
        let host = &mut self.hosts[worker];
        let (life, answers) = (host.life, host.stands_still_until <= self.now);
        if host.session.is_some() {
            return Ok(());
        }
        if host.worker.is_none() || !answers || open_at > self.now {
            self.at(self.now + REDIAL_US, Happening::Dial(worker));
            return Ok(());
        }
        self.sessions += 1;
        let session = self.sessions;
        host.session = Some(session);
        self.note(|| format!("worker {worker} is up, session {session}"));
        let kept = self.with(At { worker, life }, |worker| {
            worker.open(session);
            worker.kept()
        });
        let has = (self.hosts[worker].pool_tokens, kept.unwrap_or_default());
        self.coordinator.worker_up(self.clock_ms(), worker, has)
    }

    pub(super) fn lost(&mut self, worker: usize, session: u64) -> Result<(), Violation> {
        let host = &mut self.hosts[worker];
        if host.session != Some(session) {
            return Ok(());
        }
        host.session = None;
        let redial = self.now + self.dice.of(1_000..REDIAL_US);
        self.note(|| format!("worker {worker} is lost, session {session}"));
        self.at(redial, Happening::Dial(worker));
        self.coordinator.worker_down(self.clock_ms(), worker)
    }

    pub(super) fn suffer(&mut self, fault: Fault) -> Result<(), Violation> {
        self.note(|| format!("{fault:?}"));
        let (now, coordinator) = (self.now, self.coordinator_node());
        match fault {
            Fault::Crash { worker, back_after_us } => {
                let host = &mut self.hosts[worker];
                if host.worker.take().is_none() {
                    return Ok(());
                }
                host.life += 1;
                host.stands_still_until = 0;
                let session = host.session;
                self.at(now + back_after_us, Happening::Restart(worker));
                if let Some(session) = session {
                    let reset = self.network.open_at(worker, coordinator, now);
                    let reset = reset.min(now + PING_TIMEOUT_US) + self.dice.of(1_000..300_000);
                    self.at(reset, Happening::Lost { worker, session });
                }
            }
            // Who stands still already goes on when it would have: what waits stays in order.
            Fault::Hang { worker, .. } if now < self.hosts[worker].stands_still_until => {}
            Fault::Hang { worker, for_us } => {
                self.hosts[worker].stands_still_until = now + for_us;
                if for_us > PING_TIMEOUT_US {
                    self.part(worker, now + for_us);
                }
            }
            Fault::Cut { a, b, for_us } if a != b => {
                self.network.cut(a, b, now + for_us);
                if b == coordinator && for_us > PING_TIMEOUT_US {
                    self.part(a, now + PING_TIMEOUT_US);
                }
            }
            Fault::Cut { .. } => {}
            Fault::Slow { worker, times } => {
                if let Some(worker) = &mut self.hosts[worker].worker {
                    worker.slowness = times;
                }
            }
            Fault::Drain { worker, for_us } => {
                self.at(now + for_us, Happening::Undrain(worker));
                self.coordinator.drain(self.clock_ms(), worker, true)?;
            }
            Fault::Jump { ms } => self.ahead_ms += ms,
        }
        Ok(())
    }

    /// Both ends of a worker's session will find that it is gone, each in its time; the worker
    /// not before `there`.
    fn part(&mut self, worker: usize, there: u64) {
        let Host { session: Some(session), life, .. } = self.hosts[worker] else { return };
        let here = self.now + PING_TIMEOUT_US + self.dice.of(0..2_000_000);
        let there = there + self.dice.of(0..2_000_000);
        self.at(here, Happening::Lost { worker, session });
        self.at(there, Happening::LostThere(At { worker, life }, session));
    }
}
