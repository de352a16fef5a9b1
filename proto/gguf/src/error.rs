//! What can be wrong with a GGUF file, by offset or by key.

/// A file that cannot be used, or metadata that is not what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GgufError {
    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file: it does not begin with the bytes `GGUF`")]
    Magic,
    /// A version, or a byte order, that is not read here.
    #[error("GGUF version {version} is not supported; supported: 2, 3 (little-endian)")]
    Version {
        /// As read.
        version: u32,
    },
    /// The file ends before what it announces.
    #[error("offset {offset}: {what} needs {needs} bytes, {left} are left in the file")]
    Truncated {
        /// Where in the file.
        offset: u64,
        /// What was being read.
        what: String,
        /// Bytes it needs.
        needs: u64,
        /// Bytes that are there.
        left: u64,
    },
    /// A count or length over its bound.
    #[error("offset {offset}: {what} = {value}: must be at most {bound}")]
    Bound {
        /// Where in the file.
        offset: u64,
        /// Which count.
        what: String,
        /// Its value.
        value: u64,
        /// The most that is accepted.
        bound: u64,
    },
    /// Anything else that contradicts the format.
    #[error("offset {offset}: {what}")]
    Malformed {
        /// Where in the file.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// Metadata that was asked for and is not there.
    #[error("metadata key {key} is missing")]
    Missing {
        /// The key.
        key: String,
    },
    /// Metadata of another type or range than was asked for.
    #[error("metadata key {key} is {seen}: must be {want}")]
    Type {
        /// The key.
        key: String,
        /// What is there.
        seen: String,
        /// What was asked for.
        want: &'static str,
    },
}
