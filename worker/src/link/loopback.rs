//! The link between workers of one process: a memory set changes hands, nothing is copied.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use aqueduct_core::Refusal;
use aqueduct_core::work::Peer;

use super::{Link, Outcome, Parcel, Receipt};
use crate::doorbell::Doorbell;
use crate::inbox::{Inbox, Verdict};

/// The workers of a process, by the name under which others reach them.
#[derive(Debug, Clone, Default)]
pub struct LoopbackHub {
    inboxes: Arc<Mutex<BTreeMap<Peer, Weak<Inbox>>>>,
}

impl LoopbackHub {
    /// Makes `inbox` reachable as `peer`.
    ///
    /// # Errors
    /// A name that a living worker has.
    pub fn join(&self, peer: &Peer, inbox: &Arc<Inbox>) -> Result<(), Refusal> {
        let mut inboxes = self.lock();
        if inboxes.get(peer).is_some_and(|inbox| inbox.strong_count() > 0) {
            return Err(Refusal::new("peer", peer, "a name that no other worker here has"));
        }
        inboxes.insert(peer.clone(), Arc::downgrade(inbox));
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
        self.lock().get(peer)?.upgrade()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Peer, Weak<Inbox>>> {
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
        match inbox.deliver(parcel.key, parcel.layer, memory, Some(&self.doorbell)) {
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
    use crate::link::conformance::{Rig, fit, suite};

    #[test]
    fn conforms() {
        suite(|inbox_bytes| {
            let inbox = Inbox::new(Arc::default(), "model".into(), fit(), inbox_bytes);
            let (hub, peer, inbox) =
                (LoopbackHub::default(), Peer("local://w1".into()), Arc::new(inbox));
            hub.join(&peer, &inbox).unwrap();
            assert!(hub.join(&peer, &inbox).is_err(), "the name is taken");
            let doorbell = Arc::new(Doorbell::default());
            let link = LoopbackLink::new(hub, peer, "model".into(), doorbell.clone());
            Rig { link: Box::new(link), doorbell, inbox, peer: None, _keep: Box::new(()) }
        });
    }
}
