//! The links of one worker to the holders of shards, opened when they are first needed.

use std::collections::BTreeMap;
use std::sync::Arc;

use aqueduct_core::work::Peer;

use super::{Answered, Call, ExchangeLink, GrpcExchange, LoopbackExchange};
use crate::config::WorkerOptions;
use crate::doorbell::Doorbell;
use crate::link::Remote;

/// A link for each holder that was ever asked and can still be.
pub struct ExchangeLinks {
    options: WorkerOptions,
    fingerprint: String,
    doorbell: Arc<Doorbell>,
    open: BTreeMap<Peer, Box<dyn ExchangeLink>>,
    /// Links that take nothing any more, of which there may be answers.
    closing: Vec<Box<dyn ExchangeLink>>,
}

impl ExchangeLinks {
    /// No links yet. `doorbell` rings when there are answers, or room again.
    pub fn new(options: WorkerOptions, fingerprint: String, doorbell: Arc<Doorbell>) -> Self {
        let (open, closing) = (BTreeMap::new(), Vec::new());
        Self { options, fingerprint, doorbell, open, closing }
    }

    /// Gives `call` to the link to `peer`.
    ///
    /// # Errors
    /// The call, when that link is full: offer it again after the doorbell.
    pub fn send(&mut self, peer: &Peer, call: Box<Call>) -> Result<(), Box<Call>> {
        self.offer(peer, call).or_else(|call| match self.is_open(peer) {
            true => Err(call),
            false => self.offer(peer, call), // it closed at this moment, as nothing was asked
        })
    }

    fn offer(&mut self, peer: &Peer, call: Box<Call>) -> Result<(), Box<Call>> {
        if !self.is_open(peer) {
            self.closing.extend(self.open.extract_if(.., |_, link| !link.is_open()).map(|it| it.1));
            self.closing.retain(|link| !link.is_over());
            self.open.insert(peer.clone(), self.dial(peer));
        }
        match self.open.get_mut(peer) {
            Some(link) => link.send(call),
            None => Err(call),
        }
    }

    fn is_open(&self, peer: &Peer) -> bool {
        self.open.get(peer).is_some_and(|link| link.is_open())
    }

    /// Answers of all links.
    pub fn answers(&mut self) -> Vec<Answered> {
        let all = self.open.values_mut().chain(&mut self.closing);
        all.flat_map(|link| link.answers()).collect()
    }

    fn dial(&self, peer: &Peer) -> Box<dyn ExchangeLink> {
        let Self { options, fingerprint, doorbell, .. } = self;
        let (peer, fingerprint, doorbell) = (peer.clone(), fingerprint.clone(), doorbell.clone());
        if options.is_here(&peer) {
            Box::new(LoopbackExchange::new(options.hub.clone(), peer, fingerprint, doorbell))
        } else {
            let remote = Remote { peer, tls: options.tls.clone() };
            Box::new(GrpcExchange::open(&options.runtime, remote, fingerprint, doorbell))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use aqueduct_core::WireDtype;
    use tokio::runtime::Runtime;

    use super::*;
    use crate::LoopbackHub;
    use crate::exchange::conformance::{asker, dense, place};
    use crate::exchange::{Ask, CallError};

    /// A link that is closed, and the answers that were not read yet.
    struct Closed(Vec<Answered>);

    impl ExchangeLink for Closed {
        fn send(&mut self, call: Box<Call>) -> Result<(), Box<Call>> {
            Err(call)
        }

        fn answers(&mut self) -> Vec<Answered> {
            std::mem::take(&mut self.0)
        }

        fn is_open(&self) -> bool {
            false
        }

        fn is_over(&self) -> bool {
            self.0.is_empty()
        }
    }

    #[test]
    fn a_closed_link_goes_when_all_its_answers_were_read() {
        let runtime = Runtime::new().unwrap();
        let _inside = runtime.enter();
        let options = WorkerOptions::new("local://asker", LoopbackHub::default());
        let mut links = ExchangeLinks::new(options, "a model".into(), Arc::default());
        let peer = |name: &str| Peer(format!("local://{name}"));
        let lost = |id| Answered { id, bytes: (0, 0), reply: Err(CallError::Lost("gone".into())) };
        links.open.insert(peer("silent"), Box::new(Closed(Vec::new())));
        links.open.insert(peer("late"), Box::new(Closed(vec![lost(7)])));
        let call = |id| {
            let (ask, wire) = (Ask::Keys { place: place(0, 2, dense()) }, WireDtype::F32);
            let deadline = Instant::now() + Duration::from_secs(30);
            Box::new(Call { id, ask, wire, deadline, asker: asker() })
        };
        let counts = |links: &ExchangeLinks| (links.open.len(), links.closing.len());
        let answered = |links: &mut ExchangeLinks| -> Vec<u64> {
            links.answers().into_iter().map(|answered| answered.id).collect()
        };
        links.send(&peer("late"), call(8)).unwrap();
        assert_eq!(counts(&links), (1, 1));
        assert_eq!(answered(&mut links), [8, 7], "a link anew, and the one before");
        links.send(&peer("other"), call(9)).unwrap();
        assert_eq!(counts(&links), (2, 0));
        assert_eq!(answered(&mut links), [9]);
    }
}
