//! A conversation as tokens: whole, or what a turn adds to a session.

use std::time::SystemTime;

use aqueduct_core::{Refusal, Session, TokenId};

use super::channels::END_OF_MESSAGE;
use super::hearing::Speech;
use super::{CallNotation, ChatMessage, Conversation, Role, TextModel};

/// Stands for what the assistant said last, which the session remembers in tokens.
const ANSWER: &str = "[[aqueduct: the answer before]]";

impl TextModel {
    /// The prompt that asks for the next message of the assistant, as text and as tokens. Where a
    /// session goes on, the messages are those since its last answer, and the prompt is what the
    /// template writes behind that.
    ///
    /// # Errors
    /// A conversation that the template does not take; a text that is too long.
    pub fn chat(
        &self,
        conversation: Conversation<'_>,
        goes_on: Option<&Session>,
        now: SystemTime,
    ) -> Result<(String, Vec<TokenId>), Refusal> {
        let Some(session) = goes_on else {
            let prompt = self.template().render(conversation, now)?;
            let tokens = self.encode(&prompt, !self.template().writes_bos())?;
            return Ok((prompt, tokens));
        };
        let before = [ChatMessage::new(Role::User, "-"), ChatMessage::new(Role::Assistant, ANSWER)];
        let messages = &[before.as_slice(), conversation.messages].concat();
        let prompt = self.template().render(Conversation { messages, ..conversation }, now)?;
        let Some((_, behind)) = prompt.split_once(ANSWER) else {
            let bound = "a conversation in which the chat template keeps what the assistant said";
            return Err(Refusal::new("messages", "those of a session", bound));
        };
        // Some templates pass over the system's words unless they are the first, and Gemma 4's over
        // results whose calls the session remembers.
        let in_braces = self.template().notation() == Some(CallNotation::Braces);
        let is_lost = |message: &ChatMessage| {
            let may_be = message.role == Role::System || in_braces && message.role == Role::Tool;
            may_be && !behind.contains(message.content.trim())
        };
        if let Some(idx) = conversation.messages.iter().position(is_lost) {
            let bound = "of a role that the chat template shows in later turns";
            let role = conversation.messages[idx].role.as_str();
            return Err(Refusal::new(format!("messages[{idx}].role"), role, bound));
        }
        let turn = self.behind_pending(session.pending, behind).to_owned();
        let tokens = self.encode(&turn, false)?;
        Ok((turn, tokens))
    }

    /// `text` without the end token that it begins with, if that is pending: then the answer
    /// ended with it, and it is not said twice.
    fn behind_pending<'a>(&self, pending: Option<TokenId>, text: &'a str) -> &'a str {
        let Some(end) = pending.filter(|token| self.eos().contains(token)) else { return text };
        let end = std::str::from_utf8(self.token_bytes(end)).ok();
        let text = end.and_then(|end| text.strip_prefix(end)).unwrap_or(text);
        // Where a model speaks in channels, its templates end by this what it ended itself.
        let in_channels = self.template().speech() == Speech::InChannels;
        text.strip_prefix(END_OF_MESSAGE).filter(|_| in_channels).unwrap_or(text)
    }
}
