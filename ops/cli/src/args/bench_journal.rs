//! Arguments of `aqueduct bench journal`.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `aqueduct bench journal`.
#[derive(Debug, Args)]
#[command(after_help = "\
Each group keeps journals of its own in a new folder of --data-dir, which is removed at the end;
the members are in this process and speak to each other over loopback connections. Each caller has
requests accepted and ended, one record after another. A row has records per second and the
milliseconds of one (append_ms_p50, append_ms_p99), from when it is given until it is on the disks
of a majority, and before the group begins those of flushing 4 KiB of a file in the same folder
(fsync_ms_p50, fsync_ms_p99). What comes in together is flushed together, so many callers have more
records per second than the disk has flushes.

Example:
  aqueduct bench journal --data-dir /var/lib/aqueduct --members 1,3 --callers 1,64 --json")]
pub(crate) struct BenchJournalArgs {
    /// Folder on the disk to be measured
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) data_dir: PathBuf,
    /// Coordinators of a group, separated by commas
    #[arg(long, value_name = "MEMBERS", value_delimiter = ',', default_value = "1,3")]
    pub(crate) members: Vec<usize>,
    /// Callers at once, separated by commas
    #[arg(long, value_name = "CALLERS", value_delimiter = ',', default_value = "1,64")]
    pub(crate) callers: Vec<usize>,
    /// Tokens of each request's prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    pub(crate) prompt_tokens: u32,
    /// How long each group is asked
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub(crate) seconds: u64,
    /// Print a JSON line for each group and number of callers
    #[arg(long)]
    pub(crate) json: bool,
}
