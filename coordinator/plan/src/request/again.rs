//! Chunks that are done again while later ones of their request are in flight.

use aqueduct_core::WorkerId;

use super::{Request, State};

impl Request {
    /// Its next chunk that is done again while something in flight waits for it, with its ticket.
    pub(crate) fn next_again(&self) -> Option<(u64, usize)> {
        let idx = self.first_waiting().filter(|idx| !self.stranded.contains(idx))?;
        Some((self.chunks[idx].ticket?, idx))
    }

    /// How many such chunks there are.
    pub(crate) fn again(&self) -> usize {
        if self.all_dispatched() || self.is_sharded() {
            return 0;
        }
        self.running().last().map_or(0, |last| {
            let undone = self.chunks[self.frontier..last].iter();
            undone.filter(|chunk| chunk.state == State::Waiting).count()
        })
    }

    /// Memory is handed on. What is in flight behind the first chunk that waits is not any more:
    /// it waits, too, and nothing in flight waits for any of them. Gives what is to be dropped.
    pub(crate) fn take_back(&mut self) -> Vec<(WorkerId, usize)> {
        let Some(first) = self.first_waiting() else { return Vec::new() };
        let behind: Vec<usize> = self.running().filter(|idx| *idx > first).collect();
        let dropped = behind.iter().map(|idx| (self.worker(*idx), *idx)).collect();
        for idx in behind {
            self.redo(idx);
            self.move_to(idx, self.worker(idx));
        }
        self.forget_tickets();
        dropped
    }

    /// Memory is handed on, and nothing in flight needs a chunk behind all that are: those have no
    /// place in the total order any more, and are last in it when they are dispatched again.
    pub(super) fn forget_tickets(&mut self) {
        let chunks = self.chunks.iter_mut().rev();
        let behind = chunks.take_while(|chunk| chunk.state == State::Waiting);
        behind.for_each(|chunk| chunk.ticket = None);
    }

    fn first_waiting(&self) -> Option<usize> {
        self.next_chunk(usize::MAX)
    }
}
