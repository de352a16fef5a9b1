//! Arguments of `aqueduct node`.

use aqueduct_client::ClientOptions;
use aqueduct_core::Refusal;
use clap::{Args, Subcommand};

use super::{ApiKeyArg, ClientTlsArgs};

/// What can be done with workers.
#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// List workers: name, state, address, and what still needs a drained one
    List(NodeListArgs),
    /// Give a worker nothing new, and wait until it has done what it has
    Drain(NodeDrainArgs),
    /// Give a worker something again
    Undrain(NodeUndrainArgs),
}

/// The server to ask.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerArgs {
    /// gRPC address of the coordinator
    #[arg(
        long = "server",
        value_name = "URL",
        default_value = "http://127.0.0.1:7070",
        env = "AQUEDUCT_SERVER",
        hide_env_values = true
    )]
    pub(crate) url: String,
    #[command(flatten)]
    tls: ClientTlsArgs,
    #[command(flatten)]
    key: ApiKeyArg,
}

impl ServerArgs {
    /// For the SDK.
    ///
    /// # Errors
    /// A URL that does not go with the certificates.
    pub(crate) fn options(&self) -> Result<ClientOptions, Refusal> {
        let (tls, api_key) = (self.tls.files(&self.url)?, self.key.api_key.clone());
        Ok(ClientOptions { tls, api_key, ..ClientOptions::default() })
    }
}

/// Arguments of `aqueduct node list`.
#[derive(Debug, Args)]
pub(crate) struct NodeListArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print JSON Lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `aqueduct node drain`.
#[derive(Debug, Args)]
#[command(after_help = "\
What waits for the worker goes elsewhere; what it is at, and what it decodes, ends there. Then it
can be stopped and nobody misses it. It stays drained, also over a restart, until `node undrain`.

Example:
  aqueduct node drain http://10.0.0.7:7001 && ssh 10.0.0.7 systemctl restart aqueduct-worker \\
    && aqueduct node undrain http://10.0.0.7:7001")]
pub(crate) struct NodeDrainArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Name or address of the worker
    pub(crate) worker: String,
    /// Give up waiting after so many seconds; the worker stays drained
    #[arg(long, value_name = "S", default_value_t = 3600)]
    pub(crate) wait_s: u64,
}

/// Arguments of `aqueduct node undrain`.
#[derive(Debug, Args)]
pub(crate) struct NodeUndrainArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Name or address of the worker
    pub(crate) worker: String,
}
