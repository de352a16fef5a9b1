//! Arguments of `aqueduct bench serve`.

use std::path::PathBuf;

use aqueduct_core::PolicyKind;
use aqueduct_worker::Scheduler;
use clap::{Args, ValueEnum};

use super::{BudgetArgs, ModelArgs, StepArg};

/// How requests come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Arrival {
    /// `load` requests a second, at random, whether or not others have ended.
    Poisson,
    /// `load` callers, each of which asks again when it has its answer.
    Closed,
    /// `load` callers that only read tokens; beside them nothing, and then one long prompt.
    Long,
}

impl Arrival {
    /// The word that a user writes.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Poisson => "poisson",
            Self::Closed => "closed",
            Self::Long => "long",
        }
    }
}

/// Arguments of `aqueduct bench serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
For every scheduler, starts a server in this process and calls it through the SDK, over a socket.
A row has the scheduler, the arrival and its load, the time to first token and between tokens
(percentiles over all requests of the run), output and prompt tokens per second of the whole run,
and the number of rejected requests.

Arrivals:
  poisson  LOAD requests per second, at random
  closed   LOAD callers, each of which asks again when it has its answer
  long     LOAD callers that read tokens while one long prompt is prefilled. A row of arrival
           `idle` comes before: the same callers without the long prompt. Only tokens that came
           during the prefill count; itl_over_idle is the ratio of the p99s.
Lengths and arrival times are drawn from the seed, the same for every scheduler.

Example:
  aqueduct bench serve --model model --arrival poisson,closed,long --load 4 --json")]
pub(crate) struct BenchServeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Schedulers, separated by commas: decode-first, static, plain
    #[arg(
        long,
        value_name = "SCHEDULERS",
        value_delimiter = ',',
        default_value = "decode-first,static,plain"
    )]
    pub(crate) scheduler: Vec<Scheduler>,
    #[command(flatten)]
    pub(crate) step: StepArg,
    /// How requests arrive, separated by commas: poisson, closed, long
    #[arg(
        long,
        value_name = "ARRIVALS",
        value_delimiter = ',',
        value_enum,
        hide_possible_values = true,
        default_value = "poisson,closed,long"
    )]
    pub(crate) arrival: Vec<Arrival>,
    /// Loads, separated by commas: requests per second, or callers
    #[arg(long, value_name = "LOADS", value_delimiter = ',', default_value = "4")]
    pub(crate) load: Vec<f64>,
    /// Prompt lengths to draw from, in tokens, separated by commas
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "200,16384")]
    pub(crate) prompt_tokens: Vec<u32>,
    /// Weights with which the lengths are drawn, separated by commas
    #[arg(long, value_name = "WEIGHTS", value_delimiter = ',', default_value = "9,1")]
    pub(crate) weight: Vec<f64>,
    /// Length of the long prompt of arrival long; its other callers have the first length of
    /// --prompt-tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 65_536)]
    pub(crate) long_tokens: u32,
    /// Tokens of each answer
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    pub(crate) max_tokens: u32,
    /// Seconds for which requests arrive; those under way may finish
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    pub(crate) seconds: f64,
    /// Most requests that wait; more are rejected
    #[arg(long, value_name = "REQUESTS", default_value_t = 64)]
    pub(crate) queue: usize,
    /// Random seed of lengths and arrivals
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Memory policy: dense, window or h2o
    #[arg(long, value_name = "POLICY", default_value_t = PolicyKind::H2o)]
    pub(crate) policy: PolicyKind,
    #[command(flatten)]
    pub(crate) memory: BudgetArgs,
    /// Number of workers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) workers: usize,
    /// Compute threads of all workers together; 0: one per core
    #[arg(long, value_name = "T", default_value_t = 0)]
    pub(crate) threads: usize,
    /// SVG file for a plot of the inter-token latencies of arrival long
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Print one JSON line per row
    #[arg(long)]
    pub(crate) json: bool,
}
