//! Arguments of `aqueduct doctor`.

use std::path::PathBuf;
use std::time::Duration;

use aqueduct_core::limits;
use clap::Args;

use super::size::Size;
use super::{ClusterTlsArgs, DeviceArgs, EtcdArgs, Format, GroupArgs, PoolArg, ServerArgs};

/// Arguments of `aqueduct doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Takes those flags of serve, coordinator and worker that are listed below, and their environment
variables. Give it the ones that you will start a process with, on the machine where it will run;
the others need no check. A port or journal held by a running aqueduct is a warning: that process
is well, but a second one would not start. Every check reports ok, warn or fail, and what to do
next; the exit code is 1 if one failed.

Examples:
  aqueduct doctor --model model
  aqueduct doctor --etcd http://10.0.0.5:2379 --data-dir /data --cluster-tls-cert cert.pem \\
      --cluster-tls-key key.pem --cluster-tls-ca ca.pem
  aqueduct doctor --server http://10.0.0.7:7070 -o json")]
pub(crate) struct DoctorArgs {
    /// Model to load: Hugging Face folder or GGUF file
    #[arg(long, value_name = "PATH")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) pool: PoolArg,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Listen address of a coordinator's HTTP API
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub(crate) http: String,
    /// Listen address of a coordinator's gRPC API
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7070")]
    pub(crate) grpc: String,
    /// Listen address of a worker
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7001")]
    pub(crate) listen: String,
    #[command(flatten)]
    pub(crate) etcd: EtcdArgs,
    #[command(flatten)]
    pub(crate) group: GroupArgs,
    #[command(flatten)]
    pub(crate) cluster_tls: ClusterTlsArgs,
    /// File of accepted API keys
    #[arg(long, value_name = "FILE", env = "AQUEDUCT_API_KEYS", hide_env_values = true)]
    pub(crate) api_keys: Option<PathBuf>,
    /// Journal folder
    #[arg(long, value_name = "DIR", env = "AQUEDUCT_DATA_DIR", hide_env_values = true)]
    pub(crate) data_dir: Option<PathBuf>,
    /// Folder for snapshots on disk
    #[arg(long, value_name = "PATH")]
    pub(crate) snapshot_dir: Option<PathBuf>,
    /// Most bytes of a worker's snapshots on disk
    #[arg(long, value_name = "SIZE", requires = "snapshot_dir",
          default_value_t = Size(limits::SNAPSHOT_DISK_BYTES_DEFAULT))]
    pub(crate) snapshot_disk_bytes: Size,
    /// Seconds that each check may take; loading a model may take ten minutes
    #[arg(long, value_name = "S", default_value_t = 15,
          value_parser = clap::value_parser!(u64).range(1..=600))]
    deadline_s: u64,
    /// Output format: table, json or yaml
    #[arg(short, long, value_name = "FORMAT", value_enum, hide_possible_values = true,
          default_value_t = Format::Table)]
    pub(crate) output: Format,
    /// Print JSON Lines, one check per line
    #[arg(long, conflicts_with = "output")]
    pub(crate) json: bool,
}

impl DoctorArgs {
    /// For every check but the model's.
    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_secs(self.deadline_s)
    }
}
