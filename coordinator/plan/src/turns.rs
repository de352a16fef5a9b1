//! Whose chunk is next: requests in prefill share what may be in flight, chunk by chunk.
//!
//! This is fair queueing. Every request carries a *turn*, the virtual time at which its next chunk
//! is due; of all chunks that may be dispatched that one is whose turn is over first, which is its
//! cost later. So what is short does not wait for what is long and due at the same time. That
//! moves virtual time to where the turn was, and the turn on by the chunk's cost: the work that it
//! is to a worker, and for every step of priority twice, or half, as much. A request that begins
//! is due one chunk from now, as if it had just had its turn. One that has nothing to dispatch,
//! because enough of it is in flight, saves nothing up: its turn is never before now. One whose
//! next chunk's worker has enough ahead of it keeps its place until it has had that turn.
//!
//! So nobody starves: from the moment a request could have its next chunk dispatched until it
//! is, each other place among the running requests, whoever comes to stand in it, has chunks
//! dispatched for at most the cost of two chunks of the waiting request and two chunks more. Why:
//! when the request begins to wait, its turn is at most one of its chunks from now, and over one
//! later; nobody is served whose turn is over later. Whoever waits already may be due before now,
//! but not by more than its chunk; and in one place turns follow each other by the cost of what was
//! dispatched, also from one request to the next but for the last chunk. Chunks that are done again
//! while something in flight waits for them come on top: they are not charged.

/// So many steps of priority, above or below 0, double or halve a share.
const SHARE_STEPS: i32 = 3;
/// A chunk of fewer tokens takes a worker about as long: each of its layers reads all weights.
const TOKENS_LEAST: u64 = 128;
/// Keys that a token attends to, beside those that it always does, for as much work again as the
/// rest of a layer is. The plan knows no model: of the one in docs/performance.md ("Roofline") it
/// is 252 MFLOP over 65.5 kFLOP for a key. Larger models have more of both.
const KEYS_AS_THE_REST: u64 = 4096;

/// What it is to a worker to compute so many tokens behind a `past` that grows from chunk to chunk:
/// in tokens without one.
pub(crate) fn work(tokens: u64, past: u64) -> u64 {
    let tokens = if tokens > 0 { tokens.max(TOKENS_LEAST) } else { 0 };
    tokens.saturating_mul(KEYS_AS_THE_REST.saturating_add(past)) / KEYS_AS_THE_REST
}

/// What it costs of a request's share to dispatch a chunk that is so much work.
pub(crate) fn cost(work: u64, priority: i32) -> u64 {
    work << (SHARE_STEPS + priority.clamp(-SHARE_STEPS, SHARE_STEPS))
}

/// Virtual time: what was dispatched, as its smallest share would count it.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    now: u64,
}

impl Turns {
    /// When a request is due that begins with a chunk of this cost.
    pub(crate) fn first(&self, cost: u64) -> u64 {
        self.now.saturating_add(cost)
    }

    /// Takes a turn for a chunk of this cost; gives the next.
    pub(crate) fn take(&mut self, turn: u64, cost: u64) -> u64 {
        self.now = self.now.max(turn);
        turn.saturating_add(cost).max(self.now)
    }

    /// The turn of a request that has nothing to dispatch.
    pub(crate) fn idle(&self, turn: u64) -> u64 {
        turn.max(self.now)
    }
}
