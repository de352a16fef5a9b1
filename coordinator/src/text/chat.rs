//! A conversation, as its template is given it.

use aqueduct_core::Refusal;

/// Who says a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Whoever set the assistant up.
    System,
    /// Whoever asks.
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// As templates know it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
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
            other => Err(Refusal::new(field, other, "system, developer, user or assistant")),
        }
    }
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatMessage {
    /// Who says it.
    pub role: Role,
    /// What was said.
    pub content: String,
}
