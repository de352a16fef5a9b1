//! Arguments of `aqueduct bench slow`.

use aqueduct_core::limits;
use clap::Args;

use super::{BudgetArgs, ModelArgs};

/// Arguments of `aqueduct bench slow`.
#[derive(Debug, Args)]
#[command(after_help = "\
Each repetition has a cluster of processes of its own. It reads the same prompt twice, the second
time while one worker stands still for --pause-ms again and again, and runs for --run-ms in
between: slow, and not dead. hedge_ms is what `coordinator --hedge-ms` says: chunks that take
longer, and three times as long as others, are given to a second worker; with 0 none are. A row has
the median seconds of both prefills, what they are to each other (ratio), how many chunks were
given to a second worker, and whether the answers have the same bits. Under dense none are given.

Example:
  aqueduct bench slow --model model --workers 4 --hedge-ms 0,50 --json")]
pub(crate) struct BenchSlowArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Chunks of the prompt
    #[arg(long, value_name = "CHUNKS", default_value_t = 16)]
    pub(crate) chunks: u32,
    /// Workers, each a process
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) workers: usize,
    /// Compute threads of all workers together; 0 is one for each core
    #[arg(long, value_name = "T", default_value_t = 0)]
    pub(crate) threads: usize,
    /// After how long a slow chunk is given to a second worker, separated by commas; 0 is never
    #[arg(long, value_name = "MS", value_delimiter = ',',
          default_values_t = [0, limits::HEDGE_AFTER_MS])]
    pub(crate) hedge_ms: Vec<u64>,
    /// How long the slow worker stands still
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    pub(crate) pause_ms: u64,
    /// How long it runs in between
    #[arg(long, value_name = "MS", default_value_t = 50)]
    pub(crate) run_ms: u64,
    /// Repetitions
    #[arg(long, value_name = "R", default_value_t = 3)]
    pub(crate) reps: u32,
    #[command(flatten)]
    pub(crate) memory: BudgetArgs,
    /// Print a JSON line for each hedge_ms
    #[arg(long)]
    pub(crate) json: bool,
}
