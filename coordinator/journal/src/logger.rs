//! What raft says of itself, where everything else says it.

use slog::{Drain, Level, Logger, Never, OwnedKVList, Record};

struct Tracing;

impl Drain for Tracing {
    type Ok = ();
    type Err = Never;

    fn log(&self, record: &Record<'_>, _: &OwnedKVList) -> Result<(), Never> {
        let said = record.msg();
        match record.level() {
            Level::Critical | Level::Error => tracing::error!(%said, "raft"),
            Level::Warning => tracing::warn!(%said, "raft"),
            // What it has to say of ordinary elections is for whoever looks into one.
            Level::Info | Level::Debug | Level::Trace => tracing::debug!(%said, "raft"),
        }
        Ok(())
    }
}

/// A logger for raft.
pub(crate) fn logger() -> Logger {
    Logger::root(Tracing, slog::o!())
}
