//! Streamed answers: server-sent events, one JSON object each, `[DONE]` at the end.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, SelectAll, Stream, StreamExt};
use serde_json::{Value, json};

use super::choices::{Pieces, View};
use super::error::ApiError;
use super::reply::{Endpoint, Envelope, Usage, figures};
use crate::generation::{Generation, Report, TextEvent};

/// One accepted prompt of a call.
pub(super) struct Running {
    pub(super) generation: Generation,
    pub(super) view: View,
    pub(super) choices: u32,
}

/// What one prompt contributes to the stream.
enum Item {
    Chunk(Value),
    Finished(Box<Report>),
    Failed(ApiError),
}

type Items = Pin<Box<dyn Stream<Item = Item> + Send>>;

/// The response; dropping it, as a server does when its client goes away, cancels the requests.
pub(super) fn response(running: Vec<Running>, envelope: Envelope, include_usage: bool) -> Response {
    let items = running.into_iter().map(|running| items(running, envelope.clone()));
    let answer = Answer {
        items: stream::select_all(items),
        envelope,
        include_usage,
        usage: Usage::default(),
        tail: VecDeque::new(),
        ended: false,
    };
    let events = stream::unfold(answer, |mut answer| async {
        let event = answer.next().await?;
        Some((Ok::<_, Infallible>(event), answer))
    });
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}

struct Answer {
    items: SelectAll<Items>,
    envelope: Envelope,
    include_usage: bool,
    usage: Usage,
    /// What follows the last item.
    tail: VecDeque<Event>,
    ended: bool,
}

impl Answer {
    async fn next(&mut self) -> Option<Event> {
        while !self.ended {
            match self.items.next().await {
                Some(Item::Chunk(mut chunk)) => {
                    if self.include_usage {
                        chunk["usage"] = Value::Null;
                    }
                    return Some(data(&chunk));
                }
                Some(Item::Finished(report)) => self.usage.add(&report),
                Some(Item::Failed(error)) => {
                    let id = &self.envelope.id;
                    tracing::warn!(id, error = error.message, "a streamed request failed");
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
        self.tail.pop_front()
    }

    /// Drops, and so cancels, whatever still runs.
    fn end(&mut self, last: Option<Value>) {
        self.ended = true;
        self.items.clear();
        self.tail.extend(last.iter().map(data));
        self.tail.push_back(Event::default().data("[DONE]"));
    }
}

fn data(value: &Value) -> Event {
    Event::default().data(value.to_string())
}

struct PromptStream {
    generation: Generation,
    pieces: Pieces,
    view: View,
    envelope: Envelope,
    queue: VecDeque<Item>,
    ended: bool,
}

fn items(running: Running, envelope: Envelope) -> Items {
    let Running { generation, view, choices } = running;
    let mut queue = VecDeque::new();
    if view.endpoint == Endpoint::Chat {
        let roles = (0..choices as usize).map(|choice| envelope.chunk(json!([view.role(choice)])));
        queue.extend(roles.map(Item::Chunk));
    }
    let pieces = Pieces::new(view.clone(), choices);
    let prompt = PromptStream { generation, pieces, view, envelope, queue, ended: false };
    Box::pin(stream::unfold(prompt, |mut prompt| async {
        let item = prompt.next().await?;
        Some((item, prompt))
    }))
}

impl PromptStream {
    async fn next(&mut self) -> Option<Item> {
        loop {
            if let Some(item) = self.queue.pop_front() {
                return Some(item);
            }
            if self.ended {
                return None;
            }
            match self.generation.next().await {
                Some(Ok(event)) => {
                    self.add_progress(&event);
                    let pieces = self.pieces.take(event);
                    for piece in pieces.iter().filter(|piece| piece.is_shown()) {
                        let chunk = self.envelope.chunk(json!([self.view.delta(piece)]));
                        self.queue.push_back(Item::Chunk(chunk));
                    }
                    self.add_figures();
                }
                Some(Err(error)) => {
                    self.ended = true;
                    return Some(Item::Failed(error.into()));
                }
                None => {
                    self.ended = true;
                    return Some(Item::Finished(Box::new(self.generation.report().clone())));
                }
            }
        }
    }

    /// How far the prefill is, as llama.cpp says it; the last one is complete.
    fn add_progress(&mut self, event: &TextEvent) {
        let report = self.generation.report();
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
            self.queue.push_back(Item::Chunk(chunk));
        }
    }

    /// The chunk that ends a prompt's last completion carries the prompt's figures.
    fn add_figures(&mut self) {
        if self.generation.is_done()
            && let Some(Item::Chunk(last)) = self.queue.back_mut()
        {
            last["aqueduct"] = figures(self.generation.report());
        }
    }
}
