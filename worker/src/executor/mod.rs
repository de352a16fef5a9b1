//! The device thread: it alone owns what requests hold and computes for them.
//!
//! Chunks run one after the other, in the order of their assignments. At every layer boundary,
//! and whenever it would wait, the thread attends to what is urgent: commands, sets to be sent,
//! and a round of decode steps where the schedule lets one run. So a cancel waits for at most
//! one layer, and a token unless the schedule says otherwise.

mod batch;
mod beside;
mod chunk;
mod commands;
mod decode;
mod grammars;
mod outputs;
mod questions;
mod request;
mod schedule;
mod session;
mod sharded;
mod snapshots;
mod trace;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use aqueduct_core::work::{Assignment, Event, PoolUse};
use aqueduct_core::{ChunkKey, RequestId};
use aqueduct_engine::Model;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::config::{HomeMemory, WorkerOptions};
use crate::exchange::ExchangeLinks;
use crate::link::Links;
use crate::worker::Shared;
use decode::Decoding;
use grammars::Grammars;
pub(crate) use questions::shown;
use request::Request;
use schedule::{Boundary, Schedule};
pub(crate) use session::Session;
use session::SessionId;
use sharded::Exchange;
use trace::ChunkTrace;

/// How often a busy worker says what of its pool is in use.
const POOL_TOLD_EVERY: Duration = Duration::from_millis(200);
/// And by one that has nothing to do, while anything is in use.
const POOL_LOOKED_AT_EVERY: Duration = Duration::from_secs(1);

/// The device thread's state.
pub(crate) struct Executor {
    model: Arc<Model>,
    shared: Arc<Shared>,
    /// Rings the doorbell.
    waker: Waker,
    links: Links,
    exchange: Exchange,
    homes: Option<watch::Sender<Option<HomeMemory>>>,
    sessions: BTreeMap<SessionId, Session>,
    next_session: u64,
    requests: BTreeMap<RequestId, Request>,
    queue: VecDeque<Assignment>,
    schedule: Schedule,
    /// The chunk that runs; `None` as soon as it is to stop.
    running: Option<ChunkKey>,
    /// Of the chunk that runs, also when it is to stop.
    trace: Option<ChunkTrace>,
    /// Decode steps of all completions so far.
    decode_steps: u64,
    decode_batch_max: usize,
    progress_told: Instant,
    pool_told: Instant,
    audit_every: u32,
    grammars: Grammars,
    /// For threads that answer beside this one.
    runtime: Handle,
}

impl Executor {
    pub(crate) fn new(model: Arc<Model>, shared: Arc<Shared>, options: WorkerOptions) -> Self {
        let fingerprint = model.fingerprint().to_owned();
        Self {
            waker: shared.doorbell.clone().into(),
            homes: options.homes.clone(),
            runtime: options.runtime.clone(),
            audit_every: options.audit_every,
            schedule: Schedule::new(options.scheduling),
            grammars: Grammars::default(),
            decode_batch_max: options.decode_batch_max,
            exchange: Exchange::new(
                options.peer.clone(),
                ExchangeLinks::new(options.clone(), fingerprint.clone(), shared.doorbell.clone()),
                shared.holder.clone(),
                options.ahead_bytes,
            ),
            links: Links::new(options, fingerprint, shared.doorbell.clone()),
            model,
            shared,
            sessions: BTreeMap::new(),
            next_session: 0,
            requests: BTreeMap::new(),
            queue: VecDeque::new(),
            running: None,
            trace: None,
            decode_steps: 0,
            progress_told: Instant::now(),
            pool_told: Instant::now(),
        }
    }

    /// One without a thread: a test has it do one thing after the other.
    #[cfg(test)]
    fn by_hand(options: WorkerOptions) -> Self {
        let model = crate::tiny_model::tiny(crate::link::conformance::fit().kv);
        let shared = Arc::new(Shared::new(&model, &options).unwrap());
        Self::new(model, shared, options)
    }

    /// Until the worker's last handle is dropped.
    pub(crate) fn run(mut self) {
        while !self.stopped() {
            let decoded = self.attend_between_chunks();
            if let Some(assignment) = self.queue.pop_front() {
                self.schedule.chunk_begins(assignment.span.tokens);
                self.run_chunk(&assignment);
            } else if !decoded {
                self.tell_pool(Duration::ZERO);
                let due = [self.restore_deadline(), self.shared.inbox.expire(), self.look_again()];
                self.shared.rest(due.into_iter().flatten().min());
            }
        }
    }

    /// Does what is urgent while a chunk runs; says whether a token was decoded.
    fn attend(&mut self, at: Boundary) -> bool {
        self.hear();
        self.decode_at(at)
    }

    fn attend_between_chunks(&mut self) -> bool {
        self.hear();
        self.schedule.queue_shrank(self.queue.len());
        let next_tokens = self.queue.front().map(|next| next.span.tokens);
        self.decode_at(Boundary::Chunk(next_tokens))
    }

    /// Everything but decoding.
    fn hear(&mut self) {
        self.admit();
        self.obey();
        self.receive_restored();
        self.tell_snapshots();
        self.tell_pool(POOL_TOLD_EVERY);
        self.account();
        self.let_go();
        self.pump();
    }

    fn decode_at(&mut self, at: Boundary) -> bool {
        if !self.schedule.may_decode(at) {
            return false;
        }
        let model = self.model.clone();
        let _hurry = self.goes_first().then(|| model.hurry());
        let tokens = self.decode_round();
        self.shared.pulse.beat();
        self.schedule.round_done(tokens, self.queue.len());
        tokens > 0
    }

    /// Whether rounds go before chunks that are under way, here and on other workers of the
    /// process. Completions whose prompt is in shards wait for others' results, so these cannot.
    fn goes_first(&self) -> bool {
        let decoding = self.requests.values().filter_map(|request| request.decoding.as_ref());
        let mut decoding = decoding.peekable();
        self.schedule.interrupts() && decoding.peek().is_some() && decoding.all(Decoding::is_here)
    }

    /// Takes over sessions that were opened since the last time.
    fn admit(&mut self) {
        let mut arrivals = self.shared.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        for mut session in arrivals.drain(..) {
            self.readmit(); // before its coordinator counts on this worker
            if self.shared.snapshots.is_on() {
                let all = self.shared.snapshots.all().into_iter();
                let all = all.map(|news| Event::Snapshots(Box::new(news)));
                all.for_each(|event| session.outlet.send(event, &self.waker));
            }
            self.sessions.insert(SessionId(self.next_session), session);
            self.next_session += 1;
        }
    }

    /// Tells coordinators what of the pool is in use, if they were last told something else and
    /// at least `every` ago. Who has no room for it now is told later.
    fn tell_pool(&mut self, every: Duration) {
        let Some(pool) = self.shared.pool.as_ref().filter(|_| self.pool_told.elapsed() >= every)
        else {
            return;
        };
        self.pool_told = Instant::now();
        let usage = pool.usage();
        let now = PoolUse { bytes: usage.bytes(), used_bytes: usage.used_bytes() };
        for session in self.sessions.values_mut().filter(|session| session.told_pool != now) {
            if session.outlet.has_room(&self.waker) {
                session.outlet.send(Event::Pool(now), &self.waker);
                session.told_pool = now;
            }
        }
    }

    /// When what is in use of the pool is to be told again, if anything is: others may be the last
    /// to let go of pages, and nothing comes of that here.
    fn look_again(&self) -> Option<Instant> {
        let pool = self.shared.pool.as_ref()?;
        let is_used = pool.usage().used_bytes() > 0;
        is_used.then(|| Instant::now() + POOL_LOOKED_AT_EVERY)
    }

    /// Sends an event about a request to the session that owns it.
    fn send(&mut self, request: RequestId, event: Event) {
        let Some(owner) = self.requests.get(&request).map(|request| request.session) else {
            return;
        };
        self.send_to(owner, event);
    }

    fn send_to(&mut self, session: SessionId, event: Event) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.outlet.send(event, &self.waker);
        }
    }

    /// Sends an event about a request that may be lost, if there is room for it now.
    fn offer(&mut self, request: RequestId, event: Event) {
        let Self { requests, sessions, waker, .. } = self;
        let owner = requests.get(&request).map(|request| request.session);
        if let Some(session) = owner.and_then(|owner| sessions.get_mut(&owner)) {
            session.outlet.offer(event, waker);
        }
    }

    /// Waits for the bell, at most `until`. Nothing rings it for what does not come from disk: who
    /// waits for something else looks after that, too.
    fn rest(&self, until: Instant) {
        let restored = self.restore_deadline();
        self.shared.rest(restored.into_iter().chain([until]).min());
    }

    fn stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::Acquire)
    }
}

impl Drop for Executor {
    /// Also when the thread panics: sessions end, and no new one waits for a dead thread.
    fn drop(&mut self) {
        self.shared.stop();
    }
}
