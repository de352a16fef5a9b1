//! What never goes for want of room.

use aqueduct_core::SnapshotKey;
use aqueduct_core::ask::Declined;

use super::{Entry, State, Store};

impl Store {
    /// Never lets go of a snapshot for want of room; or does again.
    pub(in crate::snapshots) fn pin(
        &self,
        key: &SnapshotKey,
        pinned: bool,
    ) -> Result<(), Declined> {
        let mut state = self.lock();
        let wanted = state.entries.get(key).ok_or(Declined::Gone)?.memory_bytes();
        let (wanted, most) = (wanted + state.pinned_bytes_but(key), self.bytes_max);
        if pinned && wanted > most {
            let why = format!("what is pinned would take {wanted} bytes of {most}: unpin others");
            return Err(Declined::Refused(why));
        }
        state.entries.get_mut(key).ok_or(Declined::Gone)?.pinned = pinned;
        Ok(())
    }
}

impl Entry {
    /// In memory, or when its file is read again, which is about as large.
    fn memory_bytes(&self) -> u64 {
        if self.memory.is_some() { self.bytes } else { self.file_bytes.unwrap_or(0) }
    }
}

impl State {
    /// Of what is pinned besides `key`.
    pub(super) fn pinned_bytes_but(&self, key: &SnapshotKey) -> u64 {
        let others = self.entries.iter().filter(|(other, entry)| entry.pinned && *other != key);
        others.map(|(_, entry)| entry.memory_bytes()).sum()
    }
}
