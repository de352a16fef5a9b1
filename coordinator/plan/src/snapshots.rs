//! Which workers have which snapshots, as far as is known.

use std::collections::{BTreeMap, BTreeSet};

use aqueduct_core::{SnapshotKey, WorkerId, limits};

/// What was heard, and what was asked to be kept. It may be out of date: a worker that is asked
/// for what it has no longer says so, and nothing is lost but time.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    holders: BTreeMap<SnapshotKey, BTreeSet<WorkerId>>,
    counts: BTreeMap<WorkerId, usize>,
}

impl Snapshots {
    /// `worker` has it. One that names more than any worker keeps is not believed.
    pub(crate) fn kept(&mut self, worker: WorkerId, key: SnapshotKey) {
        let count = self.counts.entry(worker).or_default();
        if *count < limits::SNAPSHOTS_MAX && self.holders.entry(key).or_default().insert(worker) {
            *count += 1;
        }
    }

    /// `worker` has it no longer.
    pub(crate) fn dropped(&mut self, worker: WorkerId, key: SnapshotKey) {
        let Some(holders) = self.holders.get_mut(&key) else { return };
        if holders.remove(&worker) {
            self.counts.entry(worker).and_modify(|count| *count -= 1);
        }
        if holders.is_empty() {
            self.holders.remove(&key);
        }
    }

    /// `worker` is gone, with all that it has.
    pub(crate) fn forget(&mut self, worker: WorkerId) {
        if self.counts.remove(&worker).is_some_and(|count| count > 0) {
            self.holders.retain(|_, holders| {
                holders.remove(&worker);
                !holders.is_empty()
            });
        }
    }

    /// Whether `worker` has it.
    pub(crate) fn is_at(&self, worker: WorkerId, key: &SnapshotKey) -> bool {
        self.holders.get(key).is_some_and(|holders| holders.contains(&worker))
    }

    /// The `turn`-th of those that have it.
    pub(crate) fn holder(&self, key: &SnapshotKey, turn: usize) -> Option<WorkerId> {
        let holders = self.holders.get(key)?;
        holders.iter().nth(turn % holders.len()).copied()
    }

    /// Whether any worker has it.
    pub(crate) fn has(&self, key: &SnapshotKey) -> bool {
        self.holders.contains_key(key)
    }

    /// The longest of the prefixes `chain`, shortest first, that any worker has: its index, and
    /// the `turn`-th of its holders.
    pub(crate) fn longest(&self, chain: &[SnapshotKey], turn: usize) -> Option<(usize, WorkerId)> {
        let held = |(idx, key)| Some((idx, self.holder(key, turn)?));
        chain.iter().enumerate().rev().find_map(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> SnapshotKey {
        SnapshotKey([byte; 32])
    }

    #[test]
    fn finds_the_longest_that_anybody_has() {
        let (mut snapshots, chain) = (Snapshots::default(), [key(0), key(1), key(2)]);
        let (a, b) = (WorkerId(0), WorkerId(1));
        assert_eq!(snapshots.longest(&chain, 0), None);
        snapshots.kept(a, key(0));
        snapshots.kept(a, key(1));
        snapshots.kept(b, key(1));
        snapshots.kept(b, key(9));
        assert_eq!(snapshots.longest(&chain, 0), Some((1, a)));
        assert_eq!(snapshots.longest(&chain, 3), Some((1, b)));
        assert_eq!(snapshots.longest(&chain[..1], 3), Some((0, a)));
        snapshots.dropped(a, key(1));
        snapshots.dropped(a, key(1));
        snapshots.dropped(a, key(7));
        assert_eq!(snapshots.longest(&chain, 0), Some((1, b)));
        snapshots.forget(b);
        assert_eq!(snapshots.longest(&chain, 0), Some((0, a)));
        assert!(!snapshots.has(&key(9)) && snapshots.has(&key(0)));
        snapshots.forget(a);
        assert!(snapshots.holders.is_empty() && snapshots.counts.is_empty());
    }

    #[test]
    fn nobody_is_believed_without_end() {
        let mut snapshots = Snapshots::default();
        for number in 0..limits::SNAPSHOTS_MAX as u64 + 10 {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            snapshots.kept(WorkerId(3), SnapshotKey(bytes));
        }
        assert_eq!(snapshots.holders.len(), limits::SNAPSHOTS_MAX);
    }
}
