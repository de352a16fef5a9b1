//! Chunks that are done again while later ones of their request are in flight.

use aqueduct_core::WorkerId;

use super::{Request, State};

impl Request {
    /// Its next chunk that is done again while something in flight waits for it, with its ticket.
    pub(crate) fn next_again(&self) -> Option<(u64, usize)> {
        let last = self.running().last()?;
        let waiting = (self.frontier..last).filter(|idx| self.waits(*idx));
        let (ticket, idx) =
            waiting.filter_map(|idx| Some((self.chunks[idx].ticket?, idx))).next()?;
        (!self.stranded.contains(&idx)).then_some((ticket, idx))
    }

    /// How many such chunks there are.
    pub(crate) fn again(&self) -> usize {
        if self.all_dispatched() || self.is_sharded() {
            return 0;
        }
        let Some(last) = self.running().last() else { return 0 };
        // What is done needs nothing before it, and nor does what comes after it.
        let (mut again, mut since_done) = (0, 0);
        for chunk in &self.chunks[self.frontier..=last] {
            match chunk.state {
                State::Waiting => since_done += 1,
                State::Running => again += std::mem::take(&mut since_done),
                State::Held | State::Released => since_done = 0,
            }
        }
        again
    }

    /// Whether what is undone is in the total order behind what it needs. Of what is done again
    /// though nothing in flight needed it, something may have come to, by another loss.
    pub(crate) fn is_in_order(&self) -> bool {
        let Some(last) = self.running().last().filter(|_| !self.is_sharded()) else { return true };
        let mut before = None;
        self.chunks[self.frontier..=last].iter().all(|chunk| {
            if chunk.state.is_done() {
                before = None;
                return true;
            }
            let Some(ticket) = chunk.ticket else { return true };
            before.replace(ticket).is_none_or(|before| before < ticket)
        })
    }

    /// Memory is handed on. What is in flight and needs a chunk that waits is not any more: it
    /// waits, too, and nothing in flight waits for any of them. Gives what is to be dropped.
    pub(crate) fn take_back(&mut self) -> Vec<(WorkerId, usize)> {
        let mut needs_what_waits = false;
        let behind = |idx: &usize| {
            match self.chunks[*idx].state {
                State::Waiting => needs_what_waits = true,
                State::Held | State::Released => needs_what_waits = false,
                State::Running => return needs_what_waits,
            }
            false
        };
        let last = self.running().last();
        let behind: Vec<usize> =
            last.map_or(Vec::new(), |last| (self.frontier..=last).filter(behind).collect());
        let dropped = behind.iter().map(|idx| (self.worker(*idx), *idx)).collect();
        for idx in behind {
            self.redo(idx);
            self.move_to(idx, self.worker(idx));
        }
        self.forget_tickets();
        dropped
    }

    /// Memory is handed on, and nothing in flight needs a chunk that waits with none in flight
    /// between it and the next one that is done: it has no place in the total order any more, and
    /// is last in it when it is dispatched again.
    pub(super) fn forget_tickets(&mut self) {
        let mut is_needed = false;
        for chunk in self.chunks[self.frontier..].iter_mut().rev() {
            match chunk.state {
                State::Running => is_needed = true,
                State::Held | State::Released => is_needed = false,
                State::Waiting if !is_needed => chunk.ticket = None,
                State::Waiting => {}
            }
        }
    }

    fn waits(&self, idx: usize) -> bool {
        self.chunks[idx].state == State::Waiting
    }
}
