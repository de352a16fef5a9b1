//! Calls that come to a coordinator which follows are passed on to the one that leads, over the
//! way that members have to each other: callers need reach one of the group, whichever it is.
//! Each call has a connection of its own, so that none waits for how slowly another is read.
//!
//! A call that is passed on has a path of its own ([`PASSED_ON`]), so that none can be taken for
//! what members say to each other.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_core::{RequestId, limits};
use aqueduct_journal::Standing;
use aqueduct_proto::v1::CarryBegin;
use aqueduct_tls::{Caller, ClientTls, Role};
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tonic::codegen::Service;
use tonic::transport::{self, Channel};

use super::carriage::Carriage;
use super::escort::{ESCORT, Escort, NotNow};
use super::{Group, lane};
use crate::runtime::Coordinator;

/// What stands before the path of a call that is passed on.
const PASSED_ON: &str = "/passed-on";
/// Header by which a member says that whose call it passes on may look after the cluster.
const OPERATES: HeaderName = HeaderName::from_static("aqueduct-operates");
/// Header by which a member says that another one has passed it the call.
const AGAIN: HeaderName = HeaderName::from_static("aqueduct-passed-again");
/// What all paths of the gRPC API begin with.
const GRPC: &str = "/aqueduct.v1.";

/// Headers of one connection, which say nothing on the next; of a page's origin, which was looked
/// at where it came in; of the host that was called there; and what only members say.
const NOT_PASSED_ON: [HeaderName; 13] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
    header::TRAILER,
    header::ORIGIN,
    header::HOST,
    OPERATES,
    AGAIN,
    ESCORT,
];

/// The way to whichever other member leads.
#[derive(Debug, Clone)]
pub struct Passage {
    pub(super) group: Group,
    /// The group's number, as this member's journal has it.
    pub(super) id: u64,
    standing: watch::Receiver<Standing>,
    /// Plaintext if `None`.
    pub(super) tls: Option<ClientTls>,
    room: Arc<Semaphore>,
    calls: Calls,
    carries: bool,
    /// Calls that have come in here and not asked for anything yet.
    inside: Calls,
}

tokio::task_local! {
    /// That of a call, until it has asked.
    static INSIDE: RefCell<Option<Counted>>;
}

impl Passage {
    /// To the other members of `group`, whose journal has the number `id`, and of whom `standing`
    /// says which one leads.
    pub fn new(
        group: Group,
        id: u64,
        standing: watch::Receiver<Standing>,
        tls: Option<ClientTls>,
    ) -> Self {
        let room = Arc::new(Semaphore::new(limits::HTTP_CONNECTIONS_MAX));
        let carries = tls.is_some();
        Self {
            group,
            id,
            standing,
            tls,
            room,
            calls: Calls::default(),
            carries,
            inside: Calls::default(),
        }
    }

    /// Has `call`, which this member is to answer, be known of until it [has asked](has_asked).
    pub(crate) async fn enter<T>(&self, call: impl Future<Output = T>) -> T {
        INSIDE.scope(RefCell::new(Some(self.inside.one())), call).await
    }

    /// Until no call is inside that has not asked.
    pub(crate) async fn all_have_asked(&self) {
        self.inside.none().await;
    }

    /// Anybody may read everything, so that members tell of requests also those who show no
    /// certificates.
    #[must_use]
    pub fn open_to_all(self) -> Self {
        Self { carries: true, ..self }
    }

    /// Whether members tell each other of requests.
    pub(crate) fn carries(&self) -> bool {
        self.carries
    }

    /// A connection to the member that leads; `None` if there is none, or too many calls are under
    /// way.
    pub(crate) async fn open(&self) -> Option<Way> {
        let room = self.room.clone().try_acquire_owned().ok()?;
        let Standing::Follows { leader: Some(leader) } = *self.standing.borrow() else {
            return None;
        };
        let (_, url) = self.group.others().find(|(other, _)| *other == leader)?;
        // hyper takes a connection for idle of which only an answer is left, and asks no more
        // whether the other end lives.
        let endpoint = lane::endpoint(url, self.tls.is_some()).ok()?.keep_alive_while_idle(true);
        match aqueduct_tls::connect(&endpoint, self.tls.as_ref()).await {
            Ok(channel) => Some(Way { channel, counted: (self.calls.one(), room) }),
            Err(error) => {
                tracing::warn!(peer = url, %error, "a call cannot be passed on to who leads");
                None
            }
        }
    }

    /// Tells of `request`, from its beginning, as the member that leads does; `None` if there is
    /// none, or it does not answer in time. Where it does not know of it that is what it tells.
    pub(crate) async fn carry(&self, request: RequestId) -> Option<Carriage> {
        let way = self.open().await?;
        let Standing::Follows { leader: Some(to) } = *self.standing.borrow() else { return None };
        let (group, from) = (self.id, self.group.identity().member);
        let begin = CarryBegin { group, from, to, request: request.0 };
        let deadline = Duration::from_millis(limits::PEER_DEADLINE_MS);
        let carriage = Carriage::begin(way.channel, begin, way.counted);
        tokio::time::timeout(deadline, carriage).await.ok()?
    }

    /// Whether a call that was passed on here already, or not, as `passed` says, goes on: it goes
    /// to no third member, and who is `closing` has its callers look for another one.
    pub(crate) fn takes(passed: Option<&PassedOn>, closing: bool) -> bool {
        passed.map_or(!closing, |passed| !passed.again)
    }

    /// Counts a call that is passed on.
    pub(crate) fn one(&self) -> Counted {
        self.calls.one()
    }

    /// Waits until all calls that were passed on have ended.
    pub(crate) async fn idle(&self) {
        self.calls.none().await;
    }
}

/// The call whose task this is has asked for what it wants, and was answered.
pub(crate) fn has_asked() {
    // Outside of a group, and in a task of its own, it is not known of.
    INSIDE.try_with(RefCell::take).ok();
}

/// A connection for one call.
#[derive(Debug)]
pub(crate) struct Way {
    channel: Channel,
    counted: InRoom,
}

/// A call that is counted, and its place among those that there may be.
pub(crate) type InRoom = (Counted, OwnedSemaphorePermit);

impl Way {
    /// The answer of who leads. `operates`: its caller may look after the cluster.
    ///
    /// # Errors
    /// The connection broke before there was one.
    pub(crate) async fn pass(
        self,
        request: Request,
        operates: bool,
    ) -> Result<Response, transport::Error> {
        let Self { mut channel, counted } = self;
        let (parts, body) = request.into_parts();
        let is_again = parts.extensions.get::<PassedOn>().is_some();
        let mut passed = axum::http::Request::new(tonic::body::Body::new(body));
        *passed.method_mut() = parts.method;
        *passed.uri_mut() = passed_on(&parts.uri);
        *passed.headers_mut() = end_to_end(parts.headers, operates, is_again);
        let escort = parts.extensions.get::<Escort>();
        escort.iter().for_each(|escort| escort.write(passed.headers_mut()));
        std::future::poll_fn(|cx| channel.poll_ready(cx)).await?;
        let mut response = channel.call(passed).await?;
        if let Some(not_now) = NotNow::take(response.headers_mut()) {
            response.extensions_mut().insert(not_now);
        }
        // It counts for as long as it is read.
        Ok(response.map(|body| holding(Body::new(body), counted)).into_response())
    }
}

/// `body`, with which goes what is held.
fn holding(body: Body, held: impl Send + 'static) -> Body {
    Body::new(body.map_frame(move |frame| {
        let _ = &held;
        frame
    }))
}

fn passed_on(uri: &Uri) -> Uri {
    let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    // What was one with less before it is one.
    Uri::try_from(format!("{PASSED_ON}{path}")).unwrap_or_default()
}

/// Headers for the next connection.
fn end_to_end(mut headers: HeaderMap, operates: bool, is_again: bool) -> HeaderMap {
    let listed = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let listed = listed.flat_map(|names| names.split(','));
    let named: Vec<HeaderName> = listed.filter_map(|name| name.trim().parse().ok()).collect();
    for name in named.into_iter().chain(NOT_PASSED_ON) {
        headers.remove(name);
    }
    // The only one that HTTP/2 has.
    if headers.remove(header::TE).is_some_and(|value| value == "trailers") {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    for (name, holds) in [(OPERATES, operates), (AGAIN, is_again)] {
        if holds {
            headers.insert(name, HeaderValue::from_static("yes"));
        }
    }
    headers
}

/// How many calls are under way. Clones count together.
#[derive(Debug, Clone)]
pub struct Calls(Arc<watch::Sender<usize>>);

impl Default for Calls {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }
}

impl Calls {
    pub(crate) fn one(&self) -> Counted {
        self.0.send_modify(|calls| *calls += 1);
        Counted(self.clone())
    }

    /// Waits until there is none.
    pub async fn none(&self) {
        // This counts, so that somebody does.
        self.0.subscribe().wait_for(|calls| *calls == 0).await.ok();
    }
}

/// One of the calls under way, until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted(Calls);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.send_modify(|calls| *calls -= 1);
    }
}

/// A call that another member has passed on, beside the call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PassedOn {
    /// Its caller may look after the cluster, as that member has seen.
    pub(crate) operates: bool,
    /// It had been passed on before: whom it came from had just led.
    again: bool,
}

/// What answers calls that other members pass on; nothing by default.
#[derive(Debug, Clone, Default)]
pub struct Answers {
    /// The HTTP API.
    pub http: Router,
    /// The gRPC API.
    pub grpc: Router,
    /// Whether anybody may look after the cluster: then members are believed that say so of their
    /// callers though they show no certificates.
    pub is_open: bool,
    /// How many are made.
    pub calls: Calls,
    /// Who tells members of requests whose callers they have.
    pub coordinator: Option<Coordinator>,
}

impl Answers {
    /// The answer to what has come to the members' own door and is nothing that members say.
    pub(super) async fn answer(self, mut request: Request) -> Response {
        let nothing = || tonic::Status::unimplemented("").into_http();
        let uri = request.uri().path_and_query().map(PathAndQuery::as_str);
        let path = uri.and_then(|uri| uri.strip_prefix(PASSED_ON)).map(str::parse::<Uri>);
        let Some(Ok(path)) = path else { return nothing() };
        *request.uri_mut() = path;
        // It is the member's, and says nothing of the caller.
        let Some(member) = request.extensions_mut().remove::<Caller>() else { return nothing() };
        if !member.may_be(Role::Coordinator) {
            let only = format!("only for {}", Role::Coordinator.name());
            return (StatusCode::FORBIDDEN, only).into_response();
        }
        let says_so = request.headers_mut().remove(OPERATES).is_some();
        let operates = says_so && (self.is_open || member.is(Role::Coordinator));
        let again = request.headers_mut().remove(AGAIN).is_some();
        if let Some(escort) = Escort::take(request.headers_mut()) {
            request.extensions_mut().insert(escort);
        }
        request.extensions_mut().insert(PassedOn { operates, again });
        let counted = self.calls.one();
        let is_grpc = request.uri().path().starts_with(GRPC);
        let mut routes = if is_grpc { self.grpc } else { self.http };
        let Ok(mut response) = routes.call(request).await;
        if let Some(not_now) = response.extensions().get::<NotNow>().copied() {
            not_now.write(response.headers_mut());
        }
        response.map(|body| holding(body, counted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_a_connection_end_with_it() {
        let check = |given: &[(&str, &str)], operates: bool, want: &[(&str, &str)]| {
            let headers = |pairs: &[(&str, &str)]| -> HeaderMap {
                let one = |(name, value): &(&str, &str)| {
                    (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap())
                };
                pairs.iter().map(one).collect()
            };
            let passed = end_to_end(headers(given), operates, false);
            assert_eq!(passed, headers(want), "{given:?}");
        };
        let own = ("authorization", "Bearer a");
        check(
            &[own, ("host", "a"), ("connection", "close, x-mine"), ("x-mine", "1")],
            false,
            &[own],
        );
        check(&[("te", "trailers")], false, &[("te", "trailers")]);
        check(&[("te", "gzip"), ("origin", "https://a")], false, &[]);
        check(&[("aqueduct-operates", "yes")], false, &[]);
        check(&[("aqueduct-passed-again", "yes")], false, &[]);
        check(&[("aqueduct-escort", "mine again")], false, &[]);
        check(&[("aqueduct-operates", "no")], true, &[("aqueduct-operates", "yes")]);
    }

    #[test]
    fn a_path_is_the_same_behind_another() {
        let check = |uri: &str, want: &str| {
            assert_eq!(passed_on(&uri.parse().unwrap()).to_string(), want);
        };
        check("/v1/completions?x=1", "/passed-on/v1/completions?x=1");
        check(
            "http://a:1/aqueduct.v1.Coordinators/Deliver",
            "/passed-on/aqueduct.v1.Coordinators/Deliver",
        );
        check("/", "/passed-on/");
    }
}
