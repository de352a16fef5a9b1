//! Snapshots: what a chunk gave, or its keys where these stay in shards, is kept for other
//! requests and stands for their chunks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_core::snapshot::{Keep, Made, Restore};
use aqueduct_core::work::{ChunkReport, Event, FailureKind};
use aqueduct_core::{ChunkKey, RequestId, SnapshotKey, limits};
use aqueduct_engine::shards::{Branch, ShardError, ShardKey};
use aqueduct_kernels::{BackendError, MemorySet, Shard};

use super::Executor;
use super::chunk::rounded;
use super::request::{Kept, Memory, Outgoing, Request, Restoring};
use super::session::SessionId;
use crate::snapshots::{Found, Snapshot};
use crate::worker::Shared;

impl Executor {
    /// Keeps what a chunk gave or a completion left. Nothing is copied that would not be kept:
    /// whoever waits for the device's thread waits for that too.
    pub(super) fn keep(&mut self, session: SessionId, keep: Keep) {
        let Keep { request, made, snapshot: name, retained } = keep;
        let given = self.given(session, request, made).unwrap_or_default();
        let sets = given.sets.iter().map(Given::set).collect::<Option<Vec<_>>>();
        let sets = sets.filter(|sets| sets.len() == self.model.memory_layers());
        let snapshots = &self.shared.snapshots;
        let copied = sets.and_then(|sets| {
            let bytes = sets.iter().map(|set| set.bytes() as u64).sum();
            if !snapshots.would_keep(&name, bytes) {
                let most = snapshots.bytes_max();
                if !given.is_prefix && bytes > most {
                    tracing::warn!(
                        %request, bytes, snapshot_bytes = most,
                        "what a session would go on from is larger than --snapshot-bytes"
                    );
                }
                return None;
            }
            // Copies, side by side: what is kept takes none of the pool's pages, which are for
            // requests, and is bounded in bytes of its own.
            let layers = sets.iter().map(|set| Arc::new(set.in_order())).collect();
            Some(Snapshot { layers, retained, is_prefix: given.is_prefix })
        });
        snapshots.keep(name, copied);
    }

    fn given(&mut self, session: SessionId, request: RequestId, made: Made) -> Option<AllGiven> {
        let held = self.owned(session, request)?;
        match made {
            Made::Chunk(chunk_idx) if held.is_sharded => {
                let shards = self.shared.holder.store().of_chunk(request, chunk_idx);
                let sets = shards.into_iter().map(Given::Shard).collect();
                Some(AllGiven { sets, is_prefix: true })
            }
            made => held.given(made),
        }
    }

    /// Has a snapshot stand for a chunk, as if the chunk had just been done.
    pub(super) fn restore(&mut self, session: SessionId, restore: Restore) {
        let Restore { key, snapshot, next, wire } = restore;
        if let Err((kind, message)) = self.admissible(session, key) {
            self.shared.snapshots.tell_again(snapshot);
            return self.send_to(session, Event::ChunkFailed { key, kind, message });
        }
        if !self.supersede(key) {
            return tracing::warn!(%key, "restored in an epoch that is not newer; ignored");
        }
        let found = self.shared.snapshots.restore(&snapshot);
        if next.is_none() {
            self.shared.holder.store().claim(key.request);
        }
        let request = self.request_of(session, key.request);
        request.restoring.remove(&key.chunk_idx);
        match next {
            Some(next) => {
                request.outbox.insert(key.chunk_idx + 1, Outgoing::new(next, wire));
            }
            None => request.is_sharded = true,
        }
        self.restored(session, (key, snapshot), found, deadline());
    }

    /// Goes on with what has come from disk meanwhile.
    pub(super) fn receive_restored(&mut self) {
        let mut all = Vec::new();
        for held in self.requests.values_mut().filter(|held| !held.restoring.is_empty()) {
            let restoring = std::mem::take(&mut held.restoring).into_values();
            all.extend(restoring.map(|restoring| (held.session, restoring)));
        }
        for (session, Restoring { key, snapshot, coming, deadline }) in all {
            self.restored(session, (key, snapshot), coming.poll(), deadline);
        }
    }

    /// When to look again whether something has come from disk, at the latest.
    pub(super) fn restore_deadline(&self) -> Option<Instant> {
        let restoring = self.requests.values().flat_map(|held| held.restoring.values());
        let deadline = restoring.map(|restoring| restoring.deadline).min()?;
        Some(self.gives_up_at(deadline))
    }

    /// When what is to come by `deadline` is waited for no more: chunks of others wait meanwhile,
    /// so not for a disk that does nothing.
    fn gives_up_at(&self, deadline: Instant) -> Instant {
        self.shared.snapshots.hangs_at().map_or(deadline, |hangs_at| hangs_at.min(deadline))
    }

    fn restored(
        &mut self,
        session: SessionId,
        (key, snapshot): (ChunkKey, SnapshotKey),
        found: Found,
        deadline: Instant,
    ) {
        let (kind, message) = match found {
            Found::Here(found) => {
                let is_sharded = self.owned(session, key.request).is_some_and(|it| it.is_sharded);
                let event = match is_sharded {
                    true => self.keep_restored(key, &found),
                    false => self.give_restored(key, &found),
                };
                if matches!(&event, Event::ChunkFailed { kind: FailureKind::Exhausted, .. }) {
                    self.shared.snapshots.tell_again(snapshot); // there is only no room for it
                }
                return self.send_to(session, event);
            }
            Found::Coming(coming) if Instant::now() < self.gives_up_at(deadline) => {
                if let Some(request) = self.owned(session, key.request) {
                    let restoring = Restoring { key, snapshot, coming, deadline };
                    request.restoring.insert(key.chunk_idx, restoring);
                }
                return;
            }
            Found::Coming(_) => {
                self.shared.snapshots.tell_when_read(snapshot);
                (FailureKind::Deadline, "the snapshot did not come from disk in time")
            }
            // The disk's thread has it told when that has a sense.
            Found::Late => (FailureKind::Deadline, "the snapshot cannot be read just now"),
            Found::Gone => (FailureKind::Peer, "the snapshot is no longer held"),
        };
        if let Some(request) = self.owned(session, key.request) {
            request.outbox.remove(&(key.chunk_idx + 1));
        }
        let message = message.to_owned();
        self.send_to(session, Event::ChunkFailed { key, kind, message });
    }

    /// Has the snapshot go where the chunk's memory goes, and says what it is.
    fn give_restored(&mut self, key: ChunkKey, found: &Snapshot) -> Event {
        let Shared { gauges, ledger, .. } = self.shared.as_ref();
        let mut report = ChunkReport { retained: found.retained.clone(), ..Default::default() };
        let held = self.requests.get_mut(&key.request);
        let mut outgoing = held.and_then(|held| held.outbox.get_mut(&(key.chunk_idx + 1)));
        for (layer, set) in (0..).zip(&found.layers) {
            let bytes = set.bytes() as u64;
            report.memory_bytes += bytes;
            report.memory_tokens = report.memory_tokens.max(set.keys.len() as u32);
            let Some(outgoing) = &mut outgoing else { continue };
            let set = match rounded(set.clone(), outgoing.wire) {
                Ok(set) => set,
                Err(error) => {
                    let (kind, message) = (FailureKind::Invalid, error.to_string());
                    return Event::ChunkFailed { key, kind, message };
                }
            };
            let entry = ledger.enter(key, layer, &set);
            let charge = gauges.outbox_bytes.charge(bytes);
            outgoing.sets.push(Kept::new(set, charge, entry));
        }
        Event::ChunkDone { key, report: Box::new(report) }
    }

    /// Has the snapshot be the chunk's shard, and says what it is.
    fn keep_restored(&self, key: ChunkKey, found: &Snapshot) -> Event {
        let ChunkKey { request, chunk_idx, epoch } = key;
        let mut report = ChunkReport { retained: found.retained.clone(), ..Default::default() };
        let holder = &self.shared.holder;
        for (layer, set) in (0..).zip(&found.layers) {
            report.memory_bytes += set.bytes() as u64;
            report.memory_tokens = report.memory_tokens.max(set.keys.len() as u32);
            let shard = ShardKey { request, branch: Branch::PROMPT, layer, chunk_idx, epoch };
            if let Err(error) = holder.store().restore(&self.model, shard, set) {
                let kind = match &error {
                    ShardError::Backend(BackendError::Exhausted { .. }) => FailureKind::Exhausted,
                    _ => FailureKind::Invalid,
                };
                return Event::ChunkFailed { key, kind, message: error.to_string() };
            }
        }
        holder.changed(); // who asked for it before it was there may be answered
        Event::ChunkDone { key, report: Box::new(report) }
    }

    /// Tells every coordinator what came and went.
    pub(super) fn tell_snapshots(&mut self) {
        for news in self.shared.snapshots.news() {
            for session in self.sessions.values_mut() {
                session.outlet.send(Event::Snapshots(Box::new(news.clone())), &self.waker);
            }
        }
    }
}

/// What a snapshot is made of, layer by layer.
#[derive(Default)]
struct AllGiven {
    sets: Vec<Given>,
    /// See [`Snapshot::is_prefix`].
    is_prefix: bool,
}

/// Where one layer's set lies.
enum Given {
    Set(Arc<MemorySet>),
    Shard(Arc<Shard>),
}

impl Given {
    fn set(&self) -> Option<&MemorySet> {
        match self {
            Self::Set(set) => Some(set),
            Self::Shard(shard) => match shard.parts() {
                [part] => Some(part),
                _ => None, // heads that keep keys of their own were pruned for this request
            },
        }
    }
}

impl Request {
    /// The memory sets that a chunk gave or a completion left, as far as they are here.
    fn given(&self, made: Made) -> Option<AllGiven> {
        let all = |sets: &[Arc<MemorySet>]| -> Vec<Given> {
            sets.iter().cloned().map(Given::Set).collect()
        };
        match made {
            Made::Chunk(chunk_idx) => {
                if let Some(outgoing) = self.outbox.get(&(chunk_idx + 1)) {
                    let sets = outgoing.sets.iter().map(|kept| Given::Set(kept.memory.clone()));
                    return Some(AllGiven { sets: sets.collect(), is_prefix: true });
                }
                let home = self.home.as_ref().filter(|home| home.chunk_idx == chunk_idx)?;
                // After a prompt's last chunk it may be a session, if nothing is generated.
                match &home.memory {
                    Memory::Sets(layers, _) => {
                        Some(AllGiven { sets: all(layers), is_prefix: false })
                    }
                    Memory::Sharded(_) => None,
                }
            }
            Made::Choice(idx) => {
                let left = self.left.iter().find(|left| left.choice == idx)?;
                Some(AllGiven { sets: all(left.sequence.memory()), is_prefix: false })
            }
        }
    }
}

/// When to give up waiting for what is asked for now.
fn deadline() -> Instant {
    Instant::now() + Duration::from_millis(limits::RESTORE_DEADLINE_MS)
}

#[cfg(test)]
mod tests {
    use aqueduct_core::{Epoch, WireDtype};
    use tokio::runtime::Runtime;

    use super::*;
    use crate::link::conformance::set;
    use crate::snapshots::{Coming, SnapshotOptions};
    use crate::{LoopbackHub, WorkerOptions};

    const KEY: ChunkKey = ChunkKey { request: RequestId(1), chunk_idx: 2, epoch: Epoch(0) };
    const NAME: SnapshotKey = SnapshotKey([7; 32]);

    /// An executor that has a snapshot, of which it has told.
    fn keeper() -> Executor {
        let snapshots = SnapshotOptions { bytes: 1 << 20, disk: None };
        let options = WorkerOptions::new("local://keeper", LoopbackHub::default());
        let executor = Executor::by_hand(WorkerOptions { snapshots, ..options });
        let layers = (0..executor.model.layers()).map(|layer| Arc::new(set(4, layer as u32)));
        let layers = layers.collect();
        let snapshot = Snapshot { layers, retained: Vec::new(), is_prefix: false };
        executor.shared.snapshots.keep(NAME, Some(snapshot));
        assert_eq!(executor.shared.snapshots.news()[0].kept, [NAME]);
        executor
    }

    #[test]
    fn who_waits_for_something_else_looks_after_a_disk_that_hangs() {
        let runtime = Runtime::new().unwrap();
        let _inside = runtime.enter();
        let mut executor = keeper();
        let ((_disk, coming), since) = (Coming::pending(), Instant::now());
        let deadline = since + Duration::from_millis(50);
        let held = executor.request_of(SessionId(0), KEY.request);
        let restoring = Restoring { key: KEY, snapshot: NAME, coming, deadline };
        held.restoring.insert(KEY.chunk_idx, restoring);
        while Instant::now() < deadline {
            executor.rest(since + Duration::from_secs(60)); // the bell may ring before
        }
        assert!(since.elapsed() < Duration::from_secs(30));
        assert_eq!(executor.restore_deadline(), Some(deadline));
        executor.receive_restored();
        assert_eq!(executor.restore_deadline(), None);
        let news = executor.shared.snapshots.news();
        assert!(news.is_empty(), "it is late as long as the disk does nothing: {news:?}");
    }

    #[test]
    fn what_is_refused_to_somebody_is_told_to_be_here() {
        let runtime = Runtime::new().unwrap();
        let _inside = runtime.enter();
        let mut executor = keeper();
        executor.request_of(SessionId(1), KEY.request); // so it is not the other's
        let restore = Restore { key: KEY, snapshot: NAME, next: None, wire: WireDtype::F32 };
        executor.restore(SessionId(0), restore);
        assert_eq!(executor.shared.snapshots.news()[0].kept, [NAME]);
    }
}
