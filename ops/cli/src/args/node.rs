//! Arguments of `aqueduct node`.

use clap::{Args, Subcommand};

use super::{OutputArgs, ServerArgs};

/// What can be done with workers.
#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// List workers and their state; with `-o wide` also how many requests still need each
    List(NodeListArgs),
    /// Show a worker: its model, its pool, its current work
    Show(NodeShowArgs),
    /// Give a worker no new work, and wait until it is empty
    Drain(NodeDrainArgs),
    /// Give a drained worker work again
    Undrain(NodeUndrainArgs),
}

/// Arguments of `aqueduct node list`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  aqueduct node list -o wide --watch")]
pub(crate) struct NodeListArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// Print JSON Lines, one worker per line
    #[arg(long, conflicts_with_all = ["output", "watch"])]
    pub(crate) json: bool,
}

/// Arguments of `aqueduct node show`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  aqueduct node show http://10.0.0.7:7001 -o yaml")]
pub(crate) struct NodeShowArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// Name or address of the worker
    pub(crate) worker: String,
}

/// Arguments of `aqueduct node drain`.
#[derive(Debug, Args)]
#[command(after_help = "\
Chunks that wait for the worker, and completions that it decodes, move to other workers, unless
keys stay in shards; the chunk that it computes ends there. When it is empty, it can be stopped
without loss. It stays drained, even if it restarts, until `node undrain`, or until it has been out
of the cluster for an hour.

Example:
  aqueduct node drain http://10.0.0.7:7001 && ssh 10.0.0.7 systemctl restart aqueduct-worker \\
    && aqueduct node undrain http://10.0.0.7:7001")]
pub(crate) struct NodeDrainArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Name or address of the worker
    pub(crate) worker: String,
    /// Seconds to wait until the worker is empty; it stays drained in any case. 0: do not wait
    #[arg(long, value_name = "S", default_value_t = 3600)]
    pub(crate) wait_s: u64,
}

/// Arguments of `aqueduct node undrain`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  aqueduct node undrain http://10.0.0.7:7001")]
pub(crate) struct NodeUndrainArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Name or address of the worker
    pub(crate) worker: String,
}
