//! Arguments of `aqueduct node`.

use clap::{Args, Subcommand};

use super::{OutputArgs, ServerArgs};

/// What can be done with workers.
#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// List workers: how they stand and, with `-o wide`, how many requests still need each
    List(NodeListArgs),
    /// Show a worker: its model, its pool, what it is at
    Show(NodeShowArgs),
    /// Give a worker nothing new, and wait until it has done what it has
    Drain(NodeDrainArgs),
    /// Give a drained worker something new again
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
    /// Print JSON Lines, a worker a line
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
What waits for the worker goes elsewhere, and so does what it decodes, unless keys stay in shards;
what it is at ends there. Then it can be stopped and nobody misses it. It stays drained, also over
a restart, until `node undrain`.

Example:
  aqueduct node drain http://10.0.0.7:7001 && ssh 10.0.0.7 systemctl restart aqueduct-worker \\
    && aqueduct node undrain http://10.0.0.7:7001")]
pub(crate) struct NodeDrainArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Name or address of the worker
    pub(crate) worker: String,
    /// Give up waiting after so many seconds; the worker stays drained. 0: do not wait
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
