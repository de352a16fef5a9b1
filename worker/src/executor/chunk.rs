//! One chunk through the engine's spine, and the port behind which the rest of the world is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_core::work::{Assignment, ChunkReport, Event, FailureKind, Outputs};
use aqueduct_core::{ChunkKey, Refusal, WireDtype};
use aqueduct_engine::{Block, EngineError, MemoryPort, PortError, Prefilled, Want, prefill};
use aqueduct_kernels::{BackendError, Leaves, MemorySet, Rounding, Rows};

use super::Executor;
use super::request::{Home, Kept, Memory};
use super::schedule::Boundary;
use super::trace::ChunkTrace;
use crate::config::HomeMemory;
use crate::lost;
use crate::worker::Shared;

/// Progress is told at most this often.
const PROGRESS_EVERY: Duration = Duration::from_millis(50);

/// Why a chunk ended before it was done.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChunkError {
    /// The mathematics or the port.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The coordinator does not read what it asked for.
    #[error("no event was read within {deadline_ms} ms")]
    Unread {
        /// How long the chunk waited.
        deadline_ms: u64,
    },
}

impl ChunkError {
    pub(super) fn kind(&self) -> FailureKind {
        match self {
            Self::Unread { .. } => FailureKind::Deadline,
            Self::Engine(EngineError::Refused(_)) => FailureKind::Invalid,
            Self::Engine(
                EngineError::Backend(source) | EngineError::Port(PortError::Memory { source, .. }),
            ) => match source {
                BackendError::Exhausted { .. } => FailureKind::Exhausted,
                BackendError::OutOfRange { .. } => FailureKind::Invalid,
                _ => FailureKind::Internal,
            },
            Self::Engine(EngineError::Port(PortError::Deadline { .. })) => FailureKind::Deadline,
            Self::Engine(EngineError::Port(_)) => FailureKind::Peer,
        }
    }

    /// What the backend said, where it did.
    fn backend(&self) -> Option<&BackendError> {
        match self {
            Self::Engine(
                EngineError::Backend(source) | EngineError::Port(PortError::Memory { source, .. }),
            ) => Some(source),
            _ => None,
        }
    }
}

impl Executor {
    /// Runs a chunk to its end and tells how it ended, unless it was cancelled meanwhile.
    pub(super) fn run_chunk(&mut self, work: &Assignment) {
        let key = work.key;
        self.running = Some(key);
        self.trace = Some(ChunkTrace::begin(work, self.model.memory_layers() as u32));
        self.shared.inbox.begin(key);
        let result = self.prefill_chunk(work);
        let came = self.shared.inbox.finish(key);
        let is_wanted = self.running.take().is_some();
        if let Some(trace) = self.trace.take() {
            trace.end(is_wanted.then_some(&result));
        }
        let is_lost = result.as_ref().is_err_and(|error| self.ends_with(error));
        if is_lost || !is_wanted {
            return;
        }
        match result {
            Ok(mut report) => {
                report.traffic.add(came);
                let report = Box::new(report);
                self.send(key.request, Event::ChunkDone { key, report });
            }
            Err(error) => {
                tracing::warn!(%key, %error, "a chunk failed");
                if let Some(request) = self.requests.get_mut(&key.request) {
                    request.outbox.remove(&(key.chunk_idx + 1));
                }
                let (kind, message) = (error.kind(), error.to_string());
                self.send(key.request, Event::ChunkFailed { key, kind, message });
            }
        }
    }

    /// Ends the worker where `error` came of a device that is lost. Nobody is told of the error:
    /// sessions end with the worker, and then another does the work, while a failure that is told
    /// ends its request.
    pub(super) fn ends_with(&self, error: &ChunkError) -> bool {
        let is_lost = error.backend().is_some_and(|error| lost::is_lost(&self.model, error));
        if is_lost {
            self.shared.stop();
        }
        is_lost
    }

    fn prefill_chunk(&mut self, work: &Assignment) -> Result<ChunkReport, ChunkError> {
        if let Some(directory) = &work.shards {
            self.model.check_shards().map_err(EngineError::from)?; // before anything is kept
            return self.prefill_shards(work, directory);
        }
        let model = self.model.clone();
        let since = Instant::now();
        let leaves = Leaves::of_chunks(work.chunk_tokens);
        let block = Block { tokens: &work.tokens, start: work.span.start, leaves };
        let mut port = ChunkPort::new(self, work);
        let done = prefill(&model, block, &work.policy, &mut port, want(work))?;
        let retained = done.retained()?; // a device is at work until this is there
        // Where every key is kept, nothing was read of it: what a device met is told here, and not
        // to whoever comes next.
        model.backend().sound().map_err(EngineError::from)?;
        let Given { home, mut report, aside } = port.given;
        report.busy_us = micros(since.elapsed().saturating_sub(aside));
        self.attend(Boundary::Layer);
        self.emit_outputs(work, &done.hidden)?;
        if work.next.is_none() {
            self.check_wanted(work.key).map_err(EngineError::from)?;
            self.keep_home(work, home, &done)?;
        }
        report.retained = retained;
        Ok(report)
    }

    /// What a layer remembers before the first token.
    fn empty_memory(&self, layer: usize) -> MemorySet {
        self.model.empty_memory_in(layer, self.shared.pool.as_ref())
    }

    /// The same set in this worker's pool; it may come off a wire or from a neighbour's.
    pub(super) fn put_in_pool(
        &self,
        mut memory: Arc<MemorySet>,
    ) -> Result<Arc<MemorySet>, BackendError> {
        let Some(pool) = &self.shared.pool else { return Ok(memory) };
        if memory.keys.pool().is_some_and(|its| its.is(pool)) {
            return Ok(memory);
        }
        // What came off a wire is nobody else's, and what is no key need not be copied: a state
        // is large.
        if let Some(alone) = Arc::get_mut(&mut memory) {
            alone.keys = alone.keys.put_in(pool)?;
            return Ok(memory);
        }
        memory.put_in(pool).map(Arc::new)
    }

    /// The logits after the last of some tokens, whose hidden states these are.
    pub(super) fn last_logits(&self, hidden: &Rows) -> Result<Vec<f32>, EngineError> {
        hidden.array().host()?; // the last of several cannot be picked elsewhere
        let logits = self.model.logits(&hidden.last_row())?;
        logits.array().host()?;
        Ok(logits.into_vec())
    }

    /// The worker of the last chunk is the request's home.
    fn keep_home(
        &mut self,
        work: &Assignment,
        memory: Vec<Arc<MemorySet>>,
        done: &Prefilled,
    ) -> Result<(), ChunkError> {
        let logits = self.last_logits(&done.hidden)?;
        let bytes = memory.iter().map(|set| set.bytes() as u64).sum();
        let charge = self.shared.gauges.home_bytes.charge(bytes);
        if let Some(homes) = &self.homes {
            // A copy: whoever looks at it may do so for as long as it likes.
            memory.iter().try_for_each(|set| set.fetch()).map_err(EngineError::from)?;
            let layers = memory.iter().map(|set| Arc::new(set.in_order())).collect();
            let home = HomeMemory { request: work.key.request, policy: work.policy, layers };
            homes.send_replace(Some(home));
        }
        if let Some(request) = self.requests.get_mut(&work.key.request) {
            let (chunk_idx, policy) = (work.key.chunk_idx, work.policy);
            let leaves = Leaves::of_chunks(work.chunk_tokens);
            let leaves = leaves.going_on_behind(work.span.positions().end);
            let memory = Memory::Sets(memory, leaves);
            request.home = Some(Home { memory, chunk_idx, logits, policy, _charge: charge });
        }
        Ok(())
    }

    /// Tells how far a chunk is, now and then.
    pub(super) fn tell_layer(&mut self, key: ChunkKey, layers_done: u32) {
        self.shared.pulse.beat();
        if let Some(trace) = &mut self.trace {
            trace.layer_done(layers_done);
        }
        if self.progress_told.elapsed() < PROGRESS_EVERY {
            return;
        }
        self.progress_told = Instant::now();
        self.offer(key.request, Event::Progress { key, layers_done });
    }

    /// Whether the chunk is still wanted.
    pub(super) fn check_wanted(&self, key: ChunkKey) -> Result<(), PortError> {
        if self.running == Some(key) && !self.stopped() {
            Ok(())
        } else {
            Err(PortError::Cancelled)
        }
    }
}

pub(super) fn want(work: &Assignment) -> Want {
    match (work.outputs, work.is_last()) {
        (Outputs::Logits | Outputs::Logprobs(_), _) => Want::All,
        (Outputs::None, true) => Want::Last,
        (Outputs::None, false) => Want::Memory,
    }
}

/// The door between a chunk's mathematics and everything else.
struct ChunkPort<'a> {
    executor: &'a mut Executor,
    work: &'a Assignment,
    given: Given,
}

/// What passed through the door.
#[derive(Default)]
struct Given {
    /// The last chunk's memory, layer by layer.
    home: Vec<Arc<MemorySet>>,
    report: ChunkReport,
    /// Time that was not the chunk's own: waiting, and what was urgent.
    aside: Duration,
}

impl<'a> ChunkPort<'a> {
    fn new(executor: &'a mut Executor, work: &'a Assignment) -> Self {
        Self { executor, work, given: Given::default() }
    }

    /// Waits for the set of the chunk before; what is urgent goes on meanwhile.
    fn wait_for(&mut self, layer: usize) -> Result<Arc<MemorySet>, PortError> {
        let Assignment { key, deadline_ms, .. } = *self.work;
        let since = Instant::now();
        let deadline = since + Duration::from_millis(deadline_ms);
        loop {
            if let Some(memory) = self.executor.shared.inbox.take(key, layer as u32) {
                self.given.report.wait_us += micros(since.elapsed());
                return Ok(memory);
            }
            if Instant::now() >= deadline {
                return Err(PortError::Deadline { layer, deadline_ms });
            }
            if !self.executor.attend(Boundary::Idle) {
                self.executor.check_wanted(key)?;
                self.executor.rest(deadline);
            }
            self.executor.check_wanted(key)?;
        }
    }

    fn past(&mut self, layer: usize) -> Result<Arc<MemorySet>, PortError> {
        self.executor.attend(Boundary::Layer);
        self.executor.check_wanted(self.work.key)?;
        if self.work.span.idx == 0 {
            return Ok(Arc::new(self.executor.empty_memory(layer)));
        }
        let memory = self.wait_for(layer)?;
        let start = self.work.span.start;
        Refusal::unless_within("end", memory.end, start, start)
            .map_err(|refusal| PortError::Unfit { layer, refusal })?;
        self.executor.put_in_pool(memory).map_err(|source| PortError::Memory { layer, source })
    }
}

impl MemoryPort for ChunkPort<'_> {
    fn is_ready(&self, layer: usize) -> bool {
        let Assignment { key, span, .. } = self.work;
        span.idx == 0 || self.executor.shared.inbox.holds(*key, layer as u32)
    }

    fn take(&mut self, layer: usize) -> Result<Arc<MemorySet>, PortError> {
        let since = Instant::now();
        let past = self.past(layer);
        self.given.aside += since.elapsed();
        past
    }

    fn beside(&mut self, compute: &mut (dyn FnMut() + Send)) {
        self.executor.beside(compute);
    }

    fn give(&mut self, layer: usize, memory: Arc<MemorySet>) -> Result<(), PortError> {
        let key @ ChunkKey { request, chunk_idx, .. } = self.work.key;
        // Beside the computation it may have been assigned anew: what goes out then is that one's.
        self.executor.check_wanted(key)?;
        let bytes = memory.bytes() as u64;
        self.given.report.memory_bytes += bytes;
        let tokens = &mut self.given.report.memory_tokens;
        *tokens = (*tokens).max(memory.keys.len() as u32); // some layers have none
        // Also what does not travel: no bit may depend on who is given it.
        let memory = rounded(memory, self.work.wire)
            .map_err(|source| PortError::Memory { layer, source })?;
        if self.work.next.is_none() {
            self.given.home.push(memory);
        } else {
            let Shared { gauges, ledger, .. } = self.executor.shared.as_ref();
            let charge = gauges.outbox_bytes.charge(bytes);
            let entry = ledger.enter(key, layer as u32, &memory);
            let held = self.executor.requests.get_mut(&request);
            // Confirmed already, if the chunk after was redone from elsewhere.
            if let Some(out) = held.and_then(|held| held.outbox.get_mut(&(chunk_idx + 1))) {
                out.sets.push(Kept::new(memory, charge, entry));
            }
            self.executor.pump();
        }
        self.executor.tell_layer(self.work.key, layer as u32 + 1);
        Ok(())
    }
}

/// The set as it is handed off: what a chunk gives, and what a completion left, of whose keys some
/// never were round.
pub(super) fn rounded(
    mut set: Arc<MemorySet>,
    wire: WireDtype,
) -> Result<Arc<MemorySet>, BackendError> {
    // Where there are no keys nothing would change, and a state would be copied for it.
    if let Some(rounding) = rounding(wire).filter(|_| !set.keys.is_empty()) {
        Arc::make_mut(&mut set).keys.round(rounding)?;
    }
    Ok(set)
}

/// What is left of f32 keys and values that travel as `wire`.
pub(super) fn rounding(wire: WireDtype) -> Option<Rounding> {
    match wire {
        WireDtype::F32 => None,
        WireDtype::Bf16 => Some(Rounding::Bf16),
        WireDtype::F16 => Some(Rounding::F16),
    }
}

pub(super) fn micros(time: Duration) -> u64 {
    time.as_micros().try_into().unwrap_or(u64::MAX)
}
