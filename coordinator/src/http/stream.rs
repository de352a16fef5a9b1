//! Streamed answers: server-sent events, one JSON object each, `[DONE]` at the end. Where the
//! caller may come back, each has an id that says where it stands then.

use std::collections::VecDeque;
use std::pin::Pin;
use std::time::Duration;

use axum::BoxError;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, SelectAll, Stream, StreamExt};
use serde_json::{Value, json};

use super::choices::{Pieces, View};
use super::error::ApiError;
use super::escort::PLACE;
use super::reply::{Endpoint, Envelope, Usage, figures};
use crate::generation::{Report, Source, TextEvent};
use crate::peers::NotNow;
use crate::streams::{EventId, Place};

/// Header that says by what id an answer can be come back to. The first event says it too, but
/// may come long after: when the prompt has been read.
pub(super) const ANSWER_ID: &str = "aqueduct-answer-id";

/// One accepted prompt of a call.
pub(super) struct Running {
    pub(super) source: Source,
    pub(super) view: View,
    /// Where its caller stands.
    pub(super) place: Place,
}

/// What one prompt contributes to the stream.
enum Item {
    Chunk { chunk: Value, id: Option<String> },
    Finished(Box<Report>),
    Failed(ApiError),
}

/// Who is told where each event of an answer stands, so as to come back to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Places {
    Untold,
    /// By the ids of events.
    ToCaller,
    /// In comments, which are for the member of the group alone that stays with the call.
    ToEscort,
}

/// An answer breaks off here, and whoever stays with the call has it go on elsewhere.
#[derive(Debug, thiserror::Error)]
#[error("it goes on elsewhere")]
pub(super) struct GoesOn;

impl Places {
    /// Whether an answer that fails so goes on, for a member that stays with the call.
    pub(super) fn goes_on(self, error: &ApiError) -> bool {
        self == Self::ToEscort && error.not_now == Some(NotNow::Stopping)
    }

    /// A member is told where a caller is not.
    pub(super) fn or_to_escort(self) -> Self {
        if self == Self::Untold { Self::ToEscort } else { self }
    }

    /// `event`, behind which it is `place`.
    pub(super) fn told(self, event: Event, place: Option<&str>) -> Event {
        match (self, place) {
            (Self::ToCaller, Some(place)) => event.id(place),
            (Self::ToEscort, Some(place)) => event.comment(format!("{PLACE}{place}")),
            (Self::Untold, _) | (_, None) => event,
        }
    }
}

type Items = Pin<Box<dyn Stream<Item = Item> + Send>>;

/// The response; dropping it, as a server does when its client goes away, cancels the requests
/// that are not resumable.
pub(super) fn response(running: Vec<Running>, envelope: Envelope, include_usage: bool) -> Response {
    let mut places = running.iter().map(|running| running.view.places);
    let places = places.find(|places| *places != Places::Untold).unwrap_or(Places::Untold);
    let end_id = Some(EventId::of(&envelope.id, None));
    let items = running.into_iter().map(|running| items(running, envelope.clone()));
    events(Answer {
        items: stream::select_all(items),
        envelope,
        places,
        end_id,
        include_usage,
        usage: Usage::default(),
        tail: VecDeque::new(),
        ended: false,
    })
}

/// The response to who has heard everything.
pub(super) fn nothing_more(envelope: Envelope, places: Places) -> Response {
    let end_id = Some(EventId::of(&envelope.id, None));
    let (items, usage, tail) = (SelectAll::new(), Usage::default(), VecDeque::new());
    let (include_usage, ended) = (false, false);
    events(Answer { items, envelope, places, end_id, include_usage, usage, tail, ended })
}

fn events(answer: Answer) -> Response {
    let name = (answer.places == Places::ToCaller).then(|| answer.envelope.id.parse().ok());
    let events = stream::unfold(answer, |mut answer| async {
        let event = answer.next().await?;
        Some((event, answer))
    });
    let mut response = told(events);
    if let Some(name) = name.flatten() {
        response.headers_mut().insert(ANSWER_ID, name);
    }
    response
}

/// The answer that tells these events as they come.
pub(super) fn told<E: Into<BoxError>>(
    events: impl Stream<Item = Result<Event, E>> + Send + 'static,
) -> Response {
    let headers = [
        // Of nginx and its like: they would hold events back until they fill a buffer.
        ("x-accel-buffering", "no"),
        // There are clients that take a text that does not say so for Latin-1, which has an end of
        // a line among what are parts of letters here.
        ("content-type", "text/event-stream; charset=utf-8"),
    ];
    (headers, Sse::new(events).keep_alive(keep_alive())).into_response()
}

/// A comment where nothing was said for so long that what stands between might hang up: in
/// proxies a minute is usual. There are clients that take no comments, so not before it must be.
fn keep_alive() -> KeepAlive {
    KeepAlive::new().interval(Duration::from_secs(45))
}

struct Answer {
    items: SelectAll<Items>,
    envelope: Envelope,
    places: Places,
    /// Of what is behind all completions, unless something may be.
    end_id: Option<String>,
    include_usage: bool,
    usage: Usage,
    /// What follows the last item.
    tail: VecDeque<Event>,
    ended: bool,
}

impl Answer {
    async fn next(&mut self) -> Option<Result<Event, GoesOn>> {
        while !self.ended {
            match self.items.next().await {
                Some(Item::Chunk { mut chunk, id }) => {
                    if self.include_usage && chunk.get("usage").is_none() {
                        chunk["usage"] = Value::Null;
                    }
                    return Some(Ok(self.event(chunk.to_string(), id.as_deref())));
                }
                Some(Item::Finished(report)) => self.usage.add(&report),
                Some(Item::Failed(error)) if self.places.goes_on(&error) => {
                    self.ended = true;
                    self.items.clear();
                    return Some(Err(GoesOn));
                }
                Some(Item::Failed(error)) => {
                    let id = &self.envelope.id;
                    tracing::warn!(id, error = error.message, "a streamed request failed");
                    // The answer may go on: its caller stands where it stood, and not at the end.
                    self.end_id = None;
                    self.end(Some(error.body()));
                }
                None if self.include_usage => {
                    let mut chunk = self.envelope.chunk(json!([]));
                    chunk["usage"] = self.usage.object();
                    self.end(Some(chunk));
                }
                None => self.end(None),
            }
        }
        self.tail.pop_front().map(Ok)
    }

    /// Drops, and so cancels, whatever still runs.
    fn end(&mut self, last: Option<Value>) {
        self.ended = true;
        self.items.clear();
        let last = last.iter().map(ToString::to_string).chain(["[DONE]".to_owned()]);
        let tail: Vec<_> = last.map(|data| self.event(data, self.end_id.as_deref())).collect();
        self.tail.extend(tail);
    }

    fn event(&self, data: String, id: Option<&str>) -> Event {
        self.places.told(Event::default().data(data), id)
    }
}

struct PromptStream {
    source: Source,
    pieces: Pieces,
    view: View,
    envelope: Envelope,
    place: Place,
    /// Completions whose end has not been seen.
    open: u32,
    queue: VecDeque<Item>,
    /// Whether it was said who speaks.
    begun: bool,
    ended: bool,
}

fn items(running: Running, envelope: Envelope) -> Items {
    let Running { source, view, place } = running;
    let (pieces, open, queue) = (Pieces::new(view.clone()), view.choices, VecDeque::new());
    let (begun, ended) = (false, false);
    let prompt = PromptStream { source, pieces, view, envelope, place, open, queue, begun, ended };
    Box::pin(stream::unfold(prompt, |mut prompt| async {
        let item = prompt.next().await?;
        Some((item, prompt))
    }))
}

impl PromptStream {
    /// A chat's completions begin with who speaks, when the prompt has been read: who measures the
    /// time to the first token takes that for it.
    fn begin(&mut self) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        for choice in 0..self.view.choices as usize {
            let is_new = self.place.takes_beginning(choice);
            if is_new && self.view.endpoint == Endpoint::Chat {
                self.push(self.envelope.chunk(json!([self.view.role(choice)])));
            }
        }
    }

    async fn next(&mut self) -> Option<Item> {
        loop {
            if let Some(item) = self.queue.pop_front() {
                return Some(item);
            }
            if self.ended {
                return None;
            }
            match self.source.next().await {
                Some(Ok(event)) => self.take(event),
                Some(Err(error)) => {
                    self.ended = true;
                    return Some(Item::Failed(error.into()));
                }
                None => {
                    self.begin();
                    if let Some(item) = self.queue.pop_front() {
                        return Some(item);
                    }
                    self.ended = true;
                    return Some(Item::Finished(Box::new(self.source.report().clone())));
                }
            }
        }
    }

    /// Text, calls and log probabilities are made of all events, and told of those that are new.
    fn take(&mut self, event: TextEvent) {
        let is_new = self.place.takes(&event);
        let is_end = matches!(event, TextEvent::ChoiceDone { .. });
        self.open -= u32::from(is_end);
        if is_new {
            self.add_progress(&event);
        }
        if !matches!(event, TextEvent::Progress(_)) {
            self.begin();
        }
        let pieces = self.pieces.take(event);
        if !is_new {
            return;
        }
        for piece in pieces.iter().filter(|piece| piece.is_shown()) {
            self.push(self.envelope.chunk(json!([self.view.delta(piece)])));
        }
        if is_end && self.open == 0 {
            self.add_figures();
        }
    }

    fn push(&mut self, mut chunk: Value) {
        if self.view.running_usage {
            chunk["usage"] = Usage::of(self.source.report()).object();
        }
        let id = || EventId::of(&self.envelope.id, Some(&self.place));
        let id = (self.view.places != Places::Untold).then(id);
        self.queue.push_back(Item::Chunk { chunk, id });
    }

    /// How far the prefill is, as llama.cpp says it; the last one is complete.
    fn add_progress(&mut self, event: &TextEvent) {
        let report = self.source.report();
        let total = report.prompt_tokens;
        let (cached, processed, elapsed) = match event {
            TextEvent::Progress(at) => (at.cached_tokens, at.tokens_done, at.elapsed),
            TextEvent::Prefilled => (report.prefill.cached_tokens, total, report.prefill.elapsed),
            _ => return,
        };
        if self.view.return_progress {
            let mut chunk = self.envelope.chunk(json!([self.view.empty()]));
            chunk["prompt_progress"] = json!({
                "total": total,
                "cache": cached,
                "processed": processed,
                "time_ms": elapsed.as_millis() as u64,
            });
            self.push(chunk);
        }
    }

    /// The chunk that ends a prompt's last completion carries the prompt's figures.
    fn add_figures(&mut self) {
        if let Some(Item::Chunk { chunk, .. }) = self.queue.back_mut() {
            chunk["aqueduct"] = figures(self.source.report());
        }
    }
}
