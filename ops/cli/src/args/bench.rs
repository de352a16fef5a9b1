//! Arguments of `aqueduct bench`.

use std::path::PathBuf;

use aqueduct_core::{PolicyKind, WireDtype, limits};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use super::{
    BenchJournalArgs, BenchServeArgs, BenchSlowArgs, BenchSoakArgs, BudgetArgs, ExchangeArgs,
    IsaArg, Link, ModelArgs, SnapshotArgs,
};

/// What can be measured.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Time every kernel, compared with the machine's peak and read bandwidth
    Kernels(BenchKernelsArgs),
    /// Time prefill, for every prompt length, policy and number of workers
    Prefill(BenchPrefillArgs),
    /// Time the prefill of a prompt whose prefix is cached, compared with the first one
    Prefix(BenchPrefixArgs),
    /// Time decoding after a prompt, for every depth, policy and number of workers
    Decode(BenchDecodeArgs),
    /// Measure bytes and time of one layer when keys move to the queries and when they stay
    Exchange(BenchExchangeArgs),
    /// Measure the journal writes of a group of coordinators, compared with the disk's flushes
    Journal(BenchJournalArgs),
    /// Time the parts of a prefill and of a decode step
    Profile(BenchProfileArgs),
    /// Measure what the loss of a worker costs, during prefill and during decode
    Recover(BenchRecoverArgs),
    /// Measure what scoring keys costs a decode step, in pairs of runs
    Scores(BenchScoresArgs),
    /// Measure a server's latency under load, for every scheduler
    Serve(BenchServeArgs),
    /// Measure what a slow worker costs, with and without hedging
    Slow(BenchSlowArgs),
    /// Stress a server with random requests, and check that nothing is left behind
    Soak(BenchSoakArgs),
}

/// Arguments of `aqueduct bench kernels`.
#[derive(Debug, Args)]
#[command(after_help = "\
The shapes are those of a model of 159 M parameters: width 1024, 16 query heads on 8 KV heads of
128, feed-forward 3072, vocabulary 32000. A row has `kernel`, `path` (the instruction set whose
instruction multiplies, and what it multiplies), `shape`, `flop` and `bytes` (the least that the
kernel must compute, and read and write), `us` (median over the repetitions), `us_spread` (longest
minus shortest), `peak_share` and `bandwidth_share`. The peak is a burst of the path's own
instruction on registers, the bandwidth a read of 256 MiB; both are measured first, on the same
threads. Weights and keys are copied until no cache holds them all, and used in turn; other data
may be in a cache, so a bandwidth share can be above 1.

Example:
  aqueduct bench kernels --filter 'linear bf16 512x' --isa avx512 --json")]
pub(crate) struct BenchKernelsArgs {
    #[command(flatten)]
    pub(crate) isa: IsaArg,
    /// Only rows that have all these words in their kernel, path or shape
    #[arg(long, value_name = "WORDS")]
    pub(crate) filter: Option<String>,
    /// Compute threads; 0: one per core
    #[arg(long, value_name = "T", default_value_t = 0)]
    pub(crate) threads: usize,
    /// Number of repetitions; no further one begins once a kernel has taken three seconds
    #[arg(long, value_name = "R", default_value_t = 15)]
    pub(crate) reps: u32,
    /// Print one JSON line per kernel
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `aqueduct bench prefill`.
#[derive(Debug, Args)]
#[command(after_help = "\
The prompt is the shipped book, repeated if it is too short; here a prompt may be longer than the
model's positions. The first chunk that is prefilled is a warm-up and does not count. A row has the
median over the repetitions and their spread (longest minus shortest time). kv_bytes is what is
remembered at the end of the prompt, exchange how earlier keys reached the chunks (move or stay),
exchange_bytes what travelled between processes for it (with `--link grpc`), and spared_bytes what
did not, because the receiver of a memory set had it.

Example:
  aqueduct bench prefill --model model --prompt-tokens 4096,16384,65536 --policy h2o,dense \\
      --workers 1,4 --json")]
pub(crate) struct BenchPrefillArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Prompt lengths in tokens, separated by commas
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', required = true)]
    pub(crate) prompt_tokens: Vec<u32>,
    /// Memory policies, separated by commas: dense, window, h2o
    #[arg(long, value_name = "POLICIES", value_delimiter = ',', default_value = "h2o")]
    pub(crate) policy: Vec<PolicyKind>,
    /// Numbers of workers, separated by commas
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "1")]
    pub(crate) workers: Vec<usize>,
    /// Compute threads of all workers together; 0: one per core
    #[arg(long, value_name = "T", default_value_t = 0)]
    pub(crate) threads: usize,
    /// Number of repetitions; no further one begins once a combination has taken a minute
    #[arg(long, value_name = "R", default_value_t = 1)]
    pub(crate) reps: u32,
    #[command(flatten)]
    pub(crate) memory: BudgetArgs,
    #[command(flatten)]
    pub(crate) exchange: ExchangeArgs,
    /// Link between coordinator and workers: loopback (one process) or grpc (one process per
    /// worker, which share the threads)
    #[arg(long, value_enum, hide_possible_values = true, default_value_t = Link::Loopback)]
    pub(crate) link: Link,
    /// SVG file for a plot of seconds over prompt tokens
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Print one JSON line per combination
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `aqueduct bench prefix`.
#[derive(Debug, Args)]
#[command(after_help = "\
The prefix is the shipped book, repeated if it is too short; two prompts continue it with different
questions of a few tokens. A row has the time of both prefills, the second's share of the first's,
the tokens of the second that were not computed, and whether its answer has the same bits as one
computed without snapshots.

Example:
  aqueduct bench prefix --model model --prefix-tokens 65536 --workers 1,4 --json")]
pub(crate) struct BenchPrefixArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Tokens of the prefix that both prompts share
    #[arg(long, value_name = "TOKENS", default_value_t = 65_536)]
    pub(crate) prefix_tokens: u32,
    /// Tokens of the question that follows the prefix
    #[arg(long, value_name = "TOKENS", default_value_t = 16)]
    pub(crate) question_tokens: u32,
    /// Memory policies, separated by commas: window, h2o, dense
    #[arg(long, value_name = "POLICIES", value_delimiter = ',', default_value = "h2o")]
    pub(crate) policy: Vec<PolicyKind>,
    /// Numbers of workers, separated by commas
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "1")]
    pub(crate) workers: Vec<usize>,
    /// Compute threads of all workers together; 0: one per core
    #[arg(long, value_name = "T", default_value_t = 0)]
    pub(crate) threads: usize,
    #[command(flatten)]
    pub(crate) memory: BudgetArgs,
    #[command(flatten)]
    pub(crate) snapshots: SnapshotArgs,
    /// Print one JSON line per combination
    #[arg(long)]
    pub(crate) json: bool,
}

/// What happens to a worker that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    /// The worker dies (SIGKILL): the system closes its connections
    Kill,
    /// The worker hangs (SIGSTOP): connections stay open, but nobody answers
    Hang,
}

impl Fault {
    /// As people call it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Hang => "hang",
        }
    }
}

/// Arguments of `aqueduct bench recover`.
#[derive(Debug, Args)]
#[command(after_help = "\
Each repetition starts its own cluster of processes. It answers the same prompt twice; the second
time a worker is lost: one that computes a chunk when half of the chunks are done; or, when half of
the tokens are generated, the home or the worker of the last chunk but one. A row has the median
seconds of both, those of a prompt of one chunk, the cost of the loss in chunks, whether the answer
has the same bits, and the milliseconds until the coordinator noticed the loss: median (detect_ms)
and longest (detect_ms_max).

Example:
  aqueduct bench recover --model model --workers 4 --chunks 8 --policy h2o,dense --json")]
pub(crate) struct BenchRecoverArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Prompt length in chunks
    #[arg(long, value_name = "CHUNKS", default_value_t = 8)]
    pub(crate) chunks: u32,
    /// Memory policies, separated by commas: window, h2o, dense
    #[arg(long, value_name = "POLICIES", value_delimiter = ',', default_value = "h2o,dense")]
    pub(crate) policy: Vec<PolicyKind>,
    /// Faults of the worker, separated by commas
    #[arg(long, value_name = "FAULTS", value_delimiter = ',', default_value = "kill,hang")]
    pub(crate) fault: Vec<Fault>,
    /// Number of workers, each a process
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) workers: usize,
    /// Compute threads of all workers together; 0: one per core
    #[arg(long, value_name = "T", default_value_t = 0)]
    pub(crate) threads: usize,
    /// Number of repetitions
    #[arg(long, value_name = "R", default_value_t = 3)]
    pub(crate) reps: u32,
    #[command(flatten)]
    pub(crate) memory: BudgetArgs,
    /// Print one JSON line per policy, loss and fault
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `aqueduct bench decode`.
#[derive(Debug, Args)]
#[command(after_help = "\
Each depth is prefilled once with the shipped book, repeated if it is too short; everything after
the first token is timed, R times K steps of B completions. The first chunk that is prefilled does
not count. tokens_per_second (all completions together) and ms_per_token (between two tokens of one
completion) are medians over the repetitions; spread is the fastest repetition's tokens per second
minus the slowest's. A step reads weight_bytes once and kv_bytes for each completion;
bandwidth_share is the bandwidth of that, as a share of the machine's (see `bench kernels`).
prefill_tokens_per_second is that of the one prefill.

Examples:
  aqueduct bench decode --model model --depth-tokens 1024,32768 --policy h2o,dense --json
  aqueduct bench decode --model model --depth-tokens 2048 --batch 1,4,16,64 --json
For the cost of scoring see `bench scores`.")]
pub(crate) struct BenchDecodeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Prompt lengths in tokens, separated by commas
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', required = true)]
    pub(crate) depth_tokens: Vec<u32>,
    /// Memory policies, separated by commas: dense, window, h2o
    #[arg(long, value_name = "POLICIES", value_delimiter = ',', default_value = "h2o")]
    pub(crate) policy: Vec<PolicyKind>,
    /// Numbers of workers, separated by commas
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "1")]
    pub(crate) workers: Vec<usize>,
    /// Compute threads of all workers together; 0: one per core
    #[arg(long, value_name = "T", default_value_t = 0)]
    pub(crate) threads: usize,
    /// Batch sizes (completions decoded together), separated by commas
    #[arg(long, value_name = "B", value_delimiter = ',', default_value = "1")]
    pub(crate) batch: Vec<u32>,
    /// Give the window policy as many keys as h2o keeps, sinks + local + heavy
    #[arg(long)]
    pub(crate) same_keys: bool,
    /// Tokens of each completion per repetition
    #[arg(long, value_name = "K", default_value_t = 32)]
    pub(crate) tokens: u32,
    /// Number of repetitions, one after the other on the same completions
    #[arg(long, value_name = "R", default_value_t = 5)]
    pub(crate) reps: u32,
    #[command(flatten)]
    pub(crate) memory: BudgetArgs,
    /// Print one JSON line per combination
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `aqueduct bench exchange`.
#[derive(Debug, Args)]
#[command(after_help = "\
Workers hold random keys of the model's shape, chunks in turn, as a dense prompt leaves them; a
block asks all of them in one layer. `bytes` is what travels (counted by the link, and by the
formula of docs/WIRE.md for loopback), `layer_us` the median time from queries to their state
over the prompt. move, stay and auto are measured in turn; the first round does not count. All
holders compute on this machine, so the time shows the exchange, not the gain of more machines.

Examples:
  aqueduct bench exchange --model model --json
  aqueduct bench exchange --model model --stream --json")]
pub(crate) struct BenchExchangeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Tokens of the block whose queries ask, separated by commas
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "1,16,128,1024")]
    pub(crate) block_tokens: Vec<u32>,
    /// Tokens of the prompt before the block
    #[arg(long, value_name = "TOKENS", default_value_t = 16_384)]
    pub(crate) depth_tokens: u32,
    /// Chunk size in tokens
    #[arg(long = "chunk", value_name = "TOKENS", default_value_t = limits::CHUNK_TOKENS_DEFAULT)]
    pub(crate) chunk_tokens: u32,
    /// Number of workers that hold the prompt
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) workers: usize,
    /// Compute threads of all workers together; 0: one per core
    #[arg(long, value_name = "T", default_value_t = 0)]
    pub(crate) threads: usize,
    /// Link between them: grpc (sockets on 127.0.0.1) or loopback (nothing is copied)
    #[arg(long, value_enum, hide_possible_values = true, default_value_t = Link::Grpc)]
    pub(crate) link: Link,
    /// Number format of queries and outputs in transit: f32 (exact), bf16 or f16
    #[arg(long, value_name = "DTYPE", default_value_t = WireDtype::F32)]
    pub(crate) wire: WireDtype,
    /// Measure instead how fast keys travel over gRPC, compared with as many bytes in a gRPC stream
    /// that nobody makes or reads, and in a copy over TCP: rows of `stream` (grpc, plain or tcp),
    /// `bytes`, `seconds`, `gb_per_second`, one thread per side
    #[arg(long)]
    pub(crate) stream: bool,
    /// Number of repetitions
    #[arg(long, value_name = "R", default_value_t = 7)]
    pub(crate) reps: u32,
    /// Print one JSON line per block and exchange
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `aqueduct bench scores`.
#[derive(Debug, Args)]
#[command(after_help = "\
Two sequences continue the same prompt in turns of K tokens: one under h2o, and one under a window
of as many keys, which are not scored. Every pair changes which goes first, so other load on the
machine affects both alike. cost is how much longer a token takes with scores: the median over the
pairs; a quarter of the pairs is below cost_low, a quarter above cost_high.

Example:
  aqueduct bench scores --model model --depth-tokens 2048,16384 --json")]
pub(crate) struct BenchScoresArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Prompt lengths in tokens, separated by commas
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "4096")]
    pub(crate) depth_tokens: Vec<u32>,
    /// Compute threads; 0: one per core
    #[arg(long, value_name = "T", default_value_t = 0)]
    pub(crate) threads: usize,
    /// Tokens per turn
    #[arg(long, value_name = "K", default_value_t = 32)]
    pub(crate) tokens: u32,
    /// Number of pairs of turns
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub(crate) pairs: u32,
    #[command(flatten)]
    pub(crate) memory: BudgetArgs,
    /// Print one JSON line per depth
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `aqueduct bench profile`.
#[derive(Debug, Args)]
#[command(after_help = "\
Measures the engine of one worker, without a cluster. A row has `phase` (prefill or decode),
`policy`, `prompt_tokens`, `part`, `us` (median, of the whole prefill or of a token) and `share`.
Parts: embed, project, attend, scores (the extra time of attention for also yielding the attention
mass of every key, measured as the difference to a pass without), select, finish, head (logits),
sample, rest (everything between them), and all.

Example:
  aqueduct bench profile --model model --prompt-tokens 8192 --policy h2o,dense")]
pub(crate) struct BenchProfileArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Prompt lengths in tokens, separated by commas
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', required = true)]
    pub(crate) prompt_tokens: Vec<u32>,
    /// Memory policies, separated by commas: dense, window, h2o
    #[arg(long, value_name = "POLICIES", value_delimiter = ',', default_value = "h2o")]
    pub(crate) policy: Vec<PolicyKind>,
    /// Compute threads; 0: one per core
    #[arg(long, value_name = "T", default_value_t = 0)]
    pub(crate) threads: usize,
    /// Tokens decoded per repetition
    #[arg(long, value_name = "K", default_value_t = 64)]
    pub(crate) tokens: u32,
    /// Number of repetitions
    #[arg(long, value_name = "R", default_value_t = 3)]
    pub(crate) reps: u32,
    #[command(flatten)]
    pub(crate) memory: BudgetArgs,
    /// Print one JSON line per part
    #[arg(long)]
    pub(crate) json: bool,
}
