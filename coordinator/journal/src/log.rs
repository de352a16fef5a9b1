//! The log in this crate's own words: what lies on disk, and what is to be written there.

use raft::eraftpb;

/// One agreed, or to be agreed, record; empty where a leader only marks the beginning of its
/// term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its place; from 1, without a gap.
    pub index: u64,
    /// Of the leader that wrote it.
    pub term: u64,
    /// An encoded `v1::JournalRecord`.
    pub data: Vec<u8>,
}

/// A place in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Point {
    /// Index of the entry there.
    pub index: u64,
    /// Its term.
    pub term: u64,
}

/// What a member must not forget of its votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hard {
    /// The latest term that it has heard of.
    pub term: u64,
    /// Whom it voted for in it; 0 is nobody.
    pub vote: u64,
    /// Entries up to here are agreed; there may be more.
    pub commit: u64,
}

/// What the log up to a point comes to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Frozen {
    /// The last entry in it.
    pub point: Point,
    /// An encoded `v1::JournalSnapshot`.
    pub data: Vec<u8>,
}

/// Everything that a member has on disk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Saved {
    /// Which group it is of.
    pub group: u64,
    /// Drawn when it was made.
    pub birth: u64,
    /// Whether it may be that what was in its place was lost.
    pub is_newborn: bool,
    /// Votes.
    pub hard: Hard,
    /// The entry before the first one that is there.
    pub cut: Point,
    /// Absent before the first compaction.
    pub frozen: Option<Frozen>,
    /// From `cut` on.
    pub entries: Vec<Entry>,
}

/// What is to be on disk, all of it or nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Write {
    /// As it is now.
    pub hard: Hard,
    /// In the place of the one before.
    pub frozen: Option<Frozen>,
    /// Entries up to here go; with `all`, those after it too.
    pub cut: Option<Cut>,
    /// In the place of all entries from the first one's index on.
    pub entries: Vec<Entry>,
    /// The member is no newborn any more.
    pub is_grown: bool,
}

/// How much of a log goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The last entry that goes.
    pub point: Point,
    /// Whether what follows it goes too: it was never agreed on.
    pub all: bool,
}

impl Entry {
    /// Its place.
    pub fn point(&self) -> Point {
        Point { index: self.index, term: self.term }
    }

    /// As raft has it.
    pub(crate) fn to_raft(&self) -> eraftpb::Entry {
        eraftpb::Entry {
            index: self.index,
            term: self.term,
            data: self.data.clone(),
            ..eraftpb::Entry::default()
        }
    }

    pub(crate) fn of_raft(entry: &eraftpb::Entry) -> Self {
        Self { index: entry.index, term: entry.term, data: entry.data.clone() }
    }
}

impl Hard {
    pub(crate) fn to_raft(self) -> eraftpb::HardState {
        let Self { term, vote, commit } = self;
        eraftpb::HardState { term, vote, commit, ..eraftpb::HardState::default() }
    }

    pub(crate) fn of_raft(hard: &eraftpb::HardState) -> Self {
        Self { term: hard.term, vote: hard.vote, commit: hard.commit }
    }
}
