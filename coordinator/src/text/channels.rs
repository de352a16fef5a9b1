//! Answers in channels: OpenAI's harmony format, in which gpt-oss speaks. An answer is several
//! messages, each of which says in its head whom it is for:
//!
//! ```text
//! <|channel|>analysis<|message|>Thinking.<|end|><|start|>assistant<|channel|>final<|message|>Hi.
//! <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>
//! ```
//!
//! What stands between bars is a token of its own, so text that looks like it changes nothing.

use super::Start;

const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
/// How the message begins that is for the caller.
pub(crate) const FINAL_HEAD: &str = "<|channel|>final<|message|>";
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
/// Heads are short; text that is longer and has none is said without channels.
const HEAD_BYTES_MAX: usize = 512;

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

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Of the tool.
    pub name: String,
    /// As the model wrote them: JSON, if it kept to that.
    pub arguments: String,
}

impl Heard {
    /// For the caller to read, and nothing else.
    pub fn text(text: String) -> Self {
        Self { text, ..Self::default() }
    }

    /// Bytes of all of it.
    pub(crate) fn bytes(&self) -> usize {
        let of_call = |call: &Call| call.name.len() + call.arguments.len() + size_of::<Call>();
        self.text.len() + self.reasoning.len() + self.calls.iter().map(of_call).sum::<usize>()
    }
}

/// Whom a message is for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Text,
    Reasoning,
    Call(String),
}

/// Tells the messages of one answer apart as it comes.
#[derive(Debug, Clone)]
pub(crate) struct Channels {
    /// The message that is being said; `None` in a head.
    message: Option<Kind>,
    head: String,
    /// Of a call, which is told of when it is whole.
    arguments: String,
    /// Whether there was any message.
    spoke: bool,
}

impl Channels {
    /// For one answer; one that goes on with a message is within it.
    pub(crate) fn new(start: Start) -> Self {
        let message = (start == Start::Continuation).then_some(Kind::Text);
        let spoke = message.is_some();
        Self { message, head: String::new(), arguments: String::new(), spoke }
    }

    /// Takes more text.
    pub(crate) fn say(&mut self, text: String) -> Heard {
        match &self.message {
            Some(Kind::Text) => Heard::text(text),
            Some(Kind::Reasoning) => Heard { reasoning: text, ..Heard::default() },
            Some(Kind::Call(_)) => {
                self.arguments.push_str(&text);
                Heard::default()
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
                (self.message, self.spoke) = (Some(kind), true);
                Heard::default()
            }
            None if ends => Heard::text(self.headless()),
            // Of a head that is longer than any, the rest says nothing.
            None => {
                if self.head.len() <= HEAD_BYTES_MAX {
                    self.head.push_str(mark);
                }
                Heard::default()
            }
            Some(_) if ends => self.end(),
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
        self.message == Some(Kind::Text)
    }

    /// What was said without a head, if that is what stands where one would.
    fn headless(&mut self) -> String {
        let head = std::mem::take(&mut self.head);
        let is_said = !head.contains(CHANNEL) && head.trim() != ASSISTANT;
        self.spoke |= is_said && !head.is_empty();
        if is_said { head } else { String::new() }
    }

    /// What was held back, when nothing follows. `whole`: the model ended its answer. A call whose
    /// end is missing is one all the same if its arguments are complete.
    pub(crate) fn finish(&mut self, whole: bool) -> Heard {
        if self.message.is_some() {
            let is_json = || serde_json::from_str::<serde_json::Value>(&self.arguments).is_ok();
            return match self.message {
                Some(Kind::Call(_)) if !whole && !is_json() => {
                    Heard::text(std::mem::take(&mut self.arguments))
                }
                _ => self.end(),
            };
        }
        Heard::text(self.headless())
    }

    /// The end of a message.
    fn end(&mut self) -> Heard {
        let arguments = std::mem::take(&mut self.arguments).trim().to_owned();
        match self.message.take() {
            Some(Kind::Call(name)) => {
                Heard { calls: vec![Call { name, arguments }], ..Heard::default() }
            }
            _ => Heard::default(),
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
    match (behind("to="), behind(CHANNEL)) {
        (Some(to), _) => match to.strip_prefix(TOOLS) {
            Some(name) => Kind::Call(name.to_owned()),
            // Tools of the model's own, which nobody has here.
            None => Kind::Reasoning,
        },
        (None, Some("analysis")) => Kind::Reasoning,
        (None, _) => Kind::Text,
    }
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
            all.calls.extend(heard.calls);
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
            name: (*name).to_owned(),
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
        assert_eq!(cut_off, Heard::text("{\"x\": ".to_owned()));
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
