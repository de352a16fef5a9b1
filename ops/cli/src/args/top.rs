//! Arguments of `aqueduct top`.

use std::time::Duration;

use clap::Args;

use super::ServerArgs;
use super::output::interval;

/// Arguments of `aqueduct top`.
#[derive(Debug, Args)]
#[command(after_help = "\
Shows workers with the pages that they use, requests under way with the time to first token and
between tokens (GAP), and for one request how far each chunk is through the layers (the wavefront).

Keys:
  up, down     select the request whose wavefront is shown
  left, right  sort requests by another column
  r            reverse the order
  q, Ctrl-C    quit

Examples:
  aqueduct top --context production
  aqueduct top --once")]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print one frame as text and exit; needs no terminal
    #[arg(long)]
    pub(crate) once: bool,
    /// Seconds between two updates
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
}

impl TopArgs {
    /// Between two looks.
    pub(crate) fn interval(&self) -> Duration {
        Duration::from_secs_f64(self.interval)
    }
}
