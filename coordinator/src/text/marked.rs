//! Calls behind tokens of their own, as Mistral's models since Small 3.1 write them:
//!
//! ```text
//! I look.[TOOL_CALLS]read[ARGS]{"path": "walden.txt"}
//! ```
//!
//! Some name the call as well, between `[CALL_ID]` and `[ARGS]`: here it is named otherwise.

use super::channels::is_object;
use super::thoughts::Thoughts;
use super::{Call, Heard};

const CALL: &str = "[TOOL_CALLS]";
const ID: &str = "[CALL_ID]";
const ARGUMENTS: &str = "[ARGS]";

/// Whether models of this chat template call tools so.
pub(super) fn are_taught(template: &str) -> bool {
    template.contains(CALL) && template.contains(ARGUMENTS)
}

/// What stands before the arguments of a call of `function`.
pub(super) fn head_of_call(function: &str) -> String {
    format!("{CALL}{function}{ARGUMENTS}")
}

/// Whose text something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The caller's, or of thoughts.
    Answer,
    Name,
    Id,
    Arguments,
}

/// Tells the calls of one answer from the rest of it.
#[derive(Debug, Clone)]
pub(crate) struct Marked {
    /// Tells thoughts from text, where the model has any.
    thoughts: Option<Thoughts>,
    state: State,
    name: String,
    arguments: String,
}

impl Marked {
    /// For one answer, of which `thoughts` tell the part before calls.
    pub(crate) fn new(thoughts: Option<Thoughts>) -> Self {
        let (name, arguments) = (String::new(), String::new());
        Self { thoughts, state: State::Answer, name, arguments }
    }

    /// Takes more text.
    pub(crate) fn say(&mut self, text: String) -> Heard {
        match self.state {
            State::Answer => match &mut self.thoughts {
                Some(thoughts) => return thoughts.say(text),
                None => return Heard::text(text),
            },
            State::Name => self.name.push_str(&text),
            State::Id => {}
            State::Arguments => self.arguments.push_str(&text),
        }
        Heard::default()
    }

    /// Takes a token that is no text.
    pub(crate) fn mark(&mut self, mark: &str) -> Heard {
        match (mark, self.state, &mut self.thoughts) {
            (CALL, ..) => {
                let heard = self.finish(true);
                self.state = State::Name;
                heard
            }
            (ID, State::Name, _) => self.at(State::Id),
            (ARGUMENTS, State::Name | State::Id, _) => self.at(State::Arguments),
            (mark, State::Answer, Some(thoughts)) => thoughts.mark(mark),
            _ => Heard::default(),
        }
    }

    fn at(&mut self, state: State) -> Heard {
        self.state = state;
        Heard::default()
    }

    /// What was held back, when nothing follows. `whole`: the model ended its answer, or the call.
    /// What is no call is text where it is whole.
    pub(crate) fn finish(&mut self, whole: bool) -> Heard {
        let (name, arguments) =
            (std::mem::take(&mut self.name), std::mem::take(&mut self.arguments));
        let name = name.trim();
        match std::mem::replace(&mut self.state, State::Answer) {
            State::Answer => self.thoughts.as_mut().map_or_else(Heard::default, Thoughts::finish),
            State::Arguments if is_object(&arguments) && !name.is_empty() => {
                let (name, arguments) = (name.to_owned(), arguments.trim().to_owned());
                Heard { calls: vec![Call { name, arguments }], ..Heard::default() }
            }
            _ if whole => Heard::text(format!("{name}{arguments}")),
            _ => Heard::default(),
        }
    }

    /// Whether text is for the caller to read.
    pub(crate) fn is_text(&self) -> bool {
        self.state == State::Answer && self.thoughts.as_ref().is_none_or(Thoughts::is_text)
    }

    /// Whether what was said so far may be text or the mark of thoughts.
    pub(crate) fn is_undecided(&self) -> bool {
        let of_thoughts = self.thoughts.as_ref().is_some_and(Thoughts::is_undecided);
        self.state == State::Answer && of_thoughts
    }

    /// Whether text is what the model thinks.
    pub(crate) fn is_thinking(&self) -> bool {
        self.state == State::Answer && self.thoughts.as_ref().is_some_and(Thoughts::is_thinking)
    }
}

#[cfg(test)]
mod tests {
    use super::super::thoughts::Tags;
    use super::*;

    /// Marks begin with a bracket.
    fn check(parts: &[&str], whole: bool, want: (&str, &str, &[(&str, &str)])) {
        let tags = Tags::of("[THINK][/THINK]").unwrap();
        let mut marked = Marked::new(Some(Thoughts::new(tags, false)));
        let say = |part: &&str| match part.starts_with('[') {
            true => marked.mark(part),
            false => marked.say((*part).to_owned()),
        };
        let mut all: Vec<Heard> = parts.iter().map(say).collect();
        all.push(marked.finish(whole));
        let text: String = all.iter().map(|heard| heard.text.as_str()).collect();
        let thought: String = all.iter().map(|heard| heard.reasoning.as_str()).collect();
        let calls = all.iter().flat_map(|heard| &heard.calls);
        let calls: Vec<_> = calls.map(|call| (&*call.name, &*call.arguments)).collect();
        assert_eq!((text.as_str(), thought.as_str(), calls.as_slice()), want, "{parts:?}");
    }

    #[test]
    fn calls_are_told_from_text() {
        let one = ["[TOOL_CALLS]", "re", "ad", "[ARGS]", "{\"x\":", " 1}"];
        check(&one, true, ("", "", &[("read", "{\"x\": 1}")]));
        check(&one, false, ("", "", &[("read", "{\"x\": 1}")]));
        let both = [&["I look."], one.as_slice(), one.as_slice()].concat();
        let call = ("read", "{\"x\": 1}");
        check(&both, true, ("I look.", "", &[call, call]));
        let named = ["[TOOL_CALLS]", "f", "[CALL_ID]", "abcdefghi", "[ARGS]", "{}"];
        check(&named, true, ("", "", &[("f", "{}")]));
        let thought = [&["[THINK]", "Hm.", "[/THINK]", "So."], one.as_slice()].concat();
        check(&thought, true, ("So.", "Hm.", &[call]));
        let at_once = [&["[THINK]", "Hm."], one.as_slice()].concat();
        check(&at_once, true, ("", "Hm.", &[call]));
    }

    #[test]
    fn what_is_none_is_text_if_it_is_whole() {
        for parts in [&["[TOOL_CALLS]", "f", "[ARGS]", "{\"x"][..], &["[TOOL_CALLS]", "f{\"x"]] {
            check(parts, true, ("f{\"x", "", &[]));
            check(parts, false, ("", "", &[]));
        }
        check(&["a", "[ARGS]", "b"], true, ("ab", "", &[]));
    }
}
