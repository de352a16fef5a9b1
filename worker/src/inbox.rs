//! Memory sets that wait here for the chunk that takes them.

mod fit;
mod state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aqueduct_core::work::Traffic;
use aqueduct_core::{ChunkKey, Epoch, Refusal, RequestId, limits};
use aqueduct_kernels::{MemorySet, SetShape};

use crate::doorbell::Doorbell;
pub use fit::{Fit, LayerFit};
use state::State;

/// What even an empty set costs, so that no number of empty ones is free.
const SET_OVERHEAD_BYTES: u64 = 256;
/// A set that nobody has claimed for so long is nobody's.
const CLAIM_DEADLINE: Duration = Duration::from_millis(limits::HANDOFF_DEADLINE_MS);

/// What becomes of a set that is delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Taken, or seen before and not needed again.
    Taken,
    /// Of an older epoch or a forgotten request.
    Stale,
    /// No room now.
    Exhausted,
    /// It does not fit the model.
    Unfit(Refusal),
}

/// How a set came.
#[derive(Debug, Clone, Copy)]
pub enum Came<'a> {
    /// From a worker of this process, to be rung as soon as there is room where there is none.
    Near(&'a Arc<Doorbell>),
    /// From another process.
    Far {
        /// What travelled, headers not counted.
        bytes: u64,
        /// What did not, because it was here.
        spared_bytes: u64,
    },
}

/// Keyed by request, chunk and layer; bounded in bytes; rings the doorbell when a set arrives.
#[derive(Debug)]
pub struct Inbox {
    doorbell: Arc<Doorbell>,
    fingerprint: String,
    fit: Fit,
    bytes_max: u64,
    state: Mutex<State>,
}

impl Inbox {
    /// An empty inbox for sets of shape `fit` of the model with this fingerprint.
    pub fn new(doorbell: Arc<Doorbell>, fingerprint: String, fit: Fit, bytes_max: u64) -> Self {
        Self { doorbell, fingerprint, fit, bytes_max, state: Mutex::default() }
    }

    /// The model whose sets it takes.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Most bytes that one set may have.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// Takes `memory` for `key` and `layer`. The chunk that is running is never refused for want
    /// of room: it is the one that makes room.
    pub fn deliver(
        &self,
        key: ChunkKey,
        layer: u32,
        memory: Arc<MemorySet>,
        came: Came<'_>,
    ) -> Verdict {
        if let Err(refusal) = self.fit.check(layer, &SetShape::of(&memory)) {
            return Verdict::Unfit(refusal);
        }
        let mut state = self.lock();
        if let Some(verdict) = state.judge(&key, layer, cost(memory.bytes()), self.bytes_max) {
            if let (Came::Near(sender), Verdict::Exhausted) = (came, &verdict) {
                state.waits(sender);
            }
            return verdict;
        }
        state.put(key, layer, memory, came);
        drop(state);
        self.doorbell.ring();
        Verdict::Taken
    }

    /// What [`deliver`](Self::deliver) would say now of a set of this shape; keeps no room for it.
    pub fn would_take(&self, key: ChunkKey, layer: u32, set: &SetShape) -> Verdict {
        if let Err(refusal) = self.fit.check(layer, set) {
            return Verdict::Unfit(refusal);
        }
        let verdict = self.lock().judge(&key, layer, cost(set.bytes()), self.bytes_max);
        verdict.unwrap_or(Verdict::Taken)
    }

    /// The chunk was assigned here; what came for an older epoch of it goes. What came for a newer
    /// one stays unclaimed: it has overtaken the word that this one is over.
    pub fn claim(&self, key: ChunkKey) {
        self.lock().claim(key);
    }

    /// The chunk begins to run.
    pub fn begin(&self, key: ChunkKey) {
        self.lock().running = Some(key);
    }

    /// Whether the set of `layer` has come and was not taken.
    pub fn holds(&self, key: ChunkKey, layer: u32) -> bool {
        let state = self.lock();
        let slot = state.slots.get(&place(&key)).filter(|slot| slot.epoch == key.epoch);
        slot.is_some_and(|slot| slot.layers.contains_key(&layer))
    }

    /// The set of `layer`, if it has come.
    pub fn take(&self, key: ChunkKey, layer: u32) -> Option<Arc<MemorySet>> {
        let mut state = self.lock();
        let slot = state.slots.get_mut(&place(&key)).filter(|slot| slot.epoch == key.epoch)?;
        let memory = slot.layers.remove(&layer)?;
        state.release(cost(memory.bytes()));
        Some(memory)
    }

    /// The chunk has ended; what comes for it later is not kept. Says what came from other
    /// processes until now.
    pub fn finish(&self, key: ChunkKey) -> Traffic {
        let mut state = self.lock();
        state.running = None;
        state.close(place(&key), |slot| slot.epoch == key.epoch)
    }

    /// The chunk is not done here, as it was to be when it was claimed last; what comes for it in
    /// that epoch is not kept. What nobody has claimed yet is for a newer try: its memory came
    /// before the word that the older one is over.
    pub fn withdraw(&self, request: RequestId, chunk_idx: u32) {
        self.lock().close((request, chunk_idx), |slot| slot.claimed);
    }

    /// Nobody claims what came under `key`, and what comes later is not kept.
    pub fn close(&self, key: ChunkKey) {
        self.lock().close(place(&key), |slot| slot.epoch == key.epoch);
    }

    /// The chunk was done here, and so were all before it, here or elsewhere. Nothing more is
    /// wanted for any of them, but in an epoch that is newer than all that were assigned here
    /// until now.
    pub fn confirm(&self, request: RequestId, chunk_idx: u32) {
        self.lock().confirm(request, chunk_idx);
    }

    /// Drops everything of `request`, and what still comes for it.
    pub fn forget(&self, request: RequestId) {
        self.lock().forget(request, Epoch(u32::MAX));
    }

    /// Drops what is here and what still comes of `request`, up to the newest epoch that was
    /// assigned here: memory of a newer one may come before a coordinator that lost its session
    /// is back to claim it.
    pub fn suspend(&self, request: RequestId) {
        let mut state = self.lock();
        if let Some(newest) = state.assigned(request) {
            state.forget(request, newest);
        }
    }

    /// Requests that were forgotten may come back, and so may memory for them before anybody claims
    /// it: in newer epochs than were assigned here.
    pub fn readmit(&self) {
        self.lock().readmit();
    }

    /// Drops sets that nobody has claimed in time; when the next of them will be due.
    pub fn expire(&self) -> Option<Instant> {
        self.lock().expire()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn place(key: &ChunkKey) -> (RequestId, u32) {
    (key.request, key.chunk_idx)
}

fn cost(set_bytes: usize) -> u64 {
    set_bytes as u64 + SET_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::conformance::{LAYER, RECURRENT, fit, hybrid_fit, key, set, state};
    use aqueduct_kernels::KvDtype;

    const FAR: Came<'_> = Came::Far { bytes: 100, spared_bytes: 7 };

    fn inbox(sets: u64) -> Inbox {
        let bytes = sets * cost(set(4, 0).bytes());
        Inbox::new(Arc::default(), "model".into(), fit(), bytes)
    }

    #[test]
    fn keeps_one_set_for_each_layer_until_it_is_taken() {
        let inbox = inbox(8);
        let memory = Arc::new(set(4, 1));
        assert_eq!(inbox.deliver(key(1, 0), 2, memory.clone(), FAR), Verdict::Taken);
        assert!(!inbox.holds(key(1, 0), 1) && inbox.holds(key(1, 0), 2));
        assert_eq!(inbox.take(key(1, 0), 1), None);
        assert_eq!(inbox.take(key(1, 0), 2), Some(memory.clone()));
        assert_eq!(inbox.deliver(key(1, 0), 2, memory, FAR), Verdict::Taken);
        assert_eq!(inbox.take(key(1, 0), 2), None, "a duplicate is not taken twice");
        assert!(!inbox.holds(key(1, 0), 2));
        assert_eq!(inbox.bytes(), 0);
    }

    #[test]
    fn a_state_takes_up_its_bytes() {
        let inbox = Inbox::new(Arc::default(), "model".into(), hybrid_fit(), 600);
        let memory = Arc::new(state(1));
        let shape = SetShape::of(&memory);
        assert_eq!(shape.bytes(), memory.bytes());
        let deliver = |chunk| inbox.deliver(key(chunk, 0), RECURRENT, memory.clone(), FAR);
        assert_eq!(deliver(1), Verdict::Taken);
        assert_eq!(inbox.bytes(), cost(memory.bytes()));
        assert_eq!(inbox.would_take(key(2, 0), RECURRENT, &shape), Verdict::Exhausted);
        assert_eq!(inbox.take(key(1, 0), RECURRENT), Some(memory.clone()));
        assert_eq!((inbox.bytes(), deliver(2)), (0, Verdict::Taken));
    }

    #[test]
    fn counts_what_came_from_far_and_what_it_spared() {
        let (inbox, memory) = (inbox(8), Arc::new(set(4, 1)));
        let here = Arc::new(Doorbell::default());
        for (layer, came) in [(0, FAR), (1, FAR), (1, FAR), (2, Came::Near(&here))] {
            assert_eq!(inbox.deliver(key(1, 0), layer, memory.clone(), came), Verdict::Taken);
        }
        let (received_bytes, spared_bytes) = (200, 14);
        let want = Traffic { received_bytes, fetched: 2, spared_bytes, ..Traffic::default() };
        assert_eq!(inbox.finish(key(1, 0)), want);
        assert_eq!(inbox.finish(key(2, 0)), Traffic::default());
    }

    #[test]
    fn a_newer_epoch_replaces_an_older_one() {
        let inbox = inbox(8);
        let deliver = |epoch| inbox.deliver(key(1, epoch), 0, Arc::new(set(4, 1)), FAR);
        assert_eq!(deliver(1), Verdict::Taken);
        assert_eq!(deliver(0), Verdict::Stale);
        assert_eq!(deliver(2), Verdict::Taken);
        assert_eq!(inbox.take(key(1, 1), 0), None);
        assert_eq!(inbox.bytes(), cost(set(4, 1).bytes()));
        inbox.claim(key(1, 3));
        assert_eq!(inbox.bytes(), 0);
        assert_eq!(deliver(2), Verdict::Stale);
    }

    #[test]
    fn is_bounded_but_for_the_chunk_that_runs() {
        let inbox = inbox(2);
        let sender = Arc::new(Doorbell::default());
        let deliver = |chunk, layer| {
            inbox.deliver(key(chunk, 0), layer, Arc::new(set(4, 1)), Came::Near(&sender))
        };
        assert_eq!(deliver(1, 0), Verdict::Taken);
        assert_eq!(deliver(2, 0), Verdict::Taken);
        assert_eq!(deliver(2, 1), Verdict::Exhausted);
        inbox.begin(key(1, 0));
        assert_eq!(deliver(1, 1), Verdict::Taken);
        inbox.finish(key(1, 0));
        sender.wait_until(None);
        assert_eq!(deliver(2, 1), Verdict::Taken);
        assert_eq!(deliver(1, 2), Verdict::Taken, "dropped: the chunk has ended");
        assert_eq!(inbox.bytes(), 2 * cost(set(4, 1).bytes()));
    }

    #[test]
    fn forgets_a_request_and_what_still_comes_for_it() {
        let inbox = inbox(2);
        inbox.deliver(key(1, 0), 0, Arc::new(set(4, 1)), FAR);
        inbox.forget(key(1, 0).request);
        assert_eq!(inbox.bytes(), 0);
        assert_eq!(inbox.deliver(key(1, 0), 1, Arc::new(set(4, 1)), FAR), Verdict::Stale);
        inbox.claim(key(1, 0));
        assert_eq!(inbox.deliver(key(1, 0), 1, Arc::new(set(4, 1)), FAR), Verdict::Taken);
    }

    /// The coordinator takes a request away from a worker that cannot be reached, loses its session
    /// there, gets another one, and gives the worker one of its chunks after all. The memory for
    /// that is sent by others, who may be quicker; they send it once.
    #[test]
    fn a_request_that_was_forgotten_may_come_back_in_another_session() {
        let inbox = inbox(4);
        let deliver = |epoch| inbox.deliver(key(1, epoch), 0, Arc::new(set(4, 1)), FAR);
        inbox.claim(key(1, 3));
        inbox.forget(key(1, 3).request);
        assert_eq!(deliver(4), Verdict::Stale, "the session goes on");
        inbox.readmit();
        assert_eq!(deliver(3), Verdict::Stale, "that try is over in any case");
        assert_eq!(deliver(4), Verdict::Taken);
        inbox.claim(key(1, 4));
        assert!(inbox.take(key(1, 4), 0).is_some());
        inbox.finish(key(1, 4));
        inbox.confirm(key(1, 4).request, 1);
        inbox.forget(key(1, 4).request);
        inbox.readmit();
        inbox.readmit();
        assert_eq!((deliver(4), deliver(5)), (Verdict::Stale, Verdict::Taken));
    }

    #[test]
    fn suspends_a_request_until_a_newer_epoch() {
        let inbox = inbox(2);
        let deliver = |epoch| inbox.deliver(key(1, epoch), 0, Arc::new(set(4, 1)), FAR);
        inbox.claim(key(1, 3));
        assert_eq!(deliver(3), Verdict::Taken);
        inbox.suspend(key(1, 3).request);
        assert_eq!(inbox.bytes(), 0);
        assert_eq!(deliver(3), Verdict::Stale);
        assert_eq!(deliver(4), Verdict::Taken, "before it is claimed");
        inbox.claim(key(2, 3));
        inbox.suspend(key(1, 3).request);
        assert!(inbox.take(key(1, 4), 0).is_some(), "also before the lost session has ended");
        inbox.forget(key(1, 3).request);
        assert_eq!((inbox.bytes(), deliver(5)), (0, Verdict::Stale));
    }

    #[test]
    fn what_nobody_claims_is_dropped_in_time() {
        let inbox = inbox(2);
        let deliver = |epoch| inbox.deliver(key(1, epoch), 0, Arc::new(set(4, 1)), FAR);
        let grow_old = || {
            let State { slots, unclaimed, .. } = &mut *inbox.lock();
            slots.values_mut().for_each(|slot| slot.since -= CLAIM_DEADLINE);
            let old = std::mem::take(unclaimed).into_iter();
            *unclaimed = old.map(|(since, at)| (since - CLAIM_DEADLINE, at)).collect();
        };
        assert_eq!(deliver(0), Verdict::Taken);
        assert!(inbox.expire().is_some_and(|due| due > Instant::now()) && inbox.bytes() > 0);
        grow_old();
        assert_eq!((inbox.expire(), inbox.bytes()), (None, 0));
        assert_eq!(deliver(1), Verdict::Taken);
        inbox.claim(key(1, 1));
        grow_old();
        assert!(inbox.expire().is_none() && inbox.bytes() > 0, "what is claimed is waited for");
    }

    #[test]
    fn what_is_withdrawn_makes_room_until_a_newer_epoch() {
        let inbox = inbox(2);
        let deliver = |epoch, layer| inbox.deliver(key(1, epoch), layer, Arc::new(set(4, 1)), FAR);
        inbox.claim(key(1, 0));
        assert_eq!(deliver(0, 0), Verdict::Taken);
        inbox.withdraw(key(1, 0).request, 1);
        inbox.withdraw(key(2, 0).request, 9);
        assert_eq!((inbox.bytes(), deliver(0, 1)), (0, Verdict::Taken));
        assert_eq!((inbox.bytes(), inbox.take(key(1, 0), 1)), (0, None));
        assert_eq!(deliver(1, 0), Verdict::Taken);
        assert!(inbox.take(key(1, 1), 0).is_some());
    }

    #[test]
    fn what_came_for_a_newer_try_outlives_the_end_of_an_older_one() {
        let inbox = inbox(2);
        let deliver = |epoch| inbox.deliver(key(1, epoch), 0, Arc::new(set(4, 1)), FAR);
        inbox.claim(key(1, 0));
        assert_eq!(deliver(0), Verdict::Taken);
        assert_eq!(deliver(1), Verdict::Taken);
        inbox.withdraw(key(1, 0).request, 1);
        inbox.claim(key(1, 1));
        assert!(inbox.take(key(1, 1), 0).is_some(), "it overtook the word that ended the other");
        inbox.withdraw(key(1, 1).request, 1);
        assert_eq!(deliver(2), Verdict::Taken);
        inbox.close(key(1, 1));
        assert!(inbox.bytes() > 0, "that is another try");
        inbox.close(key(1, 2));
        assert_eq!(
            (inbox.bytes(), deliver(2), inbox.take(key(1, 2), 0)),
            (0, Verdict::Taken, None)
        );
    }

    /// The coordinator assigns a chunk, drops it and assigns it again, while its memory for the
    /// last of these comes from another worker, before any of the three is read.
    #[test]
    fn what_came_for_a_newer_try_is_not_claimed_by_an_older_one() {
        let inbox = inbox(2);
        assert_eq!(inbox.deliver(key(1, 1), 0, Arc::new(set(4, 1)), FAR), Verdict::Taken);
        inbox.claim(key(1, 0));
        inbox.withdraw(key(1, 0).request, 1);
        inbox.claim(key(1, 1));
        assert!(inbox.holds(key(1, 1), 0), "it was acknowledged, and comes no second time");
        inbox.withdraw(key(1, 1).request, 1);
        assert_eq!(inbox.bytes(), 0);
    }

    #[test]
    fn however_many_chunks_were_done_few_are_remembered() {
        let inbox = inbox(8);
        let deliver = |key| inbox.deliver(key, 0, Arc::new(set(4, 1)), FAR);
        let request = key(0, 0).request;
        for chunk_idx in 0..1000 {
            let key = key(chunk_idx, 0);
            assert_eq!(deliver(key), Verdict::Taken, "{key}");
            inbox.claim(key);
            inbox.begin(key);
            assert!(inbox.take(key, 0).is_some());
            inbox.finish(key);
            if let Some(confirmed) = chunk_idx.checked_sub(2) {
                inbox.confirm(request, confirmed);
            }
            let state = inbox.lock();
            assert!(state.slots.len() <= 2 && state.unclaimed.is_empty(), "{key}");
        }
        assert_eq!(deliver(key(500, 0)), Verdict::Stale, "it was here before");
        assert_eq!((inbox.bytes(), deliver(key(999, 0))), (0, Verdict::Taken), "not yet confirmed");
        assert_eq!((inbox.bytes(), deliver(key(500, 1))), (0, Verdict::Taken), "a newer try");
        inbox.claim(key(500, 1));
        assert!(inbox.take(key(500, 1), 0).is_some());
        inbox.suspend(request);
        assert!(inbox.lock().slots.is_empty());
        assert_eq!(deliver(key(500, 1)), Verdict::Stale);
    }

    /// Tries that others won have slots, too, and their memory may still be under way.
    #[test]
    fn tries_that_came_to_nothing_are_over_with_what_is_confirmed() {
        let inbox = inbox(8);
        let deliver = |key| inbox.deliver(key, 0, Arc::new(set(4, 1)), FAR);
        inbox.claim(key(3, 7));
        inbox.withdraw(key(3, 7).request, 3);
        inbox.claim(key(4, 0));
        inbox.finish(key(4, 0));
        assert_eq!(deliver(key(2, 8)), Verdict::Taken, "this one is to be done again");
        assert_eq!(deliver(key(5, 0)), Verdict::Taken, "this one is to be done yet");
        inbox.confirm(key(4, 0).request, 4);
        assert_eq!(inbox.lock().slots.len(), 2);
        assert_eq!(deliver(key(3, 7)), Verdict::Stale);
        assert!(inbox.holds(key(2, 8), 0) && inbox.holds(key(5, 0), 0));
        inbox.confirm(key(4, 0).request, 1);
        assert_eq!(deliver(key(4, 0)), Verdict::Stale, "whatever comes in which order");
    }

    /// All that was known of its memory is lost, and it begins again.
    #[test]
    fn a_request_that_goes_back_is_over_only_as_far_as_it_has_come_again() {
        let inbox = inbox(8);
        let deliver = |key| inbox.deliver(key, 0, Arc::new(set(4, 1)), FAR);
        let request = key(0, 0).request;
        inbox.claim(key(9, 0));
        inbox.finish(key(9, 0));
        inbox.confirm(request, 9);
        inbox.claim(key(1, 20)); // by way of a hedge, and so newer than those behind it
        inbox.finish(key(1, 20));
        inbox.claim(key(5, 6));
        inbox.confirm(request, 1);
        assert_eq!(deliver(key(5, 6)), Verdict::Taken);
        assert_eq!(deliver(key(1, 6)), Verdict::Stale);
        inbox.finish(key(5, 6));
        inbox.confirm(request, 5);
        assert_eq!(deliver(key(5, 6)), Verdict::Stale);
    }

    #[test]
    fn refuses_what_does_not_fit_the_model() {
        let inbox = inbox(2);
        let check = |layer, memory: MemorySet, field: &str| match inbox.deliver(
            key(1, 0),
            layer,
            Arc::new(memory),
            FAR,
        ) {
            Verdict::Unfit(refusal) => assert_eq!(refusal.field, field),
            other => panic!("{field}: {other:?}"),
        };
        check(fit().layers(), set(4, 1), "layer");
        check(0, state(1), "state");
        check(0, MemorySet::empty(3, LAYER.head_dim, fit().kv), "kv_heads");
        check(0, MemorySet::empty(LAYER.kv_heads, 4, fit().kv), "head_dim");
        check(0, MemorySet::empty(LAYER.kv_heads, LAYER.head_dim, KvDtype::F32), "kv");
    }
}
