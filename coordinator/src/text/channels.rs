//! Answers in channels: OpenAI's harmony format, in which gpt-oss speaks. An answer is several
//! messages, each of which says in its head whom it is for:
//!
//! ```text
//! <|channel|>analysis<|message|>Thinking.<|end|><|start|>assistant<|channel|>final<|message|>Hi.
//! <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>
//! ```
//!
//! What stands between bars is a token of its own, so text that looks like it changes nothing.

use super::calling::Calling;
use super::{ChatMessage, Role, Start};

const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
/// How the message begins that is for the caller.
pub(super) const FINAL_HEAD: &str = "<|channel|>final<|message|>";
/// How one begins that is thought.
pub(super) const THOUGHT_HEAD: &str = "<|channel|>analysis<|message|>";
/// How the head of one begins that calls, or says what comes.
pub(super) const COMMENTARY: &str = "<|channel|>commentary";
/// What a template has that teaches it.
const TAUGHT: [&str; 3] = [CHANNEL, MESSAGE, "<|start|>assistant"];
/// What ends an answer.
pub(super) const ENDS_OF_ANSWERS: [&str; 2] = ["<|return|>", "<|call|>"];
/// What ends a message, behind which others may follow.
pub(super) const END_OF_MESSAGE: &str = "<|end|>";
/// What stands before who speaks.
const START: &str = "<|start|>";
/// Who speaks in answers.
const ASSISTANT: &str = "assistant";
/// Before the name of a tool.
const TOOLS: &str = "functions.";
/// Before whom a message is for.
const TO: &str = "to=";
/// Tools of the model's own, which nobody has here.
const OWN_TOOLS: [&str; 3] = ["python", "browser", "container"];
/// Between thoughts. What is said is joined as it is: stop strings are looked for in it.
const BETWEEN: &str = "\n\n";
/// Heads are short; text that is longer and has none is said without channels.
const HEAD_BYTES_MAX: usize = 512;

/// What stands between one message of an answer and the next, whose head begins so.
pub(super) fn next_message(head: &str) -> String {
    format!("{START}{ASSISTANT}{head}")
}

/// How a message begins that calls `function`.
pub(super) fn head_of_call(function: &str) -> String {
    format!("{COMMENTARY} {TO}{TOOLS}{function} <|constrain|>json{MESSAGE}")
}

/// Whether models of this chat template answer in channels.
pub(super) fn are_taught(template: &str) -> bool {
    TAUGHT.iter().all(|mark| template.contains(mark))
}

/// A part of an answer by whom it is for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Heard {
    /// For the caller to read.
    pub text: String,
    /// What the model thought.
    pub reasoning: String,
    /// For the caller to run.
    pub calls: Vec<Call>,
}

/// A call of a tool, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Of the tool; `None`: more of the call before.
    pub name: Option<String>,
    /// A JSON object, as the model wrote it; more of it may follow.
    pub arguments: String,
}

impl Heard {
    /// For the caller to read, and nothing else.
    pub fn text(text: String) -> Self {
        Self { text, ..Self::default() }
    }

    /// Bytes of all of it.
    pub(crate) fn bytes(&self) -> usize {
        let of_call = |Call { name, arguments }: &Call| {
            name.as_ref().map_or(0, String::len) + arguments.len() + size_of::<Call>()
        };
        self.text.len() + self.reasoning.len() + self.calls.iter().map(of_call).sum::<usize>()
    }
}

/// Whom a message is for.
#[derive(Debug, Clone)]
enum Kind {
    Text,
    Reasoning,
    Call(Calling),
}

/// Tells the messages of one answer apart as it comes.
#[derive(Debug, Clone)]
pub(crate) struct Channels {
    /// The message that is being said; `None` in a head.
    message: Option<Kind>,
    head: String,
    /// Whether there was any message.
    spoke: bool,
    /// Whether what comes is a head, and not an answer that has none.
    in_head: bool,
    /// Whether it has thought anything.
    thought: bool,
}

impl Channels {
    /// For one answer; one that goes on with a message is within it.
    pub(crate) fn new(start: Start) -> Self {
        let message = (start == Start::Continuation).then_some(Kind::Text);
        let spoke = message.is_some();
        Self { message, head: String::new(), spoke, in_head: false, thought: false }
    }

    /// Takes more text.
    pub(crate) fn say(&mut self, text: String) -> Heard {
        match &mut self.message {
            Some(Kind::Text) => Heard::text(text),
            Some(Kind::Reasoning) => {
                self.thought |= !text.is_empty();
                Heard { reasoning: text, ..Heard::default() }
            }
            Some(Kind::Call(call)) => {
                Heard { calls: call.say(&text).into_iter().collect(), ..Heard::default() }
            }
            None => {
                self.head.push_str(&text);
                if self.head.len() <= HEAD_BYTES_MAX || self.spoke {
                    return Heard::default();
                }
                (self.message, self.spoke) = (Some(Kind::Text), true);
                Heard::text(std::mem::take(&mut self.head))
            }
        }
    }

    /// Takes a token that is no text.
    pub(crate) fn mark(&mut self, mark: &str) -> Heard {
        let ends = [END_OF_MESSAGE, START].contains(&mark) || ENDS_OF_ANSWERS.contains(&mark);
        match &self.message {
            None if mark == MESSAGE => {
                let kind = kind_of(&std::mem::take(&mut self.head));
                let again = matches!(kind, Kind::Reasoning) && self.thought;
                (self.message, self.spoke, self.in_head) = (Some(kind), true, false);
                let reasoning = if again { BETWEEN.to_owned() } else { String::new() };
                Heard { reasoning, ..Heard::default() }
            }
            None if ends => {
                let heard = Heard::text(self.headless());
                self.in_head = mark == START;
                heard
            }
            // Of a head that is longer than any, the rest says nothing.
            None => {
                if self.head.len() <= HEAD_BYTES_MAX {
                    self.head.push_str(if mark == CHANNEL { mark } else { " " });
                }
                Heard::default()
            }
            Some(_) if ends => {
                self.in_head = mark == START;
                self.end()
            }
            // A head that nothing stands before.
            Some(_) if mark == CHANNEL => {
                self.head.push_str(mark);
                self.end()
            }
            Some(_) => Heard::default(),
        }
    }

    /// Whether text is for the caller to read.
    pub(crate) fn is_text(&self) -> bool {
        matches!(self.message, Some(Kind::Text))
    }

    /// Whether text is what the model thinks.
    pub(crate) fn is_thinking(&self) -> bool {
        matches!(self.message, Some(Kind::Reasoning))
    }

    /// What was said without a head, if that is what stands where one would.
    fn headless(&mut self) -> String {
        let head = std::mem::take(&mut self.head);
        let head_begins = head.contains(CHANNEL) || head.trim_start().starts_with(TO);
        let is_said = !(self.in_head || head_begins || head.trim() == ASSISTANT);
        self.spoke |= is_said && !head.is_empty();
        if is_said { head } else { String::new() }
    }

    /// What was held back, when nothing follows. `whole`: the model ended its answer. A call whose
    /// end is missing is what was told of it, and nothing if that is nothing.
    pub(crate) fn finish(&mut self, whole: bool) -> Heard {
        match self.message {
            None => Heard::text(self.headless()),
            Some(Kind::Call(_)) if !whole => Heard::default(),
            Some(_) => self.end(),
        }
    }

    /// The end of a message. What does not begin as an object is no call, as in other notations.
    fn end(&mut self) -> Heard {
        let Some(Kind::Call(call)) = self.message.take() else { return Heard::default() };
        match call.untold() {
            Some((name, said)) if said.trim().is_empty() => {
                let call = Call { name: Some(name), arguments: "{}".to_owned() };
                Heard { calls: vec![call], ..Heard::default() }
            }
            Some((_, said)) => Heard::text(said),
            None => Heard::default(),
        }
    }
}

/// Whom a message with this head is for. What no channel is named for, and commentary that calls
/// nothing, is for the caller.
fn kind_of(head: &str) -> Kind {
    let behind = |mark: &str| {
        let (_, rest) = head.split_once(mark)?;
        let ends = |c: char| c.is_whitespace() || c == '<';
        rest.trim_start().split(ends).next()
    };
    match (behind(TO), behind(CHANNEL)) {
        (Some(to), _) if OWN_TOOLS.iter().any(|own| to.starts_with(own)) => Kind::Reasoning,
        (Some(to), _) => Kind::Call(Calling::new(to.strip_prefix(TOOLS).unwrap_or(to).to_owned())),
        (None, Some("analysis")) => Kind::Reasoning,
        (None, _) => Kind::Text,
    }
}

/// Templates of models that speak so know one call of a message, and of the last one whom
/// a result is from: each call becomes a message, which its results stand behind.
pub(super) fn one_call_each(messages: &[ChatMessage]) -> Vec<ChatMessage> {
    let (mut all, mut rest) = (Vec::with_capacity(messages.len()), messages);
    while let [message, others @ ..] = rest {
        rest = others;
        if message.tool_calls.len() < 2 {
            all.push(message.clone());
            continue;
        }
        let results = others.iter().take_while(|other| other.role == Role::Tool).count();
        let (results, others) = others.split_at(results);
        rest = others;
        for (idx, call) in message.tool_calls.iter().enumerate() {
            let is_first = idx == 0;
            all.push(ChatMessage {
                content: if is_first { message.content.clone() } else { String::new() },
                reasoning: message.reasoning.clone().filter(|_| is_first),
                tool_calls: vec![call.clone()],
                ..message.clone()
            });
            let own = |result: &&ChatMessage| result.tool_call_id.as_ref() == Some(&call.id);
            all.extend(results.iter().filter(own).cloned());
        }
        let is_known = |result: &&ChatMessage| {
            message.tool_calls.iter().any(|call| result.tool_call_id.as_ref() == Some(&call.id))
        };
        all.extend(results.iter().filter(|result| !is_known(result)).cloned());
    }
    all
}

/// `tool` with a description: OpenAI's template has no way without.
pub(super) fn described(tool: &serde_json::Value) -> serde_json::Value {
    let mut tool = tool.clone();
    if let Some(function) = tool["function"].as_object_mut() {
        function.entry("description").or_insert_with(|| "".into());
    }
    tool
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Marks are tokens, and everything else comes in pieces of `cut` characters.
    fn heard(start: Start, answer: &str, cut: usize, whole: bool) -> Heard {
        let (mut channels, mut all) = (Channels::new(start), Heard::default());
        let mut add = |heard: Heard| {
            all.text += &heard.text;
            all.reasoning += &heard.reasoning;
            for call in heard.calls {
                match all.calls.last_mut().filter(|_| call.name.is_none()) {
                    Some(last) => last.arguments += &call.arguments,
                    None => all.calls.push(call),
                }
            }
        };
        let mut rest = answer;
        while !rest.is_empty() {
            let mark = rest.find("<|").filter(|at| *at == 0).and_then(|_| rest.find("|>"));
            if let Some(end) = mark {
                add(channels.mark(&rest[..end + 2]));
                rest = &rest[end + 2..];
                continue;
            }
            let (text, others) = rest.split_at(rest.find("<|").unwrap_or(rest.len()));
            let characters: Vec<char> = text.chars().collect();
            for part in characters.chunks(cut) {
                add(channels.say(part.iter().collect()));
            }
            rest = others;
        }
        add(channels.finish(whole));
        all
    }

    fn check(answer: &str, (text, reasoning, calls): (&str, &str, &[(&str, &str)])) {
        let call = |(name, arguments): &(&str, &str)| Call {
            name: Some((*name).to_owned()),
            arguments: (*arguments).to_owned(),
        };
        let calls = calls.iter().map(call).collect();
        let want = Heard { text: text.to_owned(), reasoning: reasoning.to_owned(), calls };
        for cut in [1, 3, 1000] {
            assert_eq!(heard(Start::Text, answer, cut, true), want, "{answer:?} by {cut}");
        }
    }

    const THOUGHT: &str = "<|channel|>analysis<|message|>Hm, 1 < 2.<|end|>";

    #[test]
    fn messages_are_told_apart() {
        let said = "<|start|>assistant<|channel|>final<|message|>Two.<|return|>";
        check(&format!("{THOUGHT}{said}"), ("Two.", "Hm, 1 < 2.", &[]));
        check("<|channel|>final<|message|>Two", ("Two", "", &[]));
        check("<|channel|>commentary<|message|>I look it up.", ("I look it up.", "", &[]));
        check(&THOUGHT[..33], ("", "Hm,", &[]));
        check("<|message|>So.", ("So.", "", &[]));
        check("Plain words.<|end|>", ("Plain words.", "", &[]));
        check(&format!("{THOUGHT}Plain words."), ("Plain words.", "Hm, 1 < 2.", &[]));
        check(&format!("{THOUGHT}<|start|>assistant"), ("", "Hm, 1 < 2.", &[]));
        let open = &THOUGHT[..THOUGHT.len() - "<|end|>".len()];
        check(&format!("{open}<|channel|>final<|message|>2"), ("2", "Hm, 1 < 2.", &[]));
        check("Plain words.", ("Plain words.", "", &[]));
        check("<|channel|>final", ("", "", &[]));
        let again = format!("{THOUGHT}<|start|>assistant{THOUGHT}{said}");
        check(&again, ("Two.", "Hm, 1 < 2.\n\nHm, 1 < 2.", &[]));
        check("<|constrain|>Plain", (" Plain", "", &[]));
        check("", ("", "", &[]));
        let long = "word ".repeat(300);
        check(&long, (&long, "", &[]));
    }

    #[test]
    fn calls_are_for_the_caller() {
        let by_channel =
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"x\": 1}<|call|>";
        let by_role = " to=functions.f<|channel|>commentary json<|message|>{\"x\": 1} <|call|>";
        for call in [by_channel, by_role] {
            check(call, ("", "", &[("f", "{\"x\": 1}")]));
            let thought = format!("{THOUGHT}<|start|>assistant{call}");
            check(&thought, ("", "Hm, 1 < 2.", &[("f", "{\"x\": 1}")]));
        }
        check("<|channel|>commentary to=python<|message|>1 + 1<|call|>", ("", "1 + 1", &[]));
        let open = &by_channel[..by_channel.len() - "1}<|call|>".len()];
        let cut_off = heard(Start::Text, open, 4, false);
        let begun = Call { name: Some("f".to_owned()), arguments: "{\"x\":".to_owned() };
        assert_eq!(cut_off, Heard { calls: vec![begun], ..Heard::default() });
        let open = &by_channel[..by_channel.len() - "{\"x\": 1}<|call|>".len()];
        assert_eq!(heard(Start::Text, open, 4, false), Heard::default());
        // What was told of a call stays one, and what begins otherwise is none.
        check(&by_channel.replace("1}", "1"), ("", "", &[("f", "{\"x\": 1")]));
        check(&by_channel.replace("{\"x\": 1}", "[1]"), ("[1]", "", &[]));
        check(&by_channel.replace("{\"x\": 1}", ""), ("", "", &[("f", "{}")]));
        check(&by_channel.replace("functions.", ""), ("", "", &[("f", "{\"x\": 1}")]));
        for head in
            [" to=functions.f", " to=func", "<|channel|>commentary to=functions.f <|constrain|>js"]
        {
            assert_eq!(heard(Start::Text, head, 4, false), Heard::default(), "{head}");
        }
        let begun = heard(Start::Text, &format!("{THOUGHT}<|start|>ass"), 4, false);
        assert_eq!((begun.text.as_str(), begun.reasoning.as_str()), ("", "Hm, 1 < 2."));
        let whole = heard(Start::Text, &by_channel[..by_channel.len() - 8], 4, false);
        assert_eq!(whole.calls.len(), 1);
    }

    #[test]
    fn a_message_is_gone_on_with() {
        let heard = heard(Start::Continuation, "and so on.<|end|>", 5, true);
        assert_eq!(heard, Heard::text("and so on.".to_owned()));
    }

    #[test]
    fn templates_teach_it() {
        assert!(are_taught("<|start|>assistant<|channel|>final<|message|>"));
        assert!(!are_taught("<|start|>assistant<|message|>"));
    }
}
