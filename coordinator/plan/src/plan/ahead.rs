//! How much may be in flight: ahead of what comes next, as a worker's queue is not reordered.

use std::collections::BTreeMap;

use aqueduct_core::WorkerId;

use super::Plan;
use crate::request::Request;
use crate::words::Job;

/// A worker that has so much before it is given nothing more for the first time. So a new request
/// waits there for about as long, and for one chunk; and who comes to the end of what it has when
/// a chunk takes as long is idle for the hundredth part of it, until its next one has come.
const AHEAD_US: u64 = 250_000;
/// Chunks smaller than that fill what may be in flight by their number.
const CHUNK_TOKENS: u32 = 256;
/// A worker is at one chunk of a request while the next one is on its way.
const CHUNKS_OF_A_WORKER: usize = 2;

impl Plan {
    /// How many chunks `request` may have in flight: no more than its room in pools is for.
    pub(super) fn window(&self, request: &Request) -> usize {
        self.window_of(&request.job).min(request.window)
    }

    /// The same of what begins now: as many as `batch_tokens` are, but of small ones no more than
    /// keep all workers at work, and never all that may be in flight. Each takes a worker some time
    /// however small it is, and how small they are is for callers to say.
    pub(super) fn window_of(&self, job: &Job) -> usize {
        let limits = &self.limits;
        let by_tokens = limits.batch_tokens / job.grid.chunk_tokens();
        let enough = (limits.batch_tokens / CHUNK_TOKENS) as usize;
        let enough = enough.max(self.workers_up() * CHUNKS_OF_A_WORKER);
        let but_a_quarter = limits.batch_chunks - limits.batch_chunks / 4;
        (by_tokens as usize).min(enough).min(but_a_quarter).max(1)
    }

    /// Whether nothing more may be in flight for the first time. What is in flight is earlier in
    /// the total order than all that waits to be: so it ends.
    pub(super) fn is_full(&self) -> bool {
        let tokens: u64 = self.running.iter().map(|request| request.in_flight_tokens).sum();
        let workers = self.workers_up() as u64;
        let most = workers.saturating_mul(self.limits.batch_tokens.into());
        self.in_flight() >= self.limits.batch_chunks || tokens >= most
    }

    fn workers_up(&self) -> usize {
        self.workers.values().filter(|worker| worker.up).count()
    }

    /// Chunks in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.running.iter().map(|request| request.in_flight).sum()
    }

    /// How long each worker is at what it has.
    pub(super) fn ahead(&self) -> Ahead {
        let mut ahead = Ahead::default();
        for request in &self.running {
            for idx in request.running() {
                ahead.add(request.worker(idx), self.expected_us(request, idx));
            }
        }
        ahead
    }

    /// How long chunk `idx` will take: by the last one of its request, or before there is one by
    /// those of all. Nothing, if nobody knows.
    pub(super) fn expected_us(&self, request: &Request, idx: usize) -> u64 {
        let work = request.work(idx);
        let own = request.pace_ns.map(|pace_ns| pace_ns.saturating_mul(work) / 1000);
        own.or_else(|| self.work.expected_us(work)).unwrap_or(0)
    }
}

/// How long workers are at what they have, in microseconds, as far as can be told.
#[derive(Debug, Default)]
pub(super) struct Ahead(BTreeMap<WorkerId, u64>);

impl Ahead {
    /// `worker` has something more.
    pub(super) fn add(&mut self, worker: WorkerId, took_us: u64) {
        let ahead_us = self.0.entry(worker).or_default();
        *ahead_us = ahead_us.saturating_add(took_us);
    }

    /// Whether `worker` has enough.
    pub(super) fn is_enough(&self, worker: WorkerId) -> bool {
        self.0.get(&worker).is_some_and(|ahead_us| *ahead_us >= AHEAD_US)
    }
}
