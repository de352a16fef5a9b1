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
    /// Every kernel beside the peak and the read bandwidth of this machine
    Kernels(BenchKernelsArgs),
    /// Time of the prefill, for every prompt length, policy and number of workers
    Prefill(BenchPrefillArgs),
    /// Time of a prefill whose beginning was seen before, beside that of the first
    Prefix(BenchPrefixArgs),
    /// Speed of decoding after a prompt, for every depth, policy and number of workers
    Decode(BenchDecodeArgs),
    /// Bytes and time of one layer where keys travel to the queries, and where they stay
    Exchange(BenchExchangeArgs),
    /// Records that a group of coordinators agrees on in a second, beside its disk's flushes
    Journal(BenchJournalArgs),
    /// Which part of a prefill, and of a decode step, takes how long
    Profile(BenchProfileArgs),
    /// Time that the loss of a worker costs, in the prefill and while tokens come
    Recover(BenchRecoverArgs),
    /// What a decode step pays for the scores of its keys, pair by pair
    Scores(BenchScoresArgs),
    /// Latency of a server under load, for every scheduler
    Serve(BenchServeArgs),
    /// What a worker costs that is slow and not dead, with a second one for its chunks and without
    Slow(BenchSlowArgs),
    /// Ask a server for everything at random, and see that nothing is left of it
    Soak(BenchSoakArgs),
}

/// Arguments of `aqueduct bench kernels`.
#[derive(Debug, Args)]
#[command(after_help = "\
The shapes are those of a model of 159 M parameters: width 1024, 16 query heads on 8 KV heads of
128, feed-forward 3072, vocabulary 32000. A row has `kernel`, `path` (the instruction set whose
instruction multiplies, and what it multiplies), `shape`, `flop` and `bytes` (what the kernel has
to compute, and to read and write, at least), `us` (median over the repetitions), `us_spread`
(longest less shortest), `peak_share` and `bandwidth_share`. The peak is a burst of the path's own
instruction on registers, the bandwidth a read of 256 MiB; both are measured first, on the same
threads. Weights and keys are copied until no cache holds them all, and used in turn; what else
a kernel reads may lie in a cache, so a bandwidth share can be above 1.

Example:
  aqueduct bench kernels --filter 'linear bf16 512x' --isa avx512 --json")]
pub(crate) struct BenchKernelsArgs {
    #[command(flatten)]
    pub(crate) isa: IsaArg,
    /// Only rows with each of these words in their kernel, path or shape
    #[arg(long, value_name = "WORDS")]
    pub(crate) filter: Option<String>,
    /// Compute threads; 0 is one for each core
    #[arg(long, value_name = "T", default_value_t = 0)]
    pub(crate) threads: usize,
    /// Repetitions; none begins when a kernel has taken three seconds
    #[arg(long, value_name = "R", default_value_t = 15)]
    pub(crate) reps: u32,
    /// Print a JSON line for each kernel
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `aqueduct bench prefill`.
#[derive(Debug, Args)]
#[command(after_help = "\
The prompt is the shipped book, repeated when it is too short; a prompt may be longer than the
model's positions here. The first chunk that is prefilled does not count. A row has the median
over the repetitions and their spread (longest less shortest time). kv_bytes is what is
remembered at the end of the prompt, exchange how the past reached its chunks (move or stay) and
exchange_bytes what travelled between processes for it, if `--link grpc` makes a process of every
worker; spared_bytes is what did not, because the receiver of a memory set had it.

Example:
  aqueduct bench prefill --model model --prompt-tokens 4096,16384,65536 --policy h2o,dense \\
      --workers 1,4 --json")]
pub(crate) struct BenchPrefillArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Prompt lengths, separated by commas
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', required = true)]
    pub(crate) prompt_tokens: Vec<u32>,
    /// Policies, separated by commas: dense, window, h2o
    #[arg(long, value_name = "POLICIES", value_delimiter = ',', default_value = "h2o")]
    pub(crate) policy: Vec<PolicyKind>,
    /// Numbers of workers, separated by commas
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "1")]
    pub(crate) workers: Vec<usize>,
    /// Compute threads of all workers together; 0 is one for each core
    #[arg(long, value_name = "T", default_value_t = 0)]
    pub(crate) threads: usize,
    /// Repetitions; none begins when a combination has taken a minute
    #[arg(long, value_name = "R", default_value_t = 1)]
    pub(crate) reps: u32,
    #[command(flatten)]
    pub(crate) memory: BudgetArgs,
    #[command(flatten)]
    pub(crate) exchange: ExchangeArgs,
    /// What connects coordinator and workers: loopback (one process) or grpc (a process for each
    /// worker, which share the threads)
    #[arg(long, value_enum, hide_possible_values = true, default_value_t = Link::Loopback)]
    pub(crate) link: Link,
    /// Draw seconds over prompt tokens into this SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Print a JSON line for each combination
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `aqueduct bench prefix`.
#[derive(Debug, Args)]
#[command(after_help = "\
The prefix is the shipped book, repeated when it is too short; two questions of a few tokens
follow it, one after the other. A row has the time of both prefills, the second's share of the
first's, the tokens of the second that were not computed, and whether its answer has the same
bits as one that was computed without what was kept.

Example:
  aqueduct bench prefix --model model --prefix-tokens 65536 --workers 1,4 --json")]
pub(crate) struct BenchPrefixArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Tokens that both prompts begin with
    #[arg(long, value_name = "TOKENS", default_value_t = 65_536)]
    pub(crate) prefix_tokens: u32,
    /// Tokens that follow
    #[arg(long, value_name = "TOKENS", default_value_t = 16)]
    pub(crate) question_tokens: u32,
    /// Policies, separated by commas: window, h2o, dense
    #[arg(long, value_name = "POLICIES", value_delimiter = ',', default_value = "h2o")]
    pub(crate) policy: Vec<PolicyKind>,
    /// Numbers of workers, separated by commas
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "1")]
    pub(crate) workers: Vec<usize>,
    /// Compute threads of all workers together; 0 is one for each core
    #[arg(long, value_name = "T", default_value_t = 0)]
    pub(crate) threads: usize,
    #[command(flatten)]
    pub(crate) memory: BudgetArgs,
    #[command(flatten)]
    pub(crate) snapshots: SnapshotArgs,
    /// Print a JSON line for each combination
    #[arg(long)]
    pub(crate) json: bool,
}

/// What happens to a worker that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    /// It dies (SIGKILL): the system closes its connections
    Kill,
    /// It hangs (SIGSTOP): nothing is closed, and nobody answers
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
Each repetition has a cluster of processes of its own. It answers the same prompt twice; the second
time a worker is lost: one that is at work on a chunk when half of them are done, or the home, or
who did the chunk before the last one, when half of the tokens are there. A row has the median
seconds of both, those of a prompt of one chunk alone, what the loss cost in chunks, whether the
answer has the same bits, and after how many milliseconds the coordinator knew of the loss: the
median (detect_ms) and the longest (detect_ms_max).

Example:
  aqueduct bench recover --model model --workers 4 --chunks 8 --policy h2o,dense --json")]
pub(crate) struct BenchRecoverArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Chunks of the prompt
    #[arg(long, value_name = "CHUNKS", default_value_t = 8)]
    pub(crate) chunks: u32,
    /// Policies, separated by commas: window, h2o, dense
    #[arg(long, value_name = "POLICIES", value_delimiter = ',', default_value = "h2o,dense")]
    pub(crate) policy: Vec<PolicyKind>,
    /// What happens to the worker, separated by commas
    #[arg(long, value_name = "FAULTS", value_delimiter = ',', default_value = "kill,hang")]
    pub(crate) fault: Vec<Fault>,
    /// Workers, each a process
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) workers: usize,
    /// Compute threads of all workers together; 0 is one for each core
    #[arg(long, value_name = "T", default_value_t = 0)]
    pub(crate) threads: usize,
    /// Repetitions
    #[arg(long, value_name = "R", default_value_t = 3)]
    pub(crate) reps: u32,
    #[command(flatten)]
    pub(crate) memory: BudgetArgs,
    /// Print a JSON line for each policy, loss and fault
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `aqueduct bench decode`.
#[derive(Debug, Args)]
#[command(after_help = "\
Each depth is prefilled once with the shipped book, repeated when it is too short; what follows
the first token is timed, R times K steps of B completions. The first chunk that is prefilled does
not count. tokens_per_second (of all completions together) and ms_per_token (between two tokens of
one) are medians over the repetitions, spread is the quickest repetition's tokens per second less
the slowest's. A step reads weight_bytes once and kv_bytes for each completion; bandwidth_share is
what that comes to, of what this machine reads from memory (see `bench kernels`).
prefill_tokens_per_second is that of the one prefill.

Examples:
  aqueduct bench decode --model model --depth-tokens 1024,32768 --policy h2o,dense --json
  aqueduct bench decode --model model --depth-tokens 2048 --batch 1,4,16,64 --json
What scores cost is measured by `bench scores`.")]
pub(crate) struct BenchDecodeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Prompt lengths, separated by commas
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', required = true)]
    pub(crate) depth_tokens: Vec<u32>,
    /// Policies, separated by commas: dense, window, h2o
    #[arg(long, value_name = "POLICIES", value_delimiter = ',', default_value = "h2o")]
    pub(crate) policy: Vec<PolicyKind>,
    /// Numbers of workers, separated by commas
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "1")]
    pub(crate) workers: Vec<usize>,
    /// Compute threads of all workers together; 0 is one for each core
    #[arg(long, value_name = "T", default_value_t = 0)]
    pub(crate) threads: usize,
    /// Completions that are decoded together, separated by commas
    #[arg(long, value_name = "B", value_delimiter = ',', default_value = "1")]
    pub(crate) batch: Vec<u32>,
    /// Give the window policy as many keys as h2o keeps
    #[arg(long)]
    pub(crate) same_keys: bool,
    /// Tokens of each completion in a repetition
    #[arg(long, value_name = "K", default_value_t = 32)]
    pub(crate) tokens: u32,
    /// Repetitions, one after the other on the same completions
    #[arg(long, value_name = "R", default_value_t = 5)]
    pub(crate) reps: u32,
    #[command(flatten)]
    pub(crate) memory: BudgetArgs,
    /// Print a JSON line for each combination
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
holders compute on this machine, so time shows the exchange and not what their own machines
would add.

Examples:
  aqueduct bench exchange --model model --json
  aqueduct bench exchange --model model --stream --json")]
pub(crate) struct BenchExchangeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Tokens of the block that asks, separated by commas
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "1,16,128,1024")]
    pub(crate) block_tokens: Vec<u32>,
    /// Tokens of the prompt before it
    #[arg(long, value_name = "TOKENS", default_value_t = 16_384)]
    pub(crate) depth_tokens: u32,
    /// Tokens of a chunk
    #[arg(long = "chunk", value_name = "TOKENS", default_value_t = limits::CHUNK_TOKENS_DEFAULT)]
    pub(crate) chunk_tokens: u32,
    /// Workers that hold the prompt
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) workers: usize,
    /// Compute threads of all workers together; 0 is one for each core
    #[arg(long, value_name = "T", default_value_t = 0)]
    pub(crate) threads: usize,
    /// What connects them: grpc (sockets of 127.0.0.1) or loopback (nothing is copied)
    #[arg(long, value_enum, hide_possible_values = true, default_value_t = Link::Grpc)]
    pub(crate) link: Link,
    /// What travelling queries and outputs are: f32 (exact), bf16 or f16
    #[arg(long, value_name = "DTYPE", default_value_t = WireDtype::F32)]
    pub(crate) wire: WireDtype,
    /// Measure instead how fast keys come over gRPC, beside as many bytes in a gRPC stream that
    /// nobody makes or reads, and in a copy over TCP: rows of `stream` (grpc, plain or tcp),
    /// `bytes`, `seconds`, `gb_per_second`, one thread a side
    #[arg(long)]
    pub(crate) stream: bool,
    /// Repetitions
    #[arg(long, value_name = "R", default_value_t = 7)]
    pub(crate) reps: u32,
    /// Print a JSON line for each block and exchange
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `aqueduct bench scores`.
#[derive(Debug, Args)]
#[command(after_help = "\
Two sequences behind the same prompt go on in turn, K tokens each: one under h2o, and one under a
window of as many keys, which scores none. Who goes first changes with every pair, so what else the
machine does is done to both. cost is how much longer a token takes with scores: the median over
the pairs; a quarter of them is below cost_low and a quarter above cost_high.

Example:
  aqueduct bench scores --model model --depth-tokens 2048,16384 --json")]
pub(crate) struct BenchScoresArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Prompt lengths, separated by commas
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "4096")]
    pub(crate) depth_tokens: Vec<u32>,
    /// Compute threads; 0 is one for each core
    #[arg(long, value_name = "T", default_value_t = 0)]
    pub(crate) threads: usize,
    /// Tokens of one turn
    #[arg(long, value_name = "K", default_value_t = 32)]
    pub(crate) tokens: u32,
    /// Pairs of turns
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub(crate) pairs: u32,
    #[command(flatten)]
    pub(crate) memory: BudgetArgs,
    /// Print a JSON line for each depth
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `aqueduct bench profile`.
#[derive(Debug, Args)]
#[command(after_help = "\
One worker's part of the work, without the cluster around it. A row has `phase` (prefill or
decode), `policy`, `prompt_tokens`, `part`, `us` (median, of the whole prefill or of a token) and
`share`. Parts: embed, project, attend, scores (what attention takes longer because it also yields
the attention mass of every key, measured as the difference to a pass without), select, finish,
head (logits), sample, rest (everything between them), and all.

Example:
  aqueduct bench profile --model model --prompt-tokens 8192 --policy h2o,dense")]
pub(crate) struct BenchProfileArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Prompt lengths, separated by commas
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', required = true)]
    pub(crate) prompt_tokens: Vec<u32>,
    /// Policies, separated by commas: dense, window, h2o
    #[arg(long, value_name = "POLICIES", value_delimiter = ',', default_value = "h2o")]
    pub(crate) policy: Vec<PolicyKind>,
    /// Compute threads; 0 is one for each core
    #[arg(long, value_name = "T", default_value_t = 0)]
    pub(crate) threads: usize,
    /// Tokens that are decoded in a repetition
    #[arg(long, value_name = "K", default_value_t = 64)]
    pub(crate) tokens: u32,
    /// Repetitions
    #[arg(long, value_name = "R", default_value_t = 3)]
    pub(crate) reps: u32,
    #[command(flatten)]
    pub(crate) memory: BudgetArgs,
    /// Print a JSON line for each part
    #[arg(long)]
    pub(crate) json: bool,
}
