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
For every scheduler a server is started in this process and asked through the SDK, over a socket.
A row has the scheduler, the arrival and its load, how long callers waited for the first token
and from token to token (percentiles over all requests of the run), output and prompt tokens per
second of the whole run, and how many requests were rejected.

Arrivals: poisson (LOAD requests a second, at random), closed (LOAD callers, each asks again when
it has its answer) and long (LOAD callers that read tokens while one long prompt is prefilled;
before each such row stands one of arrival `idle`: the same callers, and no long prompt. Only
tokens that came during the prefill count, and itl_over_idle is the ratio of the p99s).
Lengths and times of arrival are drawn from the seed, the same for every scheduler.

Example:
  aqueduct bench serve --model model --arrival poisson,closed,long --load 4 --json")]
pub(crate) struct BenchServeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Schedulers, separated by commas
    #[arg(
        long,
        value_name = "SCHEDULERS",
        value_delimiter = ',',
        default_value = "decode-first,static,plain"
    )]
    pub(crate) scheduler: Vec<Scheduler>,
    #[command(flatten)]
    pub(crate) step: StepArg,
    /// How requests come, separated by commas: poisson, closed or long
    #[arg(
        long,
        value_name = "ARRIVALS",
        value_delimiter = ',',
        value_enum,
        hide_possible_values = true,
        default_value = "poisson,closed,long"
    )]
    pub(crate) arrival: Vec<Arrival>,
    /// Loads, separated by commas: requests a second, or callers
    #[arg(long, value_name = "LOADS", value_delimiter = ',', default_value = "4")]
    pub(crate) load: Vec<f64>,
    /// Prompt lengths to draw from, separated by commas
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "200,16384")]
    pub(crate) prompt_tokens: Vec<u32>,
    /// How often each length is drawn, relative to the others, separated by commas
    #[arg(long, value_name = "WEIGHTS", value_delimiter = ',', default_value = "9,1")]
    pub(crate) weight: Vec<f64>,
    /// Prompt tokens of arrival long; its callers have the first of --prompt-tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 65_536)]
    pub(crate) long_tokens: u32,
    /// Tokens of each answer
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    pub(crate) max_tokens: u32,
    /// How long requests come, in seconds; those under way are waited for
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    pub(crate) seconds: f64,
    /// Rejects the next when so many requests wait for their turn
    #[arg(long, value_name = "REQUESTS", default_value_t = 64)]
    pub(crate) queue: usize,
    /// Seed of lengths and arrivals
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Policy
    #[arg(long, value_name = "POLICY", default_value_t = PolicyKind::H2o)]
    pub(crate) policy: PolicyKind,
    #[command(flatten)]
    pub(crate) memory: BudgetArgs,
    /// Workers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) workers: usize,
    /// Compute threads of all workers together; 0 is one for each core
    #[arg(long, value_name = "T", default_value_t = 0)]
    pub(crate) threads: usize,
    /// Draw the inter-token latencies of arrival long into this SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Print a JSON line for each row
    #[arg(long)]
    pub(crate) json: bool,
}
