//! The exchange between workers of one process: nothing is copied.

use std::sync::{Arc, Mutex, PoisonError};

use aqueduct_core::work::Peer;

use super::{Answered, Call, CallError, ExchangeLink};
use crate::doorbell::Doorbell;
use crate::link::loopback::LoopbackHub;

/// A way to one holder of this process.
#[derive(Debug)]
pub struct LoopbackExchange {
    hub: LoopbackHub,
    peer: Peer,
    fingerprint: String,
    doorbell: Arc<Doorbell>,
    answers: Arc<Mutex<Vec<Answered>>>,
}

impl LoopbackExchange {
    /// A link to `peer` for shards of the model with this fingerprint.
    pub fn new(hub: LoopbackHub, peer: Peer, fingerprint: String, doorbell: Arc<Doorbell>) -> Self {
        Self { hub, peer, fingerprint, doorbell, answers: Arc::default() }
    }
}

impl ExchangeLink for LoopbackExchange {
    fn send(&mut self, call: Box<Call>) -> Result<(), Box<Call>> {
        let (answers, doorbell) = (self.answers.clone(), self.doorbell.clone());
        let Call { id, ask, deadline, .. } = *call;
        let tell = move |reply| {
            let answered = Answered { id, bytes: (0, 0), reply };
            answers.lock().unwrap_or_else(PoisonError::into_inner).push(answered);
            doorbell.ring();
        };
        match self.hub.holder(&self.peer) {
            None => tell(Err(CallError::Lost(format!("{} is not here", self.peer)))),
            Some(holder) if holder.model().fingerprint() != self.fingerprint => {
                tell(Err(CallError::Lost(format!("{} has another model", self.peer))));
            }
            Some(holder) => holder.ask(ask, deadline, Box::new(tell)),
        }
        Ok(())
    }

    fn answers(&mut self) -> Vec<Answered> {
        std::mem::take(&mut *self.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_open(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::Holder;
    use crate::exchange::conformance::{Rig, suite};
    use crate::inbox::Inbox;
    use crate::link::conformance::fit;
    use crate::tiny_model;

    #[test]
    fn conforms() {
        suite(|fingerprint| {
            let model = tiny_model::tiny(fit().kv);
            let holder = Holder::start(model.clone(), Arc::default()).unwrap();
            let inbox = Inbox::new(Arc::default(), model.fingerprint().into(), fit(), 1);
            let (hub, peer, inbox) =
                (LoopbackHub::default(), Peer("local://w1".into()), inbox.into());
            hub.join(&peer, &inbox, &holder).unwrap();
            let doorbell = Arc::<Doorbell>::default();
            let fingerprint = fingerprint.unwrap_or(model.fingerprint()).to_owned();
            let link = LoopbackExchange::new(hub, peer, fingerprint, doorbell.clone());
            Rig { link: Box::new(link), doorbell, holder, _keep: Box::new(inbox) }
        });
    }
}
