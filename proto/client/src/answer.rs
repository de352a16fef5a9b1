//! A whole answer, for those who do not read it as it comes.

use std::collections::BTreeMap;

use crate::error::ClientError;
use crate::event::{GenerateEvent, StopReason, Summary};

/// Answer of [`Client::complete`](crate::Client::complete).
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// As many as were asked for, one otherwise; without text where `max_tokens` is 0.
    pub completions: Vec<Completion>,
    /// Figures.
    pub summary: Summary,
}

/// One continuation of the prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// Without a stop string.
    pub text: String,
    /// What the model thought before, in an answer to a chat.
    pub reasoning: String,
    /// Why it ended.
    pub reason: StopReason,
}

/// What has come of it.
#[derive(Debug, Default)]
pub(crate) struct Unfinished {
    /// And what was thought.
    texts: BTreeMap<u32, (String, String)>,
    reasons: BTreeMap<u32, StopReason>,
}

impl Unfinished {
    /// The answer, once `event` completes it.
    pub(crate) fn take(&mut self, event: GenerateEvent) -> Result<Option<Answer>, ClientError> {
        match event {
            GenerateEvent::Token(token) => self.say(token.choice, &token.text, &token.reasoning),
            GenerateEvent::ChoiceDone(done) => {
                self.say(done.choice, &done.text, &done.reasoning);
                self.reasons.insert(done.choice, done.reason);
            }
            GenerateEvent::Summary(summary) => return self.end(*summary).map(Some),
            _ => {}
        }
        Ok(None)
    }

    fn say(&mut self, choice: u32, text: &str, reasoning: &str) {
        let (said, thought) = self.texts.entry(choice).or_default();
        said.push_str(text);
        thought.push_str(reasoning);
    }

    fn end(&mut self, summary: Summary) -> Result<Answer, ClientError> {
        let completion = |(choice, (text, reasoning))| {
            let reason = self.reasons.remove(&choice);
            let reason = reason.ok_or_else(|| ClientError::unreadable("an unended completion"))?;
            Ok(Completion { text, reasoning, reason })
        };
        let completions = std::mem::take(&mut self.texts).into_iter().map(completion);
        Ok(Answer { completions: completions.collect::<Result<_, ClientError>>()?, summary })
    }
}
