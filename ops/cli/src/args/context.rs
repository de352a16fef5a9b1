//! Arguments of `aqueduct context`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{ContextFileArg, OutputArgs};

/// What can be done with the servers that are written down.
#[derive(Debug, Subcommand)]
pub(crate) enum ContextCommand {
    /// List contexts
    List(ContextListArgs),
    /// Write a context down, or change it
    Set(ContextSetArgs),
    /// Have commands ask this context's server, unless they are told otherwise
    Use(ContextNameArgs),
    /// Forget a context
    Delete(ContextNameArgs),
}

/// Arguments of `aqueduct context list`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  aqueduct context list -o wide")]
pub(crate) struct ContextListArgs {
    #[command(flatten)]
    pub(crate) file: ContextFileArg,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Arguments of `aqueduct context set`.
#[derive(Debug, Args)]
#[command(after_help = "\
Keys and certificates stay in files of their own. The first context that is written down is in use.

Example:
  aqueduct context set production --server https://aqueduct.example:7070 --tls-ca ca.pem \\
    --api-key-file ~/.config/aqueduct/production.key")]
pub(crate) struct ContextSetArgs {
    #[command(flatten)]
    pub(crate) file: ContextFileArg,
    /// Name of the context
    pub(crate) name: String,
    /// gRPC address of the coordinator
    #[arg(long, value_name = "URL")]
    pub(crate) server: String,
    /// Authorities that sign the server's certificate, for an https URL
    #[arg(long, value_name = "PEM")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Certificate to show, where the server asks for one
    #[arg(long, value_name = "PEM", requires_all = ["tls_key", "tls_ca"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "PEM", requires_all = ["tls_cert", "tls_ca"])]
    pub(crate) tls_key: Option<PathBuf>,
    /// A file with nothing but an API key in it
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
}

/// Arguments of `aqueduct context use` and `delete`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  aqueduct context use production && aqueduct status")]
pub(crate) struct ContextNameArgs {
    #[command(flatten)]
    pub(crate) file: ContextFileArg,
    /// Name of the context
    pub(crate) name: String,
}
