//! A call that is passed on, by a member of the group that stays with it until it is answered:
//! where whoever answers is lost, the call is made again, of whoever leads then, which may be this
//! member. That one knows it by a name, or by what was told last, and goes on with the request that
//! the journal has. So a leader that dies costs only those callers their connections who had come
//! to that one.
//!
//! What is sent is kept for that, as long as there is room. What is told of an answer goes on event
//! by event; where each stands is told to this member alone, in a comment.

mod events;
mod sent;

use std::time::{Duration, Instant};

use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, stream};

use super::request_id::CallerId;
use super::resume::LAST_EVENT_ID;
use super::{ApiError, ApiState};
use crate::peers::{Counted, Escort, Made, NotNow, Passage};
use crate::request_id::REQUEST_ID;
use crate::submit::RequestError;
use events::{Events, Place};
use sent::Sent;

/// What the comment begins with that says where an event stands.
pub(super) const PLACE: &str = "at ";
/// What the place ends with behind which nothing is left but the end.
const END: &str = ":end";
const LAST: &[u8] = b"data: [DONE]\n\n";

/// So long somebody may be looked for who takes a call.
const REACHING: Duration = Duration::from_secs(5);
/// And so long, where somebody had it before.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks, at first and at most.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Tells who waits that somebody is there.
const HERE: &[u8] = b":\n\n";
/// A call that so many were lost with is not made again: it may be what they are lost by.
const LOSSES_MAX: usize = 4;
/// What is read of an answer that refuses to go on.
const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// A call, to be made as often as it takes.
pub(super) struct Call {
    state: ApiState,
    /// What answers where this member leads.
    next: Next,
    head: Parts,
    sent: Sent,
    /// By what it is known where it is made again; `None`: it is made once.
    name: Option<String>,
    /// Whether its answer is made of what was sent, to the end.
    is_of_body: bool,
    /// It is one of those that are under way.
    _counted: Counted,
}

/// What came of making it once.
enum Tried {
    Answered(Response),
    /// By whoever it had reached.
    Lost,
    /// Nobody has it; what was said of that, if anything.
    NotYet(Option<Response>),
    /// Not all of what its caller sends is known any more.
    Spent,
}

/// Why there is no answer.
pub(super) enum Unanswered {
    /// Nobody has heard of the call.
    Unheard(Request),
    /// Who had it was lost; what was said last.
    Lost(Response),
}

impl Call {
    /// By way of `passage`.
    pub(super) fn new(state: &ApiState, passage: &Passage, request: Request, next: Next) -> Self {
        let (mut head, body) = request.into_parts();
        // It asks for an answer, or for the rest of one, and no other member stays with it.
        let asks = head.method == Method::POST || head.method == Method::GET;
        let stays = asks && head.extensions.get::<Escort>().is_none();
        let id = head.extensions.get::<CallerId>();
        if let Some(id) = id.and_then(|CallerId(id, _)| HeaderValue::from_str(id).ok()) {
            head.headers.insert(HeaderName::from_static(REQUEST_ID), id);
        }
        let name = stays.then(Escort::draw_name);
        let sent = match &name {
            Some(_) => Sent::new(body, state.0.escorted.clone()),
            None => Sent::once(body),
        };
        let told_anew = ["/responses", "/messages"];
        let is_of_body = told_anew.iter().any(|end| head.uri.path().ends_with(end));
        let (state, counted) = (state.clone(), passage.one());
        Self { state, next, head, sent, name, is_of_body, _counted: counted }
    }

    /// The answer of who leads, who has been looked for since `began`.
    ///
    /// # Errors
    /// Nobody answers.
    pub(super) async fn answer(self, began: Instant) -> Result<Response, Unanswered> {
        Ok(match self.answered(Made::First, began + REACHING).await? {
            answer if self.name.is_some() && is_stream(&answer) => self.tell(answer),
            answer => answer,
        })
    }

    /// The answer to the call, `made` first so and then again, while somebody has it or may have
    /// it soon: by `until`.
    async fn answered(&self, mut made: Made, mut until: Instant) -> Result<Response, Unanswered> {
        let (mut said, mut pause, mut losses) = (None, PAUSE, 0);
        while losses < LOSSES_MAX {
            let since = Instant::now();
            match self.make(&made).await {
                Tried::Answered(answer) => return Ok(answer),
                Tried::Lost if self.name.is_none() => {
                    made = Made::Again;
                    break;
                }
                Tried::Lost if made == Made::First => {
                    (made, until) = (Made::Again, Instant::now() + PATIENCE);
                    losses += 1;
                }
                // Only that nobody has it takes patience.
                Tried::Lost => {
                    until += since.elapsed();
                    losses += 1;
                }
                Tried::NotYet(None) => {}
                Tried::NotYet(Some(answer)) => said = whole(answer).await.or(said),
                Tried::Spent => break,
            }
            if Instant::now() >= until || self.state.0.generator.runtime.load().is_alone() {
                break;
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(PAUSE_MAX);
        }
        if made == Made::First {
            let unheard = self.request(&made);
            // What is not known any more has been passed over.
            let empty = || Request::from_parts(self.head.clone(), Body::empty());
            return Err(Unanswered::Unheard(unheard.unwrap_or_else(empty)));
        }
        Err(Unanswered::Lost(said.unwrap_or_else(|| {
            let error = RequestError::Stopping;
            self.state.0.generator.metrics.rejected(error.reason());
            ApiError::from(error).into_response()
        })))
    }

    async fn make(&self, made: &Made) -> Tried {
        let runtime = &self.state.0.generator.runtime;
        let Some(passage) = runtime.passage() else { return Tried::NotYet(None) };
        let leads = runtime.load().leader.is_here().is_ok();
        let way = if leads { None } else { passage.open().await };
        if !leads && way.is_none() {
            return Tried::NotYet(None);
        }
        let Some(request) = self.request(made) else { return Tried::Spent };
        let answer = match way {
            None => passage.enter(self.next.clone().run(request)).await,
            Some(way) => match way.pass(request, false).await {
                Ok(answer) => answer,
                Err(error) => {
                    tracing::warn!(%error, "a call that was passed on has lost who answers it");
                    return Tried::Lost;
                }
            },
        };
        let is_first = *made == Made::First;
        match answer.extensions().get::<NotNow>() {
            Some(NotNow::Stopping) if is_first => Tried::Lost,
            Some(NotNow::Stopping) => Tried::NotYet(Some(answer)),
            Some(NotNow::Unavailable) if !is_first => Tried::NotYet(Some(answer)),
            // It does not lead any more, or knows of no calls that are passed on.
            _ if answer.status() == StatusCode::TEMPORARY_REDIRECT || is_of_grpc(&answer) => {
                Tried::NotYet(None)
            }
            _ => Tried::Answered(answer),
        }
    }

    /// As its caller made it; `None` where not all of that is known any more.
    fn request(&self, made: &Made) -> Option<Request> {
        let body = self.sent.body()?;
        let mut request = Request::from_parts(self.head.clone(), body);
        if let Some(name) = &self.name {
            let escort = Escort { name: name.clone(), made: made.clone() };
            request.extensions_mut().insert(escort);
        }
        Some(request)
    }

    /// What was sent is not needed any more.
    fn forget(&mut self) {
        self.head.headers.remove(header::CONTENT_LENGTH);
        self.sent = Sent::new(Body::empty(), self.state.0.escorted.clone());
    }

    /// An answer that is told event by event, with which this member stays.
    fn tell(self, answer: Response) -> Response {
        let (head, body) = answer.into_parts();
        let events = Events::default();
        let answer = Some(body.into_data_stream());
        let telling = Telling { call: self, events, answer, forgot: false };
        let told = stream::unfold(telling, |mut telling| async {
            let told = telling.next().await?;
            Some((told, telling))
        });
        Response::from_parts(head, Body::from_stream(told))
    }
}

fn is_of_grpc(answer: &Response) -> bool {
    let kind = answer.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind == "application/grpc")
}

fn is_stream(answer: &Response) -> bool {
    let kind = answer.headers().get(header::CONTENT_TYPE);
    answer.status() == StatusCode::OK
        && kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// What was said, without the connection that it came by.
async fn whole(answer: Response) -> Option<Response> {
    let (head, body) = answer.into_parts();
    let body = axum::body::to_bytes(body, REFUSAL_BYTES_MAX).await.ok()?;
    Some(Response::from_parts(head, body.into()))
}

/// An answer on its way to the caller.
struct Telling {
    call: Call,
    events: Events,
    /// `None`: nothing follows.
    answer: Option<BodyDataStream>,
    /// Whether what was sent is not needed any more.
    forgot: bool,
}

impl Telling {
    async fn next(&mut self) -> Option<Result<Bytes, axum::Error>> {
        loop {
            if let Some(event) = self.events.next() {
                let needs_body = match &self.events.place {
                    Place::Start => true,
                    Place::Nowhere | Place::OfCaller(_) => false,
                    Place::OfEscort(_) => self.call.is_of_body,
                };
                if !needs_body && !std::mem::replace(&mut self.forgot, true) {
                    self.call.forget();
                }
                return Some(Ok(event));
            }
            match self.answer.as_mut()?.next().await {
                Some(Ok(bytes)) => self.events.add(&bytes),
                None => {
                    self.answer = None;
                    return self.events.rest().map(Ok);
                }
                Some(Err(error)) => {
                    self.answer = None;
                    if self.events.is_over {
                        return None;
                    }
                    tracing::warn!(%error, "an answer that is passed on has lost who tells it");
                    self.events.cut();
                    let told = self.come_back().await;
                    return Some(told.ok_or(error));
                }
            }
        }
    }

    /// Has whoever leads now go on; what the caller is told of that.
    async fn come_back(&mut self) -> Option<Bytes> {
        let made = match &self.events.place {
            Place::Start => Made::Again,
            Place::Nowhere => return None,
            Place::OfEscort(place) if place.ends_with(END) => return Some(LAST.into()),
            Place::OfEscort(place) => Made::From(place.clone()),
            Place::OfCaller(id) => {
                let id = HeaderValue::try_from(id).ok()?;
                self.call.head.headers.insert(LAST_EVENT_ID, id);
                Made::Again
            }
        };
        let refused = match self.call.answered(made, Instant::now() + PATIENCE).await {
            Ok(answer) if is_stream(&answer) => {
                self.answer = Some(answer.into_body().into_data_stream());
                return Some(HERE.into());
            }
            Ok(answer) | Err(Unanswered::Lost(answer)) => answer,
            Err(Unanswered::Unheard(_)) => return None,
        };
        let why = axum::body::to_bytes(refused.into_body(), REFUSAL_BYTES_MAX).await.ok()?;
        Some([b"data: ", &why[..], b"\n\n", LAST].concat().into())
    }
}
