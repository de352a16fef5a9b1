//! API keys: those that a coordinator accepts, and the one that a caller sends.

use std::path::PathBuf;

use aqueduct_client::ApiKey;
use aqueduct_coordinator::keys::KeyLimits;
use clap::{Args, Subcommand};

/// What can be done with the keys of callers.
#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Create a key: print it once, and store only its hash
    New(KeysNewArgs),
    /// List keys and their limits
    List(KeysListArgs),
    /// Revoke a key; requests under way continue
    Revoke(KeysRevokeArgs),
}

/// The file of keys.
#[derive(Debug, Clone, Args)]
pub(crate) struct KeyFileArg {
    /// File of API keys; coordinators that use it see changes within a second
    #[arg(
        long = "api-keys",
        value_name = "FILE",
        env = "AQUEDUCT_API_KEYS",
        hide_env_values = true
    )]
    pub(crate) path: PathBuf,
}

/// Arguments of `aqueduct keys new`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  aqueduct keys new --api-keys keys.json --name alice --requests 4 --tokens-per-minute 1000000")]
pub(crate) struct KeysNewArgs {
    #[command(flatten)]
    pub(crate) file: KeyFileArg,
    /// Name of the key's owner
    #[arg(long, value_name = "NAME")]
    pub(crate) name: String,
    /// Also allow operator commands, which inspect and manage the cluster
    #[arg(long)]
    pub(crate) admin: bool,
    /// Most requests at once [default: the server's limit]
    #[arg(long, value_name = "N")]
    requests: Option<u32>,
    /// Most tokens per minute, of prompts and answers together [default: no limit]
    #[arg(long, value_name = "TOKENS")]
    tokens_per_minute: Option<u64>,
    /// Longest prompt, in tokens [default: the server's limit]
    #[arg(long, value_name = "TOKENS")]
    max_prompt_tokens: Option<u32>,
}

impl KeysNewArgs {
    pub(crate) fn limits(&self) -> KeyLimits {
        let &Self { requests, tokens_per_minute, max_prompt_tokens: prompt_tokens, .. } = self;
        KeyLimits { requests, tokens_per_minute, prompt_tokens }
    }
}

/// Arguments of `aqueduct keys list`.
#[derive(Debug, Args)]
pub(crate) struct KeysListArgs {
    #[command(flatten)]
    pub(crate) file: KeyFileArg,
    /// Print JSON Lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `aqueduct keys revoke`.
#[derive(Debug, Args)]
pub(crate) struct KeysRevokeArgs {
    #[command(flatten)]
    pub(crate) file: KeyFileArg,
    /// Id of the key: the part between its underscores
    pub(crate) id: String,
}

/// The key of a command that asks a server.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ApiKeyArg {
    /// API key, if the server requires one; prefer the environment: other users of the machine can
    /// see flags
    #[arg(long, value_name = "KEY", env = "AQUEDUCT_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<ApiKey>,
}
