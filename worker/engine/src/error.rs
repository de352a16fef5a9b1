//! What can go wrong in the engine.

use std::path::Path;

use aqueduct_core::Refusal;
use aqueduct_gguf::FilesError;
use aqueduct_kernels::BackendError;

/// A memory set could not be taken or given.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PortError {
    /// Nothing arrived in time.
    #[error("no memory set for layer {layer} within {deadline_ms} ms")]
    Deadline {
        /// The layer that waits.
        layer: usize,
        /// How long it waited.
        deadline_ms: u64,
    },
    /// The request was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// The peer refused or vanished.
    #[error("hand-off of layer {layer}: {what}")]
    Peer {
        /// The layer.
        layer: usize,
        /// What happened.
        what: String,
    },
    /// The layer's keys could not be put where they belong, or rounded.
    #[error("memory of layer {layer}: {source}")]
    Memory {
        /// The layer.
        layer: usize,
        /// Why.
        source: BackendError,
    },
    /// A set arrived that does not fit the model.
    #[error("memory set of layer {layer}: {refusal}")]
    Unfit {
        /// The layer.
        layer: usize,
        /// What is wrong with it.
        refusal: Refusal,
    },
}

/// A block could not be computed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EngineError {
    /// The input is wrong.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The backend refused or found something broken.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The past did not arrive, or the future could not be reached.
    #[error(transparent)]
    Port(#[from] PortError),
}

/// A model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The path means no model.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// A file could not be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A file is not what its name says, is truncated or inconsistent.
    #[error("{path}: {what}")]
    Malformed {
        /// The file.
        path: String,
        /// What is wrong.
        what: String,
    },
    /// A field is out of bounds.
    #[error("{path}: {refusal}")]
    Refused {
        /// The file.
        path: String,
        /// The field, the value, the bound.
        refusal: Refusal,
    },
    /// An architecture, activation, rope scaling or tensor type that is not served.
    #[error("{path}: {what} `{name}` is not supported; supported: {supported}")]
    Unsupported {
        /// The file.
        path: String,
        /// Architecture, rope scaling, tensor type, ...
        what: &'static str,
        /// Its name.
        name: String,
        /// What would be.
        supported: &'static str,
    },
    /// A tensor is missing or has another shape than the configuration asks for.
    #[error("{path}: tensor {tensor}: {what}")]
    Tensor {
        /// The file.
        path: String,
        /// Its name.
        tensor: String,
        /// What is wrong.
        what: String,
    },
}

impl LoadError {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.display().to_string(), source }
    }

    pub(crate) fn malformed(path: &Path, what: impl Into<String>) -> Self {
        Self::Malformed { path: path.display().to_string(), what: what.into() }
    }

    pub(crate) fn refused(path: &str, refusal: Refusal) -> Self {
        Self::Refused { path: path.to_owned(), refusal }
    }

    pub(crate) fn tensor(path: &str, tensor: &str, what: impl Into<String>) -> Self {
        Self::Tensor { path: path.to_owned(), tensor: tensor.to_owned(), what: what.into() }
    }
}
