//! What every link must do, whatever it is made of.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_core::{ChunkKey, Epoch, RequestId, WireDtype};
use aqueduct_kernels::{KvDtype, MemorySet};

use aqueduct_core::work::{Base, Peer};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::grpc::GrpcLink;
use super::nccl::Direct;
use super::{Link, Outcome, Parcel, Receipt};
use crate::doorbell::Doorbell;
use crate::inbox::{Fit, Inbox, LayerFit};
use crate::ledger::Ledger;
use crate::tiny_model;
use crate::{LoopbackHub, Worker, WorkerOptions, serve};

/// The layer of [`hybrid_fit`] whose sets have a state; those of all before it have keys.
pub(crate) const RECURRENT: u32 = 8;

/// The shape of the suite's sets in layers with keys.
pub(crate) const LAYER: LayerFit = LayerFit { state: 0, kv_heads: 2, head_dim: 8 };

/// The shape of the suite's sets.
pub(crate) fn fit() -> Fit {
    Fit { layers: [LAYER; RECURRENT as usize].into(), kv: KvDtype::Bf16 }
}

/// The same with one more layer, which remembers in a state.
pub(crate) fn hybrid_fit() -> Fit {
    let recurrent = LayerFit { state: tiny_model::STATE_LEN as u32, ..LAYER };
    Fit { layers: [&fit().layers[..], &[recurrent]].concat().into(), ..fit() }
}

/// A set of that layer, different for each `seed`.
pub(crate) fn state(seed: u32) -> MemorySet {
    let (LayerFit { kv_heads, head_dim, .. }, kv) = (LAYER, fit().kv);
    let value = |i: usize| (i as f32 + seed as f32).sin() * 1e-3;
    let state = (0..tiny_model::STATE_LEN).map(value).collect();
    MemorySet { state, end: 9 + seed, ..MemorySet::empty(kv_heads, head_dim, kv) }
}

/// Chunk `chunk_idx` of the suite's request.
pub(crate) fn key(chunk_idx: u32, epoch: u32) -> ChunkKey {
    ChunkKey { request: RequestId(7), chunk_idx, epoch: Epoch(epoch) }
}

/// A set of `keys` keys per KV head, different for each `seed`.
pub(crate) fn set(keys: u32, seed: u32) -> MemorySet {
    let (LayerFit { kv_heads, head_dim, .. }, kv) = (LAYER, fit().kv);
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
        state: Default::default(),
        end: 2 * keys + 1,
    }
}

/// The sets after a block and after a later one, of up to `keys` keys per KV head: the later one
/// has some of the earlier one's, other scores, and as many new ones as make it as large.
pub(crate) fn nested(keys: u32, seed: u64) -> [MemorySet; 2] {
    let LayerFit { kv_heads, .. } = LAYER;
    let mut state = seed;
    let mut next = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u32
    };
    let first_end = 2 * keys + 1;
    let end = first_end + keys + 3;
    let mut some_below = |bound: u32, count: u32| {
        let mut all: Vec<u32> = (0..bound).collect();
        while all.len() > count as usize {
            all.remove(next() as usize % all.len());
        }
        all
    };
    let first: Vec<_> = (0..kv_heads).map(|_| some_below(first_end, keys)).collect();
    let later = first.iter().map(|first| {
        let old = some_below(keys, keys / 2 + 1);
        let kept = old.iter().filter(|&&j| j < keys).map(|&j| first[j as usize]);
        let mut positions: Vec<u32> = kept.collect();
        let new = some_below(keys, keys - positions.len() as u32);
        positions.extend(new.iter().map(|at| first_end + at));
        positions
    });
    let later = later.collect();
    [of_positions(first, first_end, 1.0), of_positions(later, end, 2.0)]
}

/// A set whose keys and values follow from head and position, and its scores also from `factor`.
fn of_positions(heads: Vec<Vec<u32>>, end: u32, factor: f32) -> MemorySet {
    let (LayerFit { kv_heads, head_dim, .. }, kv) = (LAYER, fit().kv);
    let keys = heads[0].len();
    let rows = |shift: u32| {
        let row = |(g, &at): (usize, &u32)| {
            let first = (at + shift + 100 * g as u32) as f32;
            (0..head_dim).map(move |d| (first + d as f32 / 10.0).sin()).collect::<Vec<_>>()
        };
        let all = heads.iter().enumerate().flat_map(|(g, head)| head.iter().map(move |at| (g, at)));
        let data: Vec<f32> = all.flat_map(row).collect();
        aqueduct_kernels::KvHeads::from_f32(kv_heads, keys, head_dim, &data, kv)
    };
    let positions = heads.concat();
    let scores = |factor: f32| positions.iter().map(|&at| factor * at as f32).collect();
    MemorySet {
        score: scores(factor),
        votes: scores(factor + 1.0),
        keys: aqueduct_kernels::Keys::new(positions.clone(), rows(0), rows(7)),
        state: Default::default(),
        end,
    }
}

/// A link under test and the inbox at its other end.
pub(crate) struct Rig {
    pub(crate) link: Box<dyn Link>,
    pub(crate) doorbell: Arc<Doorbell>,
    pub(crate) inbox: Arc<Inbox>,
    /// What the receiver has given.
    pub(crate) ledger: Ledger,
    /// What serves the other end, where it is in reach of this one by sockets alone.
    pub(crate) peer: Option<Runtime>,
    /// What lives as long as the rig.
    pub(crate) _keep: Box<dyn std::any::Any>,
}

impl Rig {
    pub(crate) fn offer(&mut self, key: ChunkKey, layer: u32, memory: &Arc<MemorySet>) -> bool {
        let deadline = Instant::now() + Duration::from_secs(20);
        let (memory, wire) = (Arc::downgrade(memory), WireDtype::F32);
        let parcel = Parcel { key, layer, memory, base: None, wire, deadline };
        self.link.send(parcel).is_ok()
    }

    /// Sends `memory` to somebody who may have `base` of it.
    pub(crate) fn send_on(
        &mut self,
        base: Base,
        key: ChunkKey,
        memory: &Arc<MemorySet>,
    ) -> Outcome {
        let deadline = Instant::now() + Duration::from_secs(20);
        let memory = Arc::downgrade(memory);
        let (base, wire) = (Some(base), WireDtype::F32);
        let parcel = Parcel { key, layer: 0, memory, base, wire, deadline };
        assert!(self.link.send(parcel).is_ok());
        wait_for_receipt(self).outcome
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
    let (peer, inbox, ledger) = grpc_worker(&theirs, inbox_bytes, receiver);
    let (doorbell, fingerprint) = (Arc::<Doorbell>::default(), inbox.fingerprint().to_owned());
    let link = GrpcLink::open(own.handle(), peer, fingerprint, doorbell.clone(), sender);
    let (link, peer, _keep) = (Box::new(link), Some(theirs), Box::new(own));
    Rig { link, doorbell, inbox, ledger, peer, _keep }
}

/// A link over gRPC to a worker that is started `with` options, and that worker.
pub(crate) fn grpc_rig_to(with: impl FnOnce(WorkerOptions) -> WorkerOptions) -> (Rig, Worker) {
    let (own, theirs) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let (peer, worker) = served(&theirs, with);
    let (inbox, ledger) = (worker.inbox(), worker.ledger());
    let (doorbell, fingerprint) = (Arc::<Doorbell>::default(), inbox.fingerprint().to_owned());
    let link = GrpcLink::open(own.handle(), peer, fingerprint, doorbell.clone(), None);
    let (link, peer, _keep) = (Box::new(link), Some(theirs), Box::new(own));
    (Rig { link, doorbell, inbox, ledger, peer, _keep }, worker)
}

/// A worker that `runtime` serves on a port of its own.
pub(crate) fn grpc_worker(
    runtime: &Runtime,
    inbox_bytes: u64,
    direct: Option<Direct>,
) -> (Peer, Arc<Inbox>, Ledger) {
    let unled = Duration::MAX; // no coordinator is in these tests
    let with = |options| WorkerOptions { inbox_bytes, direct, unled, ..options };
    let (peer, worker) = served(runtime, with);
    (peer, worker.inbox(), worker.ledger())
}

fn served(runtime: &Runtime, with: impl FnOnce(WorkerOptions) -> WorkerOptions) -> (Peer, Worker) {
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let peer = format!("http://{}", listener.local_addr().unwrap());
    let worker = {
        let _inside = runtime.enter();
        let options = WorkerOptions::new(&peer, LoopbackHub::default());
        Worker::start(tiny_model::hybrid(fit().kv), with(options)).unwrap()
    };
    runtime.spawn(serve(worker.clone(), listener, std::future::pending()));
    (Peer(peer), worker)
}

/// Runs the whole suite; `rig(inbox_bytes)` makes a fresh link to a fresh inbox.
pub(crate) fn suite(rig: impl Fn(u64) -> Rig) {
    const ROOM: u64 = 1 << 30;
    every_layer_arrives_with_its_bits(rig(ROOM));
    sets_of_any_size_arrive(rig(ROOM));
    states_arrive_where_they_belong(rig(ROOM));
    duplicates_are_taken_once(rig(ROOM));
    older_epochs_are_stale(rig(ROOM));
    a_set_arrives_whatever_of_it_its_receiver_has(rig(ROOM));
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
    // The last is more than a window of parts at this shape's 88 bytes a key.
    for (layer, keys) in [(0, 0), (1, 1), (2, 6_000), (3, 100_000)] {
        let memory = Arc::new(set(keys, 1));
        assert_eq!(rig.send(key(1, 0), layer, &memory), Outcome::Delivered);
        assert!(rig.inbox.take(key(1, 0), layer) == Some(memory), "{keys} keys changed");
    }
}

fn states_arrive_where_they_belong(mut rig: Rig) {
    let mut memory = state(1);
    memory.state[0] = f32::MIN_POSITIVE / 2.0;
    let memory = Arc::new(memory);
    assert_eq!(rig.send(key(1, 0), RECURRENT, &memory), Outcome::Delivered);
    let came = rig.inbox.take(key(1, 0), RECURRENT).expect("it was delivered");
    let bits = |set: &MemorySet| set.state.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!((bits(&came), &came), (bits(&memory), &memory));
    let outcome = rig.send(key(2, 0), 0, &memory);
    assert!(matches!(&outcome, Outcome::Failed(what) if what.contains("state")), "{outcome:?}");
    assert_eq!(rig.inbox.bytes(), 0);
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

fn a_set_arrives_whatever_of_it_its_receiver_has(mut rig: Rig) {
    let [before, memory] = nested(300, 1).map(Arc::new);
    let mut check = |chunk_idx: u32, theirs: Option<&MemorySet>, base_epoch: u32| {
        let theirs = theirs.map(|theirs| Arc::new(theirs.clone()));
        let given = key(chunk_idx - 1, 1);
        let entry = theirs.as_ref().map(|theirs| rig.ledger.enter(given, 0, theirs));
        let (chunk_idx, epoch) = (given.chunk_idx, Epoch(base_epoch));
        let base = Base { chunk_idx, epoch, end: before.end };
        let key = key(chunk_idx + 1, 0);
        assert_eq!(rig.send_on(base, key, &memory), Outcome::Delivered);
        assert_eq!(rig.inbox.take(key, 0), Some(memory.clone()), "chunk {chunk_idx}");
        drop(entry);
    };
    check(1, Some(&before), 1);
    check(2, None, 1);
    check(3, Some(&before), 0); // given in another epoch
    check(4, Some(&memory), 1); // which ends later
    let mut other = MemorySet::clone(&before);
    other.keys.positions[0] += 1;
    check(5, Some(&other), 1);
    other.keys = aqueduct_kernels::Keys::new(
        before.keys.positions.clone(),
        before.keys.v.clone(),
        before.keys.k.clone(),
    );
    check(6, Some(&other), 1);
    check(7, Some(&before), 1);
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
    let memory = Arc::new(MemorySet::empty(LAYER.kv_heads, LAYER.head_dim, KvDtype::F32));
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
