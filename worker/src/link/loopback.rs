//! The link between workers of one process: a memory set changes hands, nothing is copied.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use aqueduct_core::Refusal;
use aqueduct_core::work::Peer;

use super::{Link, Outcome, Parcel, Receipt};
use crate::doorbell::Doorbell;
use crate::exchange::Holder;
use crate::inbox::{Came, Inbox, Verdict};

/// The workers of a process, by the name under which others reach them.
#[derive(Debug, Clone, Default)]
pub struct LoopbackHub {
    doors: Arc<Mutex<BTreeMap<Peer, Doors>>>,
}

impl LoopbackHub {
    /// Makes `inbox` and `holder` reachable as `peer`.
    ///
    /// # Errors
    /// A name that a living worker has.
    pub fn join(
        &self,
        peer: &Peer,
        inbox: &Arc<Inbox>,
        holder: &Arc<Holder>,
    ) -> Result<(), Refusal> {
        let mut doors = self.lock();
        if doors.get(peer).is_some_and(|doors| doors.inbox.strong_count() > 0) {
            return Err(Refusal::new("peer", peer, "a name that no other worker here has"));
        }
        let (inbox, holder) = (Arc::downgrade(inbox), Arc::downgrade(holder));
        doors.insert(peer.clone(), Doors { inbox, holder });
        Ok(())
    }

    /// Makes `peer` unreachable.
    pub fn leave(&self, peer: &Peer) {
        self.lock().remove(peer);
    }

    /// Whether `peer` is a worker of this process.
    pub fn has(&self, peer: &Peer) -> bool {
        self.find(peer).is_some()
    }

    fn find(&self, peer: &Peer) -> Option<Arc<Inbox>> {
        self.lock().get(peer)?.inbox.upgrade()
    }

    /// Who answers for the shards of `peer`.
    pub(crate) fn holder(&self, peer: &Peer) -> Option<Arc<Holder>> {
        self.lock().get(peer)?.holder.upgrade()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Peer, Doors>> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where others leave what is for a worker.
#[derive(Debug)]
struct Doors {
    inbox: Weak<Inbox>,
    holder: Weak<Holder>,
}

/// A way to one worker of this process.
#[derive(Debug)]
pub struct LoopbackLink {
    hub: LoopbackHub,
    peer: Peer,
    fingerprint: String,
    doorbell: Arc<Doorbell>,
    receipts: Vec<Receipt>,
}

impl LoopbackLink {
    /// A link to `peer` for sets of the model with this fingerprint.
    pub fn new(hub: LoopbackHub, peer: Peer, fingerprint: String, doorbell: Arc<Doorbell>) -> Self {
        Self { hub, peer, fingerprint, doorbell, receipts: Vec::new() }
    }

    /// The outcome; `None` when there is no room now.
    fn deliver(&self, parcel: &Parcel) -> Option<Outcome> {
        let Some(memory) = parcel.memory.upgrade() else { return Some(Outcome::Withdrawn) };
        let Some(inbox) = self.hub.find(&self.peer) else {
            return Some(Outcome::Failed(format!("{} is not here", self.peer)));
        };
        if inbox.fingerprint() != self.fingerprint {
            return Some(Outcome::Failed(format!("{} has another model", self.peer)));
        }
        match inbox.deliver(parcel.key, parcel.layer, memory, Came::Near(&self.doorbell)) {
            Verdict::Taken => Some(Outcome::Delivered),
            Verdict::Stale => Some(Outcome::Stale),
            Verdict::Exhausted => None,
            Verdict::Unfit(refusal) => Some(Outcome::Failed(refusal.to_string())),
        }
    }
}

impl Link for LoopbackLink {
    fn send(&mut self, parcel: Parcel) -> Result<(), Parcel> {
        let Some(outcome) = self.deliver(&parcel) else { return Err(parcel) };
        self.receipts.push(Receipt { key: parcel.key, layer: parcel.layer, outcome });
        self.doorbell.ring();
        Ok(())
    }

    fn receipts(&mut self) -> Vec<Receipt> {
        std::mem::take(&mut self.receipts)
    }

    fn is_open(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::conformance::{Rig, fit, hybrid_fit, suite};
    use crate::tiny_model;

    #[test]
    fn conforms() {
        suite(|inbox_bytes| {
            let inbox = Inbox::new(Arc::default(), "model".into(), hybrid_fit(), inbox_bytes);
            let (hub, peer, inbox) =
                (LoopbackHub::default(), Peer("local://w1".into()), Arc::new(inbox));
            let holder = Holder::start(tiny_model::tiny(fit().kv), Arc::default()).unwrap();
            hub.join(&peer, &inbox, &holder).unwrap();
            assert!(hub.join(&peer, &inbox, &holder).is_err(), "the name is taken");
            let doorbell = Arc::new(Doorbell::default());
            let link = LoopbackLink::new(hub, peer, "model".into(), doorbell.clone());
            let (link, ledger, _keep) = (Box::new(link), Default::default(), Box::new(()));
            Rig { link, doorbell, inbox, ledger, peer: None, _keep }
        });
    }
}
