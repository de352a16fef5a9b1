//! The items of `input`: what was said, called and thought before.

use std::collections::BTreeSet;

use aqueduct_core::Refusal;
use serde_json::{Value, json};

use super::super::error::ApiError;
use super::super::messages::arguments_of;
use crate::text::{ChatMessage, Role, ToolCall};

/// Items of tools that no model here is offered: clients send all of a conversation, also where
/// another model, which had them, began it.
const PASSED_OVER: [&str; 18] = [
    "apply_patch_call",
    "apply_patch_call_output",
    "code_interpreter_call",
    "computer_call",
    "computer_call_output",
    "file_search_call",
    "image_generation_call",
    "local_shell_call",
    "local_shell_call_output",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "shell_call",
    "shell_call_output",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
];

/// What a conversation has come to.
struct Said {
    /// Stands between the texts of one item.
    between_parts: &'static str,
    messages: Vec<ChatMessage>,
    /// What the assistant has thought before it says or calls something.
    thought: Option<String>,
    /// Types of items that the model is not shown.
    passed_over: BTreeSet<String>,
}

/// The messages that `instructions` and `input` are, a text that the user says or a list of items,
/// and the types of items that are passed over. The parts of an item are one text, with
/// `between_parts` between them.
///
/// # Errors
/// An item that is not understood; none that is a message.
pub(super) fn messages_of(
    instructions: Option<String>,
    input: &Value,
    between_parts: &'static str,
) -> Result<(Vec<ChatMessage>, BTreeSet<String>), ApiError> {
    let instructions = instructions.map(|words| ChatMessage::new(Role::System, words));
    let messages = instructions.into_iter().collect();
    let mut said = Said { between_parts, messages, thought: None, passed_over: BTreeSet::new() };
    match input {
        Value::String(words) => said.messages.push(ChatMessage::new(Role::User, words)),
        Value::Array(items) if !items.is_empty() => {
            for (idx, item) in items.iter().enumerate() {
                said.add(&Item { at: format!("input[{idx}]"), value: item })?;
            }
        }
        other => return Err(Refusal::new("input", other, "a text, or a list of items").into()),
    }
    match said.messages.is_empty() {
        true => Err(ApiError::field("input", "must have at least one message")),
        false => Ok((said.messages, said.passed_over)),
    }
}

/// One item, and where it stands.
struct Item<'a> {
    at: String,
    value: &'a Value,
}

impl Item<'_> {
    fn text(&self, field: &str) -> Result<&str, Refusal> {
        let value = &self.value[field];
        let refusal = || Refusal::new(format!("{}.{field}", self.at), value, "a text");
        value.as_str().ok_or_else(refusal)
    }

    /// A text, or a list of parts that are texts, with `between` between them.
    fn words(&self, field: &str, between: &str) -> Result<String, Refusal> {
        let part = |part: &Value| {
            let text = match part["type"].as_str() {
                Some("input_text" | "output_text" | "text") => part["text"].as_str(),
                // What the assistant has said, all the same.
                Some("refusal") => part["refusal"].as_str(),
                _ => None,
            };
            text.map(str::to_owned).ok_or_else(|| {
                let bound = "parts of type input_text, output_text or refusal";
                Refusal::new(format!("{}.{field}", self.at), &part["type"], bound)
            })
        };
        match &self.value[field] {
            Value::String(words) => Ok(words.clone()),
            Value::Array(parts) => {
                Ok(parts.iter().map(part).collect::<Result<Vec<_>, _>>()?.join(between))
            }
            other => {
                let bound = "a text, or a list of parts";
                Err(Refusal::new(format!("{}.{field}", self.at), other, bound))
            }
        }
    }

    /// A call that was made, with `arguments`.
    fn call(&self, arguments: Value) -> Result<ToolCall, Refusal> {
        let (id, name) = (self.text("call_id")?.to_owned(), self.text("name")?.to_owned());
        Ok(ToolCall { id, name, arguments })
    }
}

impl Said {
    fn add(&mut self, item: &Item<'_>) -> Result<(), Refusal> {
        let at = &item.at;
        match item.value["type"].as_str().unwrap_or("message") {
            "message" => {
                let role = Role::named(&format!("{at}.role"), item.text("role")?)?;
                let message = ChatMessage::new(role, item.words("content", self.between_parts)?);
                let reasoning = self.thought.take().filter(|_| role == Role::Assistant);
                self.messages.push(ChatMessage { reasoning, ..message });
            }
            "function_call" => {
                let arguments = arguments_of(&format!("{at}.arguments"), &item.value["arguments"])?;
                self.add_call(item.call(arguments)?);
            }
            // What such a tool is given is one text, which is no JSON.
            "custom_tool_call" => {
                let input = json!({ "input": item.text("input")? });
                self.add_call(item.call(input)?);
            }
            "function_call_output" | "custom_tool_call_output" => {
                let message =
                    ChatMessage::new(Role::Tool, item.words("output", self.between_parts)?);
                let tool_call_id = Some(item.text("call_id")?.to_owned());
                self.messages.push(ChatMessage { tool_call_id, ..message });
            }
            // A summary, or what only its model's maker can read, is not for this one.
            "reasoning" => {
                let parts = item.value["content"].as_array().into_iter().flatten();
                let texts = parts.filter(|part| part["type"] == "reasoning_text");
                let text: String = texts.filter_map(|part| part["text"].as_str()).collect();
                self.thought = Some(text).filter(|text| !text.is_empty());
            }
            "item_reference" => {
                let bound = "the item itself: nothing is kept here, and clients that are told so \
                             (`store: false`) send it";
                return Err(Refusal::new(format!("{at}.type"), "item_reference", bound));
            }
            kind if PASSED_OVER.contains(&kind) => {
                self.passed_over.insert(kind.to_owned());
            }
            other => {
                let bound = "message, function_call, function_call_output, reasoning, or another \
                             type of OpenAI's";
                return Err(Refusal::new(format!("{at}.type"), other, bound));
            }
        }
        Ok(())
    }

    /// Calls, and what was said before them, are one message of the assistant.
    fn add_call(&mut self, call: ToolCall) {
        match self.messages.last_mut().filter(|last| last.role == Role::Assistant) {
            Some(last) => {
                last.tool_calls.push(call);
                last.think(self.thought.take());
            }
            None => {
                let (tool_calls, reasoning) = (vec![call], self.thought.take());
                let message = ChatMessage::new(Role::Assistant, "");
                self.messages.push(ChatMessage { tool_calls, reasoning, ..message });
            }
        }
    }
}
