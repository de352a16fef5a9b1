//! What an answer says by whom it is for, in whichever way its model tells that.

use aqueduct_core::ThoughtsTold;

use super::channels::{self, Channels, FINAL_HEAD};
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
        match self.tags().is_some_and(|tags| tags.are_open(prompt)) {
            true => ThoughtsTold::ApartFromTheStart,
            false => ThoughtsTold::Apart,
        }
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
        let is_apart = start == Start::Text && told != ThoughtsTold::AsText;
        let begun = told == ThoughtsTold::ApartFromTheStart;
        let thoughts = speech.tags().map(|tags| match is_apart {
            true => Thoughts::new(tags, begun),
            false => Thoughts::shown(tags),
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
