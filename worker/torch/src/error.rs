//! What can be wrong with a file of PyTorch, by entry, by byte of the pickle or by tensor.

/// A file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TorchError {
    /// A stream of pickles, or a tar archive.
    #[error("as PyTorch wrote files before 1.6, which is not read: convert it to safetensors")]
    Legacy,
    /// Not an archive, or one that is damaged.
    #[error("not a whole ZIP archive: {what}")]
    Archive {
        /// What is wrong.
        what: String,
    },
    /// An entry of the archive.
    #[error("entry {name:?}: {what}")]
    Entry {
        /// Its name.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// The pickle is damaged, or more than a list of tensors.
    #[error("data.pkl, byte {offset}: {what}")]
    Pickle {
        /// Where in the pickle.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// A tensor contradicts its storage.
    #[error("tensor {name}: {what}")]
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong.
        what: String,
    },
}

impl TorchError {
    pub(crate) fn archive(what: impl Into<String>) -> Self {
        Self::Archive { what: what.into() }
    }

    pub(crate) fn entry(name: &str, what: impl Into<String>) -> Self {
        Self::Entry { name: name.to_owned(), what: what.into() }
    }

    pub(crate) fn tensor(name: &str, what: impl Into<String>) -> Self {
        Self::Tensor { name: name.to_owned(), what: what.into() }
    }
}
