//! What waits in an inbox, and what is known of what came before. However long a prompt is, there
//! is a slot for each of its chunks that is under way here and for a few that are done, and
//! whatever is done with one costs no look at the others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use aqueduct_core::work::Traffic;
use aqueduct_core::{ChunkKey, Epoch, RequestId};
use aqueduct_kernels::MemorySet;

use super::{CLAIM_DEADLINE, Came, Verdict, cost, place};
use crate::doorbell::Doorbell;

/// Requests remembered as forgotten, so that their last sets are not kept.
const FORGOTTEN_MAX: usize = 4096;

/// A chunk of a request.
type Place = (RequestId, u32);

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) slots: BTreeMap<Place, Slot>,
    /// Of these, those that nobody has claimed, the oldest first.
    pub(super) unclaimed: BTreeSet<(Instant, Place)>,
    pub(super) bytes: u64,
    pub(super) running: Option<ChunkKey>,
    /// Of requests that were not forgotten.
    confirmed: BTreeMap<RequestId, Confirmed>,
    forgotten: VecDeque<Forgotten>,
    /// Senders to tell when there is room.
    waiters: Vec<Arc<Doorbell>>,
}

/// A request that takes nothing more.
#[derive(Debug)]
struct Forgotten {
    request: RequestId,
    /// In this epoch, and all before it.
    last: Epoch,
    /// The newest that was assigned here: if the request comes back, it does so in a newer one.
    assigned: Option<Epoch>,
}

/// What is over of a request. Epochs are given to its chunks in ascending order: whatever of these
/// chunks is done again later is done in a newer one than any that was assigned before.
#[derive(Debug, Clone, Copy)]
struct Confirmed {
    /// This chunk, and all before it.
    chunk_idx: u32,
    /// In this epoch, and all before it.
    epoch: Epoch,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) epoch: Epoch,
    pub(super) layers: BTreeMap<u32, Arc<MemorySet>>,
    /// Layers that came, whether or not they were taken since.
    seen: BTreeSet<u32>,
    /// What that came to between processes.
    traffic: Traffic,
    /// The coordinator has assigned the chunk here.
    pub(super) claimed: bool,
    /// The chunk has ended and takes nothing more.
    done: bool,
    pub(super) since: Instant,
}

impl Slot {
    fn new(epoch: Epoch) -> Self {
        Self {
            epoch,
            layers: BTreeMap::new(),
            seen: BTreeSet::new(),
            traffic: Traffic::default(),
            claimed: false,
            done: false,
            since: Instant::now(),
        }
    }

    /// Takes nothing more; the bytes that this frees.
    fn close(&mut self) -> u64 {
        let freed = self.bytes();
        self.done = true;
        self.layers.clear();
        self.seen.clear();
        freed
    }

    fn bytes(&self) -> u64 {
        self.layers.values().map(|memory| cost(memory.bytes())).sum()
    }
}

impl State {
    /// The verdict on a set that costs `bytes`; `None`: it is to be put where it belongs.
    pub(super) fn judge(
        &mut self,
        key: &ChunkKey,
        layer: u32,
        bytes: u64,
        bytes_max: u64,
    ) -> Option<Verdict> {
        self.expire();
        if self.is_stale(key) {
            Some(Verdict::Stale)
        } else if self.has_seen(key, layer) {
            Some(Verdict::Taken)
        } else if self.bytes + bytes > bytes_max && self.running != Some(*key) {
            Some(Verdict::Exhausted)
        } else {
            None
        }
    }

    fn is_stale(&self, key: &ChunkKey) -> bool {
        let newer = |slot: &Slot| key.epoch < slot.epoch;
        let over = |it: &Confirmed| key.chunk_idx <= it.chunk_idx && key.epoch <= it.epoch;
        let forgotten = |it: &Forgotten| it.request == key.request && key.epoch <= it.last;
        self.forgotten.iter().any(forgotten)
            || self.confirmed.get(&key.request).is_some_and(over)
            || self.slots.get(&place(key)).is_some_and(newer)
    }

    fn has_seen(&self, key: &ChunkKey, layer: u32) -> bool {
        self.slots.get(&place(key)).is_some_and(|slot| {
            slot.epoch == key.epoch && (slot.done || slot.seen.contains(&layer))
        })
    }

    pub(super) fn put(
        &mut self,
        key: ChunkKey,
        layer: u32,
        memory: Arc<MemorySet>,
        came: Came<'_>,
    ) {
        self.bytes += cost(memory.bytes());
        let slot = self.slot(key);
        slot.seen.insert(layer);
        if let Came::Far { bytes, spared_bytes } = came {
            slot.traffic.fetched += 1;
            slot.traffic.received_bytes += bytes;
            slot.traffic.spared_bytes += spared_bytes;
        }
        slot.layers.insert(layer, memory);
    }

    pub(super) fn claim(&mut self, key: ChunkKey) {
        self.forgotten.retain(|it| it.request != key.request);
        let slot = self.slot(key);
        if slot.epoch == key.epoch {
            slot.claimed = true;
            let since = slot.since;
            self.unclaimed.remove(&(since, place(&key)));
        }
    }

    /// The slot of `key` or of a newer epoch of it; new if there is none or only an older one.
    fn slot(&mut self, key: ChunkKey) -> &mut Slot {
        let at = place(&key);
        if self.slots.get(&at).is_some_and(|slot| slot.epoch < key.epoch) {
            self.drop_slot(at);
        }
        let Self { slots, unclaimed, .. } = self;
        slots.entry(at).or_insert_with(|| {
            let slot = Slot::new(key.epoch);
            unclaimed.insert((slot.since, at));
            slot
        })
    }

    /// Closes what lies there, if that `is_it`; what had come from other processes.
    pub(super) fn close(&mut self, at: Place, is_it: impl Fn(&Slot) -> bool) -> Traffic {
        let Some(slot) = self.slots.get_mut(&at).filter(|slot| is_it(slot)) else {
            return Traffic::default();
        };
        let (freed, traffic) = (slot.close(), slot.traffic);
        self.release(freed);
        traffic
    }

    /// What comes later of what is over is told by one chunk and one epoch, so no slot has to be
    /// kept for the sake of duplicates. A request that has gone back behind that chunk, and is done
    /// again in newer epochs, is over only as far as it has come once more.
    pub(super) fn confirm(&mut self, request: RequestId, chunk_idx: u32) {
        let Some(epoch) = self.newest_claimed(request, chunk_idx) else { return };
        let over = self.confirmed.entry(request).or_insert(Confirmed { chunk_idx, epoch });
        let went_back = chunk_idx < over.chunk_idx && epoch > over.epoch;
        *over = match went_back {
            true => Confirmed { chunk_idx, epoch },
            false => {
                Confirmed { chunk_idx: over.chunk_idx.max(chunk_idx), epoch: over.epoch.max(epoch) }
            }
        };
        let Confirmed { chunk_idx, epoch } = *over;
        self.drop_slots(request, chunk_idx, epoch);
    }

    pub(super) fn forget(&mut self, request: RequestId, last: Epoch) {
        let assigned = self.assigned(request);
        self.drop_slots(request, u32::MAX, last);
        self.confirmed.remove(&request);
        if self.forgotten.len() == FORGOTTEN_MAX {
            self.forgotten.pop_front();
        }
        self.forgotten.push_back(Forgotten { request, last, assigned });
    }

    /// Of requests that were forgotten for ever no more is refused than what is known to be over.
    pub(super) fn readmit(&mut self) {
        self.forgotten.retain_mut(|it| {
            it.last = it.assigned.unwrap_or(it.last);
            it.assigned.is_some()
        });
    }

    /// The newest epoch that was assigned here of `request`.
    pub(super) fn assigned(&self, request: RequestId) -> Option<Epoch> {
        let confirmed = self.confirmed.get(&request).map(|it| it.epoch);
        self.newest_claimed(request, u32::MAX).max(confirmed)
    }

    /// The same of the chunks up to `last`, as far as there are slots for them.
    fn newest_claimed(&self, request: RequestId, last: u32) -> Option<Epoch> {
        let slots = self.slots.range((request, 0)..=(request, last));
        slots.filter(|(_, slot)| slot.claimed).map(|(_, slot)| slot.epoch).max()
    }

    /// Drops what nobody assigned here for longer than any chunk would have waited; when that will
    /// be so of the next.
    pub(super) fn expire(&mut self) -> Option<Instant> {
        let is_due = |(since, _): &&(Instant, Place)| since.elapsed() >= CLAIM_DEADLINE;
        while let Some(&(_, at)) = self.unclaimed.first().filter(is_due) {
            self.unclaimed.pop_first();
            self.drop_slot(at);
        }
        self.unclaimed.first().map(|(since, _)| *since + CLAIM_DEADLINE)
    }

    /// Drops what is there of the chunks up to `last` and in the epochs up to `epoch`.
    fn drop_slots(&mut self, request: RequestId, last: u32, epoch: Epoch) {
        let slots = self.slots.range((request, 0)..=(request, last));
        let gone = slots.filter(|(_, slot)| slot.epoch <= epoch).map(|(at, _)| *at);
        for at in gone.collect::<Vec<_>>() {
            self.drop_slot(at);
        }
    }

    fn drop_slot(&mut self, at: Place) {
        if let Some(slot) = self.slots.remove(&at) {
            self.unclaimed.remove(&(slot.since, at));
            self.release(slot.bytes());
        }
    }

    /// `sender` is told when there is room.
    pub(super) fn waits(&mut self, sender: &Arc<Doorbell>) {
        if !self.waiters.iter().any(|waiter| Arc::ptr_eq(waiter, sender)) {
            self.waiters.push(sender.clone());
        }
    }

    pub(super) fn release(&mut self, bytes: u64) {
        self.bytes -= bytes;
        if bytes > 0 {
            self.waiters.drain(..).for_each(|sender| sender.ring());
        }
    }
}
