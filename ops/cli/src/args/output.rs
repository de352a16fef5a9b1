//! How a command that shows something shows it.

use std::time::Duration;

use clap::{Args, ValueEnum};

/// In which form, and how often.
#[derive(Debug, Clone, Args)]
pub(crate) struct OutputArgs {
    /// Output format: table, wide (a table with more columns), json or yaml
    #[arg(short, long, value_name = "FORMAT", value_enum, hide_possible_values = true,
          default_value_t = Format::Table)]
    pub(crate) output: Format,
    /// Keep running, and show changes
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// Seconds between two queries of --watch
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
}

/// Text for people, or for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Table,
    Wide,
    Json,
    Yaml,
}

impl OutputArgs {
    /// Between two looks.
    pub(crate) fn interval(&self) -> Duration {
        Duration::from_secs_f64(self.interval)
    }
}

/// Seconds that somebody may wait between two looks.
pub(super) fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or_else(|| format!("interval = {text}: must be between 0.1 and 3600"))
}
