//! One prompt's completions, as a list of `choices` entries: whole, or piece by piece.

mod piece;

use std::collections::BTreeMap;
use std::sync::Arc;

use aqueduct_core::work::TokenLogprob;
use aqueduct_core::{RequestId, TokenId};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::logprobs::{CompletionLogprobs, chat_entry};
use super::reply::{Endpoint, finish_reason};
use super::stream::Places;
use crate::generation::{Finish, Stands, TextEvent, TextToken};
use crate::text::{CallNotation, CallParser, Heard, Said, TextModel};
use piece::whole_calls;
pub(super) use piece::{Part, Piece};

/// What the caller asked to see.
#[derive(Clone)]
pub(super) struct View {
    pub(super) request: RequestId,
    pub(super) text: Arc<TextModel>,
    pub(super) endpoint: Endpoint,
    pub(super) logprobs: Option<u32>,
    /// The prompt to give back, if asked for.
    pub(super) echo: Option<Arc<Echo>>,
    /// Index of the prompt's first choice in the answer.
    pub(super) first_choice: usize,
    /// Completions of the prompt.
    pub(super) choices: u32,
    /// How calls of tools are written, if any may be called.
    pub(super) notation: Option<CallNotation>,
    /// Arguments of tools that are texts, as the parser has them.
    pub(super) text_arguments: Arc<[String]>,
    /// Whether but one call of each choice counts.
    pub(super) one_call: bool,
    /// Whether a text of the caller's may end a choice, within a call too.
    pub(super) has_stops: bool,
    /// Tell how far the prefill is.
    pub(super) return_progress: bool,
    /// Tell how many tokens there are so far.
    pub(super) running_usage: bool,
    /// Who may come back to the answer.
    pub(super) places: Places,
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
    /// Of a chat, those of tokens of which it is not known yet whether they are told.
    held_entries: Vec<Vec<Value>>,
    prompt_logprobs: BTreeMap<u32, Entry>,
    /// One for each choice, where tools may be called.
    calls: Vec<Calls>,
}

/// The calls of one choice.
#[derive(Clone)]
struct Calls {
    parser: CallParser,
    /// How many there were.
    told: usize,
    /// Arguments of the last.
    last: String,
}

impl Calls {
    /// Whether there are any, and the last is whole.
    fn are_whole(&self) -> bool {
        self.told > 0 && serde_json::from_str::<IgnoredAny>(&self.last).is_ok()
    }
}

impl Pieces {
    pub(super) fn new(view: View) -> Self {
        let choices = view.choices as usize;
        let completion_logprobs = vec![CompletionLogprobs::default(); choices];
        let parser = view
            .notation
            .map(|notation| CallParser::new(notation, view.one_call, view.text_arguments.clone()));
        let calls = parser.map(|parser| Calls { parser, told: 0, last: String::new() });
        let calls = calls.map_or(Vec::new(), |calls| vec![calls; choices]);
        let (held_entries, prompt_logprobs) = (vec![Vec::new(); choices], BTreeMap::new());
        Self { view, completion_logprobs, held_entries, prompt_logprobs, calls }
    }

    pub(super) fn take(&mut self, event: TextEvent) -> Vec<Piece> {
        match event {
            TextEvent::PromptLogprobs { start, entries } => {
                self.prompt_logprobs.extend((start..).zip(entries));
                Vec::new()
            }
            TextEvent::Prefilled => self.echo(),
            TextEvent::Token(token) if !token.is_end => vec![self.token(token)],
            TextEvent::ChoiceDone { choice, finish, heard, stop, .. } => {
                vec![Piece { stop, ..self.last(choice as usize, finish, heard) }]
            }
            _ => Vec::new(),
        }
    }

    /// The prompt, once for every choice.
    fn echo(&mut self) -> Vec<Piece> {
        let Some(echo) = self.view.echo.clone() else { return Vec::new() };
        let choices = self.completion_logprobs.len();
        let piece = |choice: usize| {
            let logprobs = self.echo_logprobs(choice, &echo);
            Piece { logprobs, ..Piece::text(choice, echo.text.clone()) }
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
        list.end_prompt();
        Some(list.take(top))
    }

    fn token(&mut self, token: TextToken) -> Piece {
        let TextToken { emitted, heard, stands, .. } = token;
        let choice = emitted.choice as usize;
        let logprobs = self.view.logprobs.and_then(|top| match self.view.endpoint {
            Endpoint::Completions => {
                let list = &mut self.completion_logprobs[choice];
                let scores = Some((emitted.logprob, emitted.top.as_slice()));
                list.push(&self.view.text, emitted.token, scores);
                Some(list.take(top))
            }
            Endpoint::Chat => {
                let (logprob, top) = (emitted.logprob, &emitted.top);
                let held = &mut self.held_entries[choice];
                let is_told = match stands {
                    Stands::InText => true,
                    Stands::Either => false,
                    // What was held back may be told with what follows it, a call for instance.
                    Stands::Apart | Stands::Nowhere => !held.is_empty() && !heard.text.is_empty(),
                };
                if matches!(stands, Stands::InText | Stands::Either) {
                    held.push(chat_entry(&self.view.text, emitted.token, logprob, top));
                }
                let told = is_told.then(|| content(held));
                if stands == Stands::Apart {
                    held.clear();
                }
                told
            }
        });
        Piece { logprobs, ..self.said(choice, heard, false) }
    }

    /// What ends a choice.
    fn last(&mut self, choice: usize, finish: Finish, heard: Heard) -> Piece {
        let held = &mut self.held_entries[choice];
        let logprobs = (!held.is_empty() && !heard.text.is_empty()).then(|| content(held));
        let piece = Piece { logprobs, ..self.said(choice, heard, true) };
        let View { one_call, has_stops, .. } = self.view;
        let is_called = self.calls.get(choice).is_some_and(|calls| match finish {
            Finish::Stop => calls.told > 0 && (!has_stops || calls.are_whole()),
            // What was cut off behind the only call is not told anyway.
            Finish::Length => one_call && calls.are_whole(),
        });
        let finish = if is_called { "tool_calls" } else { finish_reason(finish) };
        Piece { finish: Some(finish), ..piece }
    }

    /// What a choice says, in which no call counts where no tool may be called.
    fn said(&mut self, choice: usize, heard: Heard, is_last: bool) -> Piece {
        let request = self.view.request;
        let Heard { text, reasoning, calls } = heard;
        let mut parts = Vec::new();
        let is_called = self.calls.get(choice).is_some_and(|calls| calls.told > 0);
        // Nothing is told of behind the only call.
        if !(reasoning.is_empty() || is_called && self.view.one_call) {
            parts.push(Part::Reasoning(reasoning));
        }
        let Some(Calls { parser, told, last }) = self.calls.get_mut(choice) else {
            let text = calls.into_iter().fold(text, |text, call| text + &call.arguments);
            parts.extend((!text.is_empty()).then_some(Part::Text(text)));
            return Piece { parts, ..Piece::of(choice) };
        };
        let notation = parser.notation();
        let mut said = parser.push(&text);
        if is_last {
            said.extend(parser.finish());
        }
        said.extend(parser.push_calls(calls));
        let new = |idx: usize, name: String, arguments: String| {
            json!({
                "index": idx,
                "id": call_id(notation, request, choice, idx),
                "type": "function",
                "function": { "name": name, "arguments": arguments },
            })
        };
        for said in said {
            match &said {
                Said::Call { arguments, .. } => last.clone_from(arguments),
                Said::Arguments(more) => last.push_str(more),
                Said::Text(_) => {}
            }
            Part::add(&mut parts, said, told, new);
        }
        Piece { parts, ..Piece::of(choice) }
    }
}

/// The log probabilities of what is told now, which are held no longer.
fn content(held: &mut Vec<Value>) -> Value {
    json!({ "content": std::mem::take(held) })
}

/// A call's name in the conversation: the same whoever tells it, and another one for each call.
fn call_id(notation: CallNotation, request: RequestId, choice: usize, idx: usize) -> String {
    let id = format!("{request}{choice:02x}{idx:04x}");
    match notation {
        // Mistral's templates take nine letters and digits.
        CallNotation::Listed | CallNotation::Marked => {
            blake3::hash(id.as_bytes()).to_hex()[..9].to_owned()
        }
        _ => format!("call_{id}"),
    }
}

impl View {
    /// The entry of a streamed chunk.
    pub(super) fn delta(&self, piece: &Piece) -> Value {
        let finish = piece.finish;
        let mut entry = json!({
            "index": self.first_choice + piece.choice,
            "logprobs": piece.logprobs,
            "finish_reason": finish,
        });
        tell_stop(&mut entry, piece.stop.as_deref());
        match self.endpoint {
            Endpoint::Completions => entry["text"] = json!(piece.content()),
            Endpoint::Chat if piece.is_bare_end() => {
                entry["delta"] = json!({});
            }
            Endpoint::Chat => {
                let (text, calls) = (piece.content(), piece.calls());
                entry["delta"] = json!({});
                if !calls.is_empty() {
                    entry["delta"]["tool_calls"] = json!(calls);
                }
                let reasoning = piece.reasoning();
                let says_other = !calls.is_empty() || !reasoning.is_empty();
                if !reasoning.is_empty() {
                    entry["delta"]["reasoning_content"] = json!(reasoning);
                }
                if !says_other || !text.is_empty() {
                    entry["delta"]["content"] = json!(text);
                }
            }
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

    /// An entry that says nothing, beside what a chunk says otherwise.
    pub(super) fn empty(&self) -> Value {
        self.delta(&Piece::default())
    }

    /// The entry of a whole answer, from all of a choice's pieces.
    pub(super) fn whole(&self, choice: usize, pieces: &[Piece]) -> Value {
        let mine = || pieces.iter().filter(|piece| piece.choice == choice);
        let text: String = mine().map(Piece::content).collect();
        let logprobs = mine().filter_map(|piece| piece.logprobs.clone()).reduce(join_lists);
        // Of no token at all: who asked for them reads lists.
        let none = || self.logprobs.map(|top| self.endpoint.no_logprobs(top));
        let logprobs = logprobs.or_else(none);
        let finish = mine().find_map(|piece| piece.finish);
        let calls = whole_calls(mine());
        let mut entry = json!({
            "index": self.first_choice + choice,
            "logprobs": logprobs,
            "finish_reason": finish,
        });
        tell_stop(&mut entry, mine().find_map(|piece| piece.stop.as_deref()));
        match self.endpoint {
            Endpoint::Completions => entry["text"] = json!(text),
            Endpoint::Chat => {
                entry["message"] = json!({ "role": "assistant", "content": text, "refusal": null });
                let reasoning: String = mine().map(Piece::reasoning).collect();
                if !reasoning.is_empty() {
                    entry["message"]["reasoning_content"] = json!(reasoning);
                }
                if !calls.is_empty() {
                    let content = if text.is_empty() { Value::Null } else { json!(text) };
                    entry["message"]["content"] = content;
                    entry["message"]["tool_calls"] = json!(calls);
                }
            }
        }
        entry
    }
}

/// Which stop string ended a choice, if one did, as vLLM says it.
fn tell_stop(entry: &mut Value, stop: Option<&str>) {
    if let Some(stop) = stop {
        entry["stop_reason"] = json!(stop);
    }
}

impl Endpoint {
    /// Log probabilities of no tokens, `top` of each.
    fn no_logprobs(self, top: u32) -> Value {
        match self {
            Self::Completions => CompletionLogprobs::default().take(top),
            Self::Chat => json!({ "content": [] }),
        }
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
