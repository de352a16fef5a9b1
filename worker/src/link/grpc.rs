//! The link to a worker of another process: one bidirectional stream per pair of peers.
//!
//! A set at a time: but for a redirect, the next layer's set does not exist before this one has
//! arrived. Within a set, a window of frames is under way.

mod call;
#[cfg(test)]
mod faulty;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_core::work::Base;
use aqueduct_core::{KvDtype, RequestId, limits};
use aqueduct_kernels::{Mark, MemorySet};
use aqueduct_proto::convert::frame::{self, SetHeader};
use aqueduct_proto::v1::hand_off_ack::Verdict;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use super::nccl::{Bond, Departure, Direct};
use super::{Link, Outcome, Parcel, Receipt, Remote, codec, delta};
use crate::doorbell::Doorbell;
pub(super) use call::Call;
pub(crate) use call::connect;

/// A link that nothing was sent over for this long is closed.
const IDLE: Duration = Duration::from_secs(60);
/// First and longest pause before another try.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// A peer that could not be reached for so long is out of reach.
const REACH: Duration = Duration::from_millis(limits::PEER_REACH_MS);

/// A way to one worker over gRPC.
#[derive(Debug)]
pub struct GrpcLink {
    parcels: mpsc::Sender<Posted>,
    direct: Option<Direct>,
    receipts: mpsc::Receiver<Receipt>,
    courier: JoinHandle<()>,
}

impl GrpcLink {
    /// A link to `peer`, served on `runtime`; it connects with the first parcel. Sets go through
    /// `direct` where the peer has the like.
    pub fn open(
        runtime: &Handle,
        peer: impl Into<Remote>,
        fingerprint: String,
        doorbell: Arc<Doorbell>,
        direct: Option<Direct>,
    ) -> Self {
        let (parcels, queue) = mpsc::channel(limits::LINK_PARCELS_MAX);
        // A receipt for each parcel in the queue and for those that the courier holds.
        let (done, receipts) = mpsc::channel(limits::LINK_PARCELS_MAX);
        let courier = Courier {
            peer: peer.into(),
            fingerprint,
            doorbell,
            done,
            direct: direct.clone(),
            stream: None,
            unreached: None,
            lacks: None,
        };
        Self { parcels, direct, receipts, courier: runtime.spawn(courier.run(queue)) }
    }
}

impl Link for GrpcLink {
    fn send(&mut self, parcel: Parcel) -> Result<(), Parcel> {
        let made = self.direct.as_ref().map(Direct::mark).unwrap_or_default();
        let posted = Posted { parcel, made };
        self.parcels.try_send(posted).map_err(|error| error.into_inner().parcel)
    }

    fn receipts(&mut self) -> Vec<Receipt> {
        std::iter::from_fn(|| self.receipts.try_recv().ok()).collect()
    }

    fn is_open(&self) -> bool {
        !self.parcels.is_closed()
    }

    fn is_over(&self) -> bool {
        self.courier.is_finished() && self.receipts.is_empty()
    }
}

impl Drop for GrpcLink {
    fn drop(&mut self) {
        self.courier.abort();
    }
}

/// A parcel in the queue, and the point in the device's work behind which its set is there.
struct Posted {
    parcel: Parcel,
    made: Mark,
}

/// The task behind a link.
struct Courier {
    peer: Remote,
    fingerprint: String,
    doorbell: Arc<Doorbell>,
    done: mpsc::Sender<Receipt>,
    /// `None` where sets go over gRPC alone, as they do once a pair has failed.
    direct: Option<Direct>,
    stream: Option<Stream>,
    /// Since when the peer cannot be reached.
    unreached: Option<Instant>,
    /// The last base that the peer was found not to have.
    lacks: Option<(RequestId, Base)>,
}

/// What sets go over.
struct Stream {
    call: Call,
    bond: Bond,
}

/// A parcel with what was tried for it.
struct Attempts {
    parcel: Parcel,
    made: Mark,
    tries: u32,
    pause: Duration,
}

/// What one attempt came to.
enum Attempt {
    /// It is over.
    Ended(Outcome),
    /// No room at the peer: not a failure, but others go first.
    NoRoom,
    /// The set or the stream broke.
    Broken(String),
}

impl Courier {
    async fn run(mut self, mut queue: mpsc::Receiver<Posted>) {
        let mut waiting = VecDeque::new();
        loop {
            if waiting.is_empty() {
                match timeout(IDLE, queue.recv()).await {
                    Ok(Some(posted)) => waiting.push_back(Attempts::new(posted)),
                    Ok(None) => return,
                    Err(_) => {
                        queue.close(); // what was posted at this moment is still taken
                        continue;
                    }
                }
            }
            while waiting.len() < limits::LINK_PARCELS_MAX
                && let Ok(posted) = queue.try_recv()
            {
                waiting.push_back(Attempts::new(posted));
            }
            let Some(mut next) = waiting.pop_front() else { continue };
            if let Some(outcome) = self.attempt(&mut next).await {
                self.finish(&next.parcel, outcome).await;
            } else {
                tokio::time::sleep(next.pause).await;
                next.pause = PAUSE_MAX.min(next.pause * 2);
                waiting.push_back(next); // behind the others: they may be what makes room
            }
        }
    }

    async fn finish(&self, parcel: &Parcel, outcome: Outcome) {
        let receipt = Receipt { key: parcel.key, layer: parcel.layer, outcome };
        if self.done.send(receipt).await.is_ok() {
            self.doorbell.ring();
        }
    }

    /// One try; `None` when another is to be made.
    async fn attempt(&mut self, next: &mut Attempts) -> Option<Outcome> {
        let left = next.parcel.deadline.saturating_duration_since(Instant::now());
        let tried = match timeout(left, self.try_once(next)).await {
            Ok(tried) => tried,
            Err(_) => {
                self.stream = None; // frames of the set may be under way
                Attempt::Ended(Outcome::Failed(format!("{}: deadline", self.peer)))
            }
        };
        match tried {
            Attempt::Ended(outcome) => Some(outcome),
            Attempt::NoRoom => None,
            Attempt::Broken(what) => {
                self.stream = None;
                next.tries += 1;
                next.parcel.base = None;
                tracing::warn!(peer = %self.peer, key = %next.parcel.key, layer = next.parcel.layer,
                    tries = next.tries, what, "a hand-off broke");
                let failed = || Outcome::Failed(format!("{}: {what}", self.peer));
                let is_out_of_reach = self.unreached.is_some_and(|since| since.elapsed() >= REACH);
                (next.tries >= limits::LINK_TRIES_MAX || is_out_of_reach).then(failed)
            }
        }
    }

    async fn try_once(&mut self, Attempts { parcel, made, .. }: &Attempts) -> Attempt {
        let Some(memory) = parcel.memory.upgrade() else {
            return Attempt::Ended(Outcome::Withdrawn);
        };
        let header = codec::header(parcel.key, parcel.layer, &memory);
        let patience = parcel.deadline.saturating_duration_since(Instant::now());
        let departure = Departure { memory, header, made: made.clone(), patience };
        match self.exchange(departure, parcel).await {
            Ok((Verdict::Ok, _)) => Attempt::Ended(Outcome::Delivered),
            Ok((Verdict::Stale, _)) => Attempt::Ended(Outcome::Stale),
            Ok((Verdict::Exhausted, _)) => Attempt::NoRoom,
            Ok((verdict, message)) => {
                Attempt::Broken(format!("{}: {message}", verdict.as_str_name()))
            }
            Err(error) => error,
        }
    }

    /// Sends a set: from device to device where that goes, and otherwise without what the peer
    /// has of it, if it turns out to have that.
    async fn exchange(
        &mut self,
        departure: Departure,
        &Parcel { base, wire, .. }: &Parcel,
    ) -> Result<(Verdict, String), Attempt> {
        let (memory, header) = (departure.memory.clone(), departure.header);
        if let Some(verdict) = self.exchange_directly(departure).await? {
            return Ok(verdict);
        }
        let header = match header.kv {
            KvDtype::F32 => SetHeader { wire, ..header },
            KvDtype::Bf16 => header,
        };
        let request = header.key.request;
        let mut base = base.filter(|base| self.lacks != Some((request, *base)));
        loop {
            let (verdict, message) = self.send(memory.clone(), header, base).await?;
            match base.take().filter(|_| verdict == Verdict::Whole) {
                Some(base) => self.lacks = Some((request, base)),
                None => return Ok((verdict, message)),
            }
        }
    }

    /// Sends a set in frames.
    async fn send(
        &mut self,
        memory: Arc<MemorySet>,
        header: SetHeader,
        base: Option<Base>,
    ) -> Result<(Verdict, String), Attempt> {
        // Reading a set may wait for a device, and panics where the device is lost.
        let encoded = spawn_blocking(move || {
            let base = base.filter(|_| delta::is_here(&memory));
            match base.and_then(|base| delta::encode(&memory, &header, base)) {
                Some((spared, payload)) => (Some(spared), payload),
                None => (None, codec::encode(&memory, header.wire)),
            }
        });
        let encoded = encoded.await.map_err(|error| Attempt::Broken(error.to_string()));
        let (spared, payload) = encoded?;
        let frames = frame::split(&SetHeader { spared, ..header }, payload)
            .map_err(|refusal| Attempt::Ended(Outcome::Failed(refusal.to_string())))?;
        let stream = self.stream().await?;
        stream.call.send_set(&frames).await.map_err(Attempt::Broken)
    }

    /// The receiver's verdict, or `None` where the set has to go over gRPC.
    async fn exchange_directly(
        &mut self,
        departure: Departure,
    ) -> Result<Option<(Verdict, String)>, Attempt> {
        // A state has no keys with it, and a pair of devices carries the arrays of keys alone.
        let is_empty = departure.header.keys == 0;
        let joined = self.stream().await?.bond.is_joined().await;
        let sent = match (joined, &self.direct, &mut self.stream) {
            (Ok(true), Some(direct), Some(Stream { call, bond })) if !is_empty => {
                direct.send(bond, call, departure).await.map(Some)
            }
            (Ok(_), ..) => Ok(None),
            (Err(error), ..) => Err(error.to_string()),
        };
        sent.or_else(|what| {
            tracing::warn!(peer = %self.peer, what,
                "memory sets go over gRPC from now on: the devices could not exchange them");
            (self.direct, self.stream) = (None, None);
            Ok(None)
        })
    }

    /// The open stream, or a new one.
    async fn stream(&mut self) -> Result<&mut Stream, Attempt> {
        let Self { stream, unreached, peer, fingerprint, direct, .. } = self;
        // Who lost its coordinator for a while has ended it: that is no failure of the devices.
        stream.take_if(|stream| stream.call.is_over());
        match stream {
            Some(stream) => Ok(stream),
            none => {
                unreached.get_or_insert_with(Instant::now);
                let opened = Call::open(peer, fingerprint, direct.as_ref()).await;
                let (call, bond) = opened.map_err(Attempt::Broken)?;
                *unreached = None;
                Ok(none.insert(Stream { call, bond }))
            }
        }
    }
}

impl Attempts {
    fn new(Posted { parcel, made }: Posted) -> Self {
        Self { parcel, made, tries: 0, pause: PAUSE_MIN }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WorkerOptions;
    use crate::link::conformance::{Rig, grpc_rig, grpc_rig_to, key, nested, set, suite};
    use aqueduct_kernels::{Array, BackendError, Resident};

    #[test]
    fn conforms() {
        suite(|inbox_bytes| grpc_rig(inbox_bytes, [None, None]));
    }

    #[test]
    fn what_the_receiver_has_does_not_travel() {
        let mut rig = grpc_rig(1 << 20, [None, None]);
        let [before, memory] = nested(300, 1).map(Arc::new);
        let base = Base { chunk_idx: 0, epoch: key(0, 0).epoch, end: before.end };
        let traffic = |rig: &mut Rig, chunk_idx: u32| {
            assert_eq!(rig.send_on(base, key(chunk_idx, 0), &memory), Outcome::Delivered);
            rig.inbox.finish(key(chunk_idx, 0))
        };
        let entry = rig.ledger.enter(key(0, 0), 0, &before);
        let spared = traffic(&mut rig, 1);
        let old = |at: &&u32| **at < before.end;
        let rows = memory.keys.positions.iter().filter(old).count();
        assert!(rows > 100 && spared.spared_bytes == (rows * 2 * 8 * 2) as u64, "{spared:?}");
        assert_eq!(spared.received_bytes + spared.spared_bytes, memory.bytes() as u64);
        drop(entry);
        let whole = traffic(&mut rig, 2);
        assert_eq!((whole.received_bytes, whole.spared_bytes), (memory.bytes() as u64, 0));
        let _entry = rig.ledger.enter(key(0, 0), 0, &before);
        assert_eq!(traffic(&mut rig, 3), whole, "it is not asked again who said so once");
    }

    #[test]
    fn a_process_that_no_coordinator_leads_is_out_of_reach() {
        let (mut rig, worker) = grpc_rig_to(|options| {
            WorkerOptions { unled: Duration::ZERO, ..options } // as after a long time
        });
        let memory = Arc::new(set(9, 1));
        let check_refused = |rig: &mut Rig, layer: u32| {
            let deadline = Instant::now() + Duration::from_secs(15);
            let why = loop {
                match rig.send(key(1, 0), layer, &memory) {
                    Outcome::Failed(why) => break why,
                    // A stream that was open ends in a moment.
                    Outcome::Delivered if layer > 0 => assert!(Instant::now() < deadline),
                    outcome => panic!("{outcome:?}"),
                }
            };
            assert!(why.contains("no coordinator") && Instant::now() < deadline, "{why}");
        };
        check_refused(&mut rig, 0);
        assert_eq!(rig.inbox.bytes(), 0);
        let session = worker.open_session();
        assert_eq!(rig.send(key(1, 0), 1, &memory), Outcome::Delivered);
        drop(session);
        let deadline = Instant::now() + Duration::from_secs(30);
        while !worker.led().is_over() {
            assert!(Instant::now() < deadline, "its device thread sees that a session is over");
            std::thread::yield_now();
        }
        check_refused(&mut rig, 2);
    }

    /// Votes on a device that is no more.
    struct Lost(usize);

    impl Resident<f32> for Lost {
        fn count(&self) -> usize {
            self.0
        }

        fn fetch(&self) -> Result<Vec<f32>, BackendError> {
            Err(BackendError::Device { device: "far".into(), what: "lost".into() })
        }
    }

    #[test]
    fn a_set_that_its_device_has_lost_is_a_failure_and_the_link_lives_on() {
        let mut rig = grpc_rig(1 << 20, [None, None]);
        let mut lost = set(9, 1);
        lost.votes = Array::on_device(Arc::new(Lost(lost.votes.len())));
        let outcome = rig.send(key(1, 0), 0, &Arc::new(lost));
        assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
        assert_eq!(rig.send(key(1, 0), 1, &Arc::new(set(9, 1))), Outcome::Delivered);
    }
}
