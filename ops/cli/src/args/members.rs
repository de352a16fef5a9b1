//! Where workers register and coordinators find them.

use std::path::PathBuf;

use aqueduct_members::Etcd;
use aqueduct_tls::{Identity, Refusals};
use clap::Args;

use super::EtcdTlsArgs;

/// An etcd that workers and coordinators share.
#[derive(Debug, Clone, Args)]
pub(crate) struct EtcdArgs {
    /// etcd endpoints, as http://host:port, or https://host:port with --etcd-tls-ca, separated by
    /// commas
    #[arg(long, value_name = "URL", env = "AQUEDUCT_ETCD", hide_env_values = true,
          value_delimiter = ',', num_args = 1..)]
    pub(crate) etcd: Vec<String>,
    /// Prefix of the cluster's keys in etcd
    #[arg(
        long,
        value_name = "PATH",
        env = "AQUEDUCT_ETCD_PREFIX",
        hide_env_values = true,
        default_value = "/aqueduct"
    )]
    pub(crate) etcd_prefix: String,
    /// Lease of a worker in etcd, in seconds: how long a silent worker remains a member
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) etcd_ttl_s: u32,
    #[command(flatten)]
    tls: EtcdTlsArgs,
}

impl EtcdArgs {
    /// The certificate to show and the authorities to believe, if any are given.
    pub(crate) fn files(&self) -> (Option<Identity>, Option<PathBuf>) {
        self.tls.files()
    }

    /// `None` where no etcd is named.
    ///
    /// # Errors
    /// A URL, a prefix or a time that is out of bounds; a certificate that cannot be used.
    pub(crate) fn etcd(&self, refusals: &Refusals) -> anyhow::Result<Option<Etcd>> {
        if self.etcd.is_empty() {
            return Ok(None);
        }
        let (urls, tls) = (self.etcd.clone(), self.tls.dial(refusals)?);
        Ok(Some(Etcd::new(urls, &self.etcd_prefix, self.etcd_ttl_s, tls)?))
    }
}
