//! A streamed answer: server-sent events that have names, and no `[DONE]` at the end.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde_json::Value;

use super::super::choices::Pieces;
use super::super::error::ApiError;
use super::super::stream::{Running, keep_alive};
use super::teller::Teller;
use crate::generation::Source;

struct Answer {
    source: Source,
    pieces: Pieces,
    teller: Teller,
    queue: VecDeque<Value>,
    ended: bool,
}

/// The response; dropping it cancels the request.
pub(super) fn response(running: Running, mut teller: Teller) -> Response {
    let Running { source, view, .. } = running;
    let queue = teller.begin().into();
    let answer = Answer { source, pieces: Pieces::new(view), teller, queue, ended: false };
    let events = stream::unfold(answer, |mut answer| async {
        let event = answer.next().await?;
        let name = event["type"].as_str().unwrap_or_default();
        let event = Event::default().event(name).data(event.to_string());
        Some((Ok::<_, Infallible>(event), answer))
    });
    Sse::new(events).keep_alive(keep_alive()).into_response()
}

impl Answer {
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Some(event);
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
