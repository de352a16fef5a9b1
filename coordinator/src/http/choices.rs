//! One prompt's completions, as a list of `choices` entries: whole, or piece by piece.

use std::collections::BTreeMap;
use std::sync::Arc;

use aqueduct_core::TokenId;
use aqueduct_core::work::TokenLogprob;
use serde_json::{Value, json};

use super::logprobs::{CompletionLogprobs, chat_entry};
use super::reply::{Endpoint, finish_reason};
use crate::generation::{Finish, TextEvent, TextToken};
use crate::text::TextModel;

/// What the caller asked to see.
#[derive(Clone)]
pub(super) struct View {
    pub(super) text: Arc<TextModel>,
    pub(super) endpoint: Endpoint,
    pub(super) logprobs: Option<u32>,
    /// The prompt to give back, if asked for.
    pub(super) echo: Option<Arc<Echo>>,
    /// Index of the prompt's first choice in the answer.
    pub(super) first_choice: usize,
}

/// A prompt that is given back.
pub(super) struct Echo {
    pub(super) text: String,
    pub(super) tokens: Vec<TokenId>,
}

type Entry = (TokenLogprob, Vec<TokenLogprob>);

/// Turns the events of one prompt into pieces of choices.
pub(super) struct Pieces {
    view: View,
    /// One for each choice.
    completion_logprobs: Vec<CompletionLogprobs>,
    prompt_logprobs: BTreeMap<u32, Entry>,
}

/// What an event adds to one choice.
#[derive(Debug, Clone, Default)]
pub(super) struct Piece {
    pub(super) choice: usize,
    pub(super) text: String,
    pub(super) logprobs: Option<Value>,
    pub(super) finish: Option<Finish>,
}

impl Pieces {
    pub(super) fn new(view: View, choices: u32) -> Self {
        let completion_logprobs = vec![CompletionLogprobs::default(); choices as usize];
        Self { view, completion_logprobs, prompt_logprobs: BTreeMap::new() }
    }

    pub(super) fn take(&mut self, event: TextEvent) -> Vec<Piece> {
        match event {
            TextEvent::PromptLogprobs { start, entries } => {
                self.prompt_logprobs.extend((start..).zip(entries));
                Vec::new()
            }
            TextEvent::Prefilled => self.echo(),
            TextEvent::Token(token) if !token.is_end => vec![self.token(token)],
            TextEvent::ChoiceDone { choice, finish, text, .. } => {
                let choice = choice as usize;
                vec![Piece { choice, text, finish: Some(finish), logprobs: None }]
            }
            _ => Vec::new(),
        }
    }

    /// The prompt, once for every choice.
    fn echo(&mut self) -> Vec<Piece> {
        let Some(echo) = self.view.echo.clone() else { return Vec::new() };
        let choices = self.completion_logprobs.len();
        let piece = |choice: usize| {
            let text = echo.text.clone();
            Piece { choice, text, logprobs: self.echo_logprobs(choice, &echo), finish: None }
        };
        (0..choices).map(piece).collect()
    }

    fn echo_logprobs(&mut self, choice: usize, echo: &Echo) -> Option<Value> {
        let top = self.view.logprobs?;
        let list = &mut self.completion_logprobs[choice];
        for (position, token) in (0..).zip(&echo.tokens) {
            let entry = self.prompt_logprobs.get(&position);
            let scores = entry.map(|(one, top)| (one.logprob, top.as_slice()));
            list.push(&self.view.text, *token, scores);
        }
        Some(list.take(top))
    }

    fn token(&mut self, token: TextToken) -> Piece {
        let TextToken { emitted, text, .. } = token;
        let choice = emitted.choice as usize;
        let logprobs = self.view.logprobs.map(|top| match self.view.endpoint {
            Endpoint::Completions => {
                let list = &mut self.completion_logprobs[choice];
                let scores = Some((emitted.logprob, emitted.top.as_slice()));
                list.push(&self.view.text, emitted.token, scores);
                list.take(top)
            }
            Endpoint::Chat => {
                let (logprob, top) = (emitted.logprob, &emitted.top);
                json!({ "content": [chat_entry(&self.view.text, emitted.token, logprob, top)] })
            }
        });
        Piece { choice, text, logprobs, finish: None }
    }
}

impl View {
    /// The entry of a streamed chunk.
    pub(super) fn delta(&self, piece: &Piece) -> Value {
        let finish = piece.finish.map(finish_reason);
        let mut entry = json!({
            "index": self.first_choice + piece.choice,
            "logprobs": piece.logprobs,
            "finish_reason": finish,
        });
        match self.endpoint {
            Endpoint::Completions => entry["text"] = json!(piece.text),
            Endpoint::Chat if piece.text.is_empty() && finish.is_some() => {
                entry["delta"] = json!({});
            }
            Endpoint::Chat => entry["delta"] = json!({ "content": piece.text }),
        }
        entry
    }

    /// The first entry of a streamed chat choice.
    pub(super) fn role(&self, choice: usize) -> Value {
        json!({
            "index": self.first_choice + choice,
            "delta": { "role": "assistant", "content": "" },
            "logprobs": null,
            "finish_reason": null,
        })
    }

    /// The entry of a whole answer, from all of a choice's pieces.
    pub(super) fn whole(&self, choice: usize, pieces: &[Piece]) -> Value {
        let mine = || pieces.iter().filter(|piece| piece.choice == choice);
        let text: String = mine().map(|piece| piece.text.as_str()).collect();
        let logprobs = mine().filter_map(|piece| piece.logprobs.clone()).reduce(join_lists);
        let finish = mine().find_map(|piece| piece.finish).map(finish_reason);
        let mut entry = json!({
            "index": self.first_choice + choice,
            "logprobs": logprobs,
            "finish_reason": finish,
        });
        match self.endpoint {
            Endpoint::Completions => entry["text"] = json!(text),
            Endpoint::Chat => {
                entry["message"] = json!({ "role": "assistant", "content": text, "refusal": null });
                if self.logprobs.is_some() && entry["logprobs"].is_null() {
                    entry["logprobs"] = json!({ "content": [] });
                }
            }
        }
        entry
    }
}

/// Joins two objects whose fields are lists.
fn join_lists(mut left: Value, right: Value) -> Value {
    let Value::Object(fields) = right else { return left };
    for (name, more) in fields {
        if let (Value::Array(list), Value::Array(more)) = (&mut left[&name], more) {
            list.extend(more);
        }
    }
    left
}
