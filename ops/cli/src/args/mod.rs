//! What a user can write on the command line, and what the help says about it.

mod bench;
mod bench_journal;
mod bench_serve;
mod bench_slow;
mod bench_soak;
mod cache;
mod cluster;
mod context;
mod device;
mod doctor;
mod eval;
mod generate;
mod gpu;
mod group;
mod keys;
mod members;
mod model;
mod named;
mod node;
mod output;
mod policy;
mod request;
mod serve;
mod server;
mod size;
mod tls;
mod top;

use std::path::PathBuf;
use std::time::Duration;

use aqueduct_core::{Refusal, limits};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

pub(crate) use bench::{
    BenchCommand, BenchDecodeArgs, BenchExchangeArgs, BenchKernelsArgs, BenchPrefillArgs,
    BenchPrefixArgs, BenchProfileArgs, BenchRecoverArgs, BenchScoresArgs, Fault,
};
pub(crate) use bench_journal::BenchJournalArgs;
pub(crate) use bench_serve::{Arrival, BenchServeArgs};
pub(crate) use bench_slow::BenchSlowArgs;
pub(crate) use bench_soak::BenchSoakArgs;
pub(crate) use cache::{
    CacheCommand, CacheExportArgs, CacheImportArgs, CacheListArgs, CacheNamesArgs, CacheShowArgs,
};
pub(crate) use cluster::{
    AuditArg, BatchArg, ClusterArgs, Link, PoolArg, SchedulerArgs, SnapshotArgs, StallArg, StepArg,
};
pub(crate) use context::{ContextCommand, ContextListArgs, ContextNameArgs, ContextSetArgs};
pub(crate) use device::{DeviceArgs, DeviceChoice};
pub(crate) use doctor::DoctorArgs;
pub(crate) use eval::{EvalCommand, EvalLogitsArgs, EvalMergeArgs, EvalPplArgs};
pub(crate) use generate::{GenerateArgs, SamplingArgs};
pub(crate) use gpu::{GpuArg, GpuBenchArgs, GpuCheckArgs, GpuCommand};
pub(crate) use group::GroupArgs;
pub(crate) use keys::{ApiKeyArg, KeysCommand, KeysListArgs, KeysNewArgs, KeysRevokeArgs};
pub(crate) use members::EtcdArgs;
pub(crate) use model::{IsaArg, ModelArgs, WeightsArg};
pub(crate) use named::Names;
pub(crate) use node::{NodeCommand, NodeDrainArgs, NodeListArgs, NodeShowArgs};
pub(crate) use output::{Format, OutputArgs};
pub(crate) use policy::{BudgetArgs, ExchangeArgs, PolicyArgs, QualityArgs};
pub(crate) use request::{
    CompletionArgs, RequestCancelArgs, RequestCommand, RequestListArgs, RequestNameArgs, Shell,
    StatusArgs,
};
pub(crate) use serve::{
    CoordinatorArgs, FrontArgs, GenerationConfig, NcclArg, ServeArgs, WorkerArgs,
};
pub(crate) use server::{ContextFileArg, ServerArgs};
pub(crate) use tls::{ClientTlsArgs, ClusterTlsArgs, EtcdTlsArgs, ServerTlsArgs};
pub(crate) use top::TopArgs;

/// Under which heading the help has what every command takes.
const LOG: &str = "Logs, traces and metrics";

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failure: of a worker, a device or the disk, or a named thing does not exist
  2  wrong input: a flag, a file, a model, a prompt; the message names field and bound
  3  unavailable: no server or worker answers, or its queue is full; try again later
  4  a deadline passed

Examples:
  aqueduct demo
  aqueduct serve --model model --workers 4
  aqueduct status --server http://127.0.0.1:7070
  aqueduct generate --model model --file book.txt \"In short, the book says\"";

/// Serves prompts that are too long, or too expensive, for one accelerator. A coordinator splits a
/// prompt into chunks and spreads them over workers; each chunk passes a small, bounded memory on
/// to the next. The answer is the same on any number of workers.
#[derive(Debug, Parser)]
#[command(name = "aqueduct", version, after_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Cli {
    /// Log level, on stderr: error, warn, info, debug, trace, or directives such as
    /// aqueduct_worker=debug [default: warn for serve, coordinator and worker, error for other
    /// commands]
    #[arg(
        long,
        global = true,
        env = "AQUEDUCT_LOG",
        hide_env_values = true,
        value_name = "LEVEL",
        help_heading = LOG
    )]
    log: Option<String>,
    /// Log format: text, for people, or json, for programs
    #[arg(
        long,
        global = true,
        env = "AQUEDUCT_LOG_FORMAT",
        hide_env_values = true,
        value_name = "FORMAT",
        hide_possible_values = true,
        default_value = "text",
        help_heading = LOG
    )]
    pub(crate) log_format: LogFormat,
    /// OTLP collector for traces and metrics, over gRPC, such as http://localhost:4317 [default:
    /// none]
    #[arg(
        long,
        global = true,
        env = "OTEL_EXPORTER_OTLP_ENDPOINT",
        hide_env_values = true,
        value_name = "URL",
        help_heading = LOG
    )]
    pub(crate) otlp_endpoint: Option<String>,
    /// Milliseconds between two pushes of metrics by serve, coordinator and worker; 0: send only
    /// traces
    #[arg(
        long,
        global = true,
        env = "OTEL_METRIC_EXPORT_INTERVAL",
        hide_env_values = true,
        value_name = "MS",
        default_value_t = limits::OTLP_INTERVAL_MS,
        help_heading = LOG
    )]
    otlp_interval_ms: u64,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How a line of the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// An object a line.
    Json,
}

impl Cli {
    /// The command line, and how those of its values are called that only the job itself finds
    /// wrong; where it is wrong by itself, the process ends.
    pub(crate) fn read() -> (Self, Names) {
        let mut command = named::without_empty_variables(Self::command());
        let matches = command
            .try_get_matches_from_mut(std::env::args_os())
            .unwrap_or_else(|error| named::with_variable(error, &command).exit());
        // A server that the environment names is one to ask where nothing else is said.
        let is_typed = |name| {
            let generate = matches.subcommand_matches("generate");
            generate.is_some_and(|it| it.value_source(name) == Some(ValueSource::CommandLine))
        };
        if is_typed("url") && is_typed("model") {
            let words = "the argument '--server <URL>' cannot be used with '--model <PATH>'";
            command.error(ErrorKind::ArgumentConflict, words).exit();
        }
        let cli = Self::from_arg_matches(&matches)
            .unwrap_or_else(|error| error.format(&mut command).exit());
        let job = matches.subcommand().filter(|_| cli.stays_up());
        let job = job.and_then(|(name, given)| command.find_subcommand(name).zip(Some(given)));
        (cli, job.map(|(job, given)| Names::of(job, given)).unwrap_or_default())
    }

    /// Whether this process serves until it is told to stop. The others' values are called as those
    /// who ask over HTTP call them.
    pub(crate) fn stays_up(&self) -> bool {
        matches!(self.command, Command::Serve(_) | Command::Coordinator(_) | Command::Worker(_))
    }

    /// What this process is called where its spans are shown.
    pub(crate) fn service(&self) -> &'static str {
        match self.command {
            Command::Coordinator(_) => "aqueduct-coordinator",
            Command::Worker(_) => "aqueduct-worker",
            _ => "aqueduct",
        }
    }

    /// How often figures are pushed, if at all.
    ///
    /// # Errors
    /// An interval that is out of bounds.
    pub(crate) fn figures_every(&self) -> Result<Option<Duration>, Refusal> {
        let (min, max) = (limits::OTLP_INTERVAL_MS_MIN, limits::OTLP_INTERVAL_MS_MAX);
        match self.otlp_interval_ms {
            0 => Ok(None),
            ms if (min..=max).contains(&ms) => Ok(Some(Duration::from_millis(ms))),
            ms => {
                let bound = format!("0, or between {min} and {max}");
                Err(Refusal::new("otlp_interval_ms", ms, bound))
            }
        }
    }

    /// What to log. Commands that end say themselves what a user must know.
    pub(crate) fn log(&self) -> &str {
        self.log.as_deref().unwrap_or(if self.stays_up() { "warn" } else { "error" })
    }
}

/// The jobs of the one binary.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the demo: four workers read a whole book and answer a question; shows what was
    /// remembered
    Demo(DemoArgs),
    /// Serve a model over HTTP and gRPC, with coordinator and workers in one process
    Serve(ServeArgs),
    /// Serve a model over HTTP and gRPC, with workers in other processes
    Coordinator(CoordinatorArgs),
    /// Run one worker, for a coordinator in another process
    Worker(WorkerArgs),
    /// Show the state of a server and its workers
    Status(StatusArgs),
    /// Show workers, requests and the progress of chunks, live
    Top(TopArgs),
    /// List, show, drain and undrain workers
    #[command(subcommand)]
    Node(NodeCommand),
    /// List, show, trace and cancel requests
    #[command(subcommand)]
    Request(RequestCommand),
    /// List, show, pin, evict, export and import what workers remember of prompts
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Save server addresses, and choose the one that other commands use
    #[command(subcommand)]
    Context(ContextCommand),
    /// Print the completion script for bash, zsh or fish
    Completion(CompletionArgs),
    /// Create, list and revoke API keys
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Generate text for a prompt, on a server or with workers in this process
    Generate(GenerateArgs),
    /// Measure what a memory policy does to answers: logits, perplexity, merged attention
    #[command(subcommand)]
    Eval(EvalCommand),
    /// Run benchmarks
    #[command(subcommand)]
    Bench(BenchCommand),
    /// List, check and benchmark CUDA devices
    #[command(subcommand)]
    Gpu(GpuCommand),
    /// Check for problems: machine, GPU, model, memory, ports, etcd, certificates, disks, clocks
    Doctor(DoctorArgs),
}

/// Arguments of `aqueduct demo`.
#[derive(Debug, Args)]
#[command(after_help = "\
Needs only the repository, which contains the model and the book.

Example:
  aqueduct demo --out /tmp/pictures")]
pub(crate) struct DemoArgs {
    /// Model folder [default: `model` in the working directory, in or above the binary's folder, or
    /// in the sources]
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Output folder, for the picture of what was remembered
    #[arg(long, value_name = "DIR", default_value = "out")]
    pub(crate) out: PathBuf,
    /// Number of workers, in this process
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) workers: usize,
    /// Prompt length in tokens, taken from the book [default: as many as the model has positions
    /// for]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) prompt_tokens: Option<u32>,
    /// Print the results as one JSON line instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}
