//! What an answer is so far: a list of blocks, and the events that make it so.

use aqueduct_core::RequestId;
use serde_json::{Value, json};

use super::super::choices::{Part, Piece};
use super::super::error::ApiError;
use super::super::messages::arguments_of;
use super::super::named;
use super::super::reply::{Envelope, figures};
use super::error;
use crate::generation::Report;

/// Tells one answer.
pub(super) struct Teller {
    request: RequestId,
    model: String,
    /// Those that are complete.
    blocks: Vec<Value>,
    /// The one that is being told.
    open: Option<Block>,
    /// How the answer ended, if it did.
    finish: Option<&'static str>,
    /// The stop string that ended it.
    stop: Option<String>,
}

enum Block {
    Text(String),
    Thinking(String),
    /// A call, with its arguments as far as they are there.
    ToolUse {
        id: Value,
        name: Value,
        input: String,
    },
}

impl Block {
    fn of(part: &Part) -> Self {
        match part {
            Part::Text(_) | Part::Arguments { .. } => Self::Text(String::new()),
            Part::Reasoning(_) => Self::Thinking(String::new()),
            Part::Call(call) => Self::ToolUse {
                id: call["id"].clone(),
                name: call["function"]["name"].clone(),
                input: String::new(),
            },
        }
    }

    /// Whether `part` is told within it.
    fn takes(&self, part: &Part) -> bool {
        matches!(
            (self, part),
            (Self::Text(_), Part::Text(_))
                | (Self::Thinking(_), Part::Reasoning(_))
                | (Self::ToolUse { .. }, Part::Arguments { .. })
        )
    }

    /// Adds more of it, and tells that.
    fn push(&mut self, more: &str) -> Value {
        match self {
            Self::Text(text) => {
                text.push_str(more);
                json!({ "type": "text_delta", "text": more })
            }
            Self::Thinking(text) => {
                text.push_str(more);
                json!({ "type": "thinking_delta", "thinking": more })
            }
            Self::ToolUse { input, .. } => {
                input.push_str(more);
                json!({ "type": "input_json_delta", "partial_json": more })
            }
        }
    }

    /// As it stands in an answer; where it begins in a stream, calls have no arguments.
    fn told(&self) -> Value {
        match self {
            Self::Text(text) => json!({ "type": "text", "text": text }),
            // Nobody else's word is taken for what was thought, so nothing is signed.
            Self::Thinking(text) => {
                json!({ "type": "thinking", "thinking": text, "signature": "" })
            }
            Self::ToolUse { id, name, input } => {
                let input = arguments_of("input", &json!(input)).unwrap_or_else(|_| json!({}));
                json!({ "type": "tool_use", "id": id, "name": name, "input": input })
            }
        }
    }
}

impl Teller {
    pub(super) fn new(request: RequestId, envelope: &Envelope) -> Self {
        let (blocks, model) = (Vec::new(), envelope.model.clone());
        Self { request, model, blocks, open: None, finish: None, stop: None }
    }

    fn message(&self, usage: Value) -> Value {
        json!({
            "id": format!("msg_{}", self.request),
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": self.blocks,
            "stop_reason": self.stop_reason(),
            "stop_sequence": self.stop,
            "usage": usage,
        })
    }

    fn stop_reason(&self) -> Option<&'static str> {
        Some(match (self.finish?, &self.stop) {
            ("length", _) => "max_tokens",
            ("tool_calls", _) => "tool_use",
            (_, Some(_)) => "stop_sequence",
            (_, None) => "end_turn",
        })
    }

    /// More of the open block.
    fn add(&mut self, more: &str) -> Option<Value> {
        let delta = self.open.as_mut().filter(|_| !more.is_empty())?.push(more);
        Some(self.in_block("content_block_delta", "delta", delta))
    }

    fn open(&mut self, block: Block) -> Value {
        let told = block.told();
        self.open = Some(block);
        self.in_block("content_block_start", "content_block", told)
    }

    fn close(&mut self) -> Vec<Value> {
        let Some(block) = self.open.take() else { return Vec::new() };
        let mut events = Vec::new();
        if let Block::Thinking(_) = block {
            let delta = json!({ "type": "signature_delta", "signature": "" });
            events.push(self.in_block("content_block_delta", "delta", delta));
        }
        let index = self.blocks.len();
        events.push(json!({ "type": "content_block_stop", "index": index }));
        self.blocks.push(block.told());
        events
    }

    /// An event of the block that is open.
    fn in_block(&self, kind: &str, field: &str, value: Value) -> Value {
        let mut event = json!({ "type": kind, "index": self.blocks.len() });
        event[field] = value;
        event
    }
}

/// What is counted apart here is what had to be read: the rest of the prompt was seen before.
fn usage(report: &Report) -> Value {
    let cached = report.prefill.cached_tokens.min(report.prompt_tokens);
    json!({
        "input_tokens": report.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": report.output_tokens,
    })
}

impl named::Teller for Teller {
    fn begin(&mut self, report: &Report) -> Vec<Value> {
        let message = self.message(usage(report));
        vec![json!({ "type": "message_start", "message": message }), json!({ "type": "ping" })]
    }

    fn take(&mut self, piece: &Piece) -> Vec<Value> {
        let mut events = Vec::new();
        for part in &piece.parts {
            if !self.open.as_ref().is_some_and(|open| open.takes(part)) {
                events.extend(self.close());
                let event = self.open(Block::of(part));
                events.push(event);
            }
            events.extend(match part {
                Part::Text(more) | Part::Reasoning(more) => self.add(more),
                Part::Arguments { more, .. } => self.add(more),
                Part::Call(call) => {
                    self.add(call["function"]["arguments"].as_str().unwrap_or_default())
                }
            });
        }
        self.finish = self.finish.or(piece.finish);
        self.stop = self.stop.take().or_else(|| piece.stop.clone());
        events
    }

    fn end(&mut self, report: &Report) -> Vec<Value> {
        let mut events = self.close();
        let delta = json!({ "stop_reason": self.stop_reason(), "stop_sequence": self.stop });
        events.push(json!({
            "type": "message_delta",
            "delta": delta,
            "usage": usage(report),
            "aqueduct": figures(report),
        }));
        events.push(json!({ "type": "message_stop" }));
        events
    }

    fn failed(&mut self, error: &ApiError) -> Value {
        error::told(error)
    }

    fn whole(&self, report: &Report) -> Value {
        let mut message = self.message(usage(report));
        message["aqueduct"] = figures(report);
        message
    }
}
