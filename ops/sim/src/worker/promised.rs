//! What senders were told that they need not send again: whoever waits for it must find it.

use std::collections::{BTreeMap, BTreeSet};

use aqueduct_core::ChunkKey;

use super::{Effect, Worker};

/// Layers whose sets were acknowledged, whatever became of them since.
#[derive(Debug, Default)]
pub(super) struct Promised(BTreeMap<ChunkKey, BTreeSet<u32>>);

impl Promised {
    /// The sender of a set hears that it has arrived, or that nobody wants it.
    pub(super) fn acknowledge(&mut self, key: ChunkKey, layer: u32) {
        self.0.entry(key).or_default().insert(layer);
    }
}

impl Worker {
    /// `key` gives up waiting for memory. It may be that some of it never came; what was
    /// acknowledged comes no second time, so it must be here, or the wait was for nothing.
    pub(super) fn check_promises(&mut self, key: ChunkKey) {
        let Some(layers) = self.promised.0.get(&key) else { return };
        let lost: Vec<_> = layers.iter().filter(|layer| !self.inbox.holds(key, **layer)).collect();
        if !lost.is_empty() {
            let what = format!("worker {}: {key} waited in vain for {lost:?}", self.here);
            self.effects.push(Effect::Broken(format!("{what}, which were acknowledged")));
        }
    }
}
