//! Where an API layer reads an answer.

use super::{About, Generation, Report, TextEvent};
use crate::streams::Reader;
use crate::submit::RequestError;

/// The events of a request, for one caller.
pub enum Source {
    /// Straight from the runtime; dropping it cancels the request.
    Own(Box<Generation>),
    /// From what is kept for whoever comes back.
    Kept(Reader),
}

impl Source {
    /// The next event; `None` after the last one and after an error.
    pub async fn next(&mut self) -> Option<Result<TextEvent, RequestError>> {
        match self {
            Self::Own(generation) => generation.next().await,
            Self::Kept(reader) => reader.next().await,
        }
    }

    /// The figures, as far as they are known.
    pub fn report(&self) -> &Report {
        match self {
            Self::Own(generation) => generation.report(),
            Self::Kept(reader) => reader.report(),
        }
    }

    /// What was asked for.
    pub fn about(&self) -> &About {
        match self {
            Self::Own(generation) => generation.about(),
            Self::Kept(reader) => reader.about(),
        }
    }
}

impl From<Generation> for Source {
    fn from(generation: Generation) -> Self {
        Self::Own(Box::new(generation))
    }
}

impl From<Reader> for Source {
    fn from(reader: Reader) -> Self {
        Self::Kept(reader)
    }
}
