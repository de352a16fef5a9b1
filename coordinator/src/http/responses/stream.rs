//! A streamed answer: server-sent events that have names, and no `[DONE]` at the end.

use std::collections::VecDeque;

use aqueduct_core::{Refusal, RequestId};
use axum::response::Response;
use axum::response::sse::Event;
use futures::stream::unfold;
use serde_json::Value;

use super::super::choices::Pieces;
use super::super::error::ApiError;
use super::super::stream::{self, GoesOn, Places, Running};
use super::teller::Teller;
use crate::generation::Source;
use crate::peers::Made;

struct Answer {
    source: Source,
    pieces: Pieces,
    teller: Teller,
    queue: VecDeque<Value>,
    ended: bool,
    request: RequestId,
    places: Places,
    /// How many of its events were told before.
    told: u64,
}

/// How many events were told before a call was `made`.
///
/// # Errors
/// A place that is none of such an answer.
pub(super) fn told(made: Option<&Made>) -> Result<u64, Refusal> {
    let Some(Made::From(place)) = made else { return Ok(0) };
    let (_, told) = place.split_once(':').unwrap_or_default();
    told.parse().map_err(|_| Refusal::new("place", place, "a request's name and a number"))
}

/// The response but for the events that were `told` before; dropping it cancels the request.
pub(super) fn response(running: Running, mut teller: Teller, told: u64) -> Response {
    let Running { source, view, .. } = running;
    // Callers do not come back to it.
    let to_escort = Some(view.places).filter(|places| *places == Places::ToEscort);
    let (request, places) = (view.request, to_escort.unwrap_or(Places::Untold));
    let queue = teller.begin().into();
    let (pieces, ended) = (Pieces::new(view), false);
    let answer = Answer { source, pieces, teller, queue, ended, request, places, told };
    let events = unfold(answer, |mut answer| async {
        let event = match answer.next().await? {
            Ok(event) => event,
            Err(error) => return Some((Err(error), answer)),
        };
        let name = event["type"].as_str().unwrap_or_default();
        let told = Event::default().event(name).data(event.to_string());
        let place = format!("{}:{}", answer.request, number(&event) + 1);
        let told = answer.places.told(told, Some(&place));
        Some((Ok::<_, GoesOn>(told), answer))
    });
    stream::told(events)
}

/// Which of an answer's events it is.
fn number(event: &Value) -> u64 {
    event["sequence_number"].as_u64().unwrap_or_default()
}

impl Answer {
    async fn next(&mut self) -> Option<Result<Value, GoesOn>> {
        loop {
            while let Some(event) = self.queue.pop_front() {
                if number(&event) >= self.told {
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
                    tracing::warn!(error = error.message, "a streamed response failed");
                    self.queue.push_back(self.teller.failed(&error.message));
                }
                None => {
                    self.ended = true;
                    self.queue.extend(self.teller.close());
                    self.queue.push_back(self.teller.done(self.source.report()));
                }
            }
        }
    }
}
