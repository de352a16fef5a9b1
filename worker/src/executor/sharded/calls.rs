//! Calls to the holders of shards, from the device thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use aqueduct_core::WireDtype;
use aqueduct_core::work::Peer;
use aqueduct_engine::shards::{Answer, ShardError};

use crate::exchange::{Answered, Ask, Call, CallError, ExchangeLinks, Holder, Reply};

/// The ways to all holders, the worker itself among them.
pub(in crate::executor) struct Exchange {
    pub(super) holder: Arc<Holder>,
    peer: Peer,
    links: ExchangeLinks,
    next_id: u64,
    /// Calls that somebody waits for.
    open: BTreeMap<u64, Arc<()>>,
    answers: BTreeMap<u64, Answered>,
    /// Bytes of states, or of keys for them, that a chunk has come before it merges them.
    pub(super) ahead_bytes: u64,
}

impl Exchange {
    pub(in crate::executor) fn new(
        peer: Peer,
        links: ExchangeLinks,
        holder: Arc<Holder>,
        ahead_bytes: u64,
    ) -> Self {
        let (open, answers) = (BTreeMap::new(), BTreeMap::new());
        Self { holder, peer, links, next_id: 0, open, answers, ahead_bytes }
    }

    /// Whether `peer` is this worker.
    pub(super) fn is_here(&self, peer: &Peer) -> bool {
        *peer == self.peer
    }

    /// This worker's name.
    pub(in crate::executor) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Sends a call and gives its number.
    pub(super) fn call(
        &mut self,
        peer: &Peer,
        ask: Ask,
        wire: WireDtype,
        deadline: Instant,
    ) -> Result<u64, CallError> {
        let id = self.next_id;
        self.next_id += 1;
        let asker = Arc::new(());
        let call = Box::new(Call { id, ask, wire, deadline, asker: Arc::downgrade(&asker) });
        let full = |_| CallError::Lost(format!("too much is under way to {peer}"));
        self.links.send(peer, call).map_err(full)?;
        self.open.insert(id, asker);
        Ok(id)
    }

    /// The answer to a call, if it has come.
    pub(super) fn answer(&mut self, id: u64) -> Option<Answered> {
        self.collect();
        self.answers.remove(&id)
    }

    /// Why one of these calls has failed, if one has.
    pub(super) fn failure(&mut self, ids: impl IntoIterator<Item = u64>) -> Option<CallError> {
        self.collect();
        let failed = |id| self.answers.get(&id)?.reply.as_ref().err();
        ids.into_iter().find_map(failed).cloned()
    }

    fn collect(&mut self) {
        for answered in self.links.answers() {
            if self.open.remove(&answered.id).is_some() {
                self.answers.insert(answered.id, answered);
            }
        }
    }

    /// Nobody waits for these calls any more.
    pub(super) fn give_up(&mut self, ids: impl IntoIterator<Item = u64>) {
        for id in ids {
            self.open.remove(&id);
            self.answers.remove(&id);
        }
    }

    /// What this worker's own shards say.
    pub(super) fn own(&self, ask: &Ask) -> Result<Answer<Reply>, ShardError> {
        self.holder.answer(ask)
    }
}
