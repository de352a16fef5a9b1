//! The worker's gRPC face: sessions of coordinators, and memory sets from other workers.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_core::work::{CONVENTION, Command, Event};
use aqueduct_core::{ChunkKey, limits};
use aqueduct_kernels::MemorySet;
use aqueduct_proto::FINGERPRINT_METADATA;
use aqueduct_proto::convert::frame::{Assembler, FrameError, SetHeader, Spared};
use aqueduct_proto::convert::notice::Notice;
use aqueduct_proto::convert::peers::tenure;
use aqueduct_proto::v1::hand_off_ack::Verdict as Answer;
use aqueduct_proto::v1::worker_server::{Worker as WorkerRpc, WorkerServer};
use aqueduct_proto::v1::{ExchangeFrame, HandOffAck, HandOffFrame, WorkerCommand, WorkerEvent};
use aqueduct_tls::{Caller, Counted, Listener, Role, UnderWay};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, Stream, StreamExt, stream};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use crate::exchange::serve::Desk;
use crate::inbox::{Came, Inbox, Verdict};
use crate::ledger::Ledger;
use crate::link::codec;
use crate::link::delta::{self, DeltaError};
use crate::link::nccl::Dock;
use crate::refusals::Refusals;
use crate::tenures::{Pass, Tenures, Unwelcome};
use crate::worker::Worker;

/// A coordinator or sender that is silent for longer is asked whether it lives: a machine that
/// vanished says no goodbye, and its sessions hold memory. Nobody waits for that, so one that is
/// held up for a moment keeps what it has.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Serves `worker` on `listener` until `shutdown`; then every session ends, by the instant that it
/// names at the latest. Behind TLS sessions are for coordinators alone, and frames for workers.
///
/// # Errors
/// What the transport reports.
pub async fn serve(
    worker: Worker,
    listener: impl Into<Listener>,
    shutdown: impl Future<Output = Instant> + Send,
) -> Result<(), tonic::transport::Error> {
    answer(worker, listener.into(), Box::pin(shutdown)).await
}

/// The same. Boxed, it is compiled here, and not again in each crate that waits for it.
fn answer(
    worker: Worker,
    listener: Listener,
    shutdown: BoxFuture<'_, Instant>,
) -> BoxFuture<'_, Result<(), tonic::transport::Error>> {
    Box::pin(async move {
        let (stop, stopped) = watch::channel(false);
        let (reporter, health) = tonic_health::server::health_reporter();
        reporter.set_serving::<WorkerServer<Service>>().await;
        let sessions = Arc::new(Semaphore::new(limits::SESSIONS_MAX));
        let (tenures, refusals) = (Tenures::default(), Refusals::default());
        let service = WorkerServer::new(Service { worker, sessions, tenures, refusals, stopped })
            .max_decoding_message_size(limits::GRPC_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(limits::GRPC_MESSAGE_BYTES_MAX);
        let (under_way, (closed, closing)) = (UnderWay::default(), oneshot::channel());
        let serving = Server::builder()
            .max_frame_size(limits::HTTP2_FRAME_BYTES_MAX)
            .initial_stream_window_size(limits::HTTP2_WINDOW_BYTES)
            .initial_connection_window_size(limits::HTTP2_WINDOW_BYTES)
            .http2_keepalive_interval(Some(KEEPALIVE))
            .serve_with_incoming_shutdown(
                Counted::new(Routes::new(health).add_service(service).prepare()),
                listener.incoming(&under_way),
                async move {
                    drop(closing.await);
                    let _ = stop.send(true); // nobody may be listening
                },
            );
        under_way.drain(serving, shutdown, closed).await.unwrap_or(Ok(()))
    })
}

type Reply<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

struct Service {
    worker: Worker,
    sessions: Arc<Semaphore>,
    tenures: Tenures,
    refusals: Refusals,
    stopped: watch::Receiver<bool>,
}

impl Service {
    /// `replies`, but no longer than the service runs.
    fn while_serving<T: 'static>(
        &self,
        replies: impl Stream<Item = Result<T, Status>> + Send + 'static,
    ) -> Response<Reply<T>> {
        let mut stopped = self.stopped.clone();
        let stop = async move {
            let _ = stopped.wait_for(|&stopped| stopped).await; // a gone server is a stop too
        };
        Response::new(Box::pin(replies.take_until(stop.boxed())))
    }

    /// The same, and no longer than a coordinator leads here: who comes again is refused.
    fn while_led<T: 'static>(
        &self,
        replies: impl Stream<Item = Result<T, Status>> + Send + 'static,
    ) -> Response<Reply<T>> {
        let led = self.worker.led().clone();
        let over = async move {
            led.over().await;
            tracing::debug!("no coordinator leads here: a stream of another worker ends");
        };
        self.while_serving(replies.take_until(over.boxed()))
    }
}

impl Service {
    /// Refuses another worker where no coordinator leads. To it this worker is out of reach, as
    /// one is that is gone: it may have been led here by a name that is another's by now.
    fn led(&self) -> Result<(), Status> {
        match self.worker.led().is_over() {
            true => Err(Status::unavailable("no coordinator has a session with this process")),
            false => Ok(()),
        }
    }

    /// Lets a coordinator in that leads its group, or is in none.
    fn pass(&self, metadata: &MetadataMap) -> Result<Option<Pass>, Status> {
        let tenure = tenure(metadata).map_err(|refusal| {
            tracing::warn!(%refusal, "a coordinator names no tenure");
            Status::invalid_argument(refusal.to_string())
        })?;
        let pass = tenure.map(|tenure| self.tenures.enter(tenure, Instant::now())).transpose();
        pass.map_err(|unwelcome| {
            tracing::warn!(%unwelcome, "a coordinator gets no session");
            match unwelcome {
                Unwelcome::Deposed(refusal) => Status::failed_precondition(refusal.to_string()),
                Unwelcome::Full(refusal) => Status::resource_exhausted(refusal.to_string()),
            }
        })
    }
}

/// Resolves when a session is over because its coordinator leads no more.
async fn superseded(pass: Option<Pass>) -> Status {
    match pass {
        Some(mut pass) => Status::failed_precondition(pass.superseded().await.to_string()),
        None => std::future::pending().await,
    }
}

#[tonic::async_trait]
impl WorkerRpc for Service {
    type ControlStream = Reply<WorkerEvent>;
    type HandOffStream = Reply<HandOffAck>;
    type ExchangeStream = Reply<ExchangeFrame>;

    async fn control(
        &self,
        request: Request<Streaming<WorkerCommand>>,
    ) -> Result<Response<Self::ControlStream>, Status> {
        only(Role::Coordinator, &request)?;
        self.refusals.hear(request.extensions().get::<Caller>(), request.metadata());
        let mut draining = self.worker.draining();
        if *draining.borrow() {
            return Err(Status::unavailable("this worker is going to stop"));
        }
        let permit = self.sessions.clone().try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(format!("{} sessions are open", limits::SESSIONS_MAX))
        })?;
        let pass = self.pass(request.metadata())?;
        let (commands, events) = self.worker.open_session();
        let (refuse, refused) = oneshot::channel();
        tokio::spawn(async move {
            let over = superseded(pass);
            if let Some(status) = forward(request.into_inner(), commands, over).await {
                let _ = refuse.send(status); // or is gone
            }
            drop(permit);
        });
        let events = ReceiverStream::new(events).map(Some).chain(stream::iter([None]));
        let leaving = async move {
            draining.wait_for(|&draining| draining).await.is_ok().then_some(Event::Draining)
        };
        let leaving = leaving.into_stream().filter_map(async |event| event.map(Some));
        // Over when the session's own events are.
        let events = stream::select(events, leaving.boxed());
        let events = events.take_while(|event| std::future::ready(event.is_some()));
        let events = events.filter_map(async |event| event.map(|event| Ok(event.into())));
        let last = refused.into_stream().filter_map(async |refusal| refusal.ok().map(Err));
        Ok(self.while_serving(events.chain(last.boxed())))
    }

    async fn hand_off(
        &self,
        request: Request<Streaming<HandOffFrame>>,
    ) -> Result<Response<Self::HandOffStream>, Status> {
        only(Role::Worker, &request)?;
        self.led()?;
        let inbox = self.worker.inbox();
        same_model(request.metadata(), inbox.fingerprint())?;
        let assembler = Assembler::bounded(inbox.bytes_max());
        let (direct, mut answer) = (self.worker.direct(), MetadataMap::new());
        let dock = Dock::open(inbox.clone(), direct, request.metadata(), &mut answer);
        let (frames, ledger) = (request.into_inner(), self.worker.ledger());
        let receiver = Receiver { frames, inbox, ledger, assembler, dock };
        let acks = stream::unfold(Some(receiver), Receiver::next_ack);
        let mut response = self.while_led(acks);
        *response.metadata_mut() = answer;
        Ok(response)
    }

    async fn exchange(
        &self,
        request: Request<Streaming<ExchangeFrame>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        only(Role::Worker, &request)?;
        self.led()?;
        let holder = self.worker.holder().clone();
        same_model(request.metadata(), holder.model().fingerprint())?;
        let (frames, outgoing) = mpsc::channel(limits::EXCHANGE_WINDOW_FRAMES);
        tokio::spawn(Desk::open(holder, request.into_inner()).run(frames));
        Ok(self.while_led(ReceiverStream::new(outgoing)))
    }
}

/// Checks that whoever calls has this role.
fn only<T>(role: Role, request: &Request<T>) -> Result<(), Status> {
    match request.extensions().get::<Caller>() {
        Some(caller) if caller.may_be(role) => Ok(()),
        _ => Err(Status::permission_denied(format!("only for {}", role.name()))),
    }
}

/// Checks that the caller speaks of the model with this fingerprint.
fn same_model(metadata: &MetadataMap, ours: &str) -> Result<(), Status> {
    let theirs = metadata.get(FINGERPRINT_METADATA);
    match theirs.is_some_and(|theirs| theirs.as_encoded_bytes() == ours.as_bytes()) {
        true => Ok(()),
        false => Err(Status::failed_precondition(format!(
            "{FINGERPRINT_METADATA} = {theirs:?}: must be {ours}, the model served here"
        ))),
    }
}

/// Passes commands on until the session ends. If that is because a command is refused, or because
/// it is `over`, the last thing that the coordinator is to hear.
async fn forward(
    mut incoming: Streaming<WorkerCommand>,
    commands: mpsc::Sender<Command>,
    over: impl Future<Output = Status>,
) -> Option<Status> {
    let mut over = std::pin::pin!(over);
    loop {
        let next = tokio::select! {
            next = incoming.message() => next,
            () = commands.closed() => return None,
            status = &mut over => {
                tracing::warn!(reason = status.message(), "a session is over");
                return Some(status);
            }
        };
        match Command::try_from(next.ok().flatten()?) {
            Ok(command) => commands.send(command).await.ok()?,
            Err(refusal) => {
                tracing::warn!(%refusal, "a coordinator sent a command that cannot be used");
                return Some(Status::invalid_argument(refusal.to_string()));
            }
        }
    }
}

/// The receiving end of one hand-off stream.
struct Receiver {
    frames: Streaming<HandOffFrame>,
    inbox: Arc<Inbox>,
    ledger: Ledger,
    assembler: Assembler,
    dock: Dock,
}

impl Receiver {
    /// The next ack; after an error the stream ends.
    async fn next_ack(this: Option<Self>) -> Option<(Result<HandOffAck, Status>, Option<Self>)> {
        let mut this = this?;
        if let Some(ack) = this.dock.land().await {
            return Some((Ok(ack), Some(this)));
        }
        let frame = this.frames.message().await.ok()??;
        match this.accept(frame).await {
            Ok(ack) => Some((Ok(ack), Some(this))),
            Err(status) => Some((Err(status), None)),
        }
    }

    async fn accept(&mut self, frame: HandOffFrame) -> Result<HandOffAck, Status> {
        let accepted = if Notice::is_in(&frame) {
            self.dock.expect(&frame).await
        } else {
            self.assembler.accept(frame).map(|set| match set {
                None => ack(Answer::Ok, ""),
                Some((header, payload)) => self.deliver(&header, payload),
            })
        };
        match accepted {
            Ok(ack) => Ok(ack),
            Err(error @ FrameError::Convention { .. }) => {
                tracing::warn!(%error, want = CONVENTION, "a peer speaks another convention");
                Err(Status::failed_precondition(error.to_string()))
            }
            Err(error) => {
                tracing::warn!(%error, "a frame cannot be used");
                Ok(ack(Answer::Corrupt, error))
            }
        }
    }

    fn deliver(&self, header: &SetHeader, payload: Bytes) -> HandOffAck {
        let &SetHeader { key, layer, .. } = header;
        let came = Came::Far { bytes: payload.len() as u64, spared_bytes: header.spared_bytes() };
        let read = match &header.spared {
            None => codec::decode(header, payload).map_err(DeltaError::Refused),
            Some(spared) => match self.inbox.would_take(key, layer, &codec::shape(header)) {
                Verdict::Taken => self.complete(header, spared, &payload),
                verdict => return judged(verdict, key),
            },
        };
        match read {
            Ok(memory) => judged(self.inbox.deliver(key, layer, Arc::new(memory), came), key),
            Err(error @ DeltaError::Refused(_)) => ack(Answer::Corrupt, error),
            Err(error @ DeltaError::Unlike) => ack(Answer::Whole, error),
        }
    }

    /// Puts a set together with what was given here.
    fn complete(
        &self,
        header: &SetHeader,
        spared: &Spared,
        payload: &[u8],
    ) -> Result<MemorySet, DeltaError> {
        let base = self.ledger.find(header.key.request, &spared.base, header.layer);
        let base = base.filter(|base| delta::is_here(base)).ok_or(DeltaError::Unlike)?;
        delta::decode(header, spared, payload, &base)
    }
}

/// The answer to a set of which the inbox says this.
pub(crate) fn judged(verdict: Verdict, key: ChunkKey) -> HandOffAck {
    match verdict {
        Verdict::Taken => ack(Answer::Ok, ""),
        Verdict::Stale => ack(Answer::Stale, key),
        Verdict::Exhausted => ack(Answer::Exhausted, "the inbox is full"),
        Verdict::Unfit(refusal) => ack(Answer::Corrupt, refusal),
    }
}

pub(crate) fn ack(verdict: Answer, message: impl std::fmt::Display) -> HandOffAck {
    HandOffAck { verdict: verdict.into(), message: message.to_string() }
}
