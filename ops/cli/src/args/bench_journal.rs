//! Arguments of `aqueduct bench journal`.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `aqueduct bench journal`.
#[derive(Debug, Args)]
#[command(after_help = "\
Each group keeps its journals in a new folder in --data-dir, which is removed at the end; the
members run in this process and connect over loopback. Each caller has requests accepted and ended,
one record after another. A row has records per second, the milliseconds from giving a record to
having it on the disks of a majority (append_ms_p50, append_ms_p99) and, measured before the group
starts, those of flushing 4 KiB of a file in the same folder (fsync_ms_p50, fsync_ms_p99). Records
that arrive together are flushed together, so with many callers there are more records per second
than flushes of the disk.

Example:
  aqueduct bench journal --data-dir /var/lib/aqueduct --members 1,3 --callers 1,64 --json")]
pub(crate) struct BenchJournalArgs {
    /// Existing folder on the disk to measure
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) data_dir: PathBuf,
    /// Group sizes (coordinators), separated by commas
    #[arg(long, value_name = "MEMBERS", value_delimiter = ',', default_value = "1,3")]
    pub(crate) members: Vec<usize>,
    /// Numbers of concurrent callers, separated by commas
    #[arg(long, value_name = "CALLERS", value_delimiter = ',', default_value = "1,64")]
    pub(crate) callers: Vec<usize>,
    /// Prompt length of each request, in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    pub(crate) prompt_tokens: u32,
    /// Seconds for which each group is measured
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub(crate) seconds: u64,
    /// Print one JSON line per group and number of callers
    #[arg(long)]
    pub(crate) json: bool,
}
