//! A way to a holder on which frames are lost, doubled, late, out of order or changed.

use aqueduct_engine::shards::Spent;
use std::time::Instant;

use aqueduct_core::{WireDtype, limits};
use aqueduct_engine::shards::Place;
use aqueduct_kernels::shard::cutoffs;
use aqueduct_proto::FINGERPRINT_METADATA;
use aqueduct_proto::v1::worker_client::WorkerClient;
use aqueduct_proto::v1::worker_server::{Worker as WorkerRpc, WorkerServer};
use aqueduct_proto::v1::{ExchangeFrame, HandOffAck, HandOffFrame, WorkerCommand, WorkerEvent};
use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

use super::tests::worker_at;
use super::*;
use crate::exchange::Ask;
use crate::exchange::conformance::{Rig, dense, h2o, place, queries, same_bits};

/// Stands between an asker and the worker at `peer`.
struct Middle {
    peer: String,
    seed: std::sync::atomic::AtomicU64,
}

/// One direction of one stream.
struct Faults {
    state: u64,
    held: Option<ExchangeFrame>,
}

impl Faults {
    fn next(&mut self, below: u64) -> u64 {
        self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.state >> 33) % below
    }

    /// What becomes of `frame`.
    async fn meet(&mut self, frame: ExchangeFrame) -> Vec<ExchangeFrame> {
        let mut out = match self.next(24) {
            0 => vec![],
            1 => vec![frame.clone(), frame],
            2 => vec![self.changed(frame)],
            3 => {
                tokio::time::sleep(Duration::from_millis(self.next(30))).await;
                vec![frame]
            }
            4 => return self.held.replace(frame).into_iter().collect(),
            _ => vec![frame],
        };
        out.extend(self.held.take()); // behind one that was sent later
        out
    }

    fn changed(&mut self, mut frame: ExchangeFrame) -> ExchangeFrame {
        let flip = |bytes: &Bytes, at: u64, bit: u64| -> Bytes {
            let mut bytes = bytes.to_vec();
            let at = at as usize % bytes.len().max(1);
            bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= 1 << bit);
            bytes.into()
        };
        let (at, bit) = (self.next(1 << 30), self.next(8));
        match self.next(4) {
            0 => frame.header = flip(&frame.header, at, bit),
            1 => frame.payload = flip(&frame.payload, at, bit),
            2 => frame.part_idx ^= 1 << bit,
            _ => frame.crc32 ^= 1 << bit,
        }
        frame
    }
}

impl Middle {
    fn faults(&self) -> Faults {
        let seed = self.seed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Faults { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), held: None }
    }
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
        _: Request<Streaming<HandOffFrame>>,
    ) -> Result<Response<Self::HandOffStream>, Status> {
        Err(Status::unimplemented("no hand-offs"))
    }

    async fn exchange(
        &self,
        request: Request<Streaming<ExchangeFrame>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        let fingerprint = request.metadata().get(FINGERPRINT_METADATA).cloned();
        let mut asks = request.into_inner();
        let client = WorkerClient::connect(self.peer.clone()).await;
        let mut client = client
            .map_err(|error| Status::unavailable(error.to_string()))?
            .max_decoding_message_size(limits::GRPC_MESSAGE_BYTES_MAX);
        let (to_peer, outgoing) = mpsc::channel(4);
        let mut onwards = Request::new(ReceiverStream::new(outgoing));
        onwards.metadata_mut().insert(FINGERPRINT_METADATA, fingerprint.unwrap());
        let mut answers = client.exchange(onwards).await?.into_inner();
        let (to_asker, replies) = mpsc::channel(4);
        let (mut there, mut back) = (self.faults(), self.faults());
        tokio::spawn(async move {
            while let Ok(Some(frame)) = asks.message().await {
                for frame in there.meet(frame).await {
                    if to_peer.send(frame).await.is_err() {
                        return;
                    }
                }
            }
        });
        tokio::spawn(async move {
            loop {
                let frames = match answers.message().await {
                    Ok(Some(frame)) => back.meet(frame).await.into_iter().map(Ok).collect(),
                    Ok(None) => return,
                    Err(status) => vec![Err(status)],
                };
                for frame in frames {
                    if to_asker.send(frame).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(replies)))
    }
}

/// A link to a fresh worker through a middle of faults.
fn rig(seed: u64) -> Rig {
    let (theirs, worker, peer) = worker_at("127.0.0.1:0");
    let own = Runtime::new().unwrap();
    let listener = own.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let middle = format!("http://{}", listener.local_addr().unwrap());
    let service = WorkerServer::new(Middle { peer, seed: (seed << 32).into() })
        .max_decoding_message_size(limits::GRPC_MESSAGE_BYTES_MAX);
    own.spawn(
        Server::builder().add_service(service).serve_with_incoming(TcpIncoming::from(listener)),
    );
    let (doorbell, holder) = (Arc::<Doorbell>::default(), worker.holder().clone());
    let about = (aqueduct_core::work::Peer(middle).into(), holder.model().fingerprint().to_owned());
    let retry = Duration::from_millis(50);
    let link = GrpcExchange::open_with(own.handle(), about, doorbell.clone(), (retry, IDLE));
    let keep = Box::new((own, theirs, worker));
    Rig { link: Box::new(link), doorbell, holder, _keep: keep }
}

#[test]
fn many_calls_have_their_own_answers_or_none() {
    for seed in 0..4 {
        let mut rig = rig(seed);
        let place = place(3, 2, dense());
        rig.put(&place, 10);
        let ask = |id: u64| Ask::Attend { place: place.clone(), q: queries(2, id as u32) };
        let until = Instant::now() + Duration::from_secs(20);
        for id in 0..50 {
            rig.send(id, ask(id), WireDtype::F32, Duration::from_secs(15));
        }
        for (id, answered) in rig.wait(50) {
            let reply = answered.reply;
            assert!(reply.is_ok(), "seed {seed}, call {id}: {reply:?}");
            same_bits(&reply.unwrap(), &rig.told(&ask(id)));
        }
        assert!(Instant::now() < until, "seed {seed} took longer than its deadline");
    }
}

#[test]
fn both_rounds_count_once() {
    for seed in 10..16 {
        let (mut rig, quiet) = (rig(seed), rig(seed));
        for layer in 0..3 {
            let place = place(layer, 3, h2o());
            rig.put(&place, 20);
            quiet.put(&place, 20);
            let mut check = |ask: Ask| {
                let want = quiet.told(&ask);
                same_bits(&rig.call(ask, WireDtype::F32).unwrap(), &want);
                want
            };
            let q = queries(3, layer);
            let Reply::States(states) = check(Ask::Attend { place: place.clone(), q }) else {
                panic!("states answer queries")
            };
            let state = states.into_iter().map(|(_, state)| state).reduce(|a, b| a.merge(&b));
            let lse: Arc<[f32]> = state.unwrap().lse().into();
            let spent = Spent { lse, masses: Arc::default() };
            let Reply::Standing(standing) = check(Ask::Weigh { place: place.clone(), spent })
            else {
                panic!("candidates answer sums")
            };
            let cutoffs = cutoffs(&[standing], 2, 5).into();
            check(Ask::Settle { place: place.clone(), cutoffs });
            check(Ask::Keys { place: Place { start: place.end(), ..place } });
        }
    }
}

#[test]
fn parts_that_are_lost_or_swapped_change_nothing() {
    for seed in 20..24 {
        let mut rig = rig(seed);
        let place = Place { start: 200_000, ..place(2, 2, dense()) };
        rig.put(&place, 12_500); // of five parts: more would never all pass
        rig.check(Ask::Keys { place });
    }
}
