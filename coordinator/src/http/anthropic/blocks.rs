//! The blocks of messages: what was said, called, answered and thought before.

use std::collections::BTreeSet;

use aqueduct_core::Refusal;
use serde_json::{Value, json};

use super::super::error::ApiError;
use super::super::messages::arguments_of;
use crate::text::{BETWEEN_THOUGHTS, ChatMessage, Ending, Role, ToolCall};

/// What a client of Anthropic's writes first into the system's words. It is for who bills, and as
/// it differs from call to call, no prompt would begin as the one before.
const FOR_BILLING: &str = "x-anthropic-billing-header:";
/// Between what one role says in several messages, which are one.
const BETWEEN_MESSAGES: &str = "\n\n";

/// What a conversation has come to.
struct Said {
    /// Stands between the texts of one message.
    between_parts: &'static str,
    messages: Vec<ChatMessage>,
    /// Types of blocks that the model is not shown.
    passed_over: BTreeSet<String>,
}

/// The chat that `system` and `messages` are, where its prompt ends, and the types of blocks that
/// are passed over. The texts of a message are one, with `between_parts` between them.
///
/// # Errors
/// A block that is not understood; no message.
pub(super) fn messages_of(
    system: Value,
    messages: Vec<Value>,
    between_parts: &'static str,
) -> Result<(Vec<ChatMessage>, Ending, BTreeSet<String>), ApiError> {
    let mut said = Said { between_parts, messages: Vec::new(), passed_over: BTreeSet::new() };
    said.instruct("system", system)?;
    for (idx, message) in messages.into_iter().enumerate() {
        said.add(&format!("messages[{idx}]"), message)?;
    }
    if said.messages.iter().all(|message| message.role == Role::System) {
        return Err(ApiError::field("messages", "must have at least one message"));
    }
    let last = said.messages.last().filter(|last| last.role == Role::Assistant);
    let goes_on = last.is_some_and(|last| last.tool_calls.is_empty() && !last.content.is_empty());
    let ending = if goes_on { Ending::GoesOn } else { Ending::Asks };
    Ok((said.messages, ending, said.passed_over))
}

/// The text of `value`'s `field`, moved out.
fn text(at: &str, value: &mut Value, field: &str) -> Result<String, Refusal> {
    match value[field].take() {
        Value::String(text) => Ok(text),
        other => Err(Refusal::new(format!("{at}.{field}"), other, "a text")),
    }
}

impl Said {
    fn add(&mut self, at: &str, mut message: Value) -> Result<(), Refusal> {
        let (role, content) = (message["role"].take(), message["content"].take());
        let within = format!("{at}.content");
        match role.as_str() {
            Some("user") => self.ask(&within, content),
            Some("assistant") => self.answer(&within, content),
            Some("system") => self.instruct(&within, content),
            _ => Err(Refusal::new(format!("{at}.role"), role, "user, assistant or system")),
        }
    }

    /// What stands at `at` as blocks; a text is one.
    fn blocks(at: &str, content: Value) -> Result<Vec<(String, Value)>, Refusal> {
        match content {
            Value::String(words) => {
                let block = json!({ "type": "text", "text": words });
                Ok(vec![(at.to_owned(), block)])
            }
            Value::Array(blocks) => {
                let place = |(idx, block)| (format!("{at}[{idx}]"), block);
                Ok(blocks.into_iter().enumerate().map(place).collect())
            }
            other => Err(Refusal::new(at, other, "a text, or a list of blocks")),
        }
    }

    fn instruct(&mut self, at: &str, content: Value) -> Result<(), Refusal> {
        if content.is_null() {
            return Ok(());
        }
        let mut texts = Vec::new();
        for (at, block) in Self::blocks(at, content)? {
            let words = self.words(&at, block)?;
            texts.extend(words.filter(|words| !words.starts_with(FOR_BILLING)));
        }
        if !texts.is_empty() {
            self.say(ChatMessage::new(Role::System, texts.join(self.between_parts)));
        }
        Ok(())
    }

    /// What the user says, and what tools have answered, each in its place.
    fn ask(&mut self, at: &str, content: Value) -> Result<(), Refusal> {
        let (mut texts, first) = (Vec::new(), self.messages.len());
        for (at, mut block) in Self::blocks(at, content)? {
            if block["type"] != "tool_result" {
                texts.extend(self.words(&at, block)?);
                continue;
            }
            if !texts.is_empty() {
                let words = std::mem::take(&mut texts).join(self.between_parts);
                self.say(ChatMessage::new(Role::User, words));
            }
            let tool_call_id = Some(text(&at, &mut block, "tool_use_id")?);
            let answer = self.joined(&format!("{at}.content"), block["content"].take())?;
            self.messages
                .push(ChatMessage { tool_call_id, ..ChatMessage::new(Role::Tool, answer) });
        }
        if !texts.is_empty() || self.messages.len() == first {
            self.say(ChatMessage::new(Role::User, texts.join(self.between_parts)));
        }
        Ok(())
    }

    fn answer(&mut self, at: &str, content: Value) -> Result<(), Refusal> {
        let (mut texts, mut thoughts, mut tool_calls) = (Vec::new(), Vec::new(), Vec::new());
        for (at, mut block) in Self::blocks(at, content)? {
            match block["type"].as_str() {
                Some("thinking") => thoughts.push(text(&at, &mut block, "thinking")?),
                Some("tool_use") => {
                    let arguments = arguments_of(&format!("{at}.input"), &block["input"])?;
                    let (id, name) = (text(&at, &mut block, "id")?, text(&at, &mut block, "name")?);
                    tool_calls.push(ToolCall { id, name, arguments });
                }
                _ => texts.extend(self.words(&at, block)?),
            }
        }
        thoughts.retain(|thought| !thought.is_empty());
        let reasoning = (!thoughts.is_empty()).then(|| thoughts.join(BETWEEN_THOUGHTS));
        let message = ChatMessage::new(Role::Assistant, texts.join(self.between_parts));
        self.say(ChatMessage { tool_calls, reasoning, ..message });
        Ok(())
    }

    /// The texts of `content`, which may be nothing.
    fn joined(&mut self, at: &str, content: Value) -> Result<String, Refusal> {
        let mut texts = Vec::new();
        if !content.is_null() {
            for (at, block) in Self::blocks(at, content)? {
                texts.extend(self.words(&at, block)?);
            }
        }
        Ok(texts.join(self.between_parts))
    }

    /// What a block says to the model, if it is shown.
    fn words(&mut self, at: &str, mut block: Value) -> Result<Option<String>, Refusal> {
        let kind = block["type"].take();
        match kind.as_str() {
            Some("text") => Ok(Some(text(at, &mut block, "text")?)),
            Some("document") => self.document(&format!("{at}.source"), block["source"].take()),
            Some("search_result") => {
                let mut lines = vec![text(at, &mut block, "title")?];
                lines.push(text(at, &mut block, "source")?);
                lines.push(self.joined(&format!("{at}.content"), block["content"].take())?);
                Ok(Some(lines.join("\n")))
            }
            // What another model thought, which only its maker can read.
            Some("redacted_thinking") => Ok(None),
            Some(kind) if is_hosted(kind) => {
                self.passed_over.insert(kind.to_owned());
                Ok(None)
            }
            _ => {
                let bound = "a type of block that is text: the model reads nothing else";
                Err(Refusal::new(format!("{at}.type"), kind, bound))
            }
        }
    }

    fn document(&mut self, at: &str, mut source: Value) -> Result<Option<String>, Refusal> {
        match source["type"].as_str() {
            Some("text") => Ok(Some(text(at, &mut source, "data")?)),
            Some("content") => {
                self.joined(&format!("{at}.content"), source["content"].take()).map(Some)
            }
            _ => {
                let bound = "text or content: the model reads nothing else";
                Err(Refusal::new(format!("{at}.type"), &source["type"], bound))
            }
        }
    }

    /// Messages of one role that follow each other are one, as their API has it.
    fn say(&mut self, message: ChatMessage) {
        match self.messages.last_mut().filter(|last| last.role == message.role) {
            Some(last) => {
                if !(last.content.is_empty() || message.content.is_empty()) {
                    last.content.push_str(BETWEEN_MESSAGES);
                }
                last.content.push_str(&message.content);
                last.tool_calls.extend(message.tool_calls);
                last.think(message.reasoning);
            }
            None => self.messages.push(message),
        }
    }
}

/// Whether a block is of a tool that Anthropic runs: clients send all of a conversation, also where
/// another model, which had such tools, began it.
fn is_hosted(kind: &str) -> bool {
    const OTHERS: [&str; 5] =
        ["server_tool_use", "mcp_tool_use", "container_upload", "tool_reference", "compaction"];
    OTHERS.contains(&kind) || kind.ends_with("_tool_result")
}
