//! What a coordinator tells about itself.

use std::collections::BTreeMap;

use aqueduct_core::work::{CONVENTION, PoolUse, WorkerInfo};
use aqueduct_core::{KvDtype, ModelShape, SnapshotsHeld, WindowedLayers, WireDtype, WorkerId};

/// The model that the cluster serves: that of the first worker, and of whoever comes when no worker
/// has had it for a while.
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
    /// What keys and values are rounded to where `wire` hands them off: those that are stored in
    /// two bytes travel as they are.
    pub(crate) fn rounding(&self, wire: WireDtype) -> WireDtype {
        match self.kv {
            KvDtype::F32 => wire,
            KvDtype::Bf16 => WireDtype::F32,
        }
    }

    /// In what the model of another fingerprint differs, for a person.
    fn unlike(&self, info: &WorkerInfo) -> String {
        match () {
            () if self.kv != info.kv => {
                format!("its keys are {} (--kv), the cluster's {}", info.kv, self.kv)
            }
            () if self.shape != info.shape => "its model has another shape".to_owned(),
            () => "its weights are others, or held as another type (--weights)".to_owned(),
        }
    }

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
    /// It is given nothing new.
    pub draining: bool,
}

impl WorkerStatus {
    /// Nothing was heard of it yet.
    pub(crate) fn connecting(worker: WorkerId, name: String) -> Self {
        let state = WorkerState::Connecting;
        Self { worker, name, state, reason: None, info: None, draining: false }
    }

    /// Whether it may be given what is new.
    fn takes_work(&self) -> bool {
        self.state == WorkerState::Up && !self.draining
    }
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
    /// Workers that are there, be it to be left.
    pub fn workers_up(&self) -> usize {
        self.workers.iter().filter(|worker| worker.state == WorkerState::Up).count()
    }

    /// Workers that take what is new.
    pub fn workers_open(&self) -> usize {
        self.workers.iter().filter(|worker| worker.takes_work()).count()
    }

    /// Whether any worker takes what is new.
    pub fn takes_requests(&self) -> bool {
        self.workers_open() > 0
    }

    /// Whether `model` is the one that is served, as far as that is known.
    pub(crate) fn serves(&self, model: &ModelInfo) -> bool {
        self.model.as_ref().is_none_or(|served| served.fingerprint == model.fingerprint)
    }

    /// The worker with this name, or at this address.
    pub fn find(&self, worker: &str) -> Option<&WorkerStatus> {
        let is_at =
            |status: &WorkerStatus| status.info.as_ref().is_some_and(|info| info.peer.0 == worker);
        self.workers.iter().find(|status| status.name == worker || is_at(status))
    }

    /// What people call a worker.
    pub(crate) fn name_of(&self, worker: WorkerId) -> String {
        let status = self.workers.get(worker.0 as usize);
        status.map_or_else(|| worker.to_string(), |status| status.name.clone())
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

    /// Takes down what a worker that is up says of itself.
    pub(crate) fn welcome(&mut self, worker: WorkerId, info: WorkerInfo) {
        let model = self.model.get_or_insert_with(|| ModelInfo::of(&info));
        if let Some(status) = self.workers.get_mut(worker.0 as usize) {
            status.info = Some(info);
        }
        let is_up = |status: &&WorkerStatus| status.state == WorkerState::Up;
        let infos = self.workers.iter().filter(is_up).filter_map(|status| status.info.as_ref());
        let mut windowed = infos.map(|info| info.shape.windowed);
        // Of an older release some may know of no windows, and keep all keys of these layers.
        let first = windowed.next().unwrap_or_default();
        let is_same = windowed.all(|other| other == first);
        model.shape.windowed = if is_same { first } else { WindowedLayers::NONE };
    }

    /// Whether a worker gives the same answers as those that were here first, and is reached
    /// where no other is: memory for one would be lost at the other. Of two that name one
    /// address, the one that was found there is right; it gives the other, which must go.
    pub(crate) fn accepts(
        &self,
        worker: WorkerId,
        info: &WorkerInfo,
    ) -> Result<Option<WorkerId>, String> {
        if info.convention != CONVENTION {
            return Err(format!("convention = {}: must be {CONVENTION}", info.convention));
        }
        match &self.model {
            Some(model) if model.fingerprint != info.fingerprint => Err(format!(
                "fingerprint = {}: must be {}, the cluster's; {}",
                info.fingerprint,
                model.fingerprint,
                model.unlike(info)
            )),
            _ => self.twin_to_leave(worker, info),
        }
    }

    /// A worker that computes with something else, and so gives other last bits, as far as both
    /// have said with what.
    pub(crate) fn unlike(&self, info: &WorkerInfo) -> Option<&WorkerStatus> {
        let is_unlike = |other: &&WorkerStatus| {
            let device = other.info.as_ref().map(|known| &known.device);
            let device = device.filter(|device| !device.is_empty() && !info.device.is_empty());
            other.state == WorkerState::Up && device.is_some_and(|device| *device != info.device)
        };
        self.workers.iter().find(is_unlike)
    }

    /// The worker that names the same address without being found there, if there is one.
    fn twin_to_leave(
        &self,
        worker: WorkerId,
        info: &WorkerInfo,
    ) -> Result<Option<WorkerId>, String> {
        let is_twin = |other: &&WorkerStatus| {
            let peer = other.info.as_ref().map(|known| &known.peer);
            other.worker != worker && other.state == WorkerState::Up && peer == Some(&info.peer)
        };
        let Some(twin) = self.workers.iter().find(is_twin) else { return Ok(None) };
        let found_there = self.workers[worker.0 as usize].name == info.peer.0;
        found_there.then_some(Some(twin.worker)).ok_or_else(|| reached_there(info, twin.worker))
    }
}

/// Why a worker is refused whose memory would go to another.
pub(crate) fn reached_there(info: &WorkerInfo, other: WorkerId) -> String {
    format!("peer = {}: is where worker {other} is reached", info.peer)
}

impl Stats {
    /// What is counted since the start, and nothing of how things stand.
    pub(crate) fn counted(&self) -> Self {
        let Self { chunks_done, chunks_retried, chunk_hedges, output_tokens, .. } = *self;
        Self { chunks_done, chunks_retried, chunk_hedges, output_tokens, ..Self::default() }
    }
}

/// Figures since the start, and how things stand now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stats {
    /// Requests that wait for their turn.
    pub queued: usize,
    /// Tokens of their prompts.
    pub queued_tokens: u64,
    /// Requests that are prefilled or decoded.
    pub running: usize,
    /// Workers that take work.
    pub workers_up: usize,
    /// Chunks prefilled.
    pub chunks_done: u64,
    /// Assignments of chunks beyond their first.
    pub chunks_retried: u64,
    /// Chunks that took long, and were given to another worker as well.
    pub chunk_hedges: u64,
    /// Tokens generated.
    pub output_tokens: u64,
    /// Of workers that are drained, the requests that still need them.
    pub draining: BTreeMap<WorkerId, usize>,
    /// Snapshots of all workers that are up.
    pub snapshots: SnapshotsHeld,
    /// Of each that keeps any.
    pub snapshots_of: BTreeMap<WorkerId, SnapshotsHeld>,
    /// Pools of workers that are up and have said so.
    pub pools: BTreeMap<WorkerId, PoolUse>,
}

#[cfg(test)]
mod tests {
    use aqueduct_core::work::Peer;

    use super::*;
    use crate::submit::tests::SHAPE;

    fn info(fingerprint: &str, shape: ModelShape, kv: KvDtype) -> WorkerInfo {
        WorkerInfo {
            peer: Peer("local://w".into()),
            fingerprint: fingerprint.into(),
            shape,
            kv,
            threads: 1,
            device: String::new(),
            pool_tokens: u64::MAX,
            keeps_snapshots: false,
            convention: CONVENTION,
        }
    }

    #[test]
    fn windows_are_what_all_workers_know_of() {
        let info = |layers| {
            let windowed = WindowedLayers { layers, tokens: layers };
            info("same", ModelShape { windowed, ..SHAPE }, KvDtype::F32)
        };
        let workers =
            (0..3).map(|idx| WorkerStatus::connecting(WorkerId(idx), idx.to_string())).collect();
        let mut cluster = Cluster { model: None, workers };
        let mut check = |worker, state, layers, want| {
            cluster.set(WorkerId(worker), state, None);
            if state == WorkerState::Up {
                cluster.welcome(WorkerId(worker), info(layers));
            }
            let seen = cluster.model.as_ref().map(|model| model.shape.windowed.layers);
            assert_eq!(seen, Some(want), "{worker} {state:?} {layers}");
        };
        check(0, WorkerState::Up, 0, 0);
        check(1, WorkerState::Up, 2, 0);
        check(0, WorkerState::Down, 0, 0); // of those that come next
        check(2, WorkerState::Up, 2, 2);
        check(0, WorkerState::Up, 2, 2);
        check(1, WorkerState::Up, 0, 0);
    }

    #[test]
    fn who_is_refused_hears_in_what_it_differs() {
        let info = |shape, kv| info("other", shape, kv);
        let model = ModelInfo { fingerprint: "same".into(), shape: SHAPE, kv: KvDtype::F32 };
        let cluster = Cluster { model: Some(model), workers: Vec::new() };
        let check = |info: WorkerInfo, want: &str| {
            let refused = cluster.accepts(WorkerId(0), &info).unwrap_err();
            let start = "fingerprint = other: must be same, the cluster's; ";
            assert_eq!(refused.strip_prefix(start), Some(want));
        };
        check(info(SHAPE, KvDtype::Bf16), "its keys are bf16 (--kv), the cluster's f32");
        let deeper = ModelShape { layers: SHAPE.layers + 1, ..SHAPE };
        check(info(deeper, KvDtype::F32), "its model has another shape");
        let held = "its weights are others, or held as another type (--weights)";
        check(info(SHAPE, KvDtype::F32), held);
    }

    #[test]
    fn what_is_counted_goes_on_in_the_next_term() {
        let (chunks_done, chunks_retried, chunk_hedges, output_tokens) = (1, 2, 3, 4);
        let none = Stats::default();
        let counted = Stats { chunks_done, chunks_retried, chunk_hedges, output_tokens, ..none };
        let stats = Stats { queued: 5, running: 6, workers_up: 7, ..counted.clone() };
        assert_eq!(stats.counted(), counted);
    }
}
