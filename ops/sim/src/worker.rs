//! A simulated worker: the engine's own mathematics behind the rules of the device thread.

mod chunk;
mod decode;
mod hand_over;
mod handoff;
mod promised;
mod snapshots;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use aqueduct_core::work::{Assignment, Command, Event, FailureKind, NextHop, Peer};
use aqueduct_core::{ChunkKey, MemoryPolicy, RequestId};
use aqueduct_engine::{EngineError, Model, PortError, Sequence, ShardStore};
use aqueduct_kernels::{Leaves, MemorySet};

pub(crate) use self::decode::Continuation;
use self::decode::Decoding;
use self::handoff::Outgoing;
use self::promised::Promised;
use self::snapshots::Snapshots;
use crate::inbox::{Inbox, Verdict};
use crate::shards::{Holders, ShardedSequence, Ways};

/// Until the next hop counts as out of reach, in microseconds.
pub(crate) const HANDOFF_US: u64 = 30_000_000;

/// What a worker wants of the world.
#[derive(Debug)]
pub(crate) enum Effect {
    /// An event on a session.
    Say(u64, Event),
    /// A memory set for another worker.
    Hand { to: usize, key: ChunkKey, layer: u32, memory: Arc<MemorySet> },
    /// To be woken later.
    Wake { after_us: u64, alarm: Alarm },
    /// That the run ends: what must never happen has.
    Broken(String),
}

/// Why a worker is woken.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Alarm {
    /// A chunk may have waited too long.
    Look,
    /// A chunk is computed.
    Computed(ChunkKey),
    /// Tokens are due.
    Round,
    /// A set was not acknowledged.
    Resend(ChunkKey, u32),
}

/// A worker's process.
pub(crate) struct Worker {
    model: Arc<Model>,
    /// Which of the workers it is.
    here: usize,
    /// The shards that it holds.
    store: Arc<ShardStore>,
    /// The way to all shards.
    ways: Ways,
    /// How many times slower than others.
    pub(crate) slowness: u64,
    sessions: BTreeSet<u64>,
    requests: BTreeMap<RequestId, Held>,
    inbox: Inbox,
    promised: Promised,
    snapshots: Snapshots,
    queue: VecDeque<Assignment>,
    /// Since when the first of the queue waits.
    waits_since: Option<u64>,
    running: Option<Assignment>,
    /// Whether a round of tokens is due.
    round_is_due: bool,
    effects: Vec<Effect>,
}

struct Held {
    session: u64,
    /// By the chunk that receives.
    outbox: BTreeMap<u32, Outgoing>,
    home: Option<Home>,
    decoding: Option<Decoding>,
    /// Where its completions go, and the prompt's last chunk.
    departure: Option<(NextHop, u32)>,
}

impl Held {
    fn new(session: u64) -> Self {
        let (home, decoding, departure) = (None, None, None);
        Self { session, outbox: BTreeMap::new(), home, decoding, departure }
    }
}

/// What the whole prompt left.
struct Home {
    memory: Memory,
    chunk_idx: u32,
    logits: Vec<f32>,
    policy: MemoryPolicy,
}

enum Memory {
    Sets(Vec<Arc<MemorySet>>, Leaves),
    Shards(Box<Assignment>, Holders),
}

/// Where the worker with this address is.
pub(crate) fn idx_of(peer: &Peer) -> usize {
    peer.0.trim_start_matches("sim://").parse().expect("addresses are those of workers")
}

/// The address of a worker.
pub(crate) fn peer(idx: usize) -> Peer {
    Peer(format!("sim://{idx}"))
}

impl Worker {
    /// A process that has just begun.
    pub(crate) fn new(model: Arc<Model>, here: usize, ways: Ways) -> Self {
        Self {
            model,
            here,
            store: Arc::default(),
            ways,
            slowness: 1,
            sessions: BTreeSet::new(),
            requests: BTreeMap::new(),
            inbox: Inbox::default(),
            promised: Promised::default(),
            snapshots: Snapshots::new(),
            queue: VecDeque::new(),
            waits_since: None,
            running: None,
            round_is_due: false,
            effects: Vec::new(),
        }
    }

    /// What it wants, since it was asked last.
    pub(crate) fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Requests of which it holds anything.
    pub(crate) fn holds(&mut self, now: u64) -> BTreeSet<RequestId> {
        self.inbox.expire(now);
        let mut all = self.inbox.requests();
        all.extend(self.requests.keys());
        all
    }

    /// The shards that it holds.
    pub(crate) fn store(&self) -> Arc<ShardStore> {
        self.store.clone()
    }

    /// A coordinator opened a session.
    pub(crate) fn open(&mut self, session: u64) {
        self.sessions.insert(session);
        self.readmit();
    }

    /// What was cancelled in older sessions may come back.
    fn readmit(&mut self) {
        self.inbox.readmit();
        self.store.readmit();
    }

    /// A session is gone, and what it asked for goes with it.
    pub(crate) fn close(&mut self, now: u64, session: u64) {
        self.sessions.remove(&session);
        let of = self.requests.iter().filter(|(_, held)| held.session == session);
        for request in of.map(|(request, _)| *request).collect::<Vec<_>>() {
            self.drop_request(request);
            self.inbox.suspend(request);
        }
        if !self.sessions.is_empty() {
            self.readmit();
        }
        self.look(now);
    }

    /// Reads an order.
    pub(crate) fn obey(&mut self, now: u64, session: u64, order: Command) {
        if !self.sessions.contains(&session) {
            return;
        }
        match order {
            Command::Assign(work) => self.assign(now, session, *work),
            Command::Redirect { request, chunk_idx, next } => {
                self.redirect(now, session, request, chunk_idx, next);
            }
            Command::Confirm { request, chunk_idx } => {
                if let Some(held) = self.owned(session, request) {
                    held.outbox.remove(&(chunk_idx + 1));
                    self.inbox.confirm(request, chunk_idx);
                }
            }
            Command::Decode(spec) => self.start_decoding(session, *spec),
            Command::HandOver { request, next } => self.hand_over(session, request, next),
            Command::StopChoice { request, choice } => {
                if let Some(held) = self.owned(session, request) {
                    held.stop_choice(choice);
                    self.tell_departure(request);
                }
            }
            Command::Cancel { request } => {
                if self.owned(session, request).is_some() {
                    self.drop_request(request);
                }
                self.inbox.forget(request);
            }
            Command::Drop { request, chunk_idx } => self.drop_chunk(session, request, chunk_idx),
            Command::Keep(keep) => self.keep(session, *keep),
            Command::Restore(restore) => self.restore(now, session, *restore),
            Command::Ask(_) => unreachable!("there are no operators here"),
        }
        self.look(now);
    }

    /// A set arrives.
    pub(crate) fn deliver(
        &mut self,
        now: u64,
        key: ChunkKey,
        layer: u32,
        set: Arc<MemorySet>,
    ) -> Verdict {
        let verdict = self.inbox.deliver(now, key, layer, set);
        match verdict {
            Verdict::Taken | Verdict::Stale => self.promised.acknowledge(key, layer),
        }
        self.look(now);
        verdict
    }

    /// An alarm that was asked for.
    pub(crate) fn wake(&mut self, now: u64, alarm: Alarm) {
        match alarm {
            Alarm::Look => self.look(now),
            Alarm::Computed(key) => self.computed(now, key),
            Alarm::Round => self.decode_round(now),
            Alarm::Resend(key, layer) => self.resend(now, key, layer),
        }
    }

    fn say(&mut self, session: u64, event: Event) {
        self.effects.push(Effect::Say(session, event));
    }

    fn wake_after(&mut self, after_us: u64, alarm: Alarm) {
        self.effects.push(Effect::Wake { after_us: after_us * self.slowness, alarm });
    }

    fn owned(&mut self, session: u64, request: RequestId) -> Option<&mut Held> {
        self.requests.get_mut(&request).filter(|held| held.session == session)
    }

    /// Drops a chunk, waiting, running or done; with the last one, what goes on from it.
    fn drop_chunk(&mut self, session: u64, request: RequestId, chunk_idx: u32) {
        let Some(held) = self.owned(session, request) else { return };
        let home = held.home.take_if(|home| home.chunk_idx == chunk_idx).is_some();
        let ends = home | held.stop_decoding(chunk_idx);
        held.outbox.remove(&(chunk_idx + 1));
        held.stay();
        self.inbox.withdraw(request, chunk_idx);
        if ends {
            self.store.drop_branches(request);
        }
        let is_it =
            |work: &Assignment| (work.key.request, work.key.chunk_idx) == (request, chunk_idx);
        self.queue.retain(|work| !is_it(work));
        self.running.take_if(|work| is_it(work));
        self.store.drop_chunk(request, chunk_idx);
    }

    fn drop_request(&mut self, request: RequestId) {
        self.requests.remove(&request);
        self.store.forget(request);
        self.queue.retain(|work| work.key.request != request);
        self.running.take_if(|work| work.key.request == request);
    }

    fn assign(&mut self, now: u64, session: u64, work: Assignment) {
        let key = work.key;
        if !self.makes_way(now, session, key) {
            return;
        }
        match work.shards {
            Some(_) => self.store.claim(key.request),
            None => self.inbox.claim(now, key),
        }
        let held = self.requests.entry(key.request).or_insert_with(|| Held::new(session));
        if let Some(next) = &work.next {
            held.outbox.insert(key.chunk_idx + 1, Outgoing::new(next.clone()));
        }
        self.queue.push_back(work);
    }

    /// Whether `key` may be done here as `session` asks: an older try of the chunk, and an older
    /// session of the request, then end.
    fn makes_way(&mut self, now: u64, session: u64, key: ChunkKey) -> bool {
        let owner = self.requests.get(&key.request).map(|held| held.session);
        if let Some(older) = owner.filter(|owner| *owner < session) {
            self.close(now, older);
        }
        if self.requests.get(&key.request).is_some_and(|held| held.session != session) {
            let message = "belongs to another session".to_owned();
            let kind = FailureKind::Peer;
            self.say(session, Event::ChunkFailed { key, kind, message });
            return false;
        }
        let same = |other: &Assignment| {
            (other.key.request, other.key.chunk_idx) == (key.request, key.chunk_idx)
        };
        let here = self.queue.iter().chain(&self.running);
        if here.filter(|work| same(work)).any(|other| other.key.epoch >= key.epoch) {
            return false;
        }
        self.queue.retain(|work| !same(work));
        self.running.take_if(|work| same(work));
        true
    }
}

/// How a failure is told.
fn kind_of(error: &EngineError) -> FailureKind {
    match error {
        EngineError::Port(PortError::Peer { .. }) => FailureKind::Peer,
        _ => FailureKind::Internal,
    }
}

impl Memory {
    /// What completion `choice` goes on from.
    fn begin(&self, model: &Model, here: usize, choice: u32) -> Continuation {
        match self {
            Self::Sets(sets, leaves) => {
                Continuation::Sets(Sequence::new(model, sets.clone(), *leaves))
            }
            Self::Shards(work, holders) => {
                Continuation::Shards(ShardedSequence::new(here, work, holders, choice))
            }
        }
    }
}
