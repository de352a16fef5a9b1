//! What a coordinator tells about itself.

use aqueduct_core::work::WorkerInfo;
use aqueduct_core::{KvDtype, ModelShape, WorkerId};

/// The model that the cluster serves: that of the first worker.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelInfo {
    /// Hash of weights, configuration and dtypes, the same on every worker.
    pub fingerprint: String,
    /// Its shape.
    pub shape: ModelShape,
    /// How keys and values are stored.
    pub kv: KvDtype,
}

impl ModelInfo {
    pub(crate) fn of(info: &WorkerInfo) -> Self {
        let WorkerInfo { fingerprint, shape, kv, .. } = info.clone();
        Self { fingerprint, shape, kv }
    }
}

/// How a worker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    /// Not heard of yet.
    Connecting,
    /// It takes work.
    Up,
    /// Lost, and tried again if it is remote.
    Down,
    /// It speaks another convention or serves another model.
    Refused,
}

/// One worker.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerStatus {
    /// As the coordinator numbers it.
    pub worker: WorkerId,
    /// As the operator named it.
    pub name: String,
    /// How it stands.
    pub state: WorkerState,
    /// Why it is down or refused.
    pub reason: Option<String>,
    /// What it said of itself when it was up last.
    pub info: Option<WorkerInfo>,
}

/// The cluster as the coordinator sees it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Cluster {
    /// `None` until the first worker has said hello.
    pub model: Option<ModelInfo>,
    /// Every worker that it was told about, by id.
    pub workers: Vec<WorkerStatus>,
}

impl Cluster {
    /// Workers that take work.
    pub fn workers_up(&self) -> usize {
        self.workers.iter().filter(|worker| worker.state == WorkerState::Up).count()
    }

    /// Whether that changed anything.
    pub(crate) fn set(
        &mut self,
        worker: WorkerId,
        state: WorkerState,
        reason: Option<String>,
    ) -> bool {
        let Some(status) = self.workers.get_mut(worker.0 as usize) else { return false };
        let changed = (status.state, &status.reason) != (state, &reason);
        (status.state, status.reason) = (state, reason);
        changed
    }
}

/// Figures since the start, and how things stand now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stats {
    /// Requests that wait for their turn.
    pub queued: usize,
    /// Requests that are prefilled or decoded.
    pub running: usize,
    /// Workers that take work.
    pub workers_up: usize,
    /// Chunks prefilled.
    pub chunks_done: u64,
    /// Assignments of chunks beyond their first.
    pub chunks_retried: u64,
    /// Tokens generated.
    pub output_tokens: u64,
}
