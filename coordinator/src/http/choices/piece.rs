//! What an event adds to one choice.

use serde_json::{Value, json};

use crate::text::Said;

/// What an event adds to one choice.
#[derive(Debug, Clone, Default)]
pub(in crate::http) struct Piece {
    pub(in crate::http) choice: usize,
    /// In the order in which they were said.
    pub(in crate::http) parts: Vec<Part>,
    pub(in crate::http) logprobs: Option<Value>,
    pub(in crate::http) finish: Option<&'static str>,
    /// The stop string that ended it.
    pub(in crate::http) stop: Option<String>,
}

/// Something that is said.
#[derive(Debug, Clone)]
pub(in crate::http) enum Part {
    /// Never empty.
    Text(String),
    /// What the model thought. Never empty.
    Reasoning(String),
    /// A call of a tool, as `tool_calls` has it, with what there is of its arguments.
    Call(Value),
    /// More of the arguments of the last call, which is this one of the choice. Never empty.
    Arguments { index: usize, more: String },
}

impl Part {
    /// Adds what a choice says that has `told` calls so far. `new` makes a call of its number, its
    /// name and its arguments. Of one call there is one part: who joins what is streamed takes no
    /// two of one chunk.
    pub(super) fn add(
        parts: &mut Vec<Self>,
        said: Said,
        told: &mut usize,
        new: impl Fn(usize, String, String) -> Value,
    ) {
        match (said, parts.last_mut()) {
            (Said::Text(text), _) => parts.push(Self::Text(text)),
            (Said::Call { name, arguments }, _) => {
                parts.push(Self::Call(new(*told, name, arguments)));
                *told += 1;
            }
            (Said::Arguments(text), Some(Self::Call(call))) => {
                if let Value::String(arguments) = &mut call["function"]["arguments"] {
                    arguments.push_str(&text);
                }
            }
            (Said::Arguments(text), Some(Self::Arguments { more, .. })) => more.push_str(&text),
            (Said::Arguments(more), _) => {
                parts.push(Self::Arguments { index: told.saturating_sub(1), more });
            }
        }
    }
}

impl Piece {
    /// Whether it says no more than that its choice is over.
    pub(super) fn is_bare_end(&self) -> bool {
        self.parts.is_empty() && self.finish.is_some()
    }

    /// Whether it says anything.
    pub(in crate::http) fn is_shown(&self) -> bool {
        !self.parts.is_empty() || self.logprobs.is_some() || self.finish.is_some()
    }

    /// Nothing yet.
    pub(super) fn of(choice: usize) -> Self {
        Self { choice, ..Self::default() }
    }

    pub(super) fn text(choice: usize, text: String) -> Self {
        let parts = if text.is_empty() { Vec::new() } else { vec![Part::Text(text)] };
        Self { parts, ..Self::of(choice) }
    }

    /// All its text.
    pub(super) fn content(&self) -> String {
        let texts = self.parts.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            Part::Reasoning(_) | Part::Call(_) | Part::Arguments { .. } => None,
        });
        texts.collect()
    }

    /// What the model thought.
    pub(super) fn reasoning(&self) -> String {
        let thoughts = self.parts.iter().filter_map(|part| match part {
            Part::Reasoning(text) => Some(text.as_str()),
            Part::Text(_) | Part::Call(_) | Part::Arguments { .. } => None,
        });
        thoughts.collect()
    }

    /// Its calls, and parts of them, as chunks of a stream have them.
    pub(super) fn calls(&self) -> Vec<Value> {
        let calls = self.parts.iter().filter_map(|part| match part {
            Part::Call(call) => Some(call.clone()),
            Part::Arguments { index, more } => {
                Some(json!({ "index": index, "function": { "arguments": more } }))
            }
            Part::Text(_) | Part::Reasoning(_) => None,
        });
        calls.collect()
    }
}

/// All calls of a choice, of what its pieces have of them.
pub(super) fn whole_calls<'p>(pieces: impl Iterator<Item = &'p Piece>) -> Vec<Value> {
    let mut calls: Vec<Value> = Vec::new();
    for part in pieces.flat_map(|piece| &piece.parts) {
        match part {
            Part::Call(call) => {
                let mut call = call.clone();
                // Its place is that of a stream.
                call.as_object_mut().map(|fields| fields.remove("index"));
                calls.push(call);
            }
            Part::Arguments { more, .. } => {
                let last = calls.last_mut().map(|call| &mut call["function"]["arguments"]);
                if let Some(Value::String(arguments)) = last {
                    arguments.push_str(more);
                }
            }
            Part::Text(_) | Part::Reasoning(_) => {}
        }
    }
    calls
}
