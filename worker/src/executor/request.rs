//! What a worker holds of one request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use aqueduct_core::work::{HandedOver, NextHop};
use aqueduct_core::{ChunkKey, MemoryPolicy, SnapshotKey, WireDtype};
use aqueduct_engine::Sequence;
use aqueduct_kernels::{Leaves, MemorySet};

use super::decode::Decoding;
use super::session::SessionId;
use super::sharded::ShardedHome;
use crate::gauge::Charge;
use crate::ledger::Entry;
use crate::snapshots::Coming;

/// State of one request; dropping it frees everything.
pub(super) struct Request {
    /// Who asked for it.
    pub(super) session: SessionId,
    /// Whether its keys stay in shards, which others need until it ends.
    pub(super) is_sharded: bool,
    /// What was given, by the index of the chunk that receives.
    pub(super) outbox: BTreeMap<u32, Outgoing>,
    /// What comes from disk, by the index of the chunk that it stands for.
    pub(super) restoring: BTreeMap<u32, Restoring>,
    /// The memory of the whole prompt, from the end of its last chunk until decode.
    pub(super) home: Option<Home>,
    /// Where keys are in shards: the home that was decoded from, until its last chunk is dropped.
    pub(super) decoded: Option<Arc<ShardedHome>>,
    /// Completions under way.
    pub(super) decoding: Option<Decoding>,
    /// What they are called on their way, if they go to another worker.
    pub(super) departure: Option<Departure>,
    /// What completions left that have ended and may be gone on from.
    pub(super) left: Vec<Left>,
    _charge: Charge,
}

/// What a completion remembered when it ended.
pub(super) struct Left {
    pub(super) choice: u32,
    pub(super) sequence: Sequence,
    pub(super) _charge: Charge,
}

/// A snapshot on its way from disk.
pub(super) struct Restoring {
    pub(super) key: ChunkKey,
    pub(super) snapshot: SnapshotKey,
    pub(super) coming: Coming,
    pub(super) deadline: Instant,
}

/// Completions on their way to another worker.
pub(super) struct Departure {
    pub(super) next: NextHop,
    /// What their sets are called.
    pub(super) names: HandedOver,
}

/// Memory sets for the next chunk, kept until it is confirmed.
pub(super) struct Outgoing {
    /// Where the next chunk is now.
    pub(super) next: NextHop,
    /// Elements of f32 keys and values on the way.
    pub(super) wire: WireDtype,
    /// Set j is layer j's.
    pub(super) sets: Vec<Kept>,
    /// How many of them the link has taken.
    pub(super) sent: usize,
    /// How many of them have arrived.
    pub(super) arrived: usize,
    /// The next hop could not be reached: wait for a redirect.
    pub(super) broken: bool,
}

/// A memory set, its share of the outbox, and its place in the ledger.
pub(super) struct Kept {
    pub(super) memory: Arc<MemorySet>,
    _charge: Charge,
    _entry: Entry,
}

/// What a prompt left.
pub(super) enum Memory {
    /// The set of every layer, here, and which keys are summed together from now on.
    Sets(Vec<Arc<MemorySet>>, Leaves),
    /// Shards, here and elsewhere.
    Sharded(Arc<ShardedHome>),
}

/// A finished prefill.
pub(super) struct Home {
    pub(super) memory: Memory,
    /// The prompt's last chunk.
    pub(super) chunk_idx: u32,
    /// `[vocab]`, after the last prompt token.
    pub(super) logits: Vec<f32>,
    pub(super) policy: MemoryPolicy,
    pub(super) _charge: Charge,
}

impl Request {
    pub(super) fn new(session: SessionId, charge: Charge) -> Self {
        Self {
            session,
            is_sharded: false,
            outbox: BTreeMap::new(),
            restoring: BTreeMap::new(),
            home: None,
            decoded: None,
            decoding: None,
            departure: None,
            left: Vec::new(),
            _charge: charge,
        }
    }
}

impl Request {
    /// Whether nothing that anybody needs is here, but for chunks that wait or run.
    pub(super) fn is_spent(&self) -> bool {
        let decodes = self.home.is_some() || self.decoding.is_some() || self.departure.is_some();
        let holds = !self.outbox.is_empty() || !self.restoring.is_empty() || !self.left.is_empty();
        !decodes && !holds && !self.is_sharded
    }
}

impl Outgoing {
    pub(super) fn new(next: NextHop, wire: WireDtype) -> Self {
        Self { next, wire, sets: Vec::new(), sent: 0, arrived: 0, broken: false }
    }

    /// Everything kept goes to `next`, and so does what is still to come.
    pub(super) fn redirect(&mut self, next: NextHop) {
        *self = Self { sets: std::mem::take(&mut self.sets), ..Self::new(next, self.wire) };
    }
}

impl Kept {
    pub(super) fn new(memory: Arc<MemorySet>, charge: Charge, entry: Entry) -> Self {
        Self { memory, _charge: charge, _entry: entry }
    }
}
