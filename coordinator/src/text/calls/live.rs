//! Calls that are told as they come: the name as soon as it is known, and then the arguments. What
//! was told cannot be taken back, so the whole answer has it too.

use std::sync::Arc;

use super::braces::{self, Braces};
use super::head::{self, Head};
use super::live_tags::LiveTags;
use super::parser::Said;
use super::{Blocks, CallNotation};
use crate::text::scan::{End, Scan, Taken};

/// The calls of one block, or of one list.
#[derive(Debug, Clone)]
pub(super) struct Live {
    notation: CallNotation,
    /// Ends the block; empty where nothing does.
    close: &'static str,
    texts: Arc<[String]>,
    state: State,
    has_told: bool,
    in_list: bool,
}

#[derive(Debug, Clone)]
enum State {
    /// Before a call's arguments.
    Head,
    /// In arguments that are JSON.
    Json(Scan),
    /// Behind them, in the object that they are a field of.
    Object(Scan),
    /// In arguments that are nearly JSON.
    Braces(Braces),
    /// In arguments between tags.
    Tags(Box<LiveTags>),
    /// Behind a call.
    Behind,
}

/// Why it goes on no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// More must come.
    Wait,
    /// The block has ended.
    Over,
    /// What is held belongs to no call.
    Left,
    /// What is held is a call, if it is one, that can only be told when it is whole.
    Whole,
}

impl Live {
    /// For calls up to `close`; `None` in a notation whose calls are told when they are whole.
    pub(super) fn new(
        notation: CallNotation,
        close: &'static str,
        texts: Arc<[String]>,
    ) -> Option<Self> {
        let is_told = !matches!(
            notation,
            CallNotation::Pythonic(_) | CallNotation::InChannels | CallNotation::Marked
        );
        let (state, has_told, in_list) = (State::Head, false, false);
        is_told.then_some(Self { notation, close, texts, state, has_told, in_list })
    }

    /// Whether a call was told.
    pub(super) fn has_told(&self) -> bool {
        self.has_told
    }

    /// Whether a list has begun before the first.
    pub(super) fn in_list(&self) -> bool {
        self.in_list
    }

    /// Takes what it can of what is held. `is_last`: nothing follows.
    pub(super) fn step(&mut self, held: &mut String, is_last: bool, all: &mut Vec<Said>) -> Step {
        let (ends, is_field) = (self.ends(), self.marks().is_none());
        loop {
            match &mut self.state {
                State::Head => {
                    if let Err(step) = self.head(held, all) {
                        return step;
                    }
                }
                State::Json(scan) => {
                    let Taken { json, bytes, end } = scan.take(held, ends);
                    held.drain(..bytes);
                    all.extend((!json.is_empty()).then_some(Said::Arguments(json)));
                    self.state = match end {
                        End::Open => return Step::Wait,
                        End::Value if is_field => State::Object(Scan::in_object()),
                        End::Value | End::Mark => State::Behind,
                    };
                }
                State::Braces(arguments) => {
                    let Taken { json, bytes, end } = arguments.take(held, self.close);
                    held.drain(..bytes);
                    all.extend((!json.is_empty()).then_some(Said::Arguments(json)));
                    if end == End::Open {
                        return Step::Wait;
                    }
                    self.state = State::Behind;
                }
                State::Object(scan) => {
                    let Taken { bytes, end, .. } = scan.take(held, ends);
                    held.drain(..bytes);
                    if end == End::Open {
                        return Step::Wait;
                    }
                    self.state = State::Behind;
                }
                State::Tags(tags) => {
                    let (json, is_over) = tags.step(held, is_last);
                    all.extend((!json.is_empty()).then_some(Said::Arguments(json)));
                    if !is_over {
                        return Step::Wait;
                    }
                    self.state = State::Behind;
                }
                State::Behind => {
                    if let Err(step) = self.behind(held) {
                        return step;
                    }
                }
            }
        }
    }

    /// Those of one call of a block, where calls stand between marks.
    fn marks(&self) -> Option<[&'static str; 3]> {
        self.notation.blocks().and_then(Blocks::marks)
    }

    /// What ends arguments that are JSON, even where they are not whole.
    fn ends(&self) -> [&'static str; 2] {
        let call_end = self.marks().map_or("", |[_, _, end]| end);
        [call_end, self.close]
    }

    /// Tells of a call, if it is one of a tool that is offered.
    fn head(&mut self, held: &mut String, all: &mut Vec<Said>) -> Result<(), Step> {
        match head::read(self.notation, held, !self.has_told) {
            Head::Open => Err(Step::Wait),
            Head::Call { name, bytes, in_list } if is_offered(&self.texts, &name) => {
                held.drain(..bytes);
                self.in_list |= in_list;
                self.has_told = true;
                self.state = match self.notation {
                    CallNotation::ArgumentTags(tags) => {
                        let arguments = LiveTags::new(tags, name.clone(), self.texts.clone());
                        State::Tags(Box::new(arguments))
                    }
                    CallNotation::Braces => State::Braces(Braces::default()),
                    _ => State::Json(Scan::default()),
                };
                all.push(Said::Call { name, arguments: String::new() });
                Ok(())
            }
            Head::Call { .. } | Head::Other => Err(Step::Whole),
        }
    }

    /// Goes on to the next call, or to the end. Nothing is taken before it is known which.
    fn behind(&mut self, held: &mut String) -> Result<(), Step> {
        let (open, between): (&str, &[char]) = match (self.notation, self.marks()) {
            (CallNotation::ArgumentTags(tags), _) => (tags.name.0, &[]),
            (CallNotation::Braces, _) => (braces::CALL, &['}']),
            // Models write one brace too many, or a list's end without its beginning.
            (_, Some([begin, ..])) => (begin, &['`', '}']),
            _ => ("{", &[',', ']', '}']),
        };
        let rest = held.trim_start_matches(|c: char| c.is_whitespace() || between.contains(&c));
        let before = held.len() - rest.len();
        let [call_end, close] = self.ends();
        let is_at = |mark: &str| !mark.is_empty() && rest.starts_with(mark);
        if is_at(call_end) {
            held.drain(..before + call_end.len());
            Ok(())
        } else if is_at(close) {
            held.drain(..before + close.len());
            Err(Step::Over)
        } else if is_at(open) {
            held.drain(..before);
            self.state = State::Head;
            Ok(())
        } else {
            let is_begun = [call_end, close, open].iter().any(|mark| mark.starts_with(rest));
            Err(if rest.is_empty() || is_begun { Step::Wait } else { Step::Left })
        }
    }
}

/// Whether there is a tool of this name: those stand alone among the arguments that are texts.
/// Who knows of none takes any.
pub(super) fn is_offered(texts: &[String], name: &str) -> bool {
    let is_name = |text: &&String| !(text.is_empty() || text.contains(' '));
    let mut names = texts.iter().filter(is_name).peekable();
    names.peek().is_none() || names.any(|offered| offered == name)
}
