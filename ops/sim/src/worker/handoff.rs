//! Memory sets on their way to the worker of the next chunk.

use std::collections::BTreeSet;
use std::sync::Arc;

use aqueduct_core::work::{Event, FailureKind, NextHop};
use aqueduct_core::{ChunkKey, RequestId};
use aqueduct_kernels::MemorySet;

use super::{Alarm, Effect, HANDOFF_US, Worker, idx_of};

/// A set that nobody has acknowledged is sent again.
const RESEND_US: u64 = 700_000;

/// Memory sets for the next chunk, kept until it is confirmed.
pub(super) struct Outgoing {
    pub(super) next: NextHop,
    pub(super) sets: Vec<Arc<MemorySet>>,
    /// Layers that have arrived.
    arrived: BTreeSet<u32>,
    since: u64,
    broken: bool,
}

impl Outgoing {
    pub(super) fn new(next: NextHop) -> Self {
        Self { next, sets: Vec::new(), arrived: BTreeSet::new(), since: 0, broken: false }
    }

    /// Whether nothing of it was ever sent.
    pub(super) fn is_new(&self) -> bool {
        self.since == 0
    }
}

impl Worker {
    /// What became of a set that was sent.
    pub(crate) fn acknowledged(&mut self, key: ChunkKey, layer: u32) {
        if let Some(outgoing) = self.outgoing(key) {
            outgoing.arrived.insert(layer);
            let is_whole = outgoing.arrived.len() == outgoing.sets.len();
            self.arrived(key, is_whole);
        }
    }

    pub(super) fn outgoing(&mut self, key: ChunkKey) -> Option<&mut Outgoing> {
        let outgoing = self.requests.get_mut(&key.request)?.outbox.get_mut(&key.chunk_idx)?;
        (outgoing.next.epoch == key.epoch).then_some(outgoing)
    }

    pub(super) fn redirect(
        &mut self,
        now: u64,
        session: u64,
        request: RequestId,
        chunk_idx: u32,
        next: NextHop,
    ) {
        let key = ChunkKey { request, chunk_idx, epoch: next.epoch };
        let held = self.owned(session, request);
        match held.and_then(|held| held.outbox.get_mut(&chunk_idx)) {
            Some(outgoing) if next.epoch < outgoing.next.epoch => {}
            Some(outgoing) => {
                let sets = std::mem::take(&mut outgoing.sets);
                *outgoing = Outgoing { sets, ..Outgoing::new(next) };
                self.send(now, key);
            }
            None => {
                let message = "the memory for it is no longer held".to_owned();
                let kind = FailureKind::Peer;
                self.say(session, Event::ChunkFailed { key, kind, message });
            }
        }
    }

    /// Sends all sets that are held for `key`.
    pub(super) fn send(&mut self, now: u64, key: ChunkKey) {
        let Some(outgoing) = self.outgoing(key) else { return };
        outgoing.since = now;
        let (to, sets) = (idx_of(&outgoing.next.peer), outgoing.sets.clone());
        for (layer, memory) in (0..).zip(sets) {
            self.effects.push(Effect::Hand { to, key, layer, memory });
            self.wake_after(RESEND_US, Alarm::Resend(key, layer));
        }
    }

    pub(super) fn resend(&mut self, now: u64, key: ChunkKey, layer: u32) {
        let Some(outgoing) = self.outgoing(key) else { return };
        // There are none, if the chunk that gives was assigned again since.
        let Some(memory) = outgoing.sets.get(layer as usize).cloned() else { return };
        if outgoing.broken || outgoing.arrived.contains(&layer) {
            return;
        }
        if now < outgoing.since + HANDOFF_US {
            let to = idx_of(&outgoing.next.peer);
            self.effects.push(Effect::Hand { to, key, layer, memory });
            return self.wake_after(RESEND_US, Alarm::Resend(key, layer));
        }
        outgoing.broken = true;
        if self.departs(key) {
            return self.departure_failed(key.request);
        }
        let session = self.requests[&key.request].session;
        let (kind, message) = (FailureKind::Peer, "out of reach".to_owned());
        self.say(session, Event::ChunkFailed { key, kind, message });
    }
}
