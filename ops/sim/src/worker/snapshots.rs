//! What chunks left, kept for other requests that begin alike.

use std::collections::BTreeMap;
use std::sync::Arc;

use aqueduct_core::snapshot::{Keep, Made, Restore, SnapshotNews};
use aqueduct_core::work::{ChunkReport, Event, FailureKind, NextHop};
use aqueduct_core::{ChunkKey, RequestId, SnapshotKey};
use aqueduct_engine::shards::{Branch, ShardKey};
use aqueduct_kernels::MemorySet;

use super::handoff::Outgoing;
use super::{Held, Worker};

/// A worker keeps few, so that some are gone when somebody counts on them.
const SNAPSHOTS_MAX: usize = 8;

/// The memory of all layers behind a chunk or, where keys stay in shards, the chunk's own keys.
pub(super) type Snapshots = BTreeMap<SnapshotKey, Vec<Arc<MemorySet>>>;

impl Worker {
    /// The snapshots that it has.
    pub(crate) fn kept(&self) -> Vec<SnapshotKey> {
        self.snapshots.keys().copied().collect()
    }

    /// Keeps what a chunk left, if that is still here, and tells all coordinators.
    pub(super) fn keep(&mut self, session: u64, keep: Keep) {
        let Keep { request, made: Made::Chunk(chunk_idx), snapshot, .. } = keep else {
            unreachable!("there are no conversations here")
        };
        let mut news = SnapshotNews::default();
        match self.left_by(session, request, chunk_idx) {
            Some(layers) => {
                self.snapshots.insert(snapshot, layers);
                news.kept.push(snapshot);
            }
            None => news.dropped.push(snapshot),
        }
        // Names are hashes, so the first one is any.
        while self.snapshots.len() > SNAPSHOTS_MAX {
            news.dropped.extend(self.snapshots.pop_first().map(|(name, _)| name));
        }
        for session in self.sessions.clone() {
            self.say(session, Event::Snapshots(Box::new(news.clone())));
        }
    }

    fn left_by(
        &mut self,
        session: u64,
        request: RequestId,
        chunk_idx: u32,
    ) -> Option<Vec<Arc<MemorySet>>> {
        let layers = self.model.memory_layers();
        let held = self.owned(session, request)?;
        let given = held.outbox.get(&(chunk_idx + 1)).map(|outgoing| outgoing.sets.clone());
        let shards = self.store.of_chunk(request, chunk_idx);
        let shards = || shards.iter().flat_map(|it| it.parts()).cloned().map(Arc::new).collect();
        let all: Vec<_> = given.unwrap_or_else(shards);
        (all.len() == layers).then_some(all)
    }

    /// Has a snapshot stand for a chunk, as if the chunk had just been done.
    pub(super) fn restore(&mut self, now: u64, session: u64, restore: Restore) {
        let Restore { key, snapshot, next, .. } = restore;
        if !self.makes_way(now, session, key) {
            return;
        }
        let found = self.snapshots.get(&snapshot).cloned();
        if next.is_none() {
            self.store.claim(key.request);
        }
        let held = self.requests.entry(key.request).or_insert_with(|| Held::new(session));
        held.outbox.remove(&(key.chunk_idx + 1));
        let Some(layers) = found else {
            let (kind, message) = (FailureKind::Peer, "the snapshot is no longer held".to_owned());
            return self.say(session, Event::ChunkFailed { key, kind, message });
        };
        match next {
            Some(next) => self.give_restored(now, key, next, layers),
            None => self.keep_restored(key, &layers),
        }
        self.say(session, Event::ChunkDone { key, report: Box::new(ChunkReport::default()) });
    }

    fn give_restored(&mut self, now: u64, key: ChunkKey, next: NextHop, sets: Vec<Arc<MemorySet>>) {
        let (chunk_idx, epoch) = (key.chunk_idx + 1, next.epoch);
        if let Some(held) = self.requests.get_mut(&key.request) {
            let mut outgoing = Outgoing::new(next);
            outgoing.sets = sets;
            held.outbox.insert(chunk_idx, outgoing);
        }
        self.send(now, ChunkKey { chunk_idx, epoch, ..key });
    }

    fn keep_restored(&mut self, key: ChunkKey, sets: &[Arc<MemorySet>]) {
        let ChunkKey { request, chunk_idx, epoch } = key;
        for (layer, set) in (0..).zip(sets) {
            let shard = ShardKey { request, branch: Branch::PROMPT, layer, chunk_idx, epoch };
            let put = self.store.restore(&self.model, shard, set);
            put.expect("a shard that was kept is one");
        }
    }
}
