//! Arguments of `aqueduct bench soak`.

use clap::Args;

use super::{ModelArgs, SchedulerArgs};

/// Arguments of `aqueduct bench soak`.
#[derive(Debug, Args)]
#[command(after_help = "\
Starts a server in this process. Callers ask it over HTTP and gRPC for answers of any length under
any policy; some read to the end, others drop the connection, or set a stop string or a deadline
that is too short. When the time is up and all callers are gone, no request may be stuck, no worker
may hold a byte of any of them, and resident memory may have grown by at most a quarter plus
--slack-mib since a fifth of the time had passed. Otherwise the command fails with exit code 1. The
seed is printed first; it gives the same requests again.

Examples:
  aqueduct bench soak --model model --seconds 7200
  aqueduct bench soak --model model --seconds 20 --seed 7 --json")]
pub(crate) struct BenchSoakArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Seconds for which callers send requests
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) seconds: u64,
    /// Random seed of everything that callers do [default: from the time]
    #[arg(long, value_name = "SEED")]
    pub(crate) seed: Option<u64>,
    /// Number of concurrent callers
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) callers: u32,
    /// Number of workers
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) workers: usize,
    /// Compute threads of all workers together; 0: one per core
    #[arg(long, value_name = "T", default_value_t = 0)]
    pub(crate) threads: usize,
    #[command(flatten)]
    pub(crate) scheduler: SchedulerArgs,
    /// Longest prompt, in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 4096)]
    pub(crate) prompt_tokens: u32,
    /// Resident memory that may be added beyond a quarter, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    pub(crate) slack_mib: u64,
    /// Print the result as one JSON line
    #[arg(long)]
    pub(crate) json: bool,
}
