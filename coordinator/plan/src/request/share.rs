//! What a request's chunks take of workers, and of its share.

use super::Request;
use crate::turns;

impl Request {
    /// What the dispatch of chunk `idx` costs of the request's share.
    pub(crate) fn cost(&self, idx: usize) -> u64 {
        turns::cost(self.work(idx), self.job.priority)
    }

    /// What chunk `idx` is to a worker: nothing where a snapshot stands for it.
    pub(crate) fn work(&self, idx: usize) -> u64 {
        match self.snapshot(idx) {
            Some(_) => 0,
            None => turns::work(self.tokens(idx), self.past(idx)),
        }
    }

    /// Keys before chunk `idx` that it attends to and earlier chunks did not, as many as have as
    /// many bytes; none where a chunk is given about as much as the one before.
    fn past(&self, idx: usize) -> u64 {
        let span = self.job.grid.chunk(idx as u32).filter(|_| self.job.keeps_all);
        let past = span.map_or(0, |span| u64::from(span.start));
        self.job.sharded.map_or(past, |sharded| sharded.windowed.taken(past, 1))
    }

    pub(super) fn tokens(&self, idx: usize) -> u64 {
        self.job.grid.chunk(idx as u32).map_or(0, |span| span.tokens.into())
    }

    /// Chunk `idx`, which is done, took so long.
    pub(crate) fn took(&mut self, idx: usize, busy_us: u64) {
        let pace_ns = busy_us.saturating_mul(1000).checked_div(self.work(idx));
        self.pace_ns = pace_ns.or(self.pace_ns);
    }
}
