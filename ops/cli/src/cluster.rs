//! Clusters that live as long as a command: workers in this process or in processes of their
//! own, and a coordinator for them.

mod process;

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use aqueduct_coordinator::submit::{RequestError, Submission, Update};
use aqueduct_coordinator::{Config, Coordinator, Session};
use aqueduct_core::{Clamp, ModelShape, Refusal, TokenId, WorkerId, limits};
use aqueduct_kernels::MemorySet;
use aqueduct_worker::{HomeMemory, LoopbackHub, Scheduling, Stats, Worker, WorkerOptions};
use futures::FutureExt;
use tokio::sync::watch;

use crate::args::{ClusterArgs, Fault, ModelArgs, SnapshotArgs};
use crate::front;
use crate::loading::Loaded;
use crate::picture::Kept;
pub(crate) use process::WorkerExited;
use process::WorkerProcess;

/// How long workers that have said where they are may take to say hello.
const HELLO_DEADLINE: Duration = Duration::from_millis(limits::CONNECT_DEADLINE_MS);

/// A coordinator and the workers that it alone uses.
pub(crate) struct Cluster {
    coordinator: Coordinator,
    shape: ModelShape,
    workers: Vec<Worker>,
    processes: Vec<WorkerProcess>,
    homes: watch::Receiver<Option<HomeMemory>>,
    /// Clamps that the user has been told.
    told: Mutex<BTreeSet<String>>,
}

/// Which workers a cluster is to have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Workers<'a> {
    pub(crate) count: usize,
    /// Most tokens whose keys each of them keeps in shards.
    pub(crate) pool_tokens: u64,
    /// Bytes of the pages of each of them.
    pub(crate) pool_bytes: u64,
    /// One of so many merges is audited; none if 0.
    pub(crate) audit_every: u32,
    /// Who goes first on each of them.
    pub(crate) scheduling: Scheduling,
    /// Completions that go on together.
    pub(crate) decode_batch_max: usize,
    /// How long a device may take for a layer.
    pub(crate) stall: Duration,
    /// What each of them keeps beyond the requests that made it; nothing if `None`.
    pub(crate) snapshots: Option<&'a SnapshotArgs>,
    /// Whether somebody looks at what prompts leave ([`Cluster::kept`]), for which it is copied.
    pub(crate) homes_shown: bool,
}

impl Workers<'_> {
    /// So many workers, with pools of the default size.
    pub(crate) fn plain(count: usize) -> Self {
        Self {
            count,
            pool_tokens: u64::MAX,
            pool_bytes: limits::POOL_BYTES_DEFAULT,
            audit_every: 0,
            scheduling: Scheduling::default(),
            decode_batch_max: limits::DECODE_BATCH_MAX,
            stall: Duration::from_secs(limits::STALL_S_DEFAULT),
            snapshots: None,
            homes_shown: false,
        }
    }

    /// What the user asks for.
    ///
    /// # Errors
    /// A number that is out of bounds.
    pub(crate) fn asked(args: &ClusterArgs) -> Result<Self, Refusal> {
        let (pool_tokens, pool_bytes) = (args.pool.tokens()?, args.pool.bytes()?);
        let workers = Self { pool_tokens, pool_bytes, ..Self::plain(args.workers) };
        workers.validate()?;
        Ok(workers)
    }

    fn validate(self) -> Result<(), Refusal> {
        Refusal::unless_within("workers", self.count, 1, limits::WORKERS_MAX).map(drop)
    }
}

/// Options for `workers` workers of one request at a time: enough of the prompt in flight to
/// keep all of them busy. The answer does not depend on it.
pub(crate) fn config(workers: usize, chunk_tokens: u32) -> Config {
    let busy = (2 * workers as u32).saturating_mul(chunk_tokens);
    let most = limits::PROMPT_TOKENS_MAX;
    Config { batch_tokens: limits::BATCH_TOKENS_DEFAULT.max(busy).min(most), ..Config::default() }
}

/// Runs `work`, which may have workers in processes of their own. At SIGINT or SIGTERM it is
/// dropped where it is, and what it has started is killed with it.
///
/// # Errors
/// Those of `work`, or that it was stopped.
pub(crate) async fn unless_stopped(
    work: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let stop = front::stop_signal()?;
    tokio::select! {
        done = work => done,
        () = stop => bail!("stopped before it was done"),
    }
}

/// A request that prefills and generates nothing.
pub(crate) fn prefill_only(prompt: Vec<TokenId>, chunk_tokens: u32) -> Submission {
    Submission { chunk_tokens, cache_prompt: false, ..Submission::of(prompt) }
}

impl Cluster {
    /// Workers in this process; they share the model and its threads.
    ///
    /// # Errors
    /// A number of workers or an option out of bounds.
    pub(crate) async fn embedded(
        loaded: &Loaded,
        workers: Workers<'_>,
        config: Config,
    ) -> anyhow::Result<Self> {
        workers.validate()?;
        let hub = LoopbackHub::default();
        let (shown, homes) = watch::channel(None);
        let start = |idx| {
            let mut options = WorkerOptions::new(format!("local://w{idx}"), hub.clone());
            options.threads = loaded.threads as u32;
            options.pool_tokens = workers.pool_tokens;
            options.pool_bytes = workers.pool_bytes;
            if let Some(args) = workers.snapshots {
                options.snapshots = args.options(Some(&format!("w{idx}")));
            }
            options.audit_every = workers.audit_every;
            options.scheduling = workers.scheduling;
            options.decode_batch_max = workers.decode_batch_max;
            options.stall = workers.stall;
            options.homes = workers.homes_shown.then(|| shown.clone());
            Worker::start(loaded.model.clone(), options)
        };
        let workers: Vec<Worker> = (0..workers.count).map(start).collect::<Result<_, _>>()?;
        let session = |(idx, worker): (usize, &Worker)| {
            let (commands, events) = worker.open_session();
            Session::in_process(format!("w{idx}"), commands, events)
        };
        let sessions = workers.iter().enumerate().map(session).collect();
        let (coordinator, shape) = coordinate(config, sessions).await?;
        let told = Mutex::default();
        Ok(Self { coordinator, shape, workers, processes: Vec::new(), homes, told })
    }

    /// A process for each worker, with ports of 127.0.0.1 between them.
    ///
    /// # Errors
    /// What a worker says is wrong with the model; a process that cannot be started.
    pub(crate) async fn processes(
        model: &ModelArgs,
        workers: Workers<'_>,
        threads: usize,
        config: Config,
    ) -> anyhow::Result<Self> {
        workers.validate()?;
        let threads = if threads == 0 { crate::machine::cores() } else { threads };
        let each = (threads / workers.count).max(1);
        let start = |_| WorkerProcess::start(model, each, workers);
        let start = (0..workers.count).map(start);
        let processes = futures::future::try_join_all(start).await?;
        let sessions = processes
            .iter()
            .map(|worker| Session::connect(worker.url()))
            .collect::<Result<_, _>>()?;
        let (coordinator, shape) = coordinate(config, sessions).await?;
        let (_, homes) = watch::channel(None);
        let told = Mutex::default();
        Ok(Self { coordinator, shape, workers: Vec::new(), processes, homes, told })
    }

    /// Shape of the model.
    pub(crate) fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// Resolves when a worker of this process, if there are any, computes nothing any more.
    pub(crate) async fn a_worker_ended(&self) {
        let ends = self.workers.iter().map(|worker| worker.ended().boxed());
        match self.workers.is_empty() {
            true => std::future::pending().await,
            false => drop(futures::future::select_all(ends).await),
        }
    }

    /// What each worker of this process holds at this moment.
    pub(crate) fn held(&self) -> Vec<Stats> {
        self.workers.iter().map(Worker::stats).collect()
    }

    /// Has a fault happen to the process of a worker, and does not wait for its end.
    ///
    /// # Errors
    /// A worker that is no process, or that is gone.
    pub(crate) async fn strike(&mut self, worker: WorkerId, fault: Fault) -> anyhow::Result<()> {
        let process = self.processes.get_mut(worker.0 as usize);
        process.context("a worker in a process of its own")?.strike(fault).await
    }

    /// The process of a worker that is in one of its own.
    pub(crate) fn process_id(&self, worker: WorkerId) -> Option<u32> {
        self.processes.get(worker.0 as usize)?.id()
    }

    /// What serves the requests.
    pub(crate) fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    /// Runs one request to its end and shows every update to `each`. A clamp is told to the
    /// user, once however many requests it meets.
    ///
    /// # Errors
    /// Why the request was refused or failed.
    pub(crate) async fn run(
        &self,
        submission: Submission,
        mut each: impl FnMut(Update),
    ) -> Result<(), RequestError> {
        let mut request = self.coordinator.submit(submission).await?;
        while let Some(update) = request.next().await {
            let update = update?;
            if let Update::Accepted { clamps, .. } = &update {
                self.tell(clamps);
            }
            each(update);
        }
        Ok(())
    }

    /// Prefills a chunk, so that what is measured next does not pay for what is done once.
    ///
    /// # Errors
    /// Why the request was refused or failed.
    pub(crate) async fn warm_up(
        &self,
        tokens: &[TokenId],
        chunk_tokens: u32,
    ) -> Result<(), RequestError> {
        let prompt = tokens.iter().copied().take(chunk_tokens as usize).collect();
        self.run(prefill_only(prompt, chunk_tokens), |_| {}).await
    }

    fn tell(&self, clamps: &[Clamp]) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        for clamp in clamps.iter().map(Clamp::to_string) {
            if !told.contains(&clamp) {
                eprintln!("warning: {clamp}");
                told.insert(clamp);
            }
        }
    }

    /// What the last prompt left in the memory of this process's workers, where that is shown.
    pub(crate) fn kept(&self) -> Option<Kept> {
        let home = self.homes.borrow();
        let HomeMemory { policy, layers, .. } = home.as_ref()?;
        let positions = |memory: &MemorySet| {
            let keys = &memory.keys;
            (0..keys.kv_heads()).map(|head| keys.head_positions(head).to_vec()).collect()
        };
        Some(Kept {
            end: layers.first()?.end,
            policy: *policy,
            layers: layers.iter().map(|memory| positions(memory)).collect(),
        })
    }

    /// Ends the coordinator, and then the workers, which it does not miss any more.
    pub(crate) async fn stop(self) {
        self.coordinator.stop().await;
        drop(self.workers);
        futures::future::join_all(self.processes.into_iter().map(WorkerProcess::stop)).await;
    }
}

/// A coordinator once all its workers are up, and the shape of their model.
async fn coordinate(
    config: Config,
    sessions: Vec<Session>,
) -> anyhow::Result<(Coordinator, ModelShape)> {
    let workers = sessions.len();
    let coordinator = Coordinator::start(config, sessions)?;
    if !coordinator.wait_for_workers(workers, HELLO_DEADLINE).await {
        return Err(not_up(&coordinator).into());
    }
    let model = coordinator.describe().model.context("the workers did not name their model")?;
    Ok((coordinator, model.shape))
}

/// Why not every worker is up, in the words of the first that says.
fn not_up(coordinator: &Coordinator) -> RequestError {
    let cluster = coordinator.describe();
    let up = cluster.workers_up();
    let reason = cluster.workers.iter().find_map(|worker| {
        worker.reason.as_ref().map(|reason| format!(": {}: {reason}", worker.name))
    });
    let all = cluster.workers.len();
    RequestError::Unavailable(format!("{up} of {all} workers are up{}", reason.unwrap_or_default()))
}
