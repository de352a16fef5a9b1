//! Time, as the plan is told of it.

use std::time::{Duration, Instant};

use aqueduct_core::RequestId;
use aqueduct_plan::Event;

use super::super::leaving::Farewell;
use super::super::live::Timing;
use super::EventLoop;
use crate::submit::RequestError;

impl EventLoop {
    pub(super) fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    pub(super) fn next_deadline(&self) -> Instant {
        const IDLE: Duration = Duration::from_secs(3600);
        let idle = Instant::now() + IDLE;
        let due = self.plan.next_deadline_ms().map(Duration::from_millis);
        let due = due.and_then(|due| self.started.checked_add(due));
        let farewell = self.farewell.as_ref().map(Farewell::due);
        [due, self.due(), farewell].into_iter().flatten().fold(idle, Instant::min)
    }

    /// Of a request that begins, and has waited so long.
    pub(super) fn timing(&self, deadline: Duration, waited: Duration) -> Timing {
        let deadline = deadline.min(self.config.request_deadline);
        self.timing_of(deadline.saturating_sub(waited))
    }

    /// Of one that was let in with this `deadline`.
    pub(super) fn timing_of(&self, deadline: Duration) -> Timing {
        let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        let arrived_at_ms = self.now_ms();
        Timing {
            handoff_deadline: self.config.handoff_deadline,
            arrived_at_ms,
            deadline_at_ms: arrived_at_ms.saturating_add(deadline_ms.max(1)),
        }
    }

    /// Tells the plan what time it is, if that is something new.
    pub(super) fn tick(&mut self) -> Vec<(RequestId, RequestError)> {
        let now_ms = self.now_ms();
        let is_new = std::mem::replace(&mut self.told_ms, now_ms) < now_ms;
        if is_new { self.carry_out(Event::Tick { now_ms }) } else { Vec::new() }
    }
}
