//! The link to a worker of another process: one bidirectional stream per pair of peers.
//!
//! A set at a time: but for a redirect, the next layer's set does not exist before this one has
//! arrived. Within a set, a window of frames is under way.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_core::limits;
use aqueduct_core::work::Peer;
use aqueduct_proto::FINGERPRINT_METADATA;
use aqueduct_proto::convert::frame;
use aqueduct_proto::v1::hand_off_ack::Verdict;
use aqueduct_proto::v1::worker_client::WorkerClient;
use aqueduct_proto::v1::{HandOffAck, HandOffFrame};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Endpoint;

use super::{Link, Outcome, Parcel, Receipt, codec};
use crate::doorbell::Doorbell;
use crate::service::KEEPALIVE;

/// A link that nothing was sent over for this long is closed.
const IDLE: Duration = Duration::from_secs(60);
/// First and longest pause before another try.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// A way to one worker over gRPC.
#[derive(Debug)]
pub struct GrpcLink {
    parcels: mpsc::Sender<Parcel>,
    receipts: mpsc::Receiver<Receipt>,
    courier: JoinHandle<()>,
}

impl GrpcLink {
    /// A link to `peer`, served on `runtime`; it connects with the first parcel.
    pub fn open(
        runtime: &Handle,
        peer: Peer,
        fingerprint: String,
        doorbell: Arc<Doorbell>,
    ) -> Self {
        let (parcels, queue) = mpsc::channel(limits::LINK_PARCELS_MAX);
        // A receipt for each parcel in the queue and for those that the courier holds.
        let (done, receipts) = mpsc::channel(limits::LINK_PARCELS_MAX);
        let courier = Courier { peer, fingerprint, doorbell, done, stream: None };
        Self { parcels, receipts, courier: runtime.spawn(courier.run(queue)) }
    }
}

impl Link for GrpcLink {
    fn send(&mut self, parcel: Parcel) -> Result<(), Parcel> {
        self.parcels.try_send(parcel).map_err(|error| error.into_inner())
    }

    fn receipts(&mut self) -> Vec<Receipt> {
        std::iter::from_fn(|| self.receipts.try_recv().ok()).collect()
    }

    fn is_open(&self) -> bool {
        !self.parcels.is_closed()
    }
}

impl Drop for GrpcLink {
    fn drop(&mut self) {
        self.courier.abort();
    }
}

/// The task behind a link.
struct Courier {
    peer: Peer,
    fingerprint: String,
    doorbell: Arc<Doorbell>,
    done: mpsc::Sender<Receipt>,
    stream: Option<Stream>,
}

/// A parcel with what was tried for it.
struct Attempts {
    parcel: Parcel,
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
    async fn run(mut self, mut queue: mpsc::Receiver<Parcel>) {
        let mut waiting = VecDeque::new();
        loop {
            if waiting.is_empty() {
                match timeout(IDLE, queue.recv()).await {
                    Ok(Some(parcel)) => waiting.push_back(Attempts::new(parcel)),
                    Ok(None) | Err(_) => return,
                }
            }
            while waiting.len() < limits::LINK_PARCELS_MAX
                && let Ok(parcel) = queue.try_recv()
            {
                waiting.push_back(Attempts::new(parcel));
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
        let tried = match timeout(left, self.try_once(&next.parcel)).await {
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
                tracing::warn!(peer = %self.peer, key = %next.parcel.key, layer = next.parcel.layer,
                    tries = next.tries, what, "a hand-off broke");
                let failed = || Outcome::Failed(format!("{}: {what}", self.peer));
                (next.tries >= limits::LINK_TRIES_MAX).then(failed)
            }
        }
    }

    async fn try_once(&mut self, parcel: &Parcel) -> Attempt {
        let Some(memory) = parcel.memory.upgrade() else {
            return Attempt::Ended(Outcome::Withdrawn);
        };
        let header = codec::header(parcel.key, parcel.layer, &memory);
        let frames = match frame::split(&header, codec::encode(&memory)) {
            Ok(frames) => frames,
            Err(refusal) => return Attempt::Ended(Outcome::Failed(refusal.to_string())),
        };
        drop(memory);
        match self.exchange(&frames).await {
            Ok((Verdict::Ok, _)) => Attempt::Ended(Outcome::Delivered),
            Ok((Verdict::Stale, _)) => Attempt::Ended(Outcome::Stale),
            Ok((Verdict::Exhausted, _)) => Attempt::NoRoom,
            Ok((verdict, message)) => {
                Attempt::Broken(format!("{}: {message}", verdict.as_str_name()))
            }
            Err(what) => Attempt::Broken(what),
        }
    }

    async fn exchange(&mut self, frames: &[HandOffFrame]) -> Result<(Verdict, String), String> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => none.insert(Stream::connect(&self.peer, &self.fingerprint).await?),
        };
        stream.send_set(frames).await
    }
}

impl Attempts {
    fn new(parcel: Parcel) -> Self {
        Self { parcel, tries: 0, pause: PAUSE_MIN }
    }
}

/// An open `HandOff` call.
struct Stream {
    frames: mpsc::Sender<HandOffFrame>,
    acks: Streaming<HandOffAck>,
}

impl Stream {
    async fn connect(peer: &Peer, fingerprint: &str) -> Result<Self, String> {
        let patience = Duration::from_millis(limits::CONNECT_DEADLINE_MS);
        let window = limits::GRPC_MESSAGE_BYTES_MAX as u32;
        let endpoint = Endpoint::from_shared(peer.0.clone())
            .map_err(|error| error.to_string())?
            .connect_timeout(patience)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEPALIVE)
            .initial_stream_window_size(window)
            .initial_connection_window_size(window);
        let channel = endpoint.connect().await.map_err(|error| describe(&error))?;
        let mut client = WorkerClient::new(channel)
            .max_decoding_message_size(limits::GRPC_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(limits::GRPC_MESSAGE_BYTES_MAX);
        let (frames, outgoing) = mpsc::channel(limits::LINK_WINDOW_FRAMES);
        let mut request = tonic::Request::new(ReceiverStream::new(outgoing));
        let fingerprint = fingerprint.parse().map_err(|_| "fingerprint is not ASCII".to_owned())?;
        request.metadata_mut().insert(FINGERPRINT_METADATA, fingerprint);
        let call = timeout(patience, client.hand_off(request)).await;
        let response = call.map_err(|_| "no answer to the call".to_owned())?;
        Ok(Self { frames, acks: response.map_err(|status| describe(&status))?.into_inner() })
    }

    /// Sends a set's frames, a window at a time, and returns the first verdict that is not OK,
    /// or OK when all are taken. Acks come in the order of frames.
    async fn send_set(&mut self, frames: &[HandOffFrame]) -> Result<(Verdict, String), String> {
        let (mut sent, mut acked) = (0, 0);
        let mut worst = None;
        loop {
            while worst.is_none()
                && sent < frames.len()
                && sent - acked < limits::LINK_WINDOW_FRAMES
            {
                let frame = frames[sent].clone();
                self.frames.send(frame).await.map_err(|_| "the stream ended".to_owned())?;
                sent += 1;
            }
            if acked == sent {
                return Ok(worst.unwrap_or((Verdict::Ok, String::new())));
            }
            let ack = self.acks.message().await.map_err(|status| describe(&status))?;
            let ack = ack.ok_or("the peer ended the stream")?;
            acked += 1;
            if ack.verdict() != Verdict::Ok && worst.is_none() {
                worst = Some((ack.verdict(), ack.message));
            }
        }
    }
}

/// An error and its causes in one line; tonic's own text often names only the outermost.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::conformance::{Rig, fit, suite};
    use crate::tiny_model;
    use crate::{LoopbackHub, Worker, WorkerOptions, serve};
    use tokio::net::TcpListener;
    use tokio::runtime::Runtime;

    /// A worker on a port of its own, and a link to it.
    fn rig(inbox_bytes: u64) -> Rig {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let peer = format!("http://{}", listener.local_addr().unwrap());
        let worker = {
            let _inside = runtime.enter();
            let options = WorkerOptions::new(&peer, LoopbackHub::default());
            let model = tiny_model::tiny(fit().kv);
            Worker::start(model, WorkerOptions { inbox_bytes, ..options }).unwrap()
        };
        let inbox = worker.inbox();
        runtime.spawn(serve(worker, listener, std::future::pending()));
        let (doorbell, fingerprint) = (Arc::<Doorbell>::default(), inbox.fingerprint().to_owned());
        let link = GrpcLink::open(runtime.handle(), Peer(peer), fingerprint, doorbell.clone());
        Rig { link: Box::new(link), doorbell, inbox, _keep: Box::new(runtime) }
    }

    #[test]
    fn conforms() {
        suite(rig);
    }
}
