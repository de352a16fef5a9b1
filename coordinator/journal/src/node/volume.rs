//! How much a log has grown.

use crate::config::Bounds;

/// Part of a log.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Volume {
    pub(super) entries: u64,
    pub(super) bytes: u64,
}

impl Volume {
    /// In bytes. An entry costs something however short it is; so what is written is about twice
    /// what it cost to propose, however much is kept.
    pub(super) fn cost(&self, bounds: &Bounds) -> u64 {
        let each = (bounds.log_bytes / bounds.log_entries.max(1)).max(1);
        self.bytes.saturating_add(self.entries.saturating_mul(each))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_costs_something_however_short_it_is() {
        let bounds = Bounds { log_bytes: 1 << 20, log_entries: 1 << 10, ..Bounds::default() };
        let check = |entries: u64, bytes: u64, want: u64| {
            assert_eq!(Volume { entries, bytes }.cost(&bounds), want);
        };
        check(0, 0, 0);
        check(1 << 10, 0, 1 << 20);
        check(1, 5000, 5000 + 1024);
        check(u64::MAX, 1, u64::MAX);
    }
}
