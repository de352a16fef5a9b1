//! A conversation, as its template is given it.

use aqueduct_core::Refusal;
use serde_json::{Map, Value};

use super::BETWEEN_THOUGHTS;

/// Who says a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Whoever set the assistant up.
    System,
    /// Whoever asks.
    User,
    /// The model.
    Assistant,
    /// What the model called.
    Tool,
}

impl Role {
    /// As templates know it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }

    /// The role that callers name so, in `field`.
    ///
    /// # Errors
    /// A name that is none.
    pub fn named(field: &str, name: &str) -> Result<Self, Refusal> {
        match name {
            // The newer name of the same role, which templates do not know.
            "system" | "developer" => Ok(Self::System),
            "user" => Ok(Self::User),
            "assistant" => Ok(Self::Assistant),
            "tool" => Ok(Self::Tool),
            other => {
                let bound = "system, developer, user, assistant or tool";
                Err(Refusal::new(field, other, bound))
            }
        }
    }
}

/// What a chat template is given.
#[derive(Debug, Clone, Copy)]
pub struct Conversation<'a> {
    /// In their order.
    pub messages: &'a [ChatMessage],
    /// What the assistant may call.
    pub tools: &'a [Value],
    /// What else the template asks for by name, `enable_thinking` for instance.
    pub variables: Option<&'a Map<String, Value>>,
    /// Where the prompt ends.
    pub ending: Ending,
}

/// Where a rendered conversation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ending {
    /// Where the assistant's next message begins.
    #[default]
    Asks,
    /// Where the words of that message begin which are for the caller, as grammars need: nothing is
    /// thought before them.
    Says,
    /// With its last message.
    Stands,
    /// Within its last message, which is gone on with.
    GoesOn,
}

impl<'a> Conversation<'a> {
    /// Nothing but messages.
    pub fn of(messages: &'a [ChatMessage]) -> Self {
        Self { messages, tools: &[], variables: None, ending: Ending::default() }
    }
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatMessage {
    /// Who says it.
    pub role: Role,
    /// What was said.
    pub content: String,
    /// What the assistant called.
    pub tool_calls: Vec<ToolCall>,
    /// Which call the tool answers.
    pub tool_call_id: Option<String>,
    /// What the assistant thought before.
    pub reasoning: Option<String>,
    /// Who says it among those of the role.
    pub name: Option<String>,
}

/// A call that the assistant made.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// Names it for the answer.
    pub id: String,
    /// The tool.
    pub name: String,
    /// An object.
    pub arguments: Value,
}

impl ChatMessage {
    /// What was thought `then`, behind what was thought before.
    pub(crate) fn think(&mut self, then: Option<String>) {
        self.reasoning = match (self.reasoning.take(), then) {
            (Some(before), Some(then)) => Some(before + BETWEEN_THOUGHTS + &then),
            (before, then) => before.or(then),
        };
    }

    /// One that calls nothing.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        let (tool_calls, content) = (Vec::new(), content.into());
        Self { role, content, tool_calls, tool_call_id: None, reasoning: None, name: None }
    }

    /// Whether only a template that knows tools can show it.
    pub fn needs_tools(&self) -> bool {
        self.role == Role::Tool || !self.tool_calls.is_empty()
    }
}
