//! What an answer says by whom it is for, in whichever way its model tells that.

use aqueduct_core::ThoughtsTold;

use super::channels::{self, Channels, END_OF_MESSAGE, FINAL_HEAD, THOUGHT_HEAD};
use super::marked::{self, Marked};
use super::thoughts::{Tags, Thoughts};
use super::{Heard, Start};

/// How models of a chat template tell what they think from what they say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speech {
    /// Not at all: all of an answer is for the caller.
    Plain,
    /// Each of an answer's messages says whom it is for.
    InChannels,
    /// Thoughts stand between tags.
    Tagged(Tags),
    /// Calls stand behind tokens of their own, and thoughts may stand between tags.
    Marked(Option<Tags>),
}

/// What stands behind thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behind {
    /// Words, as the model likes.
    Anything,
    /// Likewise, or calls.
    Calls,
    /// Words that follow a grammar.
    Words,
    /// Messages, heads and all, that follow a grammar.
    Messages,
}

/// What thoughts stand between, tokens by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Marks {
    /// Whether the prompt ends within them.
    pub(super) begun: bool,
    /// Whether nothing that a grammar wants is said without thoughts before it.
    pub(super) always: bool,
    pub(super) open: &'static str,
    pub(super) close: &'static str,
    /// What ends them if they are too long.
    pub(super) ending: String,
    /// What stands between them and what follows a grammar.
    pub(super) head: String,
}

impl Speech {
    pub(super) fn of(template: &str) -> Self {
        match Tags::of(template) {
            _ if channels::are_taught(template) => Self::InChannels,
            tags if marked::are_taught(template) => Self::Marked(tags),
            Some(tags) => Self::Tagged(tags),
            None => Self::Plain,
        }
    }

    /// What thoughts stand between.
    fn tags(self) -> Option<Tags> {
        match self {
            Self::Tagged(tags) => Some(tags),
            Self::Marked(tags) => tags,
            Self::Plain | Self::InChannels => None,
        }
    }

    /// Where thoughts go that an answer to `prompt` has.
    pub(crate) fn thoughts_behind(self, prompt: &str) -> ThoughtsTold {
        match self.tags() {
            Some(tags) if tags.are_open(prompt) => ThoughtsTold::ApartFromTheStart,
            Some(tags) if tags.are_closed(prompt) => ThoughtsTold::Over,
            _ => ThoughtsTold::Apart,
        }
    }

    /// Whether models of it are known to think before they answer.
    pub(super) fn thinks(self) -> bool {
        self == Self::InChannels || self.tags().is_some()
    }

    /// What thoughts stand between that an answer to `prompt` may have; `None` where they are over,
    /// or nothing is known of them.
    pub(super) fn marks(self, prompt: &str, behind: Behind) -> Option<Marks> {
        if self == Self::InChannels {
            let head = match behind {
                Behind::Anything | Behind::Words => channels::next_message(FINAL_HEAD),
                Behind::Calls => channels::next_message(channels::COMMENTARY),
                Behind::Messages => channels::next_message(""),
            };
            // The model's own way to go on is not known to be words, unless a grammar wants them.
            let (ending, head) = match behind {
                Behind::Anything | Behind::Calls => {
                    (format!("{END_OF_MESSAGE}{head}"), String::new())
                }
                Behind::Words | Behind::Messages => (END_OF_MESSAGE.to_owned(), head),
            };
            let (open, close) = (THOUGHT_HEAD, END_OF_MESSAGE);
            let always = behind == Behind::Words; // no grammar of words has heads
            return Some(Marks { begun: false, always, open, close, ending, head });
        }
        let tags = self.tags().filter(|tags| !tags.are_closed(prompt))?;
        let begun = tags.are_open(prompt);
        let (open, close) = tags.both();
        let (ending, head) = (tags.end(""), String::new());
        Some(Marks { begun, always: false, open, close, ending, head })
    }

    /// What stands between the end of `prompt`, which asks for the assistant's message, and those
    /// words of it that are for the caller: nothing is thought.
    pub(super) fn before_words(self, prompt: &str) -> String {
        match self.tags() {
            _ if self == Self::InChannels => FINAL_HEAD.to_owned(),
            Some(tags) if tags.are_open(prompt) => tags.end(prompt),
            _ => String::new(),
        }
    }
}

/// Tells the parts of one answer apart as it comes.
#[derive(Debug, Clone)]
pub(crate) enum Hearing {
    Plain,
    InChannels(Channels),
    Tagged(Thoughts),
    Marked(Marked),
}

impl Hearing {
    /// For one answer, which is a message from where it begins.
    pub(crate) fn new(speech: Speech, start: Start, told: ThoughtsTold) -> Self {
        let start = if told == ThoughtsTold::Over { Start::Continuation } else { start };
        let is_apart = start == Start::Text && told != ThoughtsTold::AsText;
        let begun = told == ThoughtsTold::ApartFromTheStart;
        let thoughts = speech.tags().map(|tags| match (is_apart, told) {
            (true, _) => Thoughts::new(tags, begun),
            (false, ThoughtsTold::AsText) => Thoughts::shown(tags),
            (false, _) => Thoughts::over(tags),
        });
        match (speech, thoughts) {
            (Speech::InChannels, _) => Self::InChannels(Channels::new(start)),
            (Speech::Marked(_), thoughts) => Self::Marked(Marked::new(thoughts)),
            (_, Some(thoughts)) => Self::Tagged(thoughts),
            (_, None) => Self::Plain,
        }
    }

    /// Takes more text.
    pub(crate) fn say(&mut self, text: String) -> Heard {
        match self {
            Self::Plain => Heard::text(text),
            Self::InChannels(channels) => channels.say(text),
            Self::Tagged(thoughts) => thoughts.say(text),
            Self::Marked(marked) => marked.say(text),
        }
    }

    /// Takes a token that is no text.
    pub(crate) fn mark(&mut self, mark: &str) -> Heard {
        match self {
            Self::Plain => Heard::default(),
            Self::InChannels(channels) => channels.mark(mark),
            Self::Tagged(thoughts) => thoughts.mark(mark),
            Self::Marked(marked) => marked.mark(mark),
        }
    }

    /// What was held back, when nothing follows. `whole`: the model ended its answer.
    pub(crate) fn finish(&mut self, whole: bool) -> Heard {
        match self {
            Self::Plain => Heard::default(),
            Self::InChannels(channels) => channels.finish(whole),
            Self::Tagged(thoughts) => thoughts.finish(),
            Self::Marked(marked) => marked.finish(whole),
        }
    }

    /// Whether text is for the caller to read.
    pub(crate) fn is_text(&self) -> bool {
        match self {
            Self::Plain => true,
            Self::InChannels(channels) => channels.is_text(),
            Self::Tagged(thoughts) => thoughts.is_text(),
            Self::Marked(marked) => marked.is_text(),
        }
    }

    /// Whether it is not known yet if what was said is text.
    pub(crate) fn is_undecided(&self) -> bool {
        match self {
            Self::Plain | Self::InChannels(_) => false,
            Self::Tagged(thoughts) => thoughts.is_undecided(),
            Self::Marked(marked) => marked.is_undecided(),
        }
    }

    /// Whether text is what the model thinks.
    pub(crate) fn is_thinking(&self) -> bool {
        match self {
            Self::Plain => false,
            Self::InChannels(channels) => channels.is_thinking(),
            Self::Tagged(thoughts) => thoughts.is_thinking(),
            Self::Marked(marked) => marked.is_thinking(),
        }
    }
}
