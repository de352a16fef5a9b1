//! Arguments of `aqueduct generate`.

use std::path::PathBuf;
use std::time::Duration;

use aqueduct_core::SessionUse;
use clap::Args;

use super::{ClusterArgs, DeviceArgs, ExchangeArgs, PolicyArgs, QualityArgs, ServerArgs};

/// Arguments of `aqueduct generate`.
#[derive(Debug, Args)]
#[command(after_help = "\
The prompt is the text of FILE followed by PROMPT; one of them is enough, and a PROMPT of `-` is
stdin. The answer is streamed to stdout, progress to stderr.

Examples:
  aqueduct generate --model model \"Once upon a time\"
  aqueduct generate --server http://127.0.0.1:7070 --file book.txt \"The moral is\" --json
  cat book.txt | aqueduct generate --model model --workers 4 - --temperature 0")]
pub(crate) struct GenerateArgs {
    /// Prompt: the text to continue; `-` reads it from stdin
    #[arg(required_unless_present = "file")]
    pub(crate) prompt: Option<String>,
    /// File whose text comes before PROMPT
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Model to run in this process instead of using a server: Hugging Face folder or GGUF file
    #[arg(long, value_name = "PATH")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    #[command(flatten)]
    pub(crate) quality: QualityArgs,
    #[command(flatten)]
    pub(crate) exchange: ExchangeArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Priority, from -100 to 100: lower begins earlier and gets a larger share of the workers
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) priority: i32,
    /// Session: `new` keeps the memory on the server and prints the session's name; that name
    /// continues the session, with PROMPT as the text that follows
    #[arg(long, value_name = "SESSION", conflicts_with = "model")]
    pub(crate) session: Option<SessionUse>,
    /// Cancel the request when its connection is lost, instead of resuming it
    #[arg(long)]
    pub(crate) no_resume: bool,
    /// Deadline of the whole answer, in seconds
    #[arg(
        long = "deadline-s",
        alias = "deadline-seconds",
        value_name = "S",
        default_value_t = 3600
    )]
    pub(crate) deadline_seconds: u64,
    /// Print one JSON line per event
    #[arg(long)]
    pub(crate) json: bool,
}

impl GenerateArgs {
    /// How long the whole answer may take.
    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_secs(self.deadline_seconds)
    }
}

/// How tokens are drawn.
#[derive(Debug, Clone, Args)]
pub(crate) struct SamplingArgs {
    /// Most tokens to generate
    #[arg(long, value_name = "TOKENS", default_value_t = 256)]
    pub(crate) max_tokens: u32,
    /// Sampling temperature; 0 always takes the most likely token [default: what the model's files
    /// recommend, as for --top-p, --top-k, --min-p and --repetition-penalty; otherwise 1]
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,
    /// Sample from the smallest set of tokens with this total probability
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Sample from this many of the most likely tokens; 0: all
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<u32>,
    /// Sample from tokens that are at least this fraction as likely as the most likely one
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// Subtracted once from the logits of tokens that occur in the answer
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true)]
    pub(crate) presence_penalty: f32,
    /// Subtracted from the logits of tokens for each time that they occur in the answer
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true)]
    pub(crate) frequency_penalty: f32,
    /// For tokens of the prompt and the answer: divides positive logits, multiplies others
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) repetition_penalty: Option<f32>,
    /// Added to the logit of the token with this id; may be repeated
    #[arg(long, value_name = "TOKEN=X", value_parser = parse_bias)]
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// Random seed of the sampling; always reported [default: a new one for each call]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// File with a JSON schema that the answer, a JSON document, must follow
    #[arg(long, value_name = "FILE", conflicts_with = "regex")]
    pub(crate) json_schema: Option<PathBuf>,
    /// Regular expression that the whole answer must match
    #[arg(long, value_name = "REGEX")]
    pub(crate) regex: Option<String>,
    /// String that ends the answer; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text
        .split_once('=')
        .and_then(|(token, bias)| Some((token.parse().ok()?, bias.parse().ok()?)));
    parsed.ok_or_else(|| format!("{text} is not a token id, `=` and a number"))
}
