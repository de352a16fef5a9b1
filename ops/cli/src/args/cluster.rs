//! Workers of a command that brings its own.

use std::time::Duration;

use aqueduct_core::{Refusal, limits};
use aqueduct_worker::{DiskOptions, Scheduler, Scheduling, SnapshotOptions};
use clap::{Args, ValueEnum};

use super::size::Size;

/// A cluster that lives as long as the command.
#[derive(Debug, Clone, Args)]
pub(crate) struct ClusterArgs {
    /// Number of workers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) workers: usize,
    /// Compute threads of all workers together; 0: one per core
    #[arg(long, value_name = "T", default_value_t = 0)]
    pub(crate) threads: usize,
    #[command(flatten)]
    pub(crate) pool: PoolArg,
}

/// How much each worker keeps.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct PoolArg {
    /// KV cache of each worker, over all requests, in bytes: a number, optionally with K, M, G or
    /// T. Memory is used as it fills
    #[arg(long, value_name = "SIZE", default_value_t = Size(limits::POOL_BYTES_DEFAULT))]
    pool_bytes: Size,
    /// Most tokens whose keys a worker keeps in shards, over all requests [default: as many as
    /// --pool-bytes holds]
    #[arg(long, value_name = "TOKENS")]
    pool_tokens: Option<u64>,
}

impl PoolArg {
    /// The most tokens, at least one.
    ///
    /// # Errors
    /// No tokens.
    pub(crate) fn tokens(self) -> Result<u64, Refusal> {
        let tokens = self.pool_tokens.unwrap_or(u64::MAX);
        Refusal::unless_within("pool_tokens", tokens, 1, u64::MAX)
    }

    /// Bytes of all pages.
    ///
    /// # Errors
    /// None, or more than there are addresses.
    pub(crate) fn bytes(self) -> Result<u64, Refusal> {
        Refusal::unless_within("pool_bytes", self.pool_bytes.0, 1, limits::POOL_BYTES_MAX)
    }
}

/// Who goes first on a worker that both decodes and prefills.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct SchedulerArgs {
    /// What goes first on a worker: decode-first (decode before prefill), static (steps of one
    /// token for each completion, then whole chunks) or plain (order of arrival). Answers do not
    /// depend on it
    #[arg(long, value_name = "SCHEDULER", default_value_t = Scheduler::DecodeFirst)]
    scheduler: Scheduler,
    #[command(flatten)]
    step: StepArg,
}

/// How long a step of the static scheduler is.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct StepArg {
    /// Tokens in a step of the static scheduler, decoded and prompt tokens together; at least one
    /// chunk
    #[arg(long, value_name = "TOKENS", default_value_t = limits::STEP_TOKENS_DEFAULT)]
    pub(crate) step_tokens: u32,
}

impl SchedulerArgs {
    /// What the user asks for.
    ///
    /// # Errors
    /// A step that is out of bounds.
    pub(crate) fn scheduling(self) -> Result<Scheduling, Refusal> {
        self.step.scheduling(self.scheduler)
    }
}

impl StepArg {
    /// Steps of this length under `scheduler`.
    ///
    /// # Errors
    /// A length that is out of bounds.
    pub(crate) fn scheduling(self, scheduler: Scheduler) -> Result<Scheduling, Refusal> {
        let scheduling = Scheduling { scheduler, step_tokens: self.step_tokens };
        scheduling.validate().map(|()| scheduling)
    }
}

/// How many completions go on together.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct BatchArg {
    /// Most completions that a worker decodes in one batch; more of them take turns
    #[arg(long = "max-batch", value_name = "N", default_value_t = limits::DECODE_BATCH_MAX)]
    pub(crate) decode_batch_max: usize,
}

/// When a device is given up.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct StallArg {
    /// Seconds that a device may take for one layer; then its worker ends, for a supervisor to
    /// restart it. 0: no limit
    #[arg(long = "stall-s", alias = "stall-seconds", value_name = "S",
          default_value_t = limits::STALL_S_DEFAULT)]
    stall_seconds: u64,
}

impl StallArg {
    /// How long it may take.
    pub(crate) fn stall(self) -> Duration {
        match self.stall_seconds {
            0 => Duration::MAX,
            seconds => Duration::from_secs(seconds),
        }
    }
}

/// What is kept of prompts whose requests have ended.
#[derive(Debug, Clone, Args)]
pub(crate) struct SnapshotArgs {
    /// Memory of each worker for snapshots (prefix cache and sessions), in bytes: a number,
    /// optionally with K, M, G or T; 0: no snapshots
    #[arg(long, value_name = "SIZE", default_value_t = Size(limits::SNAPSHOT_BYTES_DEFAULT))]
    snapshot_bytes: Size,
    /// Folder for snapshots on disk, which survive a restart; each worker has its own [default:
    /// memory only]
    #[arg(long, value_name = "PATH")]
    snapshot_dir: Option<std::path::PathBuf>,
    /// Most bytes of a worker's snapshots on disk
    #[arg(long, value_name = "SIZE", requires = "snapshot_dir",
          default_value_t = Size(limits::SNAPSHOT_DISK_BYTES_DEFAULT))]
    snapshot_disk_bytes: Size,
}

impl SnapshotArgs {
    /// Of a worker whose folder is the one that was named, or one in it.
    pub(crate) fn options(&self, within: Option<&str>) -> SnapshotOptions {
        let bytes = self.snapshot_disk_bytes.0;
        let path = self.snapshot_dir.as_ref().map(|path| match within {
            Some(name) => path.join(name),
            None => path.clone(),
        });
        let disk = path.map(|path| DiskOptions { path, bytes });
        SnapshotOptions { bytes: self.snapshot_bytes.0, disk }
    }
}

/// How often merged states are audited.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct AuditArg {
    /// Audit one of every MERGES merges of partial states (counted by chunk and layer): one row is
    /// computed again in f64, for which all keys before the chunk travel to it; 0: never
    #[arg(long, value_name = "MERGES", default_value_t = 0)]
    pub(crate) audit_every: u32,
}

/// What connects coordinator and workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Link {
    Loopback,
    Grpc,
}

impl Link {
    /// The word that a user writes.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Grpc => "grpc",
        }
    }
}
