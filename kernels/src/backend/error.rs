//! What a backend cannot do.

/// An operation that a backend cannot do.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BackendError {
    /// Shapes that do not belong together.
    #[error("{op}: {what}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// What was seen and what was needed.
        what: String,
    },
    /// A weight that another backend packed.
    #[error("{op}: the weight was packed by another backend")]
    ForeignWeight {
        /// The operation.
        op: &'static str,
    },
    /// What a device that is not the host could not do; nothing else can be asked of it.
    #[error("{device}: {what}")]
    Device {
        /// Its name.
        device: String,
        /// The driver's words, and the operation.
        what: String,
    },
    /// No memory left for keys or, on a device that is not the host, for anything; nothing was
    /// changed.
    #[error("a pool of {bytes} bytes has {free_bytes} free, and {wanted_bytes} are needed")]
    Exhausted {
        /// Bytes of the pages that were asked for.
        wanted_bytes: u64,
        /// Bytes of the pages that nobody holds.
        free_bytes: u64,
        /// Bytes of the pool.
        bytes: u64,
    },
    /// A key or value beyond what it is to be rounded to.
    #[error("{what} is beyond {most}")]
    OutOfRange {
        /// Which.
        what: &'static str,
        /// The greatest magnitude that can be held.
        most: f32,
    },
    /// A value that is not a number where the arithmetic needs one.
    #[error("{op}: {what} is not finite")]
    NotFinite {
        /// The operation.
        op: &'static str,
        /// Which value.
        what: &'static str,
    },
}
