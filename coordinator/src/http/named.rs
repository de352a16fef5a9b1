//! Answers in the words of another API than chat's: whole, or as server-sent events that have
//! names, without a `[DONE]` at the end.

use std::collections::VecDeque;

use aqueduct_core::{Refusal, RequestId};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures::stream::unfold;
use serde_json::Value;

use super::Shared;
use super::calls::{self, Caller};
use super::choices::{Piece, Pieces};
use super::error::ApiError;
use super::params::Params;
use super::prepare::Prepared;
use super::reply::Envelope;
use super::stream::{self, GoesOn, Places, Running};
use crate::generation::{Report, Source};
use crate::peers::Made;

/// What an answer is so far, and the events that make it so, each with its name as its `type`.
/// What it tells depends on what it is given alone: an answer that goes on elsewhere is told anew,
/// and what was sent is left out.
pub(super) trait Teller: Send + 'static {
    /// The events that every answer begins with.
    fn begin(&mut self, report: &Report) -> Vec<Value>;

    /// The events of a piece.
    fn take(&mut self, piece: &Piece) -> Vec<Value>;

    /// The events of an answer's end.
    fn end(&mut self, report: &Report) -> Vec<Value>;

    /// The last event where something failed.
    fn failed(&mut self, error: &ApiError) -> Value;

    /// The whole answer, behind its end.
    fn whole(&self, report: &Report) -> Value;
}

/// Starts a request for one answer and answers with it. `input` is the field that its prompt is in.
///
/// # Errors
/// As [`calls::start`].
pub(super) async fn answer<T: Teller>(
    shared: &Shared,
    (prepared, input): (Prepared, &str),
    caller: Caller,
    teller: impl FnOnce(RequestId, &Envelope) -> T,
) -> Result<Response, ApiError> {
    let is_streamed = prepared.params.stream;
    let told = told(caller.2.as_ref().map(|Extension(escort)| &escort.made))?;
    let (running, envelope) = calls::start(shared, prepared, caller).await?;
    let running = running.into_iter().next();
    let running = running.ok_or_else(|| ApiError::field(input, "must not be empty"))?;
    let teller = teller(running.view.request, &envelope);
    match is_streamed {
        true => Ok(response(running, teller, told)),
        false => whole(running, teller).await,
    }
}

/// What has no place in an answer that is one and is not come back to.
pub(super) fn check(params: &Params) -> Result<(), ApiError> {
    Refusal::unless_within("n", params.choices, 1, 1)?;
    let unsupported = [
        ("return_progress", params.return_progress),
        ("aqueduct.resumable", params.memory.resumable),
    ];
    match unsupported.iter().find(|(_, is_asked)| *is_asked) {
        Some((field, _)) => Err(ApiError::field(field, "is not supported here")),
        None => Ok(()),
    }
}

/// How many events were told before a call was `made`.
fn told(made: Option<&Made>) -> Result<u64, Refusal> {
    let Some(Made::From(place)) = made else { return Ok(0) };
    let (_, told) = place.split_once(':').unwrap_or_default();
    told.parse().map_err(|_| Refusal::new("place", place, "a request's name and a number"))
}

async fn whole(running: Running, mut teller: impl Teller) -> Result<Response, ApiError> {
    let Running { mut source, view, .. } = running;
    let mut pieces = Pieces::new(view);
    while let Some(event) = source.next().await.transpose()? {
        pieces.take(event).iter().for_each(|piece| drop(teller.take(piece)));
    }
    teller.end(source.report());
    Ok(Json(teller.whole(source.report())).into_response())
}

struct Answer<T> {
    source: Source,
    pieces: Pieces,
    teller: T,
    queue: VecDeque<Value>,
    ended: bool,
    request: RequestId,
    places: Places,
    /// How many of its events are behind.
    passed: u64,
    /// How many of its events were told before.
    told: u64,
}

/// The response but for the events that were `told` before; dropping it cancels the request.
fn response(running: Running, mut teller: impl Teller, told: u64) -> Response {
    let Running { source, view, .. } = running;
    // Callers do not come back to it.
    let to_escort = Some(view.places).filter(|places| *places == Places::ToEscort);
    let (request, places) = (view.request, to_escort.unwrap_or(Places::Untold));
    let queue = teller.begin(source.report()).into();
    let (pieces, ended, passed) = (Pieces::new(view), false, 0);
    let answer = Answer { source, pieces, teller, queue, ended, request, places, passed, told };
    let events = unfold(answer, |mut answer| async {
        let event = match answer.next().await? {
            Ok(event) => event,
            Err(error) => return Some((Err(error), answer)),
        };
        let name = event["type"].as_str().unwrap_or_default();
        let told = Event::default().event(name).data(event.to_string());
        let place = format!("{}:{}", answer.request, answer.passed);
        let told = answer.places.told(told, Some(&place));
        Some((Ok::<_, GoesOn>(told), answer))
    });
    stream::told(events)
}

impl<T: Teller> Answer<T> {
    async fn next(&mut self) -> Option<Result<Value, GoesOn>> {
        loop {
            while let Some(event) = self.queue.pop_front() {
                self.passed += 1;
                if self.passed > self.told {
                    return Some(Ok(event));
                }
            }
            if self.ended {
                return None;
            }
            match self.source.next().await {
                Some(Ok(event)) => {
                    let pieces = self.pieces.take(event);
                    self.queue.extend(pieces.iter().flat_map(|piece| self.teller.take(piece)));
                }
                Some(Err(error)) => {
                    self.ended = true;
                    let error = ApiError::from(error);
                    if self.places.goes_on(&error) {
                        return Some(Err(GoesOn));
                    }
                    tracing::warn!(error = error.message, "a streamed answer failed");
                    self.queue.push_back(self.teller.failed(&error));
                }
                None => {
                    self.ended = true;
                    self.queue.extend(self.teller.end(self.source.report()));
                }
            }
        }
    }
}
