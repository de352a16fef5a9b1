//! Memory sets that wait for the chunk that takes them, by the rules of a worker's inbox.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aqueduct_core::{ChunkKey, Epoch, RequestId};
use aqueduct_kernels::MemorySet;

use crate::worker::HANDOFF_US;

/// What becomes of a set that is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Taken, or seen before and not needed again.
    Taken,
    /// Of an older epoch or a forgotten request.
    Stale,
}

#[derive(Debug, Default)]
struct Slot {
    epoch: Epoch,
    layers: BTreeMap<u32, Arc<MemorySet>>,
    seen: BTreeSet<u32>,
    claimed: bool,
    done: bool,
    since: u64,
}

/// Sets by request, chunk and layer.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    slots: BTreeMap<(RequestId, u32), Slot>,
    /// Of requests: these chunks are over, in these epochs.
    confirmed: BTreeMap<RequestId, (u32, Epoch)>,
    /// With the last epoch that is not wanted any more, and the newest that was assigned here.
    forgotten: BTreeMap<RequestId, (Epoch, Option<Epoch>)>,
}

impl Inbox {
    /// Takes a set, unless nobody will want it.
    pub(crate) fn deliver(
        &mut self,
        now: u64,
        key: ChunkKey,
        layer: u32,
        memory: Arc<MemorySet>,
    ) -> Verdict {
        self.expire(now);
        let forgotten = self.forgotten.get(&key.request);
        let newer = self.slots.get(&place(key)).is_some_and(|slot| key.epoch < slot.epoch);
        let confirmed = self.confirmed.get(&key.request);
        let over = confirmed.is_some_and(|it| key.chunk_idx <= it.0 && key.epoch <= it.1);
        if newer || over || forgotten.is_some_and(|it| key.epoch <= it.0) {
            return Verdict::Stale;
        }
        let slot = self.slot(now, key);
        if !slot.done && slot.seen.insert(layer) {
            slot.layers.insert(layer, memory);
        }
        Verdict::Taken
    }

    /// The chunk was assigned here.
    pub(crate) fn claim(&mut self, now: u64, key: ChunkKey) {
        self.forgotten.remove(&key.request);
        let slot = self.slot(now, key);
        slot.claimed |= slot.epoch == key.epoch; // and not what came for a newer one
    }

    /// Drops what nobody assigned here for longer than any chunk would have waited.
    pub(crate) fn expire(&mut self, now: u64) {
        self.slots.retain(|_, slot| slot.claimed || now <= slot.since + HANDOFF_US);
    }

    /// The sets of all layers, once all are here.
    pub(crate) fn take(&mut self, key: ChunkKey, layers: usize) -> Option<Vec<Arc<MemorySet>>> {
        let slot = self.slots.get_mut(&place(key)).filter(|slot| slot.epoch == key.epoch)?;
        let all = slot.layers.len() == layers;
        all.then(|| std::mem::take(&mut slot.layers).into_values().collect())
    }

    /// Whether the sets of all layers are here.
    pub(crate) fn is_ready(&self, key: ChunkKey, layers: usize) -> bool {
        let slot = self.slots.get(&place(key)).filter(|slot| slot.epoch == key.epoch);
        slot.is_some_and(|slot| slot.layers.len() == layers)
    }

    /// Whether the set of `layer` has come and was not taken.
    pub(crate) fn holds(&self, key: ChunkKey, layer: u32) -> bool {
        let slot = self.slots.get(&place(key)).filter(|slot| slot.epoch == key.epoch);
        slot.is_some_and(|slot| slot.layers.contains_key(&layer))
    }

    /// The chunk has ended; what comes for it later is not kept.
    pub(crate) fn finish(&mut self, key: ChunkKey) {
        let slot = self.slots.get_mut(&place(key)).filter(|slot| slot.epoch == key.epoch);
        if let Some(slot) = slot {
            slot.done = true;
            slot.layers.clear();
        }
    }

    /// The chunk is not done here; what comes for it in the epoch that was claimed last is not
    /// kept.
    pub(crate) fn withdraw(&mut self, request: RequestId, chunk_idx: u32) {
        let slot = self.slots.get_mut(&(request, chunk_idx));
        if let Some(slot) = slot.filter(|slot| slot.claimed) {
            slot.done = true;
            slot.layers.clear();
        }
    }

    /// The chunk was done here, and all before it somewhere: nothing more is wanted for them but in
    /// newer epochs than were assigned here.
    pub(crate) fn confirm(&mut self, request: RequestId, chunk_idx: u32) {
        let Some(epoch) = self.newest_claimed(request, chunk_idx) else { return };
        let over = self.confirmed.entry(request).or_insert((chunk_idx, epoch));
        // A request that has gone back, and is done again in newer epochs, is over only as far as
        // it has come once more.
        let went_back = chunk_idx < over.0 && epoch > over.1;
        *over = match went_back {
            true => (chunk_idx, epoch),
            false => (over.0.max(chunk_idx), over.1.max(epoch)),
        };
        let (last, epoch) = *over;
        self.slots.retain(|at, slot| at.0 != request || at.1 > last || slot.epoch > epoch);
    }

    /// Drops everything of `request`, and what still comes for it.
    pub(crate) fn forget(&mut self, request: RequestId) {
        self.forget_until(request, Epoch(u32::MAX));
    }

    /// Drops what is here and what still comes of `request`, up to the newest epoch that was
    /// assigned here.
    pub(crate) fn suspend(&mut self, request: RequestId) {
        if let Some(newest) = self.assigned(request) {
            self.forget_until(request, newest);
        }
    }

    /// The newest epoch that was assigned here.
    fn assigned(&self, request: RequestId) -> Option<Epoch> {
        let confirmed = self.confirmed.get(&request).map(|it| it.1);
        self.newest_claimed(request, u32::MAX).max(confirmed)
    }

    fn newest_claimed(&self, request: RequestId, last: u32) -> Option<Epoch> {
        let slots = self.slots.range((request, 0)..=(request, last));
        slots.filter(|(_, slot)| slot.claimed).map(|(_, slot)| slot.epoch).max()
    }

    /// Requests of which sets wait.
    pub(crate) fn requests(&self) -> BTreeSet<RequestId> {
        let full = self.slots.iter().filter(|(_, slot)| !slot.layers.is_empty());
        full.map(|(at, _)| at.0).collect()
    }

    fn forget_until(&mut self, request: RequestId, last: Epoch) {
        let assigned = self.assigned(request);
        self.slots.retain(|at, slot| at.0 != request || slot.epoch > last);
        self.confirmed.remove(&request);
        let it = self.forgotten.entry(request).or_insert((last, assigned));
        *it = (it.0.max(last), it.1.max(assigned));
    }

    /// Requests that were forgotten may come back, in newer epochs than were assigned here.
    pub(crate) fn readmit(&mut self) {
        self.forgotten.retain(|_, (last, assigned)| {
            *last = assigned.unwrap_or(*last);
            assigned.is_some()
        });
    }

    /// The slot of `key` or of a newer epoch of it; new if there is none or only an older one.
    fn slot(&mut self, now: u64, key: ChunkKey) -> &mut Slot {
        let new = || Slot { epoch: key.epoch, since: now, ..Slot::default() };
        let slot = self.slots.entry(place(key)).or_insert_with(new);
        if slot.epoch < key.epoch {
            *slot = new();
        }
        slot
    }
}

fn place(key: ChunkKey) -> (RequestId, u32) {
    (key.request, key.chunk_idx)
}
