//! The gRPC API: `aqueduct.v1.Aqueduct`, health and reflection.

mod astray;
mod error;
mod events;
mod health;
mod operator;
mod passing;
mod receiving;
mod request;

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use aqueduct_core::trace::TRACEPARENT;
use aqueduct_core::{RequestId, limits};
use aqueduct_proto::convert::shape::pool_tokens_to_wire;
use aqueduct_proto::v1;
use aqueduct_proto::v1::aqueduct_server::{Aqueduct, AqueductServer};
use aqueduct_tls::{Counted, Listener, UnderWay};
use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use futures::future::BoxFuture;
use futures::{FutureExt, Stream, TryStreamExt, stream};
use prost::Message as _;
use tokio::sync::oneshot;
use tonic::codegen::InterceptedService;
use tonic::metadata::MetadataMap;
use tonic::service::Routes;
use tonic::{Code, Request, Response, Status};
use tracing::Instrument;

use crate::generation::{About, Generator};
use crate::keys::{Holder, Keys};
use crate::operator::nodes;
use crate::request_id::{REQUEST_ID, call_span};
use crate::runtime::{Coordinator, Stats, WorkerState, WorkerStatus};
use crate::streams::{Ended, Place};
use crate::submit::{RequestError, Submission};
use crate::turns::Turns;
use error::{ending, status_of};
use events::Narrator;
use receiving::{InRoom, Receiving};

/// A client that answers no ping for this long is gone, and its requests with it.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Metadata that says, before the first event, by what number a resumable request is known.
const ANSWER_ID: &str = "aqueduct-request";

/// What could not be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The descriptors that reflection shows are not what they should be.
    #[error("reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The listener failed.
    #[error("serving gRPC: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// What the API gives access to, and whom.
#[derive(Clone)]
pub struct Served {
    /// The workers.
    pub coordinator: Coordinator,
    /// How their tokens become text.
    pub generator: Generator,
    /// What callers know the model by.
    pub model: String,
    /// Who may call; anybody if `None`.
    pub keys: Option<Keys>,
}

impl Served {
    /// Who calls, where that is asked.
    fn holder(&self, metadata: &MetadataMap) -> Result<Option<Holder>, Status> {
        let Some(keys) = &self.keys else { return Ok(None) };
        let shown = metadata.get("authorization").and_then(|value| value.to_str().ok());
        keys.check(shown).map(Some).map_err(|denied| {
            self.generator.metrics.rejected(denied.reason());
            Status::unauthenticated(denied.to_string())
        })
    }
}

impl Served {
    /// Whether this coordinator leads, and so serves.
    fn is_here(&self) -> Result<(), Status> {
        self.coordinator.leader().is_here().map_err(|error| {
            self.generator.metrics.rejected(error.reason());
            status_of(error)
        })
    }
}

struct Service {
    served: Served,
    /// Of prompts that are tokenised.
    turns: Turns,
}

/// Serves on `listener` until `shutdown` is done and the open streams have ended, or the instant
/// has come that it names.
///
/// # Errors
/// A listener that fails.
pub async fn serve(
    served: Served,
    listener: impl Into<Listener>,
    shutdown: impl Future<Output = Instant> + Send,
) -> Result<(), ServeError> {
    answer(served, listener.into(), Box::pin(shutdown)).await
}

/// The same. Boxed, it is compiled here, and not again in each crate that waits for it.
fn answer(
    served: Served,
    listener: Listener,
    shutdown: BoxFuture<'_, Instant>,
) -> BoxFuture<'_, Result<(), ServeError>> {
    Box::pin(async move {
        let (health, health_service) = tonic_health::server::health_reporter();
        let watching = tokio::spawn(health::report(served.coordinator.clone(), health));
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(aqueduct_proto::DESCRIPTOR)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
                // Workers and other coordinators listen elsewhere.
                .with_service_name("aqueduct.v1.Aqueduct")
                .with_service_name("aqueduct.v1.Operator")
                .with_service_name("grpc.health.v1.Health")
        };
        let to_leader = from_fn_with_state(served.clone(), passing::to_leader);
        let routes = routes(served)
            .add_service(health_service)
            .add_service(reflection().build_v1()?)
            // The only version that gRPC's own Python and Go clients have long spoken.
            .add_service(reflection().build_v1alpha()?);
        let routes = routes.into_axum_router().layer(to_leader).layer(from_fn(astray::send_home));
        let (under_way, (stop, stopped)) = (UnderWay::default(), oneshot::channel());
        let serving = tonic::transport::Server::builder()
            .accept_http1(true) // to tell who does where to go
            .max_concurrent_streams(limits::GRPC_CALLS_MAX)
            .http2_keepalive_interval(Some(PING_INTERVAL))
            .http2_keepalive_timeout(Some(PING_TIMEOUT))
            .serve_with_incoming_shutdown(
                Counted::new(Routes::from(routes).prepare()),
                listener.incoming(&under_way),
                stopped.map(drop),
            );
        let served = under_way.drain(serving, shutdown, stop).await;
        watching.abort();
        served.transpose()?;
        Ok(())
    })
}

/// What answers calls that another coordinator has passed on.
pub fn passed_on(served: Served) -> Router {
    let to_leader = from_fn_with_state(served.clone(), passing::to_leader);
    routes(served).into_axum_router().layer(to_leader)
}

fn routes(served: Served) -> Routes {
    let operator = operator::service(served.clone());
    let known = knowing(served.clone());
    let generator = served.generator.clone();
    let service = Service { served, turns: Turns::new() };
    let service = AqueductServer::new(service)
        .max_decoding_message_size(limits::PROMPT_BYTES_MAX)
        .max_encoding_message_size(limits::PROMPT_BYTES_MAX);
    let service = Receiving::new(InterceptedService::new(service, known), generator);
    Routes::new(service).add_service(operator)
}

/// Asks who calls before a message is taken in, where that is asked.
fn knowing(served: Served) -> impl Fn(Request<()>) -> Result<Request<()>, Status> + Clone {
    move |mut request| {
        let holder = served.holder(request.metadata());
        let holder =
            holder.map_err(|status| named(status, &request::caller_id(request.metadata())))?;
        if let Some(holder) = holder {
            request.extensions_mut().insert(holder);
        }
        Ok(request)
    }
}

/// What goes with a request beside its message, such as who has made it.
fn beside<T: Clone + Send + Sync + 'static>(request: &Request<impl Sized>) -> Option<T> {
    request.extensions().get().cloned()
}

/// An answer as it is streamed.
type Events = Pin<Box<dyn Stream<Item = Result<v1::GenerateEvent, Status>> + Send>>;

#[tonic::async_trait]
impl Aqueduct for Service {
    type GenerateStream = Events;
    type ResumeStream = Events;

    /// Dropping the stream, which is what tonic does when its client goes away, cancels, unless
    /// the request is resumable.
    async fn generate(
        &self,
        request: Request<v1::GenerateRequest>,
    ) -> Result<Response<Events>, Status> {
        let caller_id = request::caller_id(request.metadata());
        // Without a name: nobody has taken the request in, and it may be asked of another.
        self.served.is_here()?;
        let traceparent = request.metadata().get(TRACEPARENT).and_then(|text| text.to_str().ok());
        let span = call_span("grpc", &caller_id, traceparent);
        let answer = self.start(request, caller_id.clone()).instrument(span).await;
        answer.map_err(|status| named(status, &caller_id))
    }

    async fn resume(
        &self,
        request: Request<v1::ResumeRequest>,
    ) -> Result<Response<Events>, Status> {
        let caller_id = request::caller_id(request.metadata());
        self.served.is_here()?;
        let answer = self.go_on(request, caller_id.clone()).await;
        answer.map_err(|status| named(status, &caller_id))
    }

    async fn cancel(
        &self,
        request: Request<v1::CancelRequest>,
    ) -> Result<Response<v1::CancelReply>, Status> {
        self.served.is_here()?;
        let holder = beside::<Holder>(&request);
        let request = RequestId(request.into_inner().request);
        let cancelled = self.served.generator.cancel(holder.as_ref(), request);
        cancelled.await.map_err(status_of)?;
        Ok(Response::new(v1::CancelReply {}))
    }

    async fn tokenize(
        &self,
        request: Request<v1::TokenizeRequest>,
    ) -> Result<Response<v1::TokenizeReply>, Status> {
        let text = self.served.generator.text.clone();
        let room = beside::<InRoom>(&request);
        let message = request.into_inner();
        let bytes = message.encoded_len();
        let prepare = move || request::tokenize(message, &text);
        self.prepare((bytes, room, false), prepare).await.map(Response::new)
    }

    async fn describe(
        &self,
        _: Request<v1::DescribeRequest>,
    ) -> Result<Response<v1::DescribeReply>, Status> {
        self.served.is_here()?;
        let cluster = self.served.coordinator.describe();
        let model = cluster.model.as_ref();
        let stats = self.served.coordinator.stats();
        let status = |worker| worker_status(worker, &stats);
        Ok(Response::new(v1::DescribeReply {
            model: self.served.model.clone(),
            fingerprint: model.map(|model| model.fingerprint.clone()).unwrap_or_default(),
            shape: model.map(|model| model.shape.clone().into()),
            kv: model.map_or(v1::KvDtype::Unspecified, |model| model.kv.into()).into(),
            prompt_tokens_max: self.served.generator.text.prompt_tokens_max(),
            workers: cluster.workers.into_iter().map(status).collect(),
        }))
    }
}

impl Service {
    async fn start(
        &self,
        request: Request<v1::GenerateRequest>,
        caller_id: String,
    ) -> Result<Response<Events>, Status> {
        let arrived = Instant::now();
        let Served { coordinator, generator, .. } = &self.served;
        let (holder, room) = (beside::<Holder>(&request), beside::<InRoom>(&request));
        let timeout = request::timeout(request.metadata());
        let (text, config) = (generator.text.clone(), coordinator.config().clone());
        let message = request.into_inner();
        let (bytes, compiles) = (message.encoded_len(), message.grammar.is_some());
        let prepare = move || request::submission(message, timeout, &text, &config);
        let prepared = self.prepare((bytes, room, compiles), prepare).await;
        let submission = prepared.inspect_err(|status| {
            if status.code() == Code::InvalidArgument {
                self.served.generator.metrics.rejected("invalid");
            }
        })?;
        let waited = arrived.elapsed();
        let submission = Submission { caller_id: caller_id.clone(), waited, ..submission };
        let choices = submission.choices;
        let source = generator.start_for(holder.as_ref(), submission).await.map_err(status_of)?;
        let narrator = Narrator::new(source, Place::start(choices), coordinator);
        Ok(told(narrator, caller_id))
    }

    async fn go_on(
        &self,
        request: Request<v1::ResumeRequest>,
        caller_id: String,
    ) -> Result<Response<Events>, Status> {
        let Served { coordinator, generator, .. } = &self.served;
        let holder = beside::<Holder>(&request);
        let v1::ResumeRequest { request, next } = request.into_inner();
        let stands = next.clone();
        let may_read = move |about: &About, ended: &Ended| {
            Place::after(&stands, about.choices)?.check_told("next", ended)
        };
        let reader = generator.resume(holder.as_ref(), RequestId(request), may_read).await;
        let reader = reader.map_err(status_of)?;
        let place = Place::after(&next, reader.about().choices);
        let place = place.map_err(|refusal| status_of(refusal.into()))?;
        Ok(told(Narrator::new(reader.into(), place, coordinator), caller_id))
    }

    /// Runs `work` on so many bytes, which have this room, and maybe on a grammar, on a thread of
    /// its own: long prompts keep it busy for seconds. That, and those of others before it, may
    /// take as long as a request may.
    async fn prepare<T: Send + 'static>(
        &self,
        (bytes, room, compiles): (usize, Option<InRoom>, bool),
        work: impl FnOnce() -> Result<T, aqueduct_core::Refusal> + Send + 'static,
    ) -> Result<T, Status> {
        let deadline = self.served.coordinator.config().request_deadline;
        let prepared = async {
            let turn = self.turns.take(bytes, compiles).await;
            let turn = turn.ok_or_else(|| Status::unavailable("shutting down"))?;
            // Turn and room last as long as the work, also when the caller is gone by then.
            let work = move || (turn.run(work), room);
            let failed = || Status::internal("the request could not be prepared");
            let (done, _) = tokio::task::spawn_blocking(work).await.map_err(|error| {
                tracing::error!(%error, "preparing a request failed");
                failed()
            })?;
            done.ok_or_else(failed)?.map_err(|refusal| status_of(refusal.into()))
        };
        let prepared = tokio::time::timeout(deadline, prepared).await;
        prepared.unwrap_or_else(|_| Err(status_of(RequestError::Deadline(deadline))))
    }
}

/// The answer, and by what id its caller finds it in the log.
fn told(narrator: Narrator, caller_id: String) -> Response<Events> {
    let request = narrator.request();
    let id = caller_id.clone();
    let events = stream::try_unfold((narrator, id), async |(mut narrator, id)| {
        let event = narrator.next().await.map_err(|error| named(ending(error), &id))?;
        Ok(event.map(|event| (event, (narrator, id))))
    });
    let events: Events = Box::pin(events.into_stream());
    let mut response = Response::new(events);
    name(response.metadata_mut(), &caller_id);
    if let Some(request) = request {
        response.metadata_mut().insert(ANSWER_ID, request.0.into());
    }
    response
}

/// What goes wrong carries the caller's id as an answer does.
fn named(mut status: Status, caller_id: &str) -> Status {
    name(status.metadata_mut(), caller_id);
    status
}

fn name(metadata: &mut MetadataMap, caller_id: &str) {
    if let Ok(value) = caller_id.parse() {
        metadata.insert(REQUEST_ID, value);
    }
}

fn worker_status(worker: WorkerStatus, stats: &Stats) -> v1::WorkerStatus {
    let in_a_word = nodes::state(&worker, stats);
    let WorkerStatus { worker, name, state, info, draining, .. } = worker;
    let requests = stats.draining.get(&worker).copied().unwrap_or(0);
    let pool = stats.pools.get(&worker).copied().unwrap_or_default();
    v1::WorkerStatus {
        worker: name,
        address: info.as_ref().map(|info| info.peer.to_string()).unwrap_or_default(),
        up: state == WorkerState::Up,
        threads: info.as_ref().map_or(0, |info| info.threads),
        pool_tokens: info.map_or(0, |info| pool_tokens_to_wire(info.pool_tokens)),
        draining,
        requests: u32::try_from(requests).unwrap_or(u32::MAX),
        pool_bytes: pool.bytes,
        pool_used_bytes: pool.used_bytes,
        state: in_a_word.to_owned(),
    }
}
