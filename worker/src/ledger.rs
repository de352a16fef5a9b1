//! Memory sets that were given here and are still kept: what later ones are put together with.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use aqueduct_core::{ChunkKey, RequestId, work::Base};
use aqueduct_kernels::MemorySet;

type Sets = BTreeMap<(ChunkKey, u32), Weak<MemorySet>>;

/// Knows sets by the chunk that gave them and their layer, for as long as somebody keeps them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<Sets>>);

impl Ledger {
    /// Enters what chunk `key` gave for `layer`; dropping the entry takes it out.
    pub(crate) fn enter(&self, key: ChunkKey, layer: u32, memory: &Arc<MemorySet>) -> Entry {
        self.lock().insert((key, layer), Arc::downgrade(memory));
        Entry { ledger: self.clone(), key, layer }
    }

    /// The set of `layer` that is `base` for a set of `request`.
    pub(crate) fn find(
        &self,
        request: RequestId,
        base: &Base,
        layer: u32,
    ) -> Option<Arc<MemorySet>> {
        let key = ChunkKey { request, chunk_idx: base.chunk_idx, epoch: base.epoch };
        let found = self.lock().get(&(key, layer))?.upgrade()?;
        (found.end == base.end).then_some(found)
    }

    fn lock(&self) -> MutexGuard<'_, Sets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A set's place in the [`Ledger`].
#[derive(Debug)]
pub(crate) struct Entry {
    ledger: Ledger,
    key: ChunkKey,
    layer: u32,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.ledger.lock().remove(&(self.key, self.layer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::conformance::{key, set};
    use aqueduct_core::Epoch;

    #[test]
    fn finds_what_is_kept_by_chunk_epoch_and_end() {
        let (ledger, memory) = (Ledger::default(), Arc::new(set(4, 1)));
        let entry = ledger.enter(key(2, 1), 3, &memory);
        let base = Base { chunk_idx: 2, epoch: Epoch(1), end: memory.end };
        let check = |base: Base, layer, want: bool| {
            let found = ledger.find(key(2, 1).request, &base, layer);
            assert_eq!(found.is_some(), want, "{base:?} {layer}");
        };
        check(base, 3, true);
        check(base, 2, false);
        check(Base { epoch: Epoch(0), ..base }, 3, false);
        check(Base { chunk_idx: 1, ..base }, 3, false);
        check(Base { end: base.end + 1, ..base }, 3, false);
        drop(entry);
        check(base, 3, false);
    }
}
