//! Chunks: when one can begin, and the engine's mathematics.

use aqueduct_core::ChunkKey;
use aqueduct_core::work::{Assignment, ChunkReport, Event, FailureKind};
use aqueduct_engine::{Block, EngineError, LocalPort, Past, Want, prefill, prefill_sharded};
use aqueduct_kernels::Leaves;

use super::{Alarm, Effect, HANDOFF_US, Home, Memory, Worker, kind_of};
use crate::shards::{Asker, Door, Holders, Standings};

/// A chunk takes about so long.
const CHUNK_US: u64 = 40_000;
/// Who waits for shards looks again after so long.
const POLL_US: u64 = 50_000;

impl Worker {
    /// Begins the first chunk of the queue if its memory is there, or gives it up.
    pub(super) fn look(&mut self, now: u64) {
        while self.running.is_none() {
            let Some(work) = self.queue.front() else {
                self.waits_since = None;
                return;
            };
            let key = work.key;
            let standings = self.standings(work);
            if standings == Standings::Ready {
                self.running = self.queue.pop_front();
                self.waits_since = None;
                return self.wake_after(CHUNK_US, Alarm::Computed(key));
            }
            let Some(since) = self.waits_since else {
                self.waits_since = Some(now);
                continue;
            };
            if standings == Standings::NotYet && now <= since + HANDOFF_US {
                let after_us = if work.shards.is_some() { POLL_US } else { HANDOFF_US + 1 };
                return self.effects.push(Effect::Wake { after_us, alarm: Alarm::Look });
            }
            self.waits_since = None;
            self.queue.pop_front();
            self.check_promises(key);
            self.inbox.finish(key);
            let session = self.requests[&key.request].session;
            let (kind, message) = (FailureKind::Deadline, "no memory".to_owned());
            self.say(session, Event::ChunkFailed { key, kind, message });
        }
    }

    /// Whether everything is there that the chunk needs.
    pub(super) fn standings(&self, work: &Assignment) -> Standings {
        if let Some(directory) = &work.shards {
            let holders = Holders::before(work, directory);
            let asker = Asker::of(self.here, work);
            return Door::new(&self.model, &self.ways, &holders, asker).standings();
        }
        match work.span.idx == 0 || self.inbox.is_ready(work.key, self.model.memory_layers()) {
            true => Standings::Ready,
            false => Standings::NotYet,
        }
    }

    pub(super) fn computed(&mut self, now: u64, key: ChunkKey) {
        if let Some(work) = self.running.take_if(|work| work.key == key) {
            let session = self.requests[&key.request].session;
            let event = match self.compute(now, &work) {
                Ok(()) => {
                    let busy_us = CHUNK_US * self.slowness;
                    let report = Box::new(ChunkReport { busy_us, ..ChunkReport::default() });
                    Event::ChunkDone { key, report }
                }
                Err(error) => {
                    let (kind, message) = (kind_of(&error), error.to_string());
                    Event::ChunkFailed { key, kind, message }
                }
            };
            self.say(session, event);
            self.inbox.finish(key);
        }
        self.look(now);
    }

    pub(super) fn compute(&mut self, now: u64, work: &Assignment) -> Result<(), EngineError> {
        let model = self.model.clone();
        if let Some(directory) = &work.shards {
            return self.compute_in_shards(work, Holders::before(work, directory));
        }
        let mut port = match self.inbox.take(work.key, model.memory_layers()) {
            Some(past) => LocalPort::resume(past, &model),
            None => LocalPort::empty(&model),
        };
        let leaves = Leaves::of_chunks(work.chunk_tokens);
        let block = Block { tokens: &work.tokens, start: work.span.start, leaves };
        let want = if work.is_last() { Want::Last } else { Want::Memory };
        let done = prefill(&model, block, &work.policy, &mut port, want)?;
        let memory = port.layers().to_vec();
        let Some(held) = self.requests.get_mut(&work.key.request) else { return Ok(()) };
        if work.is_last() {
            let logits = model.logits(&done.hidden.last_row())?.into_vec();
            let leaves = leaves.going_on_behind(work.span.positions().end);
            let (memory, chunk_idx) = (Memory::Sets(memory, leaves), work.key.chunk_idx);
            held.home = Some(Home { memory, chunk_idx, logits, policy: work.policy });
        } else if let Some(outgoing) = held.outbox.get_mut(&(work.key.chunk_idx + 1)) {
            outgoing.sets = memory;
            let (chunk_idx, epoch) = (work.key.chunk_idx + 1, outgoing.next.epoch);
            self.send(now, ChunkKey { chunk_idx, epoch, ..work.key });
        }
        Ok(())
    }

    pub(super) fn compute_in_shards(
        &mut self,
        work: &Assignment,
        holders: Holders,
    ) -> Result<(), EngineError> {
        let model = self.model.clone();
        let mut door = Door::new(&model, &self.ways, &holders, Asker::of(self.here, work));
        let leaves = Leaves::of_chunks(work.chunk_tokens);
        let block = Block { tokens: &work.tokens, start: work.span.start, leaves };
        let want = if work.is_last() { Want::Last } else { Want::Memory };
        let past = Past { chunks: work.key.chunk_idx, port: &mut door };
        let done = prefill_sharded(&model, block, &work.policy, past, want)?;
        let held = self.requests.get_mut(&work.key.request).filter(|_| work.is_last());
        if let Some(held) = held {
            let logits = model.logits(&done.hidden.last_row())?.into_vec();
            let memory = Memory::Shards(Box::new(work.clone()), holders);
            let (chunk_idx, policy) = (work.key.chunk_idx, work.policy);
            held.home = Some(Home { memory, chunk_idx, logits, policy });
        }
        Ok(())
    }
}
