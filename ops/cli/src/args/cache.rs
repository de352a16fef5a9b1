//! Arguments of `aqueduct cache`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};

use super::{OutputArgs, ServerArgs};

/// What can be done with what workers remember.
#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    /// List snapshots: memory of prompts at chunk boundaries, and sessions
    List(CacheListArgs),
    /// Show the keys that a request or a snapshot remembers, with reason and text
    Show(CacheShowArgs),
    /// Remove snapshots from workers
    Evict(CacheNamesArgs),
    /// Exempt snapshots from eviction
    Pin(CacheNamesArgs),
    /// Undo `cache pin`
    Unpin(CacheNamesArgs),
    /// Write a snapshot to a file
    Export(CacheExportArgs),
    /// Load a snapshot from a file into a worker
    Import(CacheImportArgs),
}

/// Arguments of `aqueduct cache list`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  aqueduct cache list --worker http://10.0.0.7:7001 -o wide")]
pub(crate) struct CacheListArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// Only on this worker, by name or address
    #[arg(long, value_name = "WORKER", default_value = "", hide_default_value = true)]
    pub(crate) worker: String,
}

/// Arguments of `aqueduct cache show`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("of").required(true).args(["request", "snapshot"]), after_help = "\
A request under way is shown as its home, or the worker of its last chunk, has it at this moment,
with the text of the tokens that this coordinator has seen. Only the coordinator under which a
snapshot was made knows its text and policy.

Examples:
  aqueduct cache show r064420b24c39ab00 --layer 3 --head 1
  aqueduct cache show --snapshot 5f2a9c01 --layer 0 --head 0 -o json")]
pub(crate) struct CacheShowArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// Id of a request under way, or the id that its caller gave it
    pub(crate) request: Option<String>,
    /// Name of a snapshot, or its first 8 digits or more
    #[arg(long, value_name = "NAME")]
    pub(crate) snapshot: Option<String>,
    /// Layer, counted from 0 [default: the first one that has keys]
    #[arg(long, value_name = "J")]
    pub(crate) layer: Option<u32>,
    /// KV head, counted from 0
    #[arg(long, value_name = "G", default_value_t = 0)]
    pub(crate) head: u32,
    /// Completion, counted from 0, of a request that has several
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) choice: u32,
}

/// Arguments of `aqueduct cache evict`, `pin` and `unpin`.
#[derive(Debug, Args)]
#[command(after_help = "\
A pin lasts until the worker's process ends. What is evicted is computed again when needed.

Examples:
  aqueduct cache pin 5f2a9c01
  aqueduct cache evict 5f2a9c01 7be1d204")]
pub(crate) struct CacheNamesArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Only on this worker, by name or address
    #[arg(long, value_name = "WORKER", default_value = "", hide_default_value = true)]
    pub(crate) worker: String,
    /// Names of snapshots, or their first 8 digits or more
    #[arg(required = true, value_name = "NAME")]
    pub(crate) snapshots: Vec<String>,
}

/// Arguments of `aqueduct cache export`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  aqueduct cache export 5f2a9c01 walden.snapshot")]
pub(crate) struct CacheExportArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Export from this worker, by name or address
    #[arg(long, value_name = "WORKER", default_value = "", hide_default_value = true)]
    pub(crate) worker: String,
    /// Name of a snapshot, or its first 8 digits or more
    #[arg(value_name = "NAME")]
    pub(crate) snapshot: String,
    /// Output file; `-` is stdout
    pub(crate) file: PathBuf,
}

/// Arguments of `aqueduct cache import`.
#[derive(Debug, Args)]
#[command(after_help = "\
The worker must serve the same model with the same --weights and --kv, and checks the file. Prompts
with the same beginning then continue from the snapshot, so import only what you trust.

Example:
  aqueduct cache import walden.snapshot")]
pub(crate) struct CacheImportArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Import into this worker, by name or address [default: the first one that is up]
    #[arg(long, value_name = "WORKER", default_value = "", hide_default_value = true)]
    pub(crate) worker: String,
    /// File written by `cache export`
    pub(crate) file: PathBuf,
}
