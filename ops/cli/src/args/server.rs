//! Which server a command asks, and how it knows it.

use std::path::PathBuf;

use aqueduct_client::{Client, ClientOptions, Identity};
use aqueduct_core::Refusal;
use clap::Args;

use super::{ApiKeyArg, ClientTlsArgs};
use crate::contexts::Contexts;

const SERVER_DEFAULT: &str = "http://127.0.0.1:7070";

/// Where contexts are written down.
#[derive(Debug, Clone, Args)]
pub(crate) struct ContextFileArg {
    /// File of saved contexts [default: aqueduct/config.json in $XDG_CONFIG_HOME or ~/.config]
    #[arg(long = "config", value_name = "FILE", env = "AQUEDUCT_CONFIG", hide_env_values = true)]
    path: Option<PathBuf>,
}

impl ContextFileArg {
    /// The file.
    ///
    /// # Errors
    /// None was named, and there is no home folder.
    pub(crate) fn path(&self) -> Result<PathBuf, Refusal> {
        let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let base = || {
            let config = folder("XDG_CONFIG_HOME").map(PathBuf::from);
            config.or_else(|| folder("HOME").map(|home| PathBuf::from(home).join(".config")))
        };
        let path = self.path.clone().or_else(|| base().map(|it| it.join("aqueduct/config.json")));
        path.ok_or_else(|| Refusal::new("config", "absent", "given, where there is no $HOME"))
    }
}

/// The server to ask.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerArgs {
    /// gRPC address of the coordinator, or of several in a group, separated by commas [default:
    /// that of the context, or http://127.0.0.1:7070]
    #[arg(long = "server", value_name = "URL", env = "AQUEDUCT_SERVER", hide_env_values = true)]
    url: Option<String>,
    /// Saved context whose server to use, see `aqueduct context` [default: the one in use]
    #[arg(long, value_name = "NAME", env = "AQUEDUCT_CONTEXT", hide_env_values = true)]
    context: Option<String>,
    #[command(flatten)]
    config: ContextFileArg,
    #[command(flatten)]
    tls: ClientTlsArgs,
    #[command(flatten)]
    key: ApiKeyArg,
}

impl ServerArgs {
    /// A connection to it.
    ///
    /// # Errors
    /// As [`target`](Self::target) and [`Client::connect`] say; a flag that would not count.
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        let (url, options) = self.target()?;
        self.tls.check(&url)?;
        Ok(Client::connect(&url, options).await?)
    }

    /// The same as [`target`](Self::target), if anybody named a server.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn named(&self) -> anyhow::Result<Option<(String, ClientOptions)>> {
        let is_written = || -> Result<_, Refusal> {
            Ok(Contexts::read(&self.config.path()?)?.current.is_some())
        };
        let is_named = self.url.is_some() || self.context.is_some() || is_written()?;
        is_named.then(|| self.target()).transpose()
    }

    /// The certificate to show and the authorities to believe, if any are given.
    pub(crate) fn files(&self) -> (Option<Identity>, Option<PathBuf>) {
        self.tls.pem()
    }

    /// Whether there is a certificate for each key, and a key for each certificate.
    ///
    /// # Errors
    /// There is not.
    pub(crate) fn check_pair(&self) -> Result<(), Refusal> {
        self.tls.pair().map(drop)
    }

    /// Its address, for people.
    ///
    /// # Errors
    /// As [`target`](Self::target) says.
    pub(crate) fn name(&self) -> anyhow::Result<String> {
        self.target().map(|(url, _)| url)
    }

    /// Its address, and what the SDK needs besides. What is given stands before what is written
    /// down; with another address, nothing of a context counts that was not named.
    ///
    /// # Errors
    /// A context that is none, a file that cannot be used, a URL that does not go with the
    /// certificates.
    fn target(&self) -> anyhow::Result<(String, ClientOptions)> {
        let context = match (&self.context, &self.url) {
            (None, Some(_)) => None,
            (named, _) => Contexts::read(&self.config.path()?)?.find(named.as_deref())?,
        };
        let written = context.as_ref().map(|context| context.server.clone());
        let url = self.url.clone().or(written).unwrap_or_else(|| SERVER_DEFAULT.to_owned());
        let tls = match context.as_ref().and_then(|context| context.tls()) {
            Some(files) if !self.tls.is_given(&url) => {
                aqueduct_tls::scheme_of("server", &url, true)?;
                Some(files)
            }
            _ => self.tls.files(&url)?,
        };
        let written = context.map(|context| context.api_key()).transpose()?.flatten();
        let api_key = self.key.api_key.clone().or(written);
        Ok((url, ClientOptions { tls, api_key, ..ClientOptions::default() }))
    }
}
