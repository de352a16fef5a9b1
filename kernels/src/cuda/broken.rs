//! What is told of numbers that are not finite.

use crate::backend::BackendError;

/// Where a number that is not finite was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Broken {
    Linear = 1,
    Project,
    Finish,
    Attend,
    Weigh,
    Recur,
    Take,
}

impl Broken {
    pub(super) const ALL: [Self; 7] = [
        Self::Linear,
        Self::Project,
        Self::Finish,
        Self::Attend,
        Self::Weigh,
        Self::Recur,
        Self::Take,
    ];

    /// As who reads is told.
    pub(super) fn error(self) -> BackendError {
        let (op, what) = match self {
            Self::Linear => ("linear", "a sum of products"),
            Self::Project => ("project", "a rotated query or key"),
            Self::Finish => ("finish", "a hidden state"),
            Self::Attend => ("attend", "a weighted sum of values"),
            Self::Weigh => ("weigh", "a column mass"),
            Self::Recur => ("recur", "what a state gave"),
            Self::Take => ("take", "a hidden state"),
        };
        BackendError::NotFinite { op, what }
    }
}
