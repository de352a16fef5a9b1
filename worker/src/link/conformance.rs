//! What every link must do, whatever it is made of.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_core::{ChunkKey, Epoch, RequestId};
use aqueduct_kernels::{KvDtype, MemorySet};

use aqueduct_core::work::Peer;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::grpc::GrpcLink;
use super::nccl::Direct;
use super::{Link, Outcome, Parcel, Receipt};
use crate::doorbell::Doorbell;
use crate::inbox::{Fit, Inbox};
use crate::tiny_model;
use crate::{LoopbackHub, Worker, WorkerOptions, serve};

/// The shape of the suite's sets.
pub(crate) fn fit() -> Fit {
    Fit { layers: 8, kv_heads: 2, head_dim: 8, kv: KvDtype::Bf16 }
}

/// Chunk `chunk_idx` of the suite's request.
pub(crate) fn key(chunk_idx: u32, epoch: u32) -> ChunkKey {
    ChunkKey { request: RequestId(7), chunk_idx, epoch: Epoch(epoch) }
}

/// A set of `keys` keys per KV head, different for each `seed`.
pub(crate) fn set(keys: u32, seed: u32) -> MemorySet {
    let Fit { kv_heads, head_dim, kv, .. } = fit();
    let count = kv_heads * keys as usize;
    let value = |i: usize| (i as f32 + seed as f32).sin();
    let heads = |shift: usize| {
        let data: Vec<f32> = (0..count * head_dim).map(|i| value(i + shift)).collect();
        aqueduct_kernels::KvHeads::from_f32(kv_heads, keys as usize, head_dim, &data, kv)
    };
    MemorySet {
        keys: aqueduct_kernels::Keys::new(
            (0..count as u32).map(|i| 2 * (i % keys.max(1)) + seed % 2).collect::<Vec<_>>(),
            heads(0),
            heads(1000),
        ),
        score: (0..count).map(|i| value(i).abs()).collect(),
        votes: (0..count).map(|i| i as f32).collect(),
        end: 2 * keys + 1,
    }
}

/// A link under test and the inbox at its other end.
pub(crate) struct Rig {
    pub(crate) link: Box<dyn Link>,
    pub(crate) doorbell: Arc<Doorbell>,
    pub(crate) inbox: Arc<Inbox>,
    /// What serves the other end, where it is in reach of this one by sockets alone.
    pub(crate) peer: Option<Runtime>,
    /// What lives as long as the rig.
    pub(crate) _keep: Box<dyn std::any::Any>,
}

impl Rig {
    pub(crate) fn offer(&mut self, key: ChunkKey, layer: u32, memory: &Arc<MemorySet>) -> bool {
        let deadline = Instant::now() + Duration::from_secs(20);
        let parcel = Parcel { key, layer, memory: Arc::downgrade(memory), deadline };
        self.link.send(parcel).is_ok()
    }

    /// Sends, waiting for room, and waits for the receipt.
    pub(crate) fn send(&mut self, key: ChunkKey, layer: u32, memory: &Arc<MemorySet>) -> Outcome {
        self.send_all(&[(key, layer, memory.clone())]).remove(0).outcome
    }

    /// Sends all and returns their receipts in the order of sending.
    pub(crate) fn send_all(&mut self, sets: &[(ChunkKey, u32, Arc<MemorySet>)]) -> Vec<Receipt> {
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut sent = 0;
        let mut receipts = BTreeMap::new();
        while receipts.len() < sets.len() {
            while sent < sets.len() && self.offer(sets[sent].0, sets[sent].1, &sets[sent].2) {
                sent += 1;
            }
            for receipt in self.link.receipts() {
                receipts.insert((receipt.key, receipt.layer), receipt);
            }
            if receipts.len() < sets.len() {
                assert!(Instant::now() < deadline, "receipts are missing");
                self.doorbell.wait_until(Some(deadline));
            }
        }
        let receipt = |(key, layer, _): &(ChunkKey, u32, _)| receipts[&(*key, *layer)].clone();
        sets.iter().map(receipt).collect()
    }
}

/// A link over gRPC to a worker on a port of its own. Sender and receiver may bring something by
/// which sets go from device to device.
pub(crate) fn grpc_rig(inbox_bytes: u64, [sender, receiver]: [Option<Direct>; 2]) -> Rig {
    let (own, theirs) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let listener = theirs.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let peer = format!("http://{}", listener.local_addr().unwrap());
    let worker = {
        let _inside = theirs.enter();
        let options = WorkerOptions::new(&peer, LoopbackHub::default());
        let options = WorkerOptions { inbox_bytes, direct: receiver, ..options };
        Worker::start(tiny_model::tiny(fit().kv), options).unwrap()
    };
    let inbox = worker.inbox();
    theirs.spawn(serve(worker, listener, std::future::pending()));
    let (doorbell, fingerprint) = (Arc::<Doorbell>::default(), inbox.fingerprint().to_owned());
    let link = GrpcLink::open(own.handle(), Peer(peer), fingerprint, doorbell.clone(), sender);
    Rig { link: Box::new(link), doorbell, inbox, peer: Some(theirs), _keep: Box::new(own) }
}

/// Runs the whole suite; `rig(inbox_bytes)` makes a fresh link to a fresh inbox.
pub(crate) fn suite(rig: impl Fn(u64) -> Rig) {
    const ROOM: u64 = 1 << 30;
    every_layer_arrives_with_its_bits(rig(ROOM));
    sets_of_any_size_arrive(rig(ROOM));
    duplicates_are_taken_once(rig(ROOM));
    older_epochs_are_stale(rig(ROOM));
    a_withdrawn_set_is_not_kept(rig(ROOM));
    what_does_not_fit_fails(rig(ROOM));
    a_full_inbox_delays_and_loses_nothing(rig);
}

fn every_layer_arrives_with_its_bits(mut rig: Rig) {
    let sets: Vec<_> = (0..8).map(|layer| (key(1, 0), layer, Arc::new(set(9, layer)))).collect();
    for receipt in rig.send_all(&sets) {
        assert_eq!(receipt.outcome, Outcome::Delivered);
    }
    for (key, layer, memory) in sets {
        assert_eq!(rig.inbox.take(key, layer), Some(memory));
    }
    assert_eq!(rig.inbox.bytes(), 0);
}

fn sets_of_any_size_arrive(mut rig: Rig) {
    // The last is more than a window of 4 MiB parts at this shape's 88 bytes a key.
    for (layer, keys) in [(0, 0), (1, 1), (2, 50_000), (3, 800_000)] {
        let memory = Arc::new(set(keys, 1));
        assert_eq!(rig.send(key(1, 0), layer, &memory), Outcome::Delivered);
        assert!(rig.inbox.take(key(1, 0), layer) == Some(memory), "{keys} keys changed");
    }
}

fn duplicates_are_taken_once(mut rig: Rig) {
    let memory = Arc::new(set(9, 1));
    assert_eq!(rig.send(key(1, 0), 0, &memory), Outcome::Delivered);
    let bytes = rig.inbox.bytes();
    assert_eq!(rig.send(key(1, 0), 0, &memory), Outcome::Delivered);
    assert_eq!(rig.inbox.bytes(), bytes);
}

fn older_epochs_are_stale(mut rig: Rig) {
    let memory = Arc::new(set(9, 1));
    assert_eq!(rig.send(key(1, 2), 0, &memory), Outcome::Delivered);
    assert_eq!(rig.send(key(1, 1), 1, &memory), Outcome::Stale);
    rig.inbox.forget(key(1, 2).request);
    assert_eq!(rig.send(key(1, 2), 1, &memory), Outcome::Stale);
    assert_eq!(rig.inbox.bytes(), 0);
}

fn a_withdrawn_set_is_not_kept(mut rig: Rig) {
    let memory = Arc::new(set(9, 1));
    rig.inbox.forget(key(1, 0).request); // whatever still arrives is dropped
    assert!(rig.offer(key(1, 0), 0, &memory));
    let watch = Arc::downgrade(&memory);
    drop(memory);
    let receipt = wait_for_receipt(&mut rig);
    assert!(matches!(receipt.outcome, Outcome::Withdrawn | Outcome::Stale), "{receipt:?}");
    assert_eq!(watch.strong_count(), 0, "the link keeps a set that was withdrawn");
}

fn what_does_not_fit_fails(mut rig: Rig) {
    let memory = Arc::new(MemorySet::empty(fit().kv_heads, fit().head_dim, KvDtype::F32));
    let outcome = rig.send(key(1, 0), 0, &memory);
    assert!(matches!(&outcome, Outcome::Failed(what) if what.contains("kv")), "{outcome:?}");
    assert_eq!(rig.inbox.bytes(), 0);
    let memory = Arc::new(set(9, 1));
    assert_eq!(rig.send(key(1, 0), 1, &memory), Outcome::Delivered, "the link lives on");
}

fn a_full_inbox_delays_and_loses_nothing(rig: impl Fn(u64) -> Rig) {
    let memory = Arc::new(set(9, 1));
    let mut rig = rig(2 * (memory.bytes() as u64 + 256));
    let sets: Vec<_> = (0..8).map(|layer| (key(1, 0), layer, memory.clone())).collect();
    let inbox = rig.inbox.clone();
    let reader = std::thread::spawn(move || {
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut missing: Vec<u32> = (0..8).collect();
        while !missing.is_empty() {
            assert!(Instant::now() < deadline, "layers {missing:?} never came");
            assert!(inbox.bytes() <= inbox.bytes_max());
            missing.retain(|&layer| inbox.take(key(1, 0), layer).is_none());
            std::thread::yield_now();
        }
    });
    let receipts = rig.send_all(&sets);
    assert!(receipts.iter().all(|receipt| receipt.outcome == Outcome::Delivered), "{receipts:?}");
    reader.join().unwrap();
}

pub(crate) fn wait_for_receipt(rig: &mut Rig) -> Receipt {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(receipt) = rig.link.receipts().pop() {
            return receipt;
        }
        assert!(Instant::now() < deadline, "no receipt");
        rig.doorbell.wait_until(Some(deadline));
    }
}
