//! What is asked, once it was found to be right.

use aqueduct_core::{ChunkGrid, Refusal};

use super::super::{ModelInfo, session};
use super::trace::RequestTrace;
use crate::config::Config;
use crate::submit::Submission;

/// A request that was found to be right.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) submission: Submission,
    pub(crate) grid: ChunkGrid,
    /// What it will be answered by.
    pub(crate) model: ModelInfo,
    pub(crate) trace: RequestTrace,
}

impl Asked {
    /// Checks it, and puts the token before the prompt that the session before it left.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub(crate) fn of(
        mut submission: Submission,
        model: ModelInfo,
        config: &Config,
    ) -> Result<Self, Refusal> {
        submission.validate(&model.shape, config)?;
        session::check(&submission, &model)?;
        let grid = submission.grid()?;
        submission.prompt.splice(0..0, submission.pending());
        let trace = RequestTrace::begin(&submission, grid);
        Ok(Self { submission, grid, model, trace })
    }
}
