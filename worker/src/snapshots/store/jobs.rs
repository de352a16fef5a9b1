//! What the disk's thread is to do, in which order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use aqueduct_core::{SnapshotKey, limits};

use super::State;
use super::unread::Unread;
use crate::snapshots::{Absent, Coming, Snapshot, Teller};

/// Who may wait for something to be read: as many as requests are remembered.
pub(super) const READS_MAX: usize = limits::WORKER_REQUESTS_MAX;

/// What the disk's thread is to do.
#[derive(Debug)]
pub(in super::super) enum Job {
    Read(SnapshotKey, u64),
    Write(SnapshotKey, Arc<Snapshot>),
    Delete(SnapshotKey),
}

#[derive(Debug, Default)]
pub(super) struct DiskState {
    pub(super) reads: VecDeque<(SnapshotKey, Teller)>,
    /// What was asked for while as many waited as may, or came too late. That it is here is told
    /// when the disk has gone on: before, it would be asked for in vain again and again.
    pub(super) refused: BTreeSet<SnapshotKey>,
    /// Files that could not be read for a reason that may pass.
    pub(super) unread: BTreeMap<SnapshotKey, Unread>,
    /// In the order in which they were kept; some may be gone.
    pub(super) unwritten: VecDeque<SnapshotKey>,
    pub(super) writing: Option<SnapshotKey>,
    /// Since when it is at what it is at.
    pub(super) since: Option<Instant>,
    pub(super) deletes: Vec<SnapshotKey>,
    pub(super) stopped: bool,
}

impl DiskState {
    /// Has a file read, unless too many wait for theirs.
    pub(super) fn ask(&mut self, key: SnapshotKey) -> Option<Coming> {
        if self.reads.len() >= READS_MAX {
            self.reads.retain(|(_, teller)| teller.is_wanted());
        }
        if self.reads.len() >= READS_MAX {
            self.refused.insert(key);
            return None;
        }
        let (teller, coming) = Coming::pending();
        self.reads.push_back((key, teller));
        Some(coming)
    }
}

impl State {
    /// What is next: reading first, because somebody waits for it.
    pub(super) fn next_job(&mut self) -> Option<Job> {
        while let Some((key, teller)) = self.disk.reads.front() {
            let entry = self.entries.get(key);
            let here = entry.and_then(|entry| entry.memory.clone());
            let file_bytes = entry.and_then(|entry| entry.file_bytes);
            if let Some(bytes) = file_bytes.filter(|_| here.is_none() && teller.is_wanted()) {
                return Some(Job::Read(*key, bytes));
            }
            if let Some((_, teller)) = self.disk.reads.pop_front() {
                teller.tell(here.ok_or(Absent::Gone));
            }
        }
        self.admit_refused();
        if let Some(key) = self.disk.deletes.pop() {
            return Some(Job::Delete(key));
        }
        while let Some(key) = self.disk.unwritten.pop_front() {
            let here = self.entries.get(&key).filter(|_| !self.has_good_file(&key));
            if let Some(snapshot) = here.and_then(|entry| entry.memory.clone()) {
                self.disk.writing = Some(key);
                return Some(Job::Write(key, snapshot));
            }
        }
        None
    }

    /// Tells that what was refused is here after all, when it would be read.
    pub(super) fn admit_refused(&mut self) {
        if self.disk.reads.len() < READS_MAX {
            self.changed.append(&mut self.disk.refused);
        }
    }
}
