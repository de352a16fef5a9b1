//! What an answer is so far: a list of messages and calls, and the events that make it so.

use aqueduct_core::RequestId;
use serde_json::{Map, Value, json};

use super::super::choices::{Part, Piece};
use super::super::error::ApiError;
use super::super::named;
use super::super::reply::{Envelope, figures, response_usage};
use crate::generation::Report;

/// Tells one answer.
pub(super) struct Teller {
    request: RequestId,
    created: u64,
    model: String,
    /// What was asked for, as it is given back.
    echo: Map<String, Value>,
    /// Items that are complete.
    output: Vec<Value>,
    /// The message that is being said.
    open: Option<Message>,
    /// What is being thought.
    thought: Option<String>,
    /// The call that is being made.
    called: Option<Called>,
    /// Log probabilities of tokens that have said nothing yet.
    held: Vec<Value>,
    /// How the answer ended, if it did.
    finish: Option<&'static str>,
    sequence: u64,
}

/// A call, as far as it is there.
struct Called {
    call_id: Value,
    name: Value,
    arguments: String,
}

#[derive(Default)]
struct Message {
    text: String,
    logprobs: Vec<Value>,
}

impl Message {
    fn part(&self) -> Value {
        let Self { text, logprobs } = self;
        json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs })
    }
}

impl Teller {
    pub(super) fn new(request: RequestId, envelope: &Envelope, echo: Map<String, Value>) -> Self {
        Self {
            request,
            created: envelope.created,
            model: envelope.model.clone(),
            echo,
            output: Vec::new(),
            open: None,
            thought: None,
            called: None,
            held: Vec::new(),
            finish: None,
            sequence: 0,
        }
    }

    /// The answer as far as it is there; whole where there are figures of it.
    fn response(&self, report: Option<&Report>) -> Value {
        let is_cut_off = self.is_cut_off();
        let mut fields = self.echo.clone();
        let status = match report {
            None => "in_progress",
            Some(_) if is_cut_off => "incomplete",
            Some(_) => "completed",
        };
        let reason = json!({ "reason": "max_output_tokens" });
        let own = [
            ("id", json!(format!("resp_{}", self.request))),
            ("object", json!("response")),
            ("created_at", json!(self.created)),
            ("status", json!(status)),
            ("error", Value::Null),
            ("incomplete_details", if is_cut_off { reason } else { Value::Null }),
            ("model", json!(self.model)),
            ("output", json!(self.output)),
            ("usage", report.map_or(Value::Null, response_usage)),
            ("aqueduct", report.map_or(Value::Null, figures)),
        ];
        fields.extend(own.map(|(name, value)| (name.to_owned(), value)));
        Value::Object(fields)
    }

    fn is_cut_off(&self) -> bool {
        self.finish == Some("length")
    }

    fn say(&mut self, text: &str) -> Vec<Value> {
        let (mut events, logprobs) = (Vec::new(), std::mem::take(&mut self.held));
        if self.open.is_none() {
            events.extend(self.open_message());
        }
        if let Some(message) = &mut self.open {
            message.text += text;
            message.logprobs.extend(logprobs.iter().cloned());
        }
        let said = json!({ "delta": text, "logprobs": logprobs });
        events.push(self.in_message("response.output_text.delta", said));
        events
    }

    fn think(&mut self, text: &str) -> Vec<Value> {
        let mut events = Vec::new();
        if self.thought.is_none() {
            let item = self.reasoning("in_progress", Vec::new());
            let added = json!({ "output_index": self.output.len(), "item": item });
            events.push(self.event("response.output_item.added", added));
        }
        self.thought.get_or_insert_default().push_str(text);
        events.push(self.in_item("rs", "response.reasoning_text.delta", json!({ "delta": text })));
        events
    }

    fn close_thought(&mut self) -> Vec<Value> {
        let Some(text) = self.thought.take() else { return Vec::new() };
        let status = if self.is_cut_off() { "incomplete" } else { "completed" };
        let part = json!({ "type": "reasoning_text", "text": text });
        let item = self.reasoning(status, vec![part]);
        let done = json!({ "output_index": self.output.len(), "item": item.clone() });
        let said = self.in_item("rs", "response.reasoning_text.done", json!({ "text": text }));
        let events = vec![said, self.event("response.output_item.done", done)];
        self.output.push(item);
        events
    }

    fn reasoning(&self, status: &str, content: Vec<Value>) -> Value {
        json!({
            "id": self.item_id("rs"), "type": "reasoning", "status": status, "summary": [],
            "content": content,
        })
    }

    fn open_message(&mut self) -> Vec<Value> {
        let message = Message::default();
        let part = message.part();
        self.open = Some(message);
        let item = self.message("in_progress", Vec::new());
        let added = json!({ "output_index": self.output.len(), "item": item });
        vec![
            self.event("response.output_item.added", added),
            self.in_message("response.content_part.added", json!({ "part": part })),
        ]
    }

    fn close_message(&mut self) -> Vec<Value> {
        let Some(message) = self.open.take() else { return Vec::new() };
        let status = if self.is_cut_off() { "incomplete" } else { "completed" };
        let part = message.part();
        let item = self.message(status, vec![part.clone()]);
        let done = json!({ "output_index": self.output.len(), "item": item.clone() });
        let said = json!({ "text": message.text, "logprobs": message.logprobs });
        let events = vec![
            self.in_message("response.output_text.done", said),
            self.in_message("response.content_part.done", json!({ "part": part })),
            self.event("response.output_item.done", done),
        ];
        self.output.push(item);
        events
    }

    fn open_call(&mut self, call: &Value) -> Vec<Value> {
        let function = &call["function"];
        let (call_id, name) = (call["id"].clone(), function["name"].clone());
        let called = Called { call_id, name, arguments: String::new() };
        let item = self.function_call("in_progress", &called);
        self.called = Some(called);
        let added = json!({ "output_index": self.output.len(), "item": item });
        let mut events = vec![self.event("response.output_item.added", added)];
        let arguments = function["arguments"].as_str().unwrap_or_default();
        if !arguments.is_empty() {
            events.extend(self.argue(arguments));
        }
        events
    }

    /// More of the arguments of the call that is being made.
    fn argue(&mut self, more: &str) -> Option<Value> {
        self.called.as_mut()?.arguments.push_str(more);
        let (index, id) = (self.output.len(), self.item_id("fc"));
        let said = json!({ "output_index": index, "item_id": id, "delta": more });
        Some(self.event("response.function_call_arguments.delta", said))
    }

    fn close_call(&mut self) -> Vec<Value> {
        let Some(called) = self.called.take() else { return Vec::new() };
        let is_whole = serde_json::from_str::<Map<String, Value>>(&called.arguments).is_ok();
        let is_cut_off = self.is_cut_off() && !is_whole;
        let item = self.function_call(if is_cut_off { "incomplete" } else { "completed" }, &called);
        let (index, id) = (self.output.len(), self.item_id("fc"));
        let Called { name, arguments, .. } = called;
        let said = json!({
            "output_index": index, "item_id": id, "arguments": arguments, "name": name,
        });
        let done = json!({ "output_index": index, "item": item.clone() });
        let events = vec![
            self.event("response.function_call_arguments.done", said),
            self.event("response.output_item.done", done),
        ];
        self.output.push(item);
        events
    }

    fn function_call(&self, status: &str, called: &Called) -> Value {
        let Called { call_id, name, arguments } = called;
        json!({
            "id": self.item_id("fc"), "type": "function_call", "call_id": call_id,
            "status": status, "name": name, "arguments": arguments,
        })
    }

    fn message(&self, status: &str, content: Vec<Value>) -> Value {
        json!({
            "id": self.item_id("msg"), "type": "message", "role": "assistant", "status": status,
            "content": content,
        })
    }

    /// Of the item that comes next.
    fn item_id(&self, kind: &str) -> String {
        format!("{kind}_{}_{}", self.request, self.output.len())
    }

    /// An event of the message that is being said.
    fn in_message(&mut self, kind: &str, fields: Value) -> Value {
        self.in_item("msg", kind, fields)
    }

    /// An event of the item that is open, whose name begins so.
    fn in_item(&mut self, name: &str, kind: &str, mut fields: Value) -> Value {
        fields["item_id"] = json!(self.item_id(name));
        fields["output_index"] = json!(self.output.len());
        fields["content_index"] = json!(0);
        self.event(kind, fields)
    }

    fn event(&mut self, kind: &str, mut fields: Value) -> Value {
        fields["type"] = json!(kind);
        fields["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        fields
    }
}

impl named::Teller for Teller {
    fn begin(&mut self, _: &Report) -> Vec<Value> {
        let response = self.response(None);
        let event = |kind| self.event(kind, json!({ "response": response.clone() }));
        ["response.created", "response.in_progress"].map(event).into()
    }

    fn take(&mut self, piece: &Piece) -> Vec<Value> {
        let logprobs = piece.logprobs.as_ref().and_then(|of| of["content"].as_array());
        let mut events = Vec::new();
        // Of what says nothing yet they stand beside what is said next.
        self.held.extend(logprobs.into_iter().flatten().cloned());
        if piece.parts.is_empty() && self.open.is_some() && !self.held.is_empty() {
            events.extend(self.say(""));
        } else if piece.parts.is_empty() && self.called.is_some() {
            self.held.clear(); // of what ends the call
        }
        for part in &piece.parts {
            match part {
                Part::Text(text) => {
                    events.extend(self.close_thought());
                    events.extend(self.close_call());
                    events.extend(self.say(text));
                }
                Part::Reasoning(text) => {
                    self.held.clear();
                    events.extend(self.close_message());
                    events.extend(self.close_call());
                    events.extend(self.think(text));
                }
                Part::Call(call) => {
                    self.held.clear();
                    events.extend(self.close_thought());
                    events.extend(self.close_message());
                    events.extend(self.close_call());
                    events.extend(self.open_call(call));
                }
                Part::Arguments { more, .. } => {
                    self.held.clear();
                    events.extend(self.argue(more));
                }
            }
        }
        self.finish = self.finish.or(piece.finish);
        events
    }

    fn end(&mut self, report: &Report) -> Vec<Value> {
        let mut events = self.close_thought();
        events.extend(self.close_call());
        if self.open.is_some() && !self.held.is_empty() {
            events.extend(self.say(""));
        }
        if self.output.is_empty() && self.open.is_none() {
            events.extend(self.open_message());
        }
        events.extend(self.close_message());
        let response = self.response(Some(report));
        let kind = if self.is_cut_off() { "response.incomplete" } else { "response.completed" };
        events.push(self.event(kind, json!({ "response": response })));
        events
    }

    fn failed(&mut self, error: &ApiError) -> Value {
        let mut response = self.response(None);
        response["status"] = json!("failed");
        response["error"] = json!({ "code": "server_error", "message": error.message });
        self.event("response.failed", json!({ "response": response }))
    }

    fn whole(&self, report: &Report) -> Value {
        self.response(Some(report))
    }
}
