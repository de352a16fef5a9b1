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
}

impl ExchangeLinks {
    /// No links yet. `doorbell` rings when there are answers, or room again.
    pub fn new(options: WorkerOptions, fingerprint: String, doorbell: Arc<Doorbell>) -> Self {
        Self { options, fingerprint, doorbell, open: BTreeMap::new() }
    }

    /// Gives `call` to the link to `peer`.
    ///
    /// # Errors
    /// The call, when that link is full: offer it again after the doorbell.
    pub fn send(&mut self, peer: &Peer, call: Box<Call>) -> Result<(), Box<Call>> {
        if !self.open.get(peer).is_some_and(|link| link.is_open()) {
            self.open.insert(peer.clone(), self.dial(peer));
        }
        match self.open.get_mut(peer) {
            Some(link) => link.send(call),
            None => Err(call),
        }
    }

    /// Answers of all links.
    pub fn answers(&mut self) -> Vec<Answered> {
        self.open.values_mut().flat_map(|link| link.answers()).collect()
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
