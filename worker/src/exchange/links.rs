//! The links of one worker to the holders of shards, opened when they are first needed.

use std::sync::Arc;

use aqueduct_core::work::Peer;

use super::{Answered, Call, ExchangeLink, GrpcExchange, LoopbackExchange};
use crate::config::WorkerOptions;
use crate::doorbell::Doorbell;
use crate::link::Remote;
use crate::ways::{Way, Ways};

impl Way for dyn ExchangeLink {
    type Load = Box<Call>;

    fn take(&mut self, call: Box<Call>) -> Result<(), Box<Call>> {
        self.send(call)
    }

    fn is_open(&self) -> bool {
        ExchangeLink::is_open(self)
    }

    fn is_over(&self) -> bool {
        ExchangeLink::is_over(self)
    }
}

/// A link for each holder that was ever asked and can still be.
pub struct ExchangeLinks {
    dialer: Dialer,
    ways: Ways<dyn ExchangeLink>,
}

/// What a link is opened with.
struct Dialer {
    options: WorkerOptions,
    fingerprint: String,
    doorbell: Arc<Doorbell>,
}

impl ExchangeLinks {
    /// No links yet. `doorbell` rings when there are answers, or room again.
    pub fn new(options: WorkerOptions, fingerprint: String, doorbell: Arc<Doorbell>) -> Self {
        Self { dialer: Dialer { options, fingerprint, doorbell }, ways: Ways::default() }
    }

    /// Gives `call` to the link to `peer`.
    ///
    /// # Errors
    /// The call, when that link is full: offer it again after the doorbell.
    pub fn send(&mut self, peer: &Peer, call: Box<Call>) -> Result<(), Box<Call>> {
        let Self { dialer, ways } = self;
        ways.send(peer, call, || dialer.dial(peer))
    }

    /// Answers of all links.
    pub fn answers(&mut self) -> Vec<Answered> {
        self.ways.all().flat_map(|link| link.answers()).collect()
    }
}

impl Dialer {
    fn dial(&self, peer: &Peer) -> Box<dyn ExchangeLink> {
        let Self { options, fingerprint, doorbell } = self;
        let (peer, fingerprint, doorbell) = (peer.clone(), fingerprint.clone(), doorbell.clone());
        if options.is_here(&peer) {
            Box::new(LoopbackExchange::new(options.hub.clone(), peer, fingerprint, doorbell))
        } else {
            let remote = Remote { peer, tls: options.tls.clone() };
            Box::new(GrpcExchange::open(&options.runtime, remote, fingerprint, doorbell))
        }
    }
}
