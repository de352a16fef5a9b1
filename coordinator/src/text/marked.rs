//! Calls behind tokens of their own, as Mistral's models since Small 3.1 write them:
//!
//! ```text
//! I look.[TOOL_CALLS]read[ARGS]{"path": "walden.txt"}
//! ```
//!
//! Some name the call as well, between `[CALL_ID]` and `[ARGS]`: here it is named otherwise.

use super::calling::Calling;
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
    /// What is called, of which the arguments come.
    call: Calling,
}

impl Marked {
    /// For one answer, of which `thoughts` tell the part before calls.
    pub(crate) fn new(thoughts: Option<Thoughts>) -> Self {
        let (name, call) = (String::new(), Calling::default());
        Self { thoughts, state: State::Answer, name, call }
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
            State::Arguments => {
                let told = self.call.say(&text);
                return Heard { calls: told.into_iter().collect(), ..Heard::default() };
            }
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
            (ARGUMENTS, State::Name | State::Id, _) if !self.name.trim().is_empty() => {
                self.call = Calling::new(std::mem::take(&mut self.name).trim().to_owned());
                self.at(State::Arguments)
            }
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
        let (name, call) = (std::mem::take(&mut self.name), std::mem::take(&mut self.call));
        match std::mem::replace(&mut self.state, State::Answer) {
            State::Answer => self.thoughts.as_mut().map_or_else(Heard::default, Thoughts::finish),
            State::Name | State::Id if whole => Heard::text(name.trim().to_owned()),
            State::Arguments if whole => {
                let Some((name, said)) = call.untold() else { return Heard::default() };
                if !said.trim().is_empty() {
                    return Heard::text(format!("{name}{said}"));
                }
                let call = Call { name: Some(name), arguments: "{}".to_owned() };
                Heard { calls: vec![call], ..Heard::default() }
            }
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
        let mut calls: Vec<(String, String)> = Vec::new();
        for call in all.into_iter().flat_map(|heard| heard.calls) {
            match (call.name, calls.last_mut()) {
                (Some(name), _) => calls.push((name, call.arguments)),
                (None, Some((_, arguments))) => *arguments += &call.arguments,
                (None, None) => panic!("arguments of nothing: {parts:?}"),
            }
        }
        let calls: Vec<_> = calls.iter().map(|(name, said)| (&**name, &**said)).collect();
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
        check(&["[TOOL_CALLS]", "f", "[ARGS]", " "], true, ("", "", &[("f", "{}")]));
        let thought = [&["[THINK]", "Hm.", "[/THINK]", "So."], one.as_slice()].concat();
        check(&thought, true, ("So.", "Hm.", &[call]));
        let at_once = [&["[THINK]", "Hm."], one.as_slice()].concat();
        check(&at_once, true, ("", "Hm.", &[call]));
    }

    #[test]
    fn what_is_none_is_text_if_it_is_whole() {
        for parts in [&["[TOOL_CALLS]", "f", "[ARGS]", "1]"][..], &["[TOOL_CALLS]", "f1]"]] {
            check(parts, true, ("f1]", "", &[]));
            check(parts, false, ("", "", &[]));
        }
        // What was told of a call stays one.
        for whole in [true, false] {
            let begun = ["[TOOL_CALLS]", "f", "[ARGS]", "{\"x"];
            check(&begun, whole, ("", "", &[("f", "{\"x")]));
        }
        check(&["a", "[ARGS]", "b"], true, ("ab", "", &[]));
        check(&["[TOOL_CALLS]", "[ARGS]", "{}"], true, ("{}", "", &[]));
    }
}
