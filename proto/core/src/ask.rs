//! What those who look after a cluster ask of a worker, beside its work: over the same session,
//! and answered once.

use crate::{RequestId, SnapshotKey};

/// A question, and what its answer is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Drawn by who asks, and given back with the answer.
    pub ticket: u64,
    /// What is asked.
    pub question: Question,
}

/// What a worker can be asked, or told to do with its snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// The snapshots that it keeps, ascending by name.
    Snapshots {
        /// The first name that is wanted.
        from: SnapshotKey,
        /// How many at most.
        limit: u32,
    },
    /// Keep a snapshot no longer, in memory nor on disk.
    Evict(SnapshotKey),
    /// Never let go of a snapshot for want of room; or do again.
    Pin {
        /// Which.
        snapshot: SnapshotKey,
        /// Or not any more.
        pinned: bool,
    },
    /// What one KV head of one layer remembers.
    Memory {
        /// Whose memory.
        of: Rememberer,
        /// Which layer.
        layer: u32,
        /// Which KV head.
        head: u32,
        /// Index of the first key that is wanted.
        start: u32,
    },
    /// A part of a snapshot's file.
    Export {
        /// Which.
        snapshot: SnapshotKey,
        /// Where the part begins.
        start: u64,
    },
    /// A part of a snapshot's file, to be kept when all of it is there.
    Import(FilePart),
}

/// Who remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rememberer {
    /// A completion of a request or, before there is one, its prompt as far as it was read here.
    Request {
        /// As workers know it.
        request: RequestId,
        /// Which completion.
        choice: u32,
    },
    /// A snapshot.
    Snapshot(SnapshotKey),
}

/// A part of the file of one snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePart {
    /// Where it begins.
    pub start: u64,
    /// Bytes of the whole file.
    pub total: u64,
    /// What is there: something, unless the file is empty.
    pub bytes: Vec<u8>,
}

/// The answer to the [`Ask`] with the same ticket.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The ticket.
    pub ticket: u64,
    /// What was asked for.
    pub reply: Result<Reply, Declined>,
}

/// What a worker answers.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// To [`Question::Snapshots`]; to [`Question::Import`], when the last part was there.
    Snapshots(Vec<SnapshotHeld>),
    /// It was done.
    Done,
    /// To [`Question::Memory`].
    Memory(Box<Remembered>),
    /// To [`Question::Export`].
    Part(FilePart),
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Declined {
    /// What was named is not there.
    Gone,
    /// The worker is at too much; ask again.
    Busy,
    /// It cannot be done, for a person to read.
    Refused(String),
}

/// A snapshot, as its worker has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotHeld {
    /// Its name.
    pub snapshot: SnapshotKey,
    /// Tokens that it stands for; 0 while it is on disk alone.
    pub tokens: u32,
    /// Bytes in memory; 0 if it is not there.
    pub memory_bytes: u64,
    /// Bytes of its file; 0 if it has none.
    pub disk_bytes: u64,
    /// Whether it stays for want of room.
    pub pinned: bool,
}

/// What one KV head of one layer remembers, or a part of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Remembered {
    /// Tokens processed so far.
    pub end: u32,
    /// Layers of the model.
    pub layers: u32,
    /// KV heads of the layer.
    pub kv_heads: u32,
    /// Keys that it remembers.
    pub keys: u32,
    /// Index of the first one here.
    pub start: u32,
    /// Their positions, ascending.
    pub positions: Vec<u32>,
    /// The attention mass that each has drawn; as many, or none where keys are not scored.
    pub scores: Vec<f32>,
}
