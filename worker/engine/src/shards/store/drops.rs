//! What a store lets go of.

use aqueduct_core::RequestId;

use super::{FORGOTTEN_MAX, Forgotten, ShardStore, State};
use crate::shards::place::{Branch, ShardKey};

impl ShardStore {
    /// Drops what is held of one chunk of `request`, which is to be done again.
    pub fn drop_chunk(&self, request: RequestId, chunk_idx: u32) {
        let mut state = self.lock();
        let of = |at: &&(RequestId, Branch, u32)| at.0 == request;
        for at in state.layers.keys().filter(of).copied().collect::<Vec<_>>() {
            state.change(at, |layer| drop(layer.shards.remove(&chunk_idx)));
        }
    }

    /// Drops what completions of `request` have of their own.
    pub fn drop_branches(&self, request: RequestId) {
        let of = |at: &(RequestId, Branch, u32)| at.0 == request && at.1 != Branch::PROMPT;
        self.lock().drop_layers(of);
    }

    /// Drops everything of `request`; who still asks about it is refused.
    pub fn forget(&self, request: RequestId) {
        let mut state = self.lock();
        state.drop_layers(|at| at.0 == request);
        if state.forgotten.len() == FORGOTTEN_MAX {
            state.forgotten.pop_front();
        }
        state.forgotten.push_back(Forgotten { request, may_return: false });
    }

    /// Requests that were forgotten may come back: who asks about one waits. What was computed for
    /// it before is still not kept, for nobody would forget it again.
    pub fn readmit(&self) {
        self.lock().forgotten.iter_mut().for_each(|it| it.may_return = true);
    }

    /// The request is here (again).
    pub fn claim(&self, request: RequestId) {
        self.lock().forgotten.retain(|it| it.request != request);
    }
}

impl State {
    /// Drops what other branches have of the chunk of `key` in an older epoch.
    pub(super) fn drop_older(&mut self, key: ShardKey) {
        let others = |at: &&(RequestId, Branch, u32)| (at.0, at.2) == (key.request, key.layer);
        for at in self.layers.keys().filter(others).copied().collect::<Vec<_>>() {
            self.change(at, |layer| {
                let older = layer.shards.get(&key.chunk_idx).filter(|(held, _)| *held < key.epoch);
                if older.is_some() {
                    layer.shards.remove(&key.chunk_idx);
                }
            });
        }
    }

    pub(super) fn drop_layers(&mut self, is_gone: impl Fn(&(RequestId, Branch, u32)) -> bool) {
        let mut freed = 0;
        self.layers.retain(|at, layer| {
            let gone = is_gone(at);
            freed += if gone { layer.bytes() } else { 0 };
            !gone
        });
        self.bytes -= freed;
    }
}
