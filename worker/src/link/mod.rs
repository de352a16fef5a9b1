//! Ways for a memory set to reach the worker of the next chunk.
//!
//! A link only borrows: the sender's outbox owns every set until the next chunk is confirmed,
//! so a link may fail, be replaced, or find a set withdrawn, and nothing is lost or leaked.

pub mod codec;
#[cfg(test)]
pub(crate) mod conformance;
pub mod delta;
pub mod grpc;
pub mod loopback;
pub mod nccl;
pub(crate) mod views;

use std::sync::{Arc, Weak};
use std::time::Instant;

use aqueduct_core::work::{Base, Peer};
use aqueduct_core::{ChunkKey, WireDtype};
use aqueduct_kernels::MemorySet;
use aqueduct_tls::ClientTls;

use crate::config::WorkerOptions;
use crate::doorbell::Doorbell;
use crate::ways::{Way, Ways};
use grpc::GrpcLink;
use loopback::LoopbackLink;

/// A memory set on its way.
#[derive(Debug, Clone)]
pub struct Parcel {
    /// The chunk that receives, in the epoch of its assignment.
    pub key: ChunkKey,
    /// Layer.
    pub layer: u32,
    /// The set; gone when the sender has withdrawn it.
    pub memory: Weak<MemorySet>,
    /// What the receiver has given itself, if it has: what that remembers may stay behind.
    pub base: Option<Base>,
    /// Elements of its keys and values on the way, if they are f32 here.
    pub wire: WireDtype,
    /// When to stop trying.
    pub deadline: Instant,
}

/// How a parcel ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The receiver has it.
    Delivered,
    /// The receiver needs no set of this epoch any more.
    Stale,
    /// The sender let go of the set before it was sent.
    Withdrawn,
    /// The peer could not be reached, or would not take it.
    Failed(String),
}

/// What became of one parcel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// Of the chunk that receives.
    pub key: ChunkKey,
    /// Layer.
    pub layer: u32,
    /// How it ended.
    pub outcome: Outcome,
}

/// A way to one peer.
///
/// No method blocks. Every parcel that was taken has exactly one receipt, sooner or later, and
/// the doorbell that the link was made with MUST be rung when a receipt is there or when a
/// link that was full may take parcels again. Parcels may arrive in any order and more than
/// once; bits MUST arrive unchanged or not at all.
pub trait Link: Send {
    /// Takes a parcel.
    ///
    /// # Errors
    /// The parcel, when the link is full: offer it again after the doorbell.
    fn send(&mut self, parcel: Parcel) -> Result<(), Parcel>;

    /// Receipts that came since the last call.
    fn receipts(&mut self) -> Vec<Receipt>;

    /// Whether the link can be used further.
    fn is_open(&self) -> bool;

    /// Whether there is nothing more to be had of a link that is not open.
    fn is_over(&self) -> bool {
        !self.is_open()
    }
}

/// A worker of another process, and how one is sure to speak to it.
#[derive(Debug, Clone)]
pub struct Remote {
    /// Its address.
    pub peer: Peer,
    /// Plaintext if `None`.
    pub tls: Option<ClientTls>,
}

impl From<Peer> for Remote {
    fn from(peer: Peer) -> Self {
        Self { peer, tls: None }
    }
}

impl std::fmt::Display for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.peer.fmt(f)
    }
}

impl Way for dyn Link {
    type Load = Parcel;

    fn take(&mut self, parcel: Parcel) -> Result<(), Parcel> {
        self.send(parcel)
    }

    fn is_open(&self) -> bool {
        Link::is_open(self)
    }

    fn is_over(&self) -> bool {
        Link::is_over(self)
    }
}

/// The links of one worker, opened when they are first needed.
pub struct Links {
    dialer: Dialer,
    ways: Ways<dyn Link>,
}

/// What a link is opened with.
struct Dialer {
    options: WorkerOptions,
    fingerprint: String,
    doorbell: Arc<Doorbell>,
}

impl Links {
    /// No links yet.
    pub fn new(options: WorkerOptions, fingerprint: String, doorbell: Arc<Doorbell>) -> Self {
        Self { dialer: Dialer { options, fingerprint, doorbell }, ways: Ways::default() }
    }

    /// Gives `parcel` to the link to `peer`.
    ///
    /// # Errors
    /// The parcel, when that link is full.
    pub fn send(&mut self, peer: &Peer, parcel: Parcel) -> Result<(), Parcel> {
        let Self { dialer, ways } = self;
        ways.send(peer, parcel, || dialer.dial(peer))
    }

    /// Receipts of all links.
    pub fn receipts(&mut self) -> Vec<Receipt> {
        self.ways.all().flat_map(|link| link.receipts()).collect()
    }
}

impl Dialer {
    fn dial(&self, peer: &Peer) -> Box<dyn Link> {
        let Self { options, fingerprint, doorbell } = self;
        if options.is_here(peer) {
            let (hub, peer) = (options.hub.clone(), peer.clone());
            Box::new(LoopbackLink::new(hub, peer, fingerprint.clone(), doorbell.clone()))
        } else {
            let WorkerOptions { runtime, direct, tls, .. } = options;
            let remote = Remote { peer: peer.clone(), tls: tls.clone() };
            let (fingerprint, doorbell) = (fingerprint.clone(), doorbell.clone());
            Box::new(GrpcLink::open(runtime, remote, fingerprint, doorbell, direct.clone()))
        }
    }
}
