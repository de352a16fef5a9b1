//! A way to a worker on which frames of hand-offs are changed, and streams end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use aqueduct_core::limits;
use aqueduct_core::work::{Base, Peer};
use aqueduct_proto::FINGERPRINT_METADATA;
use aqueduct_proto::v1::worker_client::WorkerClient;
use aqueduct_proto::v1::worker_server::{Worker as WorkerRpc, WorkerServer};
use aqueduct_proto::v1::{ExchangeFrame, HandOffAck, HandOffFrame, WorkerCommand, WorkerEvent};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

use super::GrpcLink;
use crate::doorbell::Doorbell;
use crate::link::Outcome;
use crate::link::conformance::{Rig, grpc_worker, key, nested};

/// What becomes of a frame on its way; `None`: the stream ends instead.
type Fault = Option<fn(&mut HandOffFrame)>;

/// Stands before the worker at `peer`. Every third frame meets the next of `faults`.
struct Middle {
    peer: String,
    faults: [Fault; 6],
    frames: Arc<AtomicU32>,
}

type Replies<T> = ReceiverStream<Result<T, Status>>;

#[tonic::async_trait]
impl WorkerRpc for Middle {
    type ControlStream = Replies<WorkerEvent>;
    type HandOffStream = Replies<HandOffAck>;
    type ExchangeStream = Replies<ExchangeFrame>;

    async fn control(
        &self,
        _: Request<Streaming<WorkerCommand>>,
    ) -> Result<Response<Self::ControlStream>, Status> {
        Err(Status::unimplemented("no session"))
    }

    async fn hand_off(
        &self,
        request: Request<Streaming<HandOffFrame>>,
    ) -> Result<Response<Self::HandOffStream>, Status> {
        let fingerprint = request.metadata().get(FINGERPRINT_METADATA).cloned();
        let mut frames = request.into_inner();
        let client = WorkerClient::connect(self.peer.clone()).await;
        let mut client = client
            .map_err(|error| Status::unavailable(error.to_string()))?
            .max_encoding_message_size(limits::GRPC_MESSAGE_BYTES_MAX);
        let (to_peer, outgoing) = mpsc::channel(4);
        let mut onwards = Request::new(ReceiverStream::new(outgoing));
        onwards.metadata_mut().insert(FINGERPRINT_METADATA, fingerprint.unwrap());
        let mut acks = client.hand_off(onwards).await?.into_inner();
        let (to_sender, replies) = mpsc::channel(4);
        let (faults, count) = (self.faults, self.frames.clone());
        tokio::spawn(async move {
            while let Ok(Some(mut frame)) = frames.message().await {
                let count = count.fetch_add(1, Ordering::Relaxed) as usize;
                let fault = count.is_multiple_of(3).then(|| faults[count / 3 % faults.len()]);
                match fault {
                    Some(None) => return,
                    Some(Some(change)) => change(&mut frame),
                    None => {}
                }
                to_peer.send(frame).await.unwrap();
                let Ok(Some(ack)) = acks.message().await else { return };
                to_sender.send(Ok(ack)).await.unwrap();
            }
        });
        Ok(Response::new(ReceiverStream::new(replies)))
    }

    async fn exchange(
        &self,
        _: Request<Streaming<ExchangeFrame>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        Err(Status::unimplemented("no exchange"))
    }
}

fn flip(frame: &mut HandOffFrame, at: usize) {
    let mut payload = frame.payload.to_vec();
    payload[at] ^= 4;
    frame.payload = payload.into();
}

/// A link to a worker, with a middle between them.
fn rig(faults: [Fault; 6]) -> (Rig, Arc<AtomicU32>) {
    let (own, theirs) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let (peer, inbox, ledger) = grpc_worker(&theirs, 1 << 30, None);
    let listener = theirs.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = Peer(format!("http://{}", listener.local_addr().unwrap()));
    let frames = Arc::<AtomicU32>::default();
    let middle = Middle { peer: peer.0, faults, frames: frames.clone() };
    let service = WorkerServer::new(middle)
        .max_decoding_message_size(limits::GRPC_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(limits::GRPC_MESSAGE_BYTES_MAX);
    let incoming = TcpIncoming::from(listener);
    theirs.spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
    let (doorbell, fingerprint) = (Arc::<Doorbell>::default(), inbox.fingerprint().to_owned());
    let link = GrpcLink::open(own.handle(), address, fingerprint, doorbell.clone(), None);
    let (link, peer, _keep) = (Box::new(link), Some(theirs), Box::new(own));
    (Rig { link, doorbell, inbox, ledger, peer, _keep }, frames)
}

#[test]
fn sets_on_a_base_arrive_with_their_bits_or_again() {
    let faults: [Fault; 6] = [
        None,
        Some(|frame| flip(frame, 0)),
        Some(|frame| flip(frame, frame.payload.len() - 1)),
        Some(|frame| frame.spared.iter_mut().for_each(|spared| spared.crc32 ^= 1)),
        Some(|frame| frame.spared.iter_mut().for_each(|spared| spared.rows += 1)),
        Some(|frame| frame.spared = None),
    ];
    let (mut rig, frames) = rig(faults);
    let sets: Vec<_> = (0..40).map(|seed| nested(20, seed).map(Arc::new)).collect();
    let mut spared_bytes = 0;
    for (chunk_idx, [before, memory]) in (1..).zip(&sets) {
        let _entry = rig.ledger.enter(key(0, 0), 0, before);
        let base = Base { chunk_idx: 0, epoch: key(0, 0).epoch, end: before.end };
        let key = key(chunk_idx, 0);
        assert_eq!(rig.send_on(base, key, memory), Outcome::Delivered, "chunk {chunk_idx}");
        assert_eq!(rig.inbox.take(key, 0).as_ref(), Some(memory), "chunk {chunk_idx}");
        spared_bytes += rig.inbox.finish(key).spared_bytes;
    }
    let frames = frames.load(Ordering::Relaxed) as usize;
    assert!(frames > sets.len() && frames / 3 > faults.len(), "{frames} frames, no fault");
    assert!(spared_bytes > 0, "what goes well spares bytes");
}
