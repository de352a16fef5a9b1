//! The handle of a running worker.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use aqueduct_core::work::{CONVENTION, Command, Event, MergeAudit, WorkerInfo};
use aqueduct_core::{Refusal, SnapshotsHeld, limits};
use aqueduct_engine::{Model, ShardStore};
use aqueduct_kernels::pool::PAGE_CELLS;
use aqueduct_kernels::{BackendError, Pool, PoolUsage};
use tokio::sync::{mpsc, watch};

use crate::config::WorkerOptions;
use crate::doorbell::Doorbell;
use crate::exchange::Holder;
use crate::executor::{Executor, Session};
use crate::gauge::{Audits, Gauges, Stats};
use crate::inbox::{Fit, Inbox};
use crate::led::Led;
use crate::ledger::Ledger;
use crate::link::codec;
use crate::link::nccl::Direct;
use crate::pulse::Pulse;
use crate::snapshots::Snapshots;

/// How often a worker that is going to stop looks whether it may.
const IDLE_LOOK: Duration = Duration::from_millis(20);

/// A worker could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An option is out of bounds, or the name is taken.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// There is no pool of that size.
    #[error("pool_bytes: {0}")]
    Pool(#[from] BackendError),
    /// The device thread could not be made.
    #[error("device thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// A running worker; clones are handles of the same one, and the last to be dropped stops it.
#[derive(Debug, Clone)]
pub struct Worker {
    handle: Arc<Handle>,
}

#[derive(Debug)]
struct Handle {
    options: WorkerOptions,
    shared: Arc<Shared>,
}

/// What the device thread and the handles share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) info: WorkerInfo,
    pub(crate) doorbell: Arc<Doorbell>,
    pub(crate) pulse: Pulse,
    pub(crate) inbox: Arc<Inbox>,
    /// What was given here and is still kept.
    pub(crate) ledger: Ledger,
    /// Answers for the shards held here.
    pub(crate) holder: Arc<Holder>,
    /// Where keys lie that are remembered here; `None` where the device has memory of its own.
    pub(crate) pool: Option<Pool>,
    pub(crate) snapshots: Snapshots,
    pub(crate) gauges: Gauges,
    pub(crate) audits: Audits,
    pub(crate) led: Led,
    /// Sessions that the device thread has not seen yet.
    pub(crate) arrivals: Mutex<Vec<Session>>,
    pub(crate) stopped: AtomicBool,
    /// Whether it is going to stop.
    pub(crate) draining: watch::Sender<bool>,
}

impl Worker {
    /// Starts the device thread, which alone computes for this worker.
    ///
    /// # Errors
    /// An option out of bounds, a name that another worker of the hub has, or no thread.
    pub fn start(model: Arc<Model>, options: WorkerOptions) -> Result<Self, StartError> {
        options.validate()?;
        let shared = Arc::new(Shared::new(&model, &options)?);
        let executor = Executor::new(model, shared.clone(), options.clone());
        let name = format!("device {}", options.peer);
        std::thread::Builder::new().name(name).spawn(move || executor.run())?;
        Ok(Self { handle: Arc::new(Handle { options, shared }) })
    }

    /// Opens a session: commands in, events out, both in order. Dropping either end cancels
    /// everything that the session started. The first event is [`Event::Hello`]. A worker that
    /// has stopped gives a session that is already over.
    pub fn open_session(&self) -> (mpsc::Sender<Command>, mpsc::Receiver<Event>) {
        let shared = &self.handle.shared;
        let (commands, orders) = mpsc::channel(limits::COMMANDS_MAX);
        let (reports, events) = mpsc::channel(limits::EVENTS_MAX);
        let mut arrivals = shared.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that a stopping device thread cannot miss it.
        if !shared.stopped.load(Ordering::Acquire) {
            let leading = shared.led.enter();
            arrivals.push(Session::new(orders, reports, shared.info.clone(), leading));
            shared.doorbell.ring();
        }
        (commands, events)
    }

    /// Says to every coordinator that it is going to stop: it does what it has, and wants nothing
    /// new.
    pub fn drain(&self) {
        self.handle.shared.draining.send_replace(true);
        self.handle.shared.doorbell.ring(); // some of what it has, nobody may need any more
    }

    /// Whether it is going to stop, to be watched.
    pub fn draining(&self) -> watch::Receiver<bool> {
        self.handle.shared.draining.subscribe()
    }

    /// Waits until no request needs it any more.
    pub async fn idle(&self) {
        let mut looks = tokio::time::interval(IDLE_LOOK);
        while self.stats().requests > 0 {
            looks.tick().await;
        }
    }

    /// Resolves when nothing is computed here any more: one of its threads has ended, which it
    /// does by itself only when it panics or the device is lost, or the device thread got nowhere
    /// for [`WorkerOptions::stall`] and was given up. The device thread takes the other one with
    /// it.
    pub async fn ended(&self) {
        let Handle { options, shared } = self.handle.as_ref();
        let mut stopped = shared.holder.stopped();
        tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => {} // it is there for as long as this is
            () = shared.pulse.stops(options.stall) => {
                tracing::error!(peer = %options.peer, within = ?options.stall,
                    "the device thread has come to no layer's end, and is given up");
                shared.stop();
            }
        }
    }

    /// Whether one of its threads has ended, or was given up.
    pub fn has_ended(&self) -> bool {
        *self.handle.shared.holder.stopped().borrow()
    }

    /// What the worker says of itself.
    pub fn info(&self) -> &WorkerInfo {
        &self.handle.shared.info
    }

    /// What it holds at this moment.
    pub fn stats(&self) -> Stats {
        let Shared { inbox, holder, pool, gauges, .. } = self.handle.shared.as_ref();
        Stats {
            requests: gauges.requests.read(),
            inbox_bytes: inbox.bytes(),
            outbox_bytes: gauges.outbox_bytes.read(),
            home_bytes: gauges.home_bytes.read(),
            shard_bytes: holder.store().bytes(),
            pool_used_bytes: pool.as_ref().map_or(0, |pool| pool.usage().used_bytes()),
        }
    }

    /// The pages of its pool; `None` where its device keeps keys in memory of its own.
    pub fn pool(&self) -> Option<PoolUsage> {
        self.handle.shared.pool.as_ref().map(Pool::usage)
    }

    /// What it keeps beyond the requests that made it.
    pub fn snapshots(&self) -> SnapshotsHeld {
        self.handle.shared.snapshots.held()
    }

    /// What audits of merged states have shown since it was started, ascending by layer.
    pub fn merge_audits(&self) -> Vec<MergeAudit> {
        self.handle.shared.audits.read()
    }

    /// What answers for the shards that it holds.
    pub fn holder(&self) -> &Arc<Holder> {
        &self.handle.shared.holder
    }

    /// What takes sets from device to device, where something does.
    pub(crate) fn direct(&self) -> Option<&Direct> {
        self.handle.options.direct.as_ref()
    }

    pub(crate) fn inbox(&self) -> Arc<Inbox> {
        self.handle.shared.inbox.clone()
    }

    /// Whether a coordinator has a session.
    pub(crate) fn led(&self) -> &Led {
        &self.handle.shared.led
    }

    pub(crate) fn ledger(&self) -> Ledger {
        self.handle.shared.ledger.clone()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.options.hub.leave(&self.options.peer);
        self.shared.stop();
    }
}

impl Shared {
    /// What a worker begins with, under its name in the hub, and the thread that answers for its
    /// shards.
    ///
    /// # Errors
    /// As [`Worker::start`].
    pub(crate) fn new(model: &Arc<Model>, options: &WorkerOptions) -> Result<Self, StartError> {
        let doorbell = Arc::new(Doorbell::default());
        let fingerprint = model.fingerprint().to_owned();
        let (fit, bytes) = (Fit::of(model), options.inbox_bytes);
        let inbox = Inbox::new(doorbell.clone(), fingerprint.clone(), fit.clone(), bytes);
        let inbox = Arc::new(inbox);
        let least = limits::PAGE_TOKENS * model.token_bytes();
        Refusal::unless_within("pool_bytes", options.pool_bytes, least, limits::POOL_BYTES_MAX)?;
        let pool = model.pool(options.pool_bytes)?;
        let snapshots = Snapshots::open(&options.snapshots, &fingerprint, fit, doorbell.clone())?;
        let store = Arc::new(ShardStore::in_pool(pool.clone()));
        let holder = Holder::start(model.clone(), store)?;
        options.hub.join(&options.peer, &inbox, &holder).inspect_err(|_| holder.stop())?;
        let info = WorkerInfo {
            peer: options.peer.clone(),
            fingerprint,
            shape: model.shape().clone(),
            kv: codec::to_core(model.kv()),
            threads: options.threads,
            device: model.backend().name().to_owned(),
            pool_tokens: pool_tokens(options, pool.as_ref(), model.token_bytes()),
            keeps_snapshots: snapshots.is_on(),
            convention: CONVENTION,
        };
        Ok(Self {
            info,
            doorbell,
            pulse: Pulse::default(),
            inbox,
            ledger: Ledger::default(),
            holder,
            pool,
            snapshots,
            gauges: Gauges::default(),
            audits: Audits::default(),
            led: Led::new(options.unled),
            arrivals: Mutex::default(),
            stopped: AtomicBool::new(false),
            draining: watch::Sender::new(false),
        })
    }

    /// Waits for the bell, or until then.
    pub(crate) fn rest(&self, until: Option<Instant>) {
        self.pulse.rest(|| self.doorbell.wait_until(until));
    }

    /// Ends the device thread within a layer, and refuses new sessions.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.holder.stop();
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.doorbell.ring();
    }
}

/// Tokens that the worker is given keys of: as many as its pool holds, which has room for
/// [`limits::PAGE_TOKENS`] at once, and as it was told. Without any layer that has keys a token
/// counts a byte, as where its state is counted in tokens.
fn pool_tokens(options: &WorkerOptions, pool: Option<&Pool>, token_bytes: u64) -> u64 {
    const { assert!(PAGE_CELLS as u64 == limits::PAGE_TOKENS) };
    let pages = |pool: &Pool| pool.usage().bytes() / (limits::PAGE_TOKENS * token_bytes.max(1));
    let fit = pool.map_or(u64::MAX, |pool| pages(pool) * limits::PAGE_TOKENS);
    options.pool_tokens.min(fit)
}
