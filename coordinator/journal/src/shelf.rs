//! What is on disk, or on its way there, as raft reads it: in memory, because the log is short
//! by the journal's bounds.

use std::collections::VecDeque;

use raft::eraftpb::{ConfState, Entry as RaftEntry, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Result, Storage, StorageError};

use crate::log::{Cut, Entry, Frozen, Hard, Point, Saved};

#[derive(Debug)]
pub(crate) struct Shelf {
    hard: Hard,
    members: Vec<u64>,
    cut: Point,
    frozen: Frozen,
    entries: VecDeque<RaftEntry>,
    bytes: u64,
}

impl Shelf {
    pub(crate) fn new(members: Vec<u64>, saved: &Saved) -> Self {
        let entries: VecDeque<_> = saved.entries.iter().map(Entry::to_raft).collect();
        Self {
            hard: saved.hard,
            members,
            cut: saved.cut,
            frozen: saved.frozen.clone().unwrap_or_default(),
            bytes: entries.iter().map(size).sum(),
            entries,
        }
    }

    pub(crate) fn hard(&self) -> Hard {
        self.hard
    }

    pub(crate) fn set_hard(&mut self, hard: Hard) {
        self.hard = hard;
    }

    /// Bytes of all entries.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The last entry that is gone.
    pub(crate) fn cut(&self) -> Point {
        self.cut
    }

    /// Where an entry is that has not gone, or the one before it.
    pub(crate) fn point(&self, index: u64) -> Option<Point> {
        self.term(index).ok().map(|term| Point { index, term })
    }

    pub(crate) fn freeze(&mut self, frozen: Frozen) {
        // Nobody asks a member that is alone.
        let data = if self.members.len() > 1 { frozen.data } else { Vec::new() };
        self.frozen = Frozen { data, ..frozen };
    }

    pub(crate) fn compact(&mut self, cut: Cut) {
        while self.entries.front().is_some_and(|entry| cut.all || entry.index <= cut.point.index) {
            let gone = self.entries.pop_front();
            self.bytes -= gone.map_or(0, |entry| size(&entry));
        }
        self.cut = cut.point;
    }

    pub(crate) fn append(&mut self, entries: &[RaftEntry]) {
        let Some(first) = entries.first() else { return };
        while self.entries.back().is_some_and(|entry| entry.index >= first.index) {
            let gone = self.entries.pop_back();
            self.bytes -= gone.map_or(0, |entry| size(&entry));
        }
        self.bytes += entries.iter().map(size).sum::<u64>();
        self.entries.extend(entries.iter().cloned());
    }

    fn end(&self) -> u64 {
        self.cut.index + self.entries.len() as u64
    }
}

/// A record and the few bytes around it.
fn size(entry: &RaftEntry) -> u64 {
    entry.data.len() as u64 + 32
}

impl Storage for Shelf {
    fn initial_state(&self) -> Result<RaftState> {
        let conf_state = ConfState::from((self.members.clone(), Vec::new()));
        Ok(RaftState { hard_state: self.hard.to_raft(), conf_state })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> Result<Vec<RaftEntry>> {
        if low <= self.cut.index {
            return Err(Error::Store(StorageError::Compacted));
        }
        if high > self.end() + 1 {
            return Err(Error::Store(StorageError::Unavailable));
        }
        let (from, to) = (low - self.cut.index - 1, high - self.cut.index - 1);
        let mut room = max_size.into().unwrap_or(u64::MAX);
        let within = |(idx, entry): &(usize, &RaftEntry)| {
            let fits = *idx == 0 || size(entry) <= room;
            room = room.saturating_sub(size(entry));
            fits
        };
        let wanted = self.entries.range(from as usize..to as usize);
        Ok(wanted.enumerate().take_while(within).map(|(_, entry)| entry.clone()).collect())
    }

    fn term(&self, index: u64) -> Result<u64> {
        match index.checked_sub(self.cut.index) {
            None => Err(Error::Store(StorageError::Compacted)),
            Some(0) => Ok(self.cut.term),
            Some(after) => {
                let entry = self.entries.get(after as usize - 1);
                entry.map(|entry| entry.term).ok_or(Error::Store(StorageError::Unavailable))
            }
        }
    }

    fn first_index(&self) -> Result<u64> {
        Ok(self.cut.index + 1)
    }

    fn last_index(&self) -> Result<u64> {
        Ok(self.end())
    }

    fn snapshot(&self, request_index: u64, _: u64) -> Result<Snapshot> {
        if self.frozen.point.index < request_index.max(1) {
            return Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        let data = self.frozen.data.clone();
        let mut snapshot = Snapshot { data, ..Snapshot::default() };
        let metadata = snapshot.mut_metadata();
        metadata.index = self.frozen.point.index;
        metadata.term = self.frozen.point.term;
        metadata.set_conf_state(ConfState::from((self.members.clone(), Vec::new())));
        Ok(snapshot)
    }
}
