//! Finding devices.

use super::device::Fault;

/// Why there is no CUDA device to compute with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The machine has none, or none that can be reached.
    #[error("no CUDA device ({reason})")]
    None {
        /// What is missing.
        reason: String,
    },
    /// It has others.
    #[error("no CUDA device {index}: the last one is {last}")]
    Index {
        /// The one that was asked for.
        index: usize,
        /// The highest that there is.
        last: usize,
    },
    /// There is one, but it cannot be used.
    #[error("CUDA device {index} cannot be used: {what}")]
    Unusable {
        /// Which one.
        index: usize,
        /// Why, in the driver's words where they are the driver's.
        what: String,
    },
}

impl CudaError {
    fn none(reason: impl Into<String>) -> Self {
        Self::None { reason: reason.into() }
    }

    fn unusable(index: usize, fault: Fault) -> Self {
        Self::Unusable { index, what: fault.to_string() }
    }
}
