//! What is done again while something in flight waits for it.
//!
//! Only where memory is handed on, and only chunks with a ticket. They go out at once, whatever
//! may be in flight for the first time, because who waits for them holds up its whole worker. So
//! the earliest unfinished chunk of all is never one that waits for room: it has a ticket, or
//! nothing is in flight.
//!
//! What there may be of them is bounded beforehand. If they and what is in flight were more than
//! [`Limits::batch_chunks`](crate::Limits), or one request's more than it may have in flight, what
//! waits for them is taken back: workers drop it, it needs nothing any more, and it and what was
//! to be done before it are dispatched as if for the first time, in turn and as far as there is
//! room. That costs what the chunks in flight had done, which is little: none is further than the
//! chunk before it was. So a step never has more to say than [`Limits::commands_most`], even if
//! thousands of chunks are to be done again.
//!
//! [`Limits::commands_most`]: crate::Limits::commands_most

use std::collections::{BTreeMap, BTreeSet};

use aqueduct_core::WorkerId;

use super::Plan;
use crate::request::Request;

/// Chunks, by their request's place in `running`, that are dispatched and not yet told of.
type Untold = BTreeSet<(usize, usize)>;

impl Plan {
    /// Assigns what is done again and what in flight waits for.
    pub(super) fn dispatch_again(&mut self) {
        self.take_back_what_waits_for_too_much();
        // Per worker, the first chunk that is done again there in front of later ones. What is done
        // again there behind it is told of when these line up, in its place among them.
        let mut redone: BTreeMap<WorkerId, u64> = BTreeMap::new();
        let mut untold = Untold::new();
        while let Some((ticket, pos, idx)) = self.first_again() {
            let worker = self.running[pos].worker(idx);
            self.seconds_take_over(worker);
            if redone.contains_key(&worker) {
                self.start(pos, idx);
                untold.insert((pos, idx));
                continue;
            }
            if !self.running_behind(ticket, worker).is_empty() {
                redone.insert(worker, ticket);
            }
            self.assign(pos, idx);
        }
        // Once for each worker, so that a loss costs commands in proportion to what is in
        // flight and not to its square.
        for (worker, ticket) in redone {
            self.line_up(ticket, worker, &mut untold);
        }
    }

    /// The first in the total order of what is to be assigned again.
    fn first_again(&self) -> Option<(u64, usize, usize)> {
        let again = |(pos, request): (usize, &Request)| {
            let (ticket, idx) = request.next_again()?;
            Some((ticket, pos, idx))
        };
        self.running.iter().enumerate().filter_map(again).min()
    }

    fn take_back_what_waits_for_too_much(&mut self) {
        for pos in 0..self.running.len() {
            let request = &self.running[pos];
            if request.again() > self.window(request) || !request.is_in_order() {
                self.take_back(pos);
            }
        }
        let waited_for = |plan: &Self| plan.running.iter().map(Request::again).sum::<usize>();
        for pos in (0..self.running.len()).rev() {
            if waited_for(self) == 0
                || self.in_flight() + waited_for(self) <= self.limits.batch_chunks
            {
                return;
            }
            if self.running[pos].again() > 0 {
                self.take_back(pos);
            }
        }
    }

    /// Has workers drop what waits for chunks of the request at `pos` that are done again. Who
    /// holds what it was to be given is told its new name.
    pub(super) fn take_back(&mut self, pos: usize) {
        let dropped = self.running[pos].take_back();
        let taken: Vec<usize> = dropped.iter().map(|(_, idx)| *idx).collect();
        if self.running[pos].raced().is_some_and(|idx| dropped.iter().any(|(_, it)| *it == idx)) {
            self.end_race(pos);
        }
        self.drop_chunks(self.running[pos].id, dropped);
        taken.into_iter().for_each(|idx| self.redirect_to(pos, idx));
    }

    /// What `worker` has of the chunks after `ticket` in the total order, in that order: tickets,
    /// requests by their place in `running`, and chunks.
    fn running_behind(&self, ticket: u64, worker: WorkerId) -> Vec<(u64, usize, usize)> {
        let of = |(pos, request): (usize, &Request)| {
            let chunks = request.running_behind(ticket, worker);
            chunks.into_iter().map(move |(later, idx)| (later, pos, idx)).collect::<Vec<_>>()
        };
        let mut behind: Vec<_> = self.running.iter().enumerate().flat_map(of).collect();
        behind.sort_unstable();
        behind
    }

    /// Has all of that stand behind the chunk with `ticket`.
    pub(super) fn line_up_behind(&mut self, ticket: u64, worker: WorkerId) {
        self.line_up(ticket, worker, &mut Untold::new());
    }

    /// Tells of what is `untold`, and assigns the rest again or, where it would have to be told to
    /// other chunks, lets it and them begin anew when their turn comes.
    fn line_up(&mut self, ticket: u64, worker: WorkerId, untold: &mut Untold) {
        for (_, pos, idx) in self.running_behind(ticket, worker) {
            if untold.remove(&(pos, idx)) {
                self.tell(pos, idx);
                continue;
            }
            if self.running[pos].raced() == Some(idx) {
                self.second_takes_over(pos);
                continue;
            }
            let request = &mut self.running[pos];
            if request.is_sharded() {
                let (id, dropped) = (request.id, request.begin_again(idx, &[]));
                self.drop_chunks(id, dropped);
                continue;
            }
            request.move_to(idx, worker);
            // Who is yet to be told of the chunk before is told with it.
            if !idx.checked_sub(1).is_some_and(|before| untold.contains(&(pos, before))) {
                self.redirect_to(pos, idx);
            }
            self.assign(pos, idx);
        }
    }
}
