//! Arguments of `aqueduct bench slow`.

use aqueduct_core::limits;
use clap::Args;

use super::{BudgetArgs, ModelArgs};

/// Arguments of `aqueduct bench slow`.
#[derive(Debug, Args)]
#[command(after_help = "\
Each repetition starts its own cluster of processes. It prefills the same prompt twice, the second
time while one worker pauses for --pause-ms again and again and runs for --run-ms in between: slow,
but not dead. hedge_ms is the value of `coordinator --hedge-ms`: chunks that take longer, and three
times as long as others, are also given to a second worker; with 0 none are. A row has the median
seconds of both prefills, their ratio, how many chunks were given to a second worker, and whether
the answers have the same bits. Chunks of a dense prompt are never given to a second worker.

Example:
  aqueduct bench slow --model model --workers 4 --hedge-ms 0,50 --json")]
pub(crate) struct BenchSlowArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Prompt length in chunks
    #[arg(long, value_name = "CHUNKS", default_value_t = 16)]
    pub(crate) chunks: u32,
    /// Number of workers, each a process
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) workers: usize,
    /// Compute threads of all workers together; 0: one per core
    #[arg(long, value_name = "T", default_value_t = 0)]
    pub(crate) threads: usize,
    /// Milliseconds after which a slow chunk is also given to a second worker, separated by commas;
    /// 0: never
    #[arg(long, value_name = "MS", value_delimiter = ',',
          default_values_t = [0, limits::HEDGE_AFTER_MS])]
    pub(crate) hedge_ms: Vec<u64>,
    /// Milliseconds that the slow worker pauses each time
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    pub(crate) pause_ms: u64,
    /// Milliseconds that it runs between pauses
    #[arg(long, value_name = "MS", default_value_t = 50)]
    pub(crate) run_ms: u64,
    /// Number of repetitions
    #[arg(long, value_name = "R", default_value_t = 3)]
    pub(crate) reps: u32,
    #[command(flatten)]
    pub(crate) memory: BudgetArgs,
    /// Print one JSON line per hedge_ms
    #[arg(long)]
    pub(crate) json: bool,
}
