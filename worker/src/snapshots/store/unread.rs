//! Files that could not be read for a reason that may pass: they stay, and after a while it is told
//! again that they are here.

use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aqueduct_core::SnapshotKey;

use super::{State, Store};
use crate::snapshots::Absent;

/// First and longest time until it is told that such a file is here. Whoever hears it may ask at
/// once, and go on from another file where that fails: told at once, they would go round for ever.
const PAUSE_MIN: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_mins(10);

/// What is known of one.
#[derive(Debug)]
pub(super) struct Unread {
    /// How long it was not to be told of last.
    pause: Duration,
    /// When it is to be told; `None` once it was.
    due: Option<Instant>,
}

impl Store {
    /// A file could not be read just now, and stays. Whether all others can, as far as is known:
    /// then it is worth a word.
    pub(in super::super) fn not_read(&self, key: &SnapshotKey) -> bool {
        let mut state = self.lock();
        let is_first = state.disk.unread.is_empty();
        state.postpone(key, Instant::now());
        state.answer(key, &Err(Absent::NotNow));
        drop(state);
        self.doorbell.ring();
        is_first
    }

    /// A file of which the size was not known when it was found has so many bytes.
    pub(in super::super) fn has_size(&self, key: &SnapshotKey, bytes: u64) {
        let mut state = self.lock();
        // One that was evicted meanwhile is none any more.
        if state.entries.get(key).is_some_and(|entry| entry.file_bytes == Some(0)) {
            state.set_file(key, Some(bytes));
            self.shrink(&mut state);
        }
    }

    /// Until there may be work for the disk's thread, or something to be told.
    pub(super) fn wait_for_work<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        match state.unread_due() {
            None => self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(due) => {
                let left = due.saturating_duration_since(Instant::now());
                self.work.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }
}

impl State {
    /// Whether the snapshot is on disk and can be read, as far as is known.
    pub(super) fn has_good_file(&self, key: &SnapshotKey) -> bool {
        let bytes = self.entries.get(key).and_then(|entry| entry.file_bytes);
        bytes.is_some_and(|bytes| bytes > 0) && !self.disk.unread.contains_key(key)
    }

    fn postpone(&mut self, key: &SnapshotKey, now: Instant) {
        if self.entries.get(key).is_none_or(|entry| entry.file_bytes.is_none()) {
            return; // it was evicted meanwhile
        }
        let known = self.disk.unread.get(key);
        let pause = known.map_or(PAUSE_MIN, |known| PAUSE_MAX.min(2 * known.pause));
        self.disk.unread.insert(*key, Unread { pause, due: Some(now + pause) });
    }

    /// Has it be told that files are here of which that is due; whether there are any.
    pub(super) fn tell_unread(&mut self, now: Instant) -> bool {
        let mut is_any = false;
        for (key, unread) in &mut self.disk.unread {
            if unread.due.take_if(|due| *due <= now).is_some() {
                self.changed.insert(*key);
                is_any = true;
            }
        }
        is_any
    }

    /// When the next one is due.
    pub(super) fn unread_due(&self) -> Option<Instant> {
        self.disk.unread.values().filter_map(|unread| unread.due).min()
    }
}
