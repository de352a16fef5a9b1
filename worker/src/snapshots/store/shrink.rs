//! What goes first where there is no room for all.

use aqueduct_core::limits;

use super::{Entry, State, Store};

impl Store {
    /// Lets go of what was used least lately until the rest is within its bounds.
    pub(super) fn shrink(&self, state: &mut State) {
        self.shrink_memory(state);
        let disk_bytes_max = self.disk_bytes_max.unwrap_or(0);
        let mut from = 0;
        while state.disk_bytes > disk_bytes_max {
            let Some((used, key)) = state.oldest(from, |entry| entry.file_bytes.is_some()) else {
                break;
            };
            state.forget_file(&key);
            from = used + 1; // what is being replaced stays until it is
        }
        from = 0;
        while state.entries.len() > limits::SNAPSHOTS_MAX {
            let Some((used, key)) = state.oldest(from, |_| true) else { break };
            state.forget_file(&key);
            state.forget_memory(&key);
            from = used + 1; // what is being written stays until it is
        }
    }

    /// One long prompt under exact attention would displace all memory sets, and sessions among
    /// them, which nothing brings back: what it has beyond half of the bytes goes before these.
    fn shrink_memory(&self, state: &mut State) {
        let (mut from, mut from_exact) = (0, 0);
        while state.bytes > self.bytes_max {
            let is_exact = |entry: &Entry| entry.memory.is_some() && entry.is_exact;
            let has_more = state.exact_bytes > self.bytes_max / 2;
            let exact = state.oldest(from_exact, is_exact).filter(|_| has_more);
            let oldest = exact.or_else(|| state.oldest(from, |entry| entry.memory.is_some()));
            let Some((used, key)) = oldest else { break };
            *(if exact.is_some() { &mut from_exact } else { &mut from }) = used;
            state.forget_memory(&key);
        }
    }
}
