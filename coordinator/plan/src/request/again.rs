//! Chunks that are done again while later ones of their request are in flight.

use std::ops::Range;

use aqueduct_core::WorkerId;

use super::{Request, State};

impl Request {
    /// Its first chunk in the total order that is done again while something in flight waits for
    /// it, with its ticket.
    pub(crate) fn next_again(&self) -> Option<(u64, usize)> {
        let last = self.running().last()?;
        let waits = |idx: &usize| self.waits(*idx) && !self.stranded.contains(idx);
        let waiting = (self.frontier..last).filter(waits);
        waiting.filter_map(|idx| Some((self.chunks[idx].ticket?, idx))).min()
    }

    /// How many such chunks there are.
    pub(crate) fn again(&self) -> usize {
        let of_run = |run: Range<usize>| {
            let last = run.clone().rfind(|idx| self.runs(*idx)).unwrap_or(run.start);
            (run.start..last).filter(|idx| self.waits(*idx)).count()
        };
        self.undone().map(of_run).sum()
    }

    /// Whether what is undone is in the total order behind what it needs. Of what is done again
    /// though nothing in flight needed it, something may have come to, by another loss.
    pub(crate) fn is_in_order(&self) -> bool {
        self.undone().all(|run| {
            // What has none yet is dispatched behind all that have.
            self.chunks[run].iter().is_sorted_by_key(|chunk| chunk.ticket.unwrap_or(u64::MAX))
        })
    }

    /// Memory is handed on. What is in flight and needs a chunk that waits is not any more: it
    /// waits, too, and nothing in flight waits for any of them. Gives what is to be dropped.
    pub(crate) fn take_back(&mut self) -> Vec<(WorkerId, usize)> {
        let of_run = |run: Range<usize>| {
            run.skip_while(|idx| !self.waits(*idx)).filter(|idx| self.runs(*idx))
        };
        let behind: Vec<usize> = self.undone().flat_map(of_run).collect();
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

    /// Memory is handed on. Chunks up to the last one in flight, without those that are done, which
    /// need nothing before them: so what is undone needs nothing but what is next to it. None where
    /// nothing waits.
    fn undone(&self) -> impl Iterator<Item = Range<usize>> {
        let may_wait = !self.all_dispatched() && !self.is_sharded();
        let last = self.running().last().filter(|_| may_wait);
        let mut from = self.frontier;
        let all = &self.chunks[from..last.map_or(from, |last| last + 1)];
        all.split(|chunk| chunk.state.is_done()).map(move |run| {
            let run = from..from + run.len();
            from = run.end + 1;
            run
        })
    }

    fn waits(&self, idx: usize) -> bool {
        self.chunks[idx].state == State::Waiting
    }

    fn runs(&self, idx: usize) -> bool {
        self.chunks[idx].state == State::Running
    }
}
