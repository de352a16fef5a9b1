//! Where other members come in: whoever is a coordinator of this group is heard.

use std::time::Duration;

use aqueduct_core::{Refusal, RequestId, limits};
use aqueduct_journal::{Ear, decode};
use aqueduct_proto::convert::peers::{Envelope, Gathering};
use aqueduct_proto::v1::coordinators_server::{Coordinators, CoordinatorsServer};
use aqueduct_proto::v1::{
    Carried, CarryAsk, CarryBegin, PeerFrame, PeerReceipt, ReachAsk, Reached,
};
use aqueduct_tls::{Caller, Counted, Listener, Role, UnderWay};
use axum::extract::Request;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use tokio::sync::{Semaphore, TryAcquireError, watch};
use tonic::service::Routes;
use tonic::{Response, Status, Streaming};

use super::{Answers, Group, Known, Reason, Unheard, carriage};
use crate::generation::Claim;
use crate::runtime::Coordinator;
use crate::submit::RequestError;

/// A batch of more bytes is a long one; a member sends one of these at a time.
const SHORT_BYTES_MAX: u64 = 16 << 20;
/// A frame that does not come for so long does not come.
const FRAME_DEADLINE: Duration = Duration::from_millis(limits::PEER_DEADLINE_MS);
/// A member that answers no ping for so long is gone, and its calls with it.
const PING_INTERVAL: Duration = Duration::from_millis(limits::CONNECT_DEADLINE_MS);

struct Desk {
    group: Group,
    ear: Ear,
    known: watch::Sender<Known>,
    unheard: Unheard,
    calls: Semaphore,
    long: Semaphore,
    /// Who knows of requests, where members are told of them, and whether those are that show no
    /// certificates: where there are keys, what one has asked for is nobody else's to read.
    coordinator: Option<(Coordinator, bool)>,
}

/// Hears the other members of `group` on `listener` until `shutdown`, and makes `known` where
/// callers reach them; what it does not hear it counts in `unheard`. Behind TLS it hears
/// coordinators alone.
///
/// # Errors
/// What the transport reports.
pub async fn serve(
    group: Group,
    ear: Ear,
    (known, unheard): (watch::Sender<Known>, Unheard),
    listener: impl Into<Listener>,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), tonic::transport::Error> {
    serve_with(Answers::default(), (group, ear), (known, unheard), listener, shutdown).await
}

/// The same; `answers` has calls that the others pass on.
///
/// # Errors
/// What the transport reports.
pub async fn serve_with(
    answers: Answers,
    (group, ear): (Group, Ear),
    (known, unheard): (watch::Sender<Known>, Unheard),
    listener: impl Into<Listener>,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), tonic::transport::Error> {
    let calls = Semaphore::new(limits::PEER_CALLS_MAX);
    let long = Semaphore::new(group.others().count());
    let coordinator = answers.coordinator.clone().map(|it| (it, answers.is_open));
    let desk = Desk { group, ear, known, unheard, calls, long, coordinator };
    answer((desk, answers), listener.into(), Box::pin(shutdown)).await
}

/// Boxed, it is compiled here, and not again in each crate that waits for it.
fn answer(
    (desk, answers): (Desk, Answers),
    listener: Listener,
    shutdown: BoxFuture<'_, ()>,
) -> BoxFuture<'_, Result<(), tonic::transport::Error>> {
    let desk =
        CoordinatorsServer::new(desk).max_decoding_message_size(limits::GRPC_MESSAGE_BYTES_MAX);
    let passed_on = move |request: Request| answers.clone().answer(request);
    let routes = Routes::new(desk).into_axum_router().fallback(passed_on);
    let under_way = UnderWay::default();
    let served = tonic::transport::Server::builder()
        .max_frame_size(limits::HTTP2_FRAME_BYTES_MAX)
        .initial_stream_window_size(limits::HTTP2_WINDOW_BYTES)
        .initial_connection_window_size(limits::HTTP2_WINDOW_BYTES)
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .serve_with_incoming_shutdown(
            Counted::new(Routes::from(routes).prepare()),
            listener.incoming(&under_way),
            shutdown,
        );
    Box::pin(served)
}

#[tonic::async_trait]
impl Coordinators for Desk {
    async fn deliver(
        &self,
        request: tonic::Request<Streaming<PeerFrame>>,
    ) -> Result<Response<PeerReceipt>, Status> {
        only_for_members(&request)?;
        let _call = self.calls.try_acquire().map_err(busy)?;
        let mut frames = request.into_inner();
        let first = next(&mut frames).await?;
        let first = first.ok_or_else(|| Status::invalid_argument("no frame"))?;
        let mut gathering = Gathering::begin(first).map_err(|refusal| self.misread(0, &refusal))?;
        let Envelope { group, from, to, .. } = *gathering.envelope();
        self.check(group, (from, to))?;
        let is_long = gathering.bytes() > SHORT_BYTES_MAX;
        let _long = is_long.then(|| self.long.try_acquire()).transpose().map_err(busy)?;
        while let Some(frame) = next(&mut frames).await? {
            gathering.add(frame).map_err(|refusal| self.misread(from, &refusal))?;
        }
        self.hear(gathering, is_long).await?;
        Ok(Response::new(PeerReceipt {}))
    }

    type CarryStream = BoxStream<'static, Result<Carried, Status>>;

    async fn carry(
        &self,
        request: tonic::Request<Streaming<CarryAsk>>,
    ) -> Result<Response<Self::CarryStream>, Status> {
        only_for_members(&request)?;
        let Some((coordinator, is_open)) = &self.coordinator else {
            return Err(Status::unimplemented("members are told of no requests here"));
        };
        let caller = request.extensions().get::<Caller>();
        if !is_open && !caller.is_some_and(|caller| caller.is(Role::Coordinator)) {
            return Err(Status::permission_denied(
                "only for who shows a coordinator's certificate",
            ));
        }
        let mut asks = request.into_inner();
        let CarryBegin { group, from, to, request } = carriage::begin(&mut asks).await?;
        self.check(group, (from, to))?;
        let attached = coordinator.attach(RequestId(request), Claim::Member).await;
        let attached = attached.map_err(|error| match error {
            RequestError::Unknown(_) => Status::not_found(error.to_string()),
            RequestError::TakenOver => Status::aborted(error.to_string()),
            _ => Status::unavailable(error.to_string()),
        })?;
        let request = RequestId(request);
        tracing::info!(%request, member = from, "a member carries a request to its caller");
        Ok(Response::new(carriage::tell(attached, asks, coordinator.config().resume_grace)))
    }

    async fn reach(&self, request: tonic::Request<ReachAsk>) -> Result<Response<Reached>, Status> {
        only_for_members(&request)?;
        let _call = self.calls.try_acquire().map_err(busy)?;
        let ReachAsk { group, from, to } = request.into_inner();
        self.check(group, (from, to))?;
        let Some((coordinator, _)) = &self.coordinator else {
            return Err(Status::unimplemented("calls are not passed on here"));
        };
        Ok(Response::new(Reached { workers: coordinator.workers_reached().await }))
    }
}

fn busy(_: TryAcquireError) -> Status {
    Status::resource_exhausted("too many calls of coordinators")
}

fn only_for_members<T>(request: &tonic::Request<T>) -> Result<(), Status> {
    let caller = request.extensions().get::<Caller>();
    match caller.is_some_and(|caller| caller.may_be(Role::Coordinator)) {
        true => Ok(()),
        false => Err(Status::permission_denied(format!("only for {}", Role::Coordinator.name()))),
    }
}

impl Desk {
    /// Whether it is for this member, of another one.
    fn check(&self, group: u64, (from, to): (u64, u64)) -> Result<(), Status> {
        let (ours, member) = (self.ear.group(), self.ear.member());
        if group != ours {
            let bound = format!("{ours:016x}, the group that this coordinator belongs to");
            let refusal = Refusal::new("group", format_args!("{group:016x}"), bound);
            self.unheard.count(Reason::Group, from, &refusal);
            if self.group.others().any(|(other, _)| other == from) {
                self.ear.begins_late();
            }
            return Err(Status::failed_precondition(refusal.to_string()));
        }
        if to != member || self.group.others().all(|(other, _)| other != from) {
            let bound = format!("another member's to {member}");
            let refusal = Refusal::new("from, to", format_args!("{from}, {to}"), bound);
            self.unheard.count(Reason::Member, from, &refusal);
            return Err(Status::failed_precondition(refusal.to_string()));
        }
        Ok(())
    }

    async fn hear(&self, gathering: Gathering, is_long: bool) -> Result<(), Status> {
        let from = gathering.envelope().from;
        let read = move || {
            let (envelope, batch) = gathering.finish()?;
            Ok((decode(&batch, (envelope.from, envelope.to))?, envelope))
        };
        let read: Result<_, Refusal> = match is_long {
            true => tokio::task::spawn_blocking(read)
                .await
                .map_err(|error| Status::internal(error.to_string()))?,
            false => read(),
        };
        let read = read.map_err(|refusal| self.misread(from, &refusal));
        let (messages, Envelope { addresses, birth, .. }) = read?;
        self.known.send_if_modified(|known| {
            if known.get(&from) == Some(&addresses) {
                return false;
            }
            known.insert(from, addresses);
            true
        });
        for message in messages {
            if !self.ear.hear(birth, message).await {
                return Err(Status::unavailable("the journal has ended"));
            }
        }
        Ok(())
    }

    /// What `from` sent is nothing that a member sends; 0 where it is not known who it was.
    fn misread(&self, from: u64, refusal: &Refusal) -> Status {
        self.unheard.count(Reason::Form, from, refusal);
        Status::invalid_argument(refusal.to_string())
    }
}

async fn next(frames: &mut Streaming<PeerFrame>) -> Result<Option<PeerFrame>, Status> {
    let frame = tokio::time::timeout(FRAME_DEADLINE, frames.message()).await;
    frame.map_err(|_| Status::deadline_exceeded(format!("no frame within {FRAME_DEADLINE:?}")))?
}
