//! Arguments of `aqueduct eval`.

use std::path::PathBuf;

use aqueduct_core::{PolicyKind, WireDtype};
use clap::{Args, Subcommand};

use super::{BudgetArgs, ClusterArgs, ExchangeArgs, Link, ModelArgs, PolicyArgs};

/// What can be evaluated.
#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    /// Write the logits of every token of a prompt to a file
    Logits(EvalLogitsArgs),
    /// Compare merged attention states with f64 over the same keys
    Merge(EvalMergeArgs),
    /// Measure perplexity on a text, for one or more policies
    Ppl(EvalPplArgs),
}

/// Arguments of `aqueduct eval logits`.
#[derive(Debug, Args)]
#[command(after_help = "\
With --wire f32 the file is bit-identical for any number of workers and for either link.

Example:
  aqueduct eval logits --model model --tokens-file tokens.txt --policy h2o --chunk 256 \\
      --workers 4 --kv f32 --out logits.safetensors --json")]
pub(crate) struct EvalLogitsArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// File of token ids, separated by white space
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens_file: PathBuf,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    #[command(flatten)]
    pub(crate) exchange: ExchangeArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Link between coordinator and workers: loopback (workers in this process) or grpc (one
    /// process per worker)
    #[arg(long, value_enum, hide_possible_values = true, default_value_t = Link::Loopback)]
    pub(crate) link: Link,
    /// Output file, safetensors: tensor `logits`, f32, [tokens, vocab]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Print one JSON line: tokens, vocab, policy, chunk_tokens, exchange, exchange_bytes, workers,
    /// link, seconds
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `aqueduct eval merge`.
#[derive(Debug, Args)]
#[command(after_help = "\
Keys stay with the workers that computed them. In every audited layer of a chunk, the keys are also
sent to the chunk, and one token's row of every head is computed again in f64, from keys and values
as they are stored. A row has `layer`, `rows` (computed again), `error` (largest difference of an
output, relative to the largest element of its row), `lse_error` (largest difference of a
log-sum-exp) and `bound`; an error above its bound ends the command with exit code 1. Workers
sample the same with --audit-every and report it at /metrics.

Example:
  aqueduct eval merge --model model --prompt-tokens 8192 --workers 4 --kv f32 --json")]
pub(crate) struct EvalMergeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Prompt length in tokens, from the shipped book, repeated if it is too short
    #[arg(long, value_name = "TOKENS", default_value_t = 4096)]
    pub(crate) prompt_tokens: u32,
    /// Memory policy: dense, window or h2o
    #[arg(long, value_name = "POLICY", default_value_t = PolicyKind::Dense)]
    pub(crate) policy: PolicyKind,
    #[command(flatten)]
    pub(crate) memory: BudgetArgs,
    /// Number format of queries and outputs in transit: f32 (exact), bf16 or f16
    #[arg(long, value_name = "DTYPE", default_value_t = WireDtype::F32)]
    pub(crate) wire: WireDtype,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Audit one of every MERGES merges, counted by chunk and layer
    #[arg(long, value_name = "MERGES", default_value_t = 1)]
    pub(crate) every: u32,
    /// Print one JSON line per layer
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `aqueduct eval ppl`.
#[derive(Debug, Args)]
#[command(after_help = "\
The windows are spread evenly over the text; each begins as the tokeniser begins a text. The
second half of each window is scored: nll is the mean of -ln p(token | everything before it in
its window), ppl = exp(nll), `tokens` the number of scored tokens. `retained_mass` is the share of
attention mass on the keys that were kept, over all layers and windows; `budget` is the number of
keys kept per layer and KV head (null for dense). A budget is bounded by the chunk: with --chunk 256
it is at most sinks + 255 keys.

Example:
  aqueduct eval ppl --model model --text book.txt --context 4096 --windows 4 --chunk 1024 \\
      --policy dense,window,h2o --budget 256 --json")]
pub(crate) struct EvalPplArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Text file to score, best one that the model never saw
    #[arg(long, value_name = "FILE")]
    pub(crate) text: PathBuf,
    /// Window length in tokens; the second half is scored
    #[arg(long = "context", value_name = "TOKENS")]
    pub(crate) context_tokens: u32,
    /// Number of windows
    #[arg(long, value_name = "W", default_value_t = 1)]
    pub(crate) windows: u32,
    /// Memory policies, separated by commas: dense, window, h2o
    #[arg(long, value_name = "POLICIES", value_delimiter = ',', default_value = "h2o")]
    pub(crate) policy: Vec<PolicyKind>,
    /// Budget in keys for every policy but dense, instead of --local and --heavy: window gets sinks
    /// and recent keys, h2o half heavy hitters and half sinks and recent keys
    #[arg(long, value_name = "KEYS", conflicts_with_all = ["local", "heavy"])]
    pub(crate) budget: Option<u32>,
    #[command(flatten)]
    pub(crate) memory: BudgetArgs,
    #[command(flatten)]
    pub(crate) exchange: ExchangeArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Print one JSON line per policy
    #[arg(long)]
    pub(crate) json: bool,
}
