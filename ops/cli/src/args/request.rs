//! Arguments of `aqueduct request` and `aqueduct status`.

use aqueduct_core::limits;
use clap::{Args, Subcommand};

use super::{OutputArgs, ServerArgs};

/// What is said of requests that are named.
const NAMED: &str = "\
REQUEST is the id that the log and `aqueduct request list` have, or the caller's own (x-request-id).
Of the last requests that have ended something is still known.

Examples:
  aqueduct request show r064420b24c39ab00 -o yaml
  aqueduct request trace r064420b24c39ab00";

/// What can be done with requests.
#[derive(Debug, Subcommand)]
pub(crate) enum RequestCommand {
    /// List requests under way, in the order in which they came
    List(RequestListArgs),
    /// Show a request: its chunks, its completions, what its memory kept
    Show(RequestNameArgs),
    /// End a request; its caller is told so
    Cancel(RequestCancelArgs),
    /// Show what happened to a request, step by step
    Trace(RequestNameArgs),
}

/// Arguments of `aqueduct status`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  aqueduct status --context production -o yaml")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Arguments of `aqueduct request list`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  aqueduct request list --state queued -o wide")]
pub(crate) struct RequestListArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// Of this state alone: queued, prefill, decode or, with --all, finished, cancelled, failed
    #[arg(long, value_name = "STATE")]
    pub(crate) state: Option<String>,
    /// Those that have ended too, as far as the coordinator remembers them
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Ask for so many at once; more come in further pages
    #[arg(long, value_name = "N", default_value_t = 500,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(limits::OPERATOR_LIST_MAX)))]
    pub(crate) chunk_size: u32,
}

/// Arguments of `aqueduct request show` and `trace`.
#[derive(Debug, Args)]
#[command(after_help = NAMED)]
pub(crate) struct RequestNameArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// Id of the request, or its caller's
    pub(crate) request: String,
}

/// Arguments of `aqueduct request cancel`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  aqueduct request cancel r064420b24c39ab00")]
pub(crate) struct RequestCancelArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Ids of requests, or their callers'
    #[arg(required = true, value_name = "REQUEST")]
    pub(crate) requests: Vec<String>,
}

/// Arguments of `aqueduct completion`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  source <(aqueduct completion bash)
  aqueduct completion zsh > \"${fpath[1]}/_aqueduct\"
  aqueduct completion fish > ~/.config/fish/completions/aqueduct.fish")]
pub(crate) struct CompletionArgs {
    /// bash, zsh or fish
    #[arg(value_enum, hide_possible_values = true)]
    pub(crate) shell: Shell,
}

/// Shells that can complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}
