//! Text on one side, token ids on the other: tokeniser, chat template, detokeniser, stop strings.

mod asks;
mod calling;
mod calls;
mod channels;
mod chat;
mod clock;
mod detokenizer;
mod dialect;
mod ends;
mod form;
mod gguf;
mod hearing;
mod hf;
mod json;
mod marked;
mod merges;
mod model;
mod parts;
mod pieces;
mod places;
mod pretokenizer;
mod python;
mod ranks;
mod recommended;
mod scan;
mod sentence;
mod shape;
mod stop;
mod tekken;
mod template;
mod thoughts;
mod turn;

pub(crate) use asks::EFFORT;
pub(crate) use calls::QUOTE;
pub use calls::{ArgumentTags, Blocks, CallNotation, CallParser, Pythonic, Said};
pub use channels::{Call, Heard};
pub use chat::{ChatMessage, Conversation, Ending, Role, ToolCall};
pub use detokenizer::{Detokenizer, Start};
pub(crate) use form::{BUDGET, Budget, Wanted};
pub use gguf::GgufVocabulary;
pub(crate) use hearing::Hearing;
pub use model::{TextModel, Vocabulary};
pub use stop::StopMatcher;
pub use template::ChatTemplate;
pub(crate) use thoughts::BETWEEN_THOUGHTS;

use std::path::PathBuf;

use aqueduct_core::Refusal;
use aqueduct_gguf::FilesError;

/// Why a model's text side could not be loaded, or a text not be used.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The path means no model.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// A file that the tokeniser needs could not be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file or a field of it does not say what it should.
    #[error("{what}: {message}")]
    Invalid {
        /// The file or the field.
        what: String,
        /// What is wrong with it.
        message: String,
    },
    /// A value that is out of bounds.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl TextError {
    fn invalid(what: impl Into<String>, message: impl std::fmt::Display) -> Self {
        Self::Invalid { what: what.into(), message: message.to_string() }
    }
}
