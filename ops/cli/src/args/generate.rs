//! Arguments of `aqueduct generate`.

use std::path::PathBuf;
use std::time::Duration;

use aqueduct_core::SessionUse;
use clap::Args;

use super::{ClusterArgs, DeviceArgs, ExchangeArgs, PolicyArgs, QualityArgs, ServerArgs};

/// Arguments of `aqueduct generate`.
#[derive(Debug, Args)]
#[command(after_help = "\
The prompt is FILE and then PROMPT, whichever are given; `-` is stdin. The answer goes to
stdout as it comes, progress to stderr.

Examples:
  aqueduct generate --model model \"Once upon a time\"
  aqueduct generate --server http://127.0.0.1:7070 --file book.txt \"The moral is\" --json
  cat book.txt | aqueduct generate --model model --workers 4 - --temperature 0")]
pub(crate) struct GenerateArgs {
    /// The text to continue; `-` reads it from stdin
    #[arg(required_unless_present = "file")]
    pub(crate) prompt: Option<String>,
    /// A file whose text comes before PROMPT
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Instead of a server, run workers in this process on this model: Hugging Face folder or
    /// GGUF file
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
    /// How early it begins beside others: lower is earlier, and has a larger share of the workers
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) priority: i32,
    /// `new` has the server keep what it remembers at the end, and prints by what name; by that
    /// name another call goes on from there, and PROMPT is what follows
    #[arg(long, value_name = "SESSION", conflicts_with = "model")]
    pub(crate) session: Option<SessionUse>,
    /// Cancel the request, instead of going on with it, when its connection is lost
    #[arg(long)]
    pub(crate) no_resume: bool,
    /// Give up after this many seconds
    #[arg(long = "deadline-seconds", value_name = "S", default_value_t = 3600)]
    pub(crate) deadline_seconds: u64,
    /// Print every event as a JSON line
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
    /// 0 takes the most likely token each time [default: what the model's files recommend, as of
    /// --top-p, --top-k, --min-p and --repetition-penalty too, or else 1]
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,
    /// Draw from the smallest set of tokens with this probability
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Draw from this many most likely tokens; 0 is all
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<u32>,
    /// Draw from tokens that are at least this fraction as likely as the most likely one
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// Taken off the logits of tokens that the answer has
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true)]
    pub(crate) presence_penalty: f32,
    /// Taken off the logits of tokens for each time that the answer has them
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true)]
    pub(crate) frequency_penalty: f32,
    /// Divides positive logits of tokens of the prompt and the answer, multiplies others
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) repetition_penalty: Option<f32>,
    /// Added to the logit of a token, by its id; may be given more than once
    #[arg(long, value_name = "TOKEN=X", value_parser = parse_bias)]
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// Seed of the draws; a new one each time unless given, and always reported
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// The answer is a JSON document that the schema in this file describes
    #[arg(long, value_name = "FILE", conflicts_with = "regex")]
    pub(crate) json_schema: Option<PathBuf>,
    /// The answer matches this regular expression from end to end
    #[arg(long, value_name = "REGEX")]
    pub(crate) regex: Option<String>,
    /// A string that ends the answer; may be given more than once
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text
        .split_once('=')
        .and_then(|(token, bias)| Some((token.parse().ok()?, bias.parse().ok()?)));
    parsed.ok_or_else(|| format!("{text} is not a token id, `=` and a number"))
}
