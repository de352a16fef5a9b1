//! Arguments of `aqueduct context`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{ContextFileArg, OutputArgs};

/// What can be done with the servers that are written down.
#[derive(Debug, Subcommand)]
pub(crate) enum ContextCommand {
    /// List contexts
    List(ContextListArgs),
    /// Save a context, or change it
    Set(ContextSetArgs),
    /// Make a context the one in use: commands use its server unless told otherwise
    Use(ContextNameArgs),
    /// Delete a context
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
Only the paths of keys and certificates are saved. The first context saved becomes the one in use.

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
    /// CA certificates for the server's certificate, with an https URL
    #[arg(long, value_name = "PEM")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Client certificate, if the server asks for one
    #[arg(long, value_name = "PEM", requires_all = ["tls_key", "tls_ca"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert
    #[arg(long, value_name = "PEM", requires_all = ["tls_cert", "tls_ca"])]
    pub(crate) tls_key: Option<PathBuf>,
    /// File that contains only an API key
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
