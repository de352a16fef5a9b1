//! Arguments of `aqueduct request` and `aqueduct status`.

use aqueduct_core::limits;
use clap::{Args, Subcommand};

use super::{OutputArgs, ServerArgs};

/// What is said of requests that are named.
const NAMED: &str = "\
REQUEST is the id in the log and in `aqueduct request list`, or the caller's own (x-request-id).
Some details remain known of the last requests that have ended.

Examples:
  aqueduct request show r064420b24c39ab00 -o yaml
  aqueduct request trace r064420b24c39ab00";

/// What can be done with requests.
#[derive(Debug, Subcommand)]
pub(crate) enum RequestCommand {
    /// List requests under way, in order of arrival
    List(RequestListArgs),
    /// Show a request: its chunks, its completions, what its memory kept
    Show(RequestNameArgs),
    /// Cancel a request; its caller is told
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
    /// Only requests in this state: queued, prefill, decode or, with --all, finished, cancelled,
    /// failed
    #[arg(long, value_name = "STATE")]
    pub(crate) state: Option<String>,
    /// Include requests that have ended, as far as the coordinator remembers them
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Requests per page; all pages are fetched
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
    /// Id of the request, or the id that its caller gave it
    pub(crate) request: String,
}

/// Arguments of `aqueduct request cancel`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  aqueduct request cancel r064420b24c39ab00")]
pub(crate) struct RequestCancelArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Ids of requests, or the ids that their callers gave them
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
    /// Shell: bash, zsh or fish
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
