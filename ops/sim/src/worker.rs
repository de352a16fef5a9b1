//! A simulated worker: the engine's own mathematics behind the rules of the device thread.

mod decode;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use aqueduct_core::work::{Assignment, ChunkReport, Command, Event, FailureKind, NextHop, Peer};
use aqueduct_core::{ChunkKey, MemoryPolicy, RequestId};
use aqueduct_engine::{Block, EngineError, LocalPort, Model, Want, prefill};
use aqueduct_kernels::MemorySet;

use self::decode::Decoding;
use crate::inbox::{Inbox, Verdict};

/// A chunk takes about so long.
const CHUNK_US: u64 = 40_000;
/// A set that nobody has acknowledged is sent again.
const RESEND_US: u64 = 700_000;
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
    /// How many times slower than others.
    pub(crate) slowness: u64,
    sessions: BTreeSet<u64>,
    requests: BTreeMap<RequestId, Held>,
    inbox: Inbox,
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
}

struct Outgoing {
    next: NextHop,
    sets: Vec<Arc<MemorySet>>,
    /// Layers that have arrived.
    arrived: BTreeSet<u32>,
    since: u64,
    broken: bool,
}

/// What the whole prompt left.
struct Home {
    memory: Vec<Arc<MemorySet>>,
    logits: Vec<f32>,
    policy: MemoryPolicy,
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
    pub(crate) fn new(model: Arc<Model>) -> Self {
        Self {
            model,
            slowness: 1,
            sessions: BTreeSet::new(),
            requests: BTreeMap::new(),
            inbox: Inbox::default(),
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

    /// A coordinator opened a session.
    pub(crate) fn open(&mut self, session: u64) {
        self.sessions.insert(session);
    }

    /// A session is gone, and what it asked for goes with it.
    pub(crate) fn close(&mut self, now: u64, session: u64) {
        self.sessions.remove(&session);
        let of = self.requests.iter().filter(|(_, held)| held.session == session);
        for request in of.map(|(request, _)| *request).collect::<Vec<_>>() {
            self.drop_request(request);
            self.inbox.suspend(request);
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
                }
            }
            Command::Decode(spec) => self.start_decoding(session, *spec),
            Command::StopChoice { request, choice } => {
                if let Some(held) = self.owned(session, request) {
                    held.stop_choice(choice);
                }
            }
            Command::Cancel { request } => {
                if self.owned(session, request).is_some() {
                    self.drop_request(request);
                }
                self.inbox.forget(request);
            }
            Command::Drop { .. } | Command::Keep(_) | Command::Restore(_) => {
                unreachable!("nothing lies in shards or snapshots here")
            }
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
        self.look(now);
        verdict
    }

    /// What became of a set that was sent.
    pub(crate) fn acknowledged(&mut self, key: ChunkKey, layer: u32) {
        if let Some(outgoing) = self.outgoing(key) {
            outgoing.arrived.insert(layer);
        }
    }

    /// An alarm that was asked for.
    pub(crate) fn wake(&mut self, now: u64, alarm: Alarm) {
        match alarm {
            Alarm::Look => self.look(now),
            Alarm::Computed(key) => self.computed(now, key),
            Alarm::Round => self.decode_round(),
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

    fn outgoing(&mut self, key: ChunkKey) -> Option<&mut Outgoing> {
        let outgoing = self.requests.get_mut(&key.request)?.outbox.get_mut(&key.chunk_idx)?;
        (outgoing.next.epoch == key.epoch).then_some(outgoing)
    }

    fn drop_request(&mut self, request: RequestId) {
        self.requests.remove(&request);
        self.queue.retain(|work| work.key.request != request);
        self.running.take_if(|work| work.key.request == request);
    }

    fn assign(&mut self, now: u64, session: u64, work: Assignment) {
        let key = work.key;
        if self.requests.get(&key.request).is_some_and(|held| held.session != session) {
            let message = "belongs to another session".to_owned();
            let kind = FailureKind::Peer;
            return self.say(session, Event::ChunkFailed { key, kind, message });
        }
        let same = |other: &Assignment| {
            (other.key.request, other.key.chunk_idx) == (key.request, key.chunk_idx)
        };
        let here = self.queue.iter().chain(&self.running);
        if here.filter(|work| same(work)).any(|other| other.key.epoch >= key.epoch) {
            return;
        }
        self.queue.retain(|work| !same(work));
        self.running.take_if(|work| same(work));
        self.inbox.claim(now, key);
        let held = self.requests.entry(key.request).or_insert_with(|| Held {
            session,
            outbox: BTreeMap::new(),
            home: None,
            decoding: None,
        });
        if let Some(next) = &work.next {
            held.outbox.insert(key.chunk_idx + 1, Outgoing::new(next.clone()));
        }
        self.queue.push_back(work);
    }

    fn redirect(
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
    fn send(&mut self, now: u64, key: ChunkKey) {
        let Some(outgoing) = self.outgoing(key) else { return };
        outgoing.since = now;
        let (to, sets) = (idx_of(&outgoing.next.peer), outgoing.sets.clone());
        for (layer, memory) in (0..).zip(sets) {
            self.effects.push(Effect::Hand { to, key, layer, memory });
            self.wake_after(RESEND_US, Alarm::Resend(key, layer));
        }
    }

    fn resend(&mut self, now: u64, key: ChunkKey, layer: u32) {
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
        let session = self.requests[&key.request].session;
        let (kind, message) = (FailureKind::Peer, "out of reach".to_owned());
        self.say(session, Event::ChunkFailed { key, kind, message });
    }

    /// Begins the first chunk of the queue if its memory is there, or gives it up.
    fn look(&mut self, now: u64) {
        while self.running.is_none() {
            let Some(work) = self.queue.front() else {
                self.waits_since = None;
                return;
            };
            let key = work.key;
            if work.span.idx == 0 || self.inbox.is_ready(key, self.model.layers()) {
                self.running = self.queue.pop_front();
                self.waits_since = None;
                return self.wake_after(CHUNK_US, Alarm::Computed(key));
            }
            let Some(since) = self.waits_since else {
                self.waits_since = Some(now);
                let after_us = HANDOFF_US + 1;
                return self.effects.push(Effect::Wake { after_us, alarm: Alarm::Look });
            };
            if now <= since + HANDOFF_US {
                return;
            }
            self.waits_since = None;
            self.queue.pop_front();
            self.inbox.finish(key);
            let session = self.requests[&key.request].session;
            let (kind, message) = (FailureKind::Deadline, "no memory".to_owned());
            self.say(session, Event::ChunkFailed { key, kind, message });
        }
    }

    fn computed(&mut self, now: u64, key: ChunkKey) {
        if let Some(work) = self.running.take_if(|work| work.key == key) {
            let session = self.requests[&key.request].session;
            let event = match self.compute(now, &work) {
                Ok(()) => Event::ChunkDone { key, report: Box::new(ChunkReport::default()) },
                Err(error) => {
                    let (kind, message) = (FailureKind::Internal, error.to_string());
                    Event::ChunkFailed { key, kind, message }
                }
            };
            self.say(session, event);
            self.inbox.finish(key);
        }
        self.look(now);
    }

    fn compute(&mut self, now: u64, work: &Assignment) -> Result<(), EngineError> {
        let model = self.model.clone();
        let mut port = match self.inbox.take(work.key, model.layers()) {
            Some(past) => LocalPort::resume(past, &model),
            None => LocalPort::empty(&model),
        };
        let block = Block { tokens: &work.tokens, start: work.span.start };
        let want = if work.is_last() { Want::Last } else { Want::Memory };
        let done = prefill(&model, block, &work.policy, &mut port, want)?;
        let memory = port.layers().to_vec();
        let Some(held) = self.requests.get_mut(&work.key.request) else { return Ok(()) };
        if work.is_last() {
            let logits = model.logits(&done.hidden.last_row())?.into_vec();
            held.home = Some(Home { memory, logits, policy: work.policy });
        } else if let Some(outgoing) = held.outbox.get_mut(&(work.key.chunk_idx + 1)) {
            outgoing.sets = memory;
            let (chunk_idx, epoch) = (work.key.chunk_idx + 1, outgoing.next.epoch);
            self.send(now, ChunkKey { chunk_idx, epoch, ..work.key });
        }
        Ok(())
    }
}

impl Outgoing {
    fn new(next: NextHop) -> Self {
        Self { next, sets: Vec::new(), arrived: BTreeSet::new(), since: 0, broken: false }
    }
}
