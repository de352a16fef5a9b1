//! When a decode round may run and when the next chunk may begin, as a pure policy: it has no
//! clock and no queue, it is told what happens and asked at every boundary. No answer depends on
//! it, only who waits for whom.

use crate::config::{Scheduler, Scheduling};

/// Where the device thread stands when it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Boundary {
    /// Between two layers of a chunk.
    Layer,
    /// Between two chunks; the tokens of the one that would begin next.
    Chunk(Option<u32>),
    /// A chunk runs but waits for something: the device would idle.
    Idle,
}

/// The state of one worker's schedule.
#[derive(Debug)]
pub(super) struct Schedule {
    scheduling: Scheduling,
    /// Tokens that the last round decoded.
    decoded: u32,
    /// Prompt tokens of the chunks that began since.
    prefilled: u32,
    /// Chunks that waited when the last round ended and have not begun.
    ahead: usize,
}

impl Schedule {
    pub(super) fn new(scheduling: Scheduling) -> Self {
        Self { scheduling, decoded: 0, prefilled: 0, ahead: 0 }
    }

    /// Whether a decode round may run now. If not, the chunk that runs, or the next one, goes on.
    pub(super) fn may_decode(&self, at: Boundary) -> bool {
        match (self.scheduling.scheduler, at) {
            (Scheduler::DecodeFirst, _) | (_, Boundary::Idle | Boundary::Chunk(None)) => true,
            (_, Boundary::Layer) => false,
            (Scheduler::Static, Boundary::Chunk(Some(tokens))) => !self.fits(tokens),
            (Scheduler::Plain, Boundary::Chunk(Some(_))) => self.ahead == 0,
        }
    }

    /// Whether a round may run beside a layer, which makes way for it.
    pub(super) fn interrupts(&self) -> bool {
        self.scheduling.scheduler == Scheduler::DecodeFirst
    }

    /// Whether a chunk still belongs to this step: the first always does, the next ones while
    /// decoded and prompt tokens together stay within `step_tokens`.
    fn fits(&self, tokens: u32) -> bool {
        let all = self.decoded.saturating_add(self.prefilled).saturating_add(tokens);
        self.prefilled == 0 || all <= self.scheduling.step_tokens
    }

    /// A round has decoded `tokens` tokens, and `waiting` chunks stand in the queue: a new step
    /// begins.
    pub(super) fn round_done(&mut self, tokens: u32, waiting: usize) {
        (self.decoded, self.prefilled, self.ahead) = (tokens, 0, waiting);
    }

    /// A chunk of `tokens` prompt tokens begins.
    pub(super) fn chunk_begins(&mut self, tokens: u32) {
        self.prefilled = self.prefilled.saturating_add(tokens);
        self.ahead = self.ahead.saturating_sub(1);
    }

    /// A chunk of the queue is not wanted any more; `waiting` are left.
    pub(super) fn queue_shrank(&mut self, waiting: usize) {
        self.ahead = self.ahead.min(waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(scheduler: Scheduler, step_tokens: u32) -> Schedule {
        Schedule::new(Scheduling { scheduler, step_tokens })
    }

    const ALL: [Scheduler; 3] = [Scheduler::DecodeFirst, Scheduler::Static, Scheduler::Plain];

    /// Rounds and chunks of `chunk_tokens` in the order in which they would go, each round of
    /// `decoding` tokens, the queue never empty: `d`, `c`, and `l` for a round between layers.
    fn order(mut schedule: Schedule, decoding: u32, chunk_tokens: u32, waiting: usize) -> String {
        let mut order = String::new();
        while order.len() < 12 {
            if schedule.may_decode(Boundary::Chunk(Some(chunk_tokens))) {
                schedule.round_done(decoding, waiting);
                order.push('d');
            }
            schedule.chunk_begins(chunk_tokens);
            order.push('c');
            if schedule.may_decode(Boundary::Layer) {
                schedule.round_done(decoding, waiting);
                order.push('l');
            }
        }
        order.truncate(12);
        order
    }

    #[test]
    fn the_order_of_rounds_and_chunks() {
        let check = |scheduler, step_tokens, (decoding, chunk_tokens, waiting), want: &str| {
            let order = order(schedule(scheduler, step_tokens), decoding, chunk_tokens, waiting);
            assert_eq!(order, want, "{scheduler}, {step_tokens} tokens a step");
        };
        check(Scheduler::DecodeFirst, 1, (8, 1024, 4), "dcldcldcldcl");
        // A whole chunk, however small the step; then as many as fit beside the decoded tokens.
        check(Scheduler::Static, 1, (8, 1024, 4), "cdcdcdcdcdcd");
        check(Scheduler::Static, 2048, (1, 1024, 4), "ccdcdcdcdcdc");
        check(Scheduler::Static, 2049, (1, 1024, 4), "ccdccdccdccd");
        check(Scheduler::Static, 300, (44, 64, 4), "ccccdccccdcc");
        // A round stands behind the chunks that were there when the one before it ended.
        check(Scheduler::Plain, 1, (8, 1024, 4), "dccccdccccdc");
        check(Scheduler::Plain, 1, (8, 1024, 1), "dcdcdcdcdcdc");
    }

    #[test]
    fn nobody_waits_for_a_device_that_idles() {
        for scheduler in ALL {
            let mut schedule = schedule(scheduler, 4096);
            schedule.round_done(1, 9);
            assert!(schedule.may_decode(Boundary::Idle), "{scheduler}");
            assert!(schedule.may_decode(Boundary::Chunk(None)), "{scheduler}");
        }
    }

    #[test]
    fn a_round_does_not_wait_for_chunks_that_are_gone() {
        let mut schedule = schedule(Scheduler::Plain, 1);
        schedule.round_done(1, 5);
        assert!(!schedule.may_decode(Boundary::Chunk(Some(64))));
        schedule.queue_shrank(2);
        schedule.chunk_begins(64);
        assert!(!schedule.may_decode(Boundary::Chunk(Some(64))));
        schedule.chunk_begins(64);
        assert!(schedule.may_decode(Boundary::Chunk(Some(64))));
    }
}
