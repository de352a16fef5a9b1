//! Workers of a command that brings its own.

use clap::{Args, ValueEnum};

/// A cluster that lives as long as the command.
#[derive(Debug, Clone, Args)]
pub(crate) struct ClusterArgs {
    /// Workers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) workers: usize,
    /// Compute threads of all workers together; 0 is one for each core
    #[arg(long, value_name = "T", default_value_t = 0)]
    pub(crate) threads: usize,
}

/// What connects coordinator and workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Link {
    Loopback,
    Grpc,
}

impl Link {
    /// The word that a user writes.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Grpc => "grpc",
        }
    }
}
