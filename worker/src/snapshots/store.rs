//! What there is of snapshots, in memory and on disk, and in which order it goes.

mod jobs;
mod pins;
mod shrink;
mod unread;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aqueduct_core::ask::{Declined, SnapshotHeld};
use aqueduct_core::snapshot::SnapshotNews;
use aqueduct_core::{SnapshotKey, SnapshotsHeld, limits};

use super::{Absent, Found, Snapshot, Told};
use crate::doorbell::Doorbell;
use jobs::DiskState;
pub(super) use jobs::Job;

/// A disk that is so long at one file hangs.
const HANGS_AFTER: Duration = Duration::from_secs(20);

/// The state that the device thread and the disk's thread share.
#[derive(Debug)]
pub(super) struct Store {
    bytes_max: u64,
    /// `None`: there is no disk.
    disk_bytes_max: Option<u64>,
    doorbell: Arc<Doorbell>,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<SnapshotKey, Entry>,
    /// By when they were used last.
    order: BTreeMap<u64, SnapshotKey>,
    uses: u64,
    bytes: u64,
    /// Of these, those of exact attention.
    exact_bytes: u64,
    disk_bytes: u64,
    /// What came or went and was not told yet.
    changed: BTreeSet<SnapshotKey>,
    /// What was told last.
    told: SnapshotsHeld,
    disk: DiskState,
}

#[derive(Debug, Default)]
struct Entry {
    used: u64,
    memory: Option<Arc<Snapshot>>,
    /// Of what is in memory.
    bytes: u64,
    /// Whether that is keys of exact attention.
    is_exact: bool,
    /// Of its file.
    file_bytes: Option<u64>,
    /// It stays for want of room.
    pinned: bool,
}

impl Store {
    /// Nothing yet; bounds in memory and, if there is one, on disk.
    pub(super) fn new(
        (bytes_max, disk_bytes_max): (u64, Option<u64>),
        doorbell: Arc<Doorbell>,
    ) -> Self {
        let (state, work) = (Mutex::default(), Condvar::new());
        Self { bytes_max, disk_bytes_max, doorbell, state, work }
    }

    /// Files that a restart left, the latest used last, and such as are to be deleted.
    pub(super) fn found(&self, files: Vec<(SnapshotKey, u64)>, surplus: Vec<SnapshotKey>) {
        let mut state = self.lock();
        for (key, bytes) in files {
            state.entries.insert(key, Entry { file_bytes: Some(bytes), ..Entry::default() });
            state.disk_bytes += bytes;
            state.touch(&key);
        }
        state.disk.deletes = surplus;
    }

    pub(super) fn keep(&self, key: SnapshotKey, snapshot: Option<Snapshot>) {
        let mut state = self.lock();
        state.changed.insert(key);
        // Or what was found at start would be the first to go from memory again.
        state.touch(&key);
        let wanted = |snapshot: &Snapshot| self.wants(&state, &key, snapshot.bytes());
        if let Some(snapshot) = snapshot.filter(wanted) {
            state.put(key, Arc::new(snapshot));
            let bytes = state.entries[&key].bytes;
            let has_room = self.disk_bytes_max.is_some_and(|most| bytes < most);
            if has_room
                && !state.has_good_file(&key)
                && state.disk.unwritten.len() < limits::SNAPSHOTS_MAX
            {
                state.disk.unwritten.push_back(key);
            }
            self.shrink(&mut state);
        }
        state.touch(&key);
        drop(state);
        self.work.notify_one();
    }

    pub(super) fn would_keep(&self, key: &SnapshotKey, bytes: u64) -> bool {
        self.wants(&self.lock(), key, bytes)
    }

    /// Whether one of `bytes` is not in memory and has room there alone.
    fn wants(&self, state: &State, key: &SnapshotKey, bytes: u64) -> bool {
        let is_here = state.entries.get(key).is_some_and(|entry| entry.memory.is_some());
        !is_here && bytes <= self.bytes_max.saturating_sub(state.pinned_bytes_but(key))
    }

    pub(super) fn restore(&self, key: &SnapshotKey) -> Found {
        let mut state = self.lock();
        state.touch(key);
        match state.entries.get(key) {
            Some(Entry { memory: Some(snapshot), .. }) => return Found::Here(snapshot.clone()),
            Some(_) => {}
            None => {
                state.changed.insert(*key);
                return Found::Gone;
            }
        }
        let Some(coming) = state.disk.ask(*key) else { return Found::Late };
        drop(state);
        self.work.notify_one();
        Found::Coming(coming)
    }

    /// Has whether `key` is here be told with the next news.
    pub(super) fn tell_again(&self, key: SnapshotKey) {
        self.lock().changed.insert(key);
    }

    /// Has it be told that `key` is here when the disk has done something: before, whoever asked
    /// for it would wait as long again.
    pub(super) fn tell_when_read(&self, key: SnapshotKey) {
        self.lock().disk.refused.insert(key);
    }

    /// When the disk is to be taken for one that hangs, if it is still at what it is at.
    pub(super) fn hangs_at(&self) -> Option<Instant> {
        self.lock().disk.since.map(|since| since + HANGS_AFTER)
    }

    pub(super) fn news(&self) -> Vec<SnapshotNews> {
        let mut state = self.lock();
        let changed = std::mem::take(&mut state.changed).into_iter().collect::<Vec<_>>();
        let mut news = state.tell(&changed);
        if news.is_empty() && state.told != state.held() {
            news.push(SnapshotNews { held: state.held(), ..SnapshotNews::default() });
        }
        state.told = state.held();
        news
    }

    pub(super) fn all(&self) -> Vec<SnapshotNews> {
        let state = self.lock();
        let keys = state.entries.keys().copied().collect::<Vec<_>>();
        let none = keys.is_empty().then(SnapshotNews::default);
        state.tell(&keys).into_iter().chain(none).collect()
    }

    pub(super) fn held(&self) -> SnapshotsHeld {
        self.lock().held()
    }

    /// Most bytes in memory.
    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// What there is from `from` on, ascending by name.
    pub(super) fn list(&self, from: &SnapshotKey, limit: usize) -> Vec<SnapshotHeld> {
        let state = self.lock();
        let held = |(key, entry): (&SnapshotKey, &Entry)| {
            let layers = entry.memory.as_ref().map(|snapshot| &snapshot.layers);
            SnapshotHeld {
                snapshot: *key,
                tokens: layers.and_then(|sets| sets.first()).map_or(0, |set| set.end),
                memory_bytes: entry.memory.as_ref().map_or(0, |_| entry.bytes),
                disk_bytes: entry.file_bytes.unwrap_or(0),
                pinned: entry.pinned,
            }
        };
        state.entries.range(from..).take(limit).map(held).collect()
    }

    /// Lets go of a snapshot, in memory and on disk.
    pub(super) fn evict(&self, key: &SnapshotKey) -> Result<(), Declined> {
        let mut state = self.lock();
        if !state.entries.contains_key(key) {
            return Err(Declined::Gone);
        }
        if state.disk.writing == Some(*key) {
            return Err(Declined::Busy);
        }
        state.forget_file(key);
        state.forget_memory(key);
        drop(state);
        self.work.notify_one();
        self.tell();
        Ok(())
    }

    /// Has the device's thread tell what changed.
    pub(super) fn tell(&self) {
        self.doorbell.ring();
    }

    /// The disk's thread ends when it has done what it is at.
    pub(super) fn stop(&self) {
        self.lock().disk.stopped = true;
        self.work.notify_all();
    }

    /// Waits for the next job: reading first, because somebody waits for it. `None` at the end.
    pub(super) fn next_job(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if state.disk.stopped {
                return None;
            }
            if state.tell_unread(Instant::now()) {
                self.doorbell.ring();
            }
            let asked = state.disk.reads.len();
            let job = state.next_job();
            if state.disk.reads.len() < asked {
                self.doorbell.ring(); // somebody who waits for a file was told that there is none
            }
            state.disk.since = job.is_some().then(Instant::now);
            if let Some(job) = job {
                return Some(job);
            }
            state = self.wait_for_work(state);
        }
    }

    /// How writing went: the file's bytes.
    pub(super) fn written(&self, key: &SnapshotKey, bytes: Option<u64>) {
        let mut state = self.lock();
        state.disk.writing = None;
        let has_file = state.entries.get(key).is_some_and(|entry| entry.file_bytes.is_some());
        // A file that could not be read is still there if it was not replaced, and counts.
        if bytes.is_some() || !has_file {
            state.set_file(key, bytes);
        }
        self.shrink(&mut state);
        drop(state);
        self.doorbell.ring();
    }

    /// How reading went; a file that is not good is gone.
    pub(super) fn was_read(&self, key: &SnapshotKey, snapshot: Option<Snapshot>) {
        let mut state = self.lock();
        let snapshot = snapshot.map(Arc::new);
        match &snapshot {
            // One that was evicted meanwhile stays away.
            Some(snapshot)
                if snapshot.bytes() <= self.bytes_max && state.entries.contains_key(key) =>
            {
                state.put(*key, snapshot.clone());
                state.touch(key);
                self.shrink(&mut state);
            }
            Some(_) => {}
            None => state.set_file(key, None),
        }
        state.disk.unread.remove(key);
        state.answer(key, &snapshot.ok_or(Absent::Gone));
        drop(state);
        self.doorbell.ring();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// What was used least lately, but after `used`, of that which is `wanted`.
    fn oldest(&self, used: u64, wanted: fn(&Entry) -> bool) -> Option<(u64, SnapshotKey)> {
        let mut later = self.order.range(used..);
        let may_go = |entry: &Entry| !entry.pinned && wanted(entry);
        later.find(|(_, key)| may_go(&self.entries[key])).map(|(used, key)| (*used, *key))
    }

    fn put(&mut self, key: SnapshotKey, snapshot: Arc<Snapshot>) {
        let entry = self.entries.entry(key).or_default();
        if entry.memory.is_none() {
            (entry.bytes, entry.is_exact) = (snapshot.bytes(), snapshot.is_exact());
            self.bytes += entry.bytes;
            self.exact_bytes += if entry.is_exact { entry.bytes } else { 0 };
            entry.memory = Some(snapshot);
        }
    }

    /// Tells all who wait for a file how reading it went.
    fn answer(&mut self, key: &SnapshotKey, told: &Told) {
        let waiting = std::mem::take(&mut self.disk.reads).into_iter();
        let (answered, others): (VecDeque<_>, _) = waiting.partition(|(asked, _)| asked == key);
        self.disk.reads = others;
        answered.into_iter().for_each(|(_, teller)| teller.tell(told.clone()));
        self.admit_refused();
    }

    fn touch(&mut self, key: &SnapshotKey) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        self.uses += 1;
        self.order.remove(&entry.used);
        entry.used = self.uses;
        self.order.insert(self.uses, *key);
    }

    fn forget_memory(&mut self, key: &SnapshotKey) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        if entry.memory.take().is_some() {
            self.bytes -= entry.bytes;
            self.exact_bytes -= if entry.is_exact { entry.bytes } else { 0 };
        }
        self.drop_if_gone(key);
    }

    fn forget_file(&mut self, key: &SnapshotKey) {
        if self.disk.writing == Some(*key) {
            return; // or the file that is to replace it would be deleted
        }
        if self.entries.get(key).is_some_and(|entry| entry.file_bytes.is_some()) {
            self.disk.deletes.push(*key);
            self.set_file(key, None);
        }
    }

    /// The entry's file has so many bytes now, or is none.
    fn set_file(&mut self, key: &SnapshotKey, bytes: Option<u64>) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        self.disk.unread.remove(key);
        let before = std::mem::replace(&mut entry.file_bytes, bytes);
        self.disk_bytes = self.disk_bytes - before.unwrap_or(0) + bytes.unwrap_or(0);
        self.drop_if_gone(key);
    }

    fn drop_if_gone(&mut self, key: &SnapshotKey) {
        let Some(entry) = self.entries.get(key) else { return };
        let is_coming = self.disk.writing == Some(*key);
        if entry.memory.is_none() && entry.file_bytes.is_none() && !is_coming {
            self.order.remove(&entry.used);
            self.entries.remove(key);
            self.changed.insert(*key);
        }
    }

    /// How `keys` stand now, in parts of bounded size.
    fn tell(&self, keys: &[SnapshotKey]) -> Vec<SnapshotNews> {
        let part = |keys: &[SnapshotKey]| {
            let is_kept = |key: &SnapshotKey| self.entries.contains_key(key);
            let (kept, dropped) = keys.iter().partition(|key| is_kept(key));
            SnapshotNews { kept, dropped, held: self.held() }
        };
        keys.chunks(limits::SNAPSHOT_NEWS_MAX).map(part).collect()
    }

    fn held(&self) -> SnapshotsHeld {
        let count = self.entries.len() as u64;
        SnapshotsHeld { count, memory_bytes: self.bytes, disk_bytes: self.disk_bytes }
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_core::work::RetainedMass;

    use super::jobs::READS_MAX;
    use super::*;
    use crate::link::conformance::{set, state};
    use crate::snapshots::Coming;

    fn key(byte: u8) -> SnapshotKey {
        SnapshotKey([byte; 32])
    }

    fn snapshot(seed: u32) -> Snapshot {
        let layers = (0..2).map(|layer| Arc::new(set(4, seed + layer))).collect();
        let retained = vec![RetainedMass { kept: 1.0, total: 2.0 }; 2];
        Snapshot { layers, retained, is_prefix: false }
    }

    fn keys(bytes: &[u8]) -> Vec<SnapshotKey> {
        bytes.iter().map(|byte| key(*byte)).collect()
    }

    fn store(snapshots: u64, files: Option<u64>) -> Store {
        Store::new((snapshots * snapshot(0).bytes(), files), Arc::default())
    }

    fn here(found: Found) -> Option<Arc<Snapshot>> {
        match found {
            Found::Here(snapshot) => Some(snapshot),
            Found::Coming(_) | Found::Late | Found::Gone => None,
        }
    }

    #[test]
    fn what_was_used_least_lately_goes_first() {
        let store = store(2, None);
        let told = |kept: &[u8], dropped: &[u8]| {
            let news = store.news();
            assert_eq!((&news[0].kept, &news[0].dropped), (&keys(kept), &keys(dropped)));
            assert_eq!(news.len(), 1);
        };
        store.keep(key(1), Some(snapshot(1)));
        store.keep(key(2), Some(snapshot(2)));
        told(&[1, 2], &[]);
        assert_eq!(here(store.restore(&key(1))).as_deref(), Some(&snapshot(1)));
        store.keep(key(3), Some(snapshot(3)));
        told(&[3], &[2]);
        assert_eq!(here(store.restore(&key(2))), None);
        told(&[], &[2]);
        let memory_bytes = 2 * snapshot(0).bytes();
        let held = SnapshotsHeld { count: 2, memory_bytes, disk_bytes: 0 };
        assert_eq!((store.held(), store.all()[0].kept.len()), (held, 2));
        assert!(store.news().is_empty());
    }

    #[test]
    fn what_is_pinned_stays_until_it_is_evicted() {
        let store = store(2, None);
        store.keep(key(1), Some(snapshot(1)));
        assert_eq!(store.pin(&key(1), true), Ok(()));
        (2..5).for_each(|byte| store.keep(key(byte), Some(snapshot(byte.into()))));
        let listed = |from: u8| {
            let held = store.list(&key(from), 9);
            held.iter().map(|held| (held.snapshot, held.pinned)).collect::<Vec<_>>()
        };
        assert_eq!(listed(0), [(key(1), true), (key(4), false)]);
        assert_eq!(listed(2), [(key(4), false)]);
        assert_eq!(store.list(&key(0), 1)[0].tokens, snapshot(1).layers[0].end);
        assert_eq!(store.evict(&key(1)), Ok(()));
        assert_eq!((store.evict(&key(1)), store.pin(&key(1), true)), twice(Err(Declined::Gone)));
        assert!(store.news().iter().any(|news| news.dropped.contains(&key(1))));
    }

    /// What is pinned is bounded as the rest is, and what has no room beside it is not kept.
    #[test]
    fn pins_have_the_room_that_there_is() {
        let store = store(2, None);
        for byte in 1..3 {
            store.keep(key(byte), Some(snapshot(byte.into())));
            assert_eq!(store.pin(&key(byte), true), Ok(()));
        }
        store.keep(key(3), Some(snapshot(3)));
        assert!(!store.would_keep(&key(3), snapshot(3).bytes()));
        assert_eq!(store.list(&key(0), 9).len(), 2);
        assert_eq!(store.held().memory_bytes, 2 * snapshot(0).bytes());
        assert_eq!(store.pin(&key(1), false), Ok(()));
        store.keep(key(3), Some(snapshot(3)));
        assert_eq!(store.pin(&key(3), true), Ok(()));
        store.found(vec![(key(9), 1)], Vec::new());
        let Err(Declined::Refused(why)) = store.pin(&key(9), true) else { panic!() };
        assert!(why.contains("unpin others"), "{why}");
    }

    fn twice<T: Clone>(value: T) -> (T, T) {
        (value.clone(), value)
    }

    #[test]
    fn keys_of_exact_attention_leave_half_to_others() {
        let store = store(4, None);
        let check = |want: &[u8]| {
            let left = store.list(&key(0), 99).into_iter().map(|held| held.snapshot);
            assert_eq!(left.collect::<Vec<_>>(), keys(want));
        };
        let exact = |seed| Snapshot { retained: Vec::new(), ..snapshot(seed) };
        (1..4).for_each(|byte| store.keep(key(byte), Some(snapshot(byte.into()))));
        (11..14).for_each(|byte| store.keep(key(byte), Some(exact(byte.into()))));
        check(&[2, 3, 12, 13]);
        (14..20).for_each(|byte| store.keep(key(byte), Some(exact(byte.into()))));
        check(&[2, 3, 18, 19]);
        (4..10).for_each(|byte| store.keep(key(byte), Some(snapshot(byte.into()))));
        check(&[6, 7, 8, 9]);
        (11..20).for_each(|byte| store.evict(&key(byte)).unwrap_or_default());
        (6..10).for_each(|byte| store.evict(&key(byte)).unwrap());
        (11..20).for_each(|byte| store.keep(key(byte), Some(exact(byte.into()))));
        check(&[16, 17, 18, 19]);
        let exact_bytes = store.lock().exact_bytes;
        assert_eq!(exact_bytes, store.held().memory_bytes);
    }

    /// Keys and states of all of a prefix: `dense` of a model that has states.
    fn hybrid(seed: u32, is_prefix: bool) -> Snapshot {
        let layers = vec![Arc::new(set(4, seed)), Arc::new(state(seed))];
        Snapshot { layers, retained: Vec::new(), is_prefix }
    }

    #[test]
    fn sessions_with_states_outlive_prefixes_with_states() {
        let store = Store::new((4 * hybrid(0, false).bytes(), None), Arc::default());
        let check = |want: &[u8]| {
            let left = store.list(&key(0), 99).into_iter().map(|held| held.snapshot);
            assert_eq!(left.collect::<Vec<_>>(), keys(want));
        };
        store.keep(key(1), Some(hybrid(1, false)));
        (11..20).for_each(|byte| store.keep(key(byte), Some(hybrid(byte.into(), true))));
        check(&[1, 17, 18, 19]);
        store.keep(key(2), Some(hybrid(2, false)));
        check(&[1, 2, 18, 19]);
        for byte in [18, 19] {
            store.evict(&key(byte)).unwrap();
        }
        assert_eq!(store.lock().exact_bytes, 0, "sessions are none of these");
    }

    #[test]
    fn what_is_here_or_too_large_is_not_worth_a_copy() {
        let (store, bytes) = (store(1, None), snapshot(0).bytes());
        assert!(store.would_keep(&key(1), bytes) && !store.would_keep(&key(1), bytes + 1));
        store.keep(key(1), Some(snapshot(1)));
        assert!(!store.would_keep(&key(1), bytes) && store.would_keep(&key(2), bytes));
    }

    #[test]
    fn what_is_in_use_outlives_its_place() {
        let store = store(1, None);
        store.keep(key(1), Some(snapshot(1)));
        let used = here(store.restore(&key(1))).unwrap();
        store.keep(key(2), Some(snapshot(2)));
        assert_eq!((here(store.restore(&key(1))), &*used), (None, &snapshot(1)));
    }

    #[test]
    fn what_cannot_be_kept_is_told() {
        let store = Store::new((snapshot(0).bytes() - 1, None), Arc::default());
        store.keep(key(1), Some(snapshot(1)));
        store.keep(key(2), None);
        assert_eq!(store.news()[0].dropped, keys(&[1, 2]));
        assert_eq!(store.held(), SnapshotsHeld::default());
        assert_eq!(store.all(), vec![SnapshotNews::default()]);
    }

    #[test]
    fn news_come_in_parts() {
        let store = Store::new((u64::MAX, None), Arc::default());
        for number in 0..limits::SNAPSHOT_NEWS_MAX as u32 + 1 {
            let mut bytes = [0; 32];
            bytes[..4].copy_from_slice(&number.to_le_bytes());
            let none = Snapshot { layers: Vec::new(), retained: Vec::new(), is_prefix: false };
            store.keep(SnapshotKey(bytes), Some(none));
        }
        for news in [store.all(), store.news()] {
            let sizes: Vec<usize> = news.iter().map(|news| news.kept.len()).collect();
            assert_eq!(sizes, [limits::SNAPSHOT_NEWS_MAX, 1]);
        }
    }

    /// Writes everything that waits, into files of ten bytes.
    fn write_all(store: &Store) -> Vec<SnapshotKey> {
        let mut written = Vec::new();
        loop {
            let job = store.lock().next_job();
            match job {
                None => return written,
                Some(Job::Write(key, _)) => {
                    store.written(&key, Some(10));
                    written.push(key);
                }
                Some(Job::Delete(_)) => {}
                Some(Job::Read(..)) => panic!("nobody asked"),
            }
        }
    }

    #[test]
    fn memory_goes_first_and_then_the_file() {
        let store = store(1, Some(10_000));
        for byte in [1, 2] {
            store.keep(key(byte), Some(snapshot(byte.into())));
            assert_eq!(write_all(&store), [key(byte)]);
        }
        assert_eq!((store.held().count, store.held().disk_bytes), (2, 20));
        let Found::Coming(coming) = store.restore(&key(1)) else { panic!("it is on disk") };
        let Some(Job::Read(asked, 10)) = store.next_job() else { panic!("it is read") };
        store.was_read(&asked, Some(snapshot(1)));
        assert_eq!(here(coming.poll()).as_deref(), Some(&snapshot(1)));
        assert!(here(store.restore(&key(1))).is_some(), "from now on it is in memory");
        let Found::Coming(coming) = store.restore(&key(2)) else { panic!("it made room") };
        let Some(Job::Read(asked, 10)) = store.next_job() else { panic!("it is read") };
        store.was_read(&asked, None);
        assert!(matches!(coming.poll(), Found::Gone), "its file was bad");
        assert_eq!((store.held().count, store.held().disk_bytes), (1, 10));
    }

    /// As after a restart: everything is on disk, and all chats come back at once.
    fn restarted(count: u8) -> Store {
        let store = store(1, Some(10_000));
        store.found((0..count).map(|byte| (key(byte), 10)).collect(), Vec::new());
        store.news();
        store
    }

    #[test]
    fn however_many_come_back_at_once_all_is_read() {
        let store = restarted(200);
        let ask = |byte| match store.restore(&key(byte)) {
            Found::Coming(coming) => coming,
            found => panic!("{byte} is on disk: {found:?}"),
        };
        let coming: Vec<Coming> = (0..200).map(ask).collect();
        for (byte, coming) in (0..200u8).zip(coming) {
            let Some(Job::Read(asked, 10)) = store.next_job() else { panic!("{byte} is read") };
            store.was_read(&asked, Some(snapshot(byte.into())));
            assert_eq!(here(coming.poll()).as_deref(), Some(&snapshot(byte.into())));
        }
        assert!(store.news().iter().all(|news| news.dropped.is_empty()));
    }

    #[test]
    fn what_nobody_waits_for_any_more_is_not_read() {
        let store = restarted(3);
        drop(store.restore(&key(0)));
        let Found::Coming(_waits) = store.restore(&key(1)) else { panic!("it is on disk") };
        assert!(matches!(store.next_job(), Some(Job::Read(asked, 10)) if asked == key(1)));
    }

    #[test]
    fn what_is_refused_for_want_of_room_is_told_when_there_is_some() {
        let store = restarted(3);
        let waiting: Vec<Found> = (0..READS_MAX).map(|_| store.restore(&key(0))).collect();
        assert!(waiting.iter().all(|found| matches!(found, Found::Coming(_))));
        assert!(matches!(store.restore(&key(1)), Found::Late));
        assert!(store.news().is_empty(), "who heard it now would be refused again");
        let Some(Job::Read(asked, 10)) = store.next_job() else { panic!("it is read") };
        store.was_read(&asked, Some(snapshot(0)));
        assert_eq!(store.news()[0].kept, [key(1)]);
        assert!(matches!(store.restore(&key(1)), Found::Coming(_)));
    }

    #[test]
    fn what_came_too_late_is_told_when_the_disk_goes_on() {
        let store = restarted(2);
        let waiting = store.restore(&key(0));
        assert!(matches!(waiting, Found::Coming(_)));
        store.tell_when_read(key(1));
        assert!(store.news().is_empty() && store.hangs_at().is_none());
        let Some(Job::Read(asked, 10)) = store.next_job() else { panic!("it is read") };
        assert!(store.hangs_at().is_some_and(|at| at > Instant::now()), "it is at it");
        store.was_read(&asked, Some(snapshot(0)));
        assert_eq!(store.news()[0].kept, [key(1)]);
    }

    #[test]
    fn what_cannot_be_read_now_stays_and_is_told_again_later_each_time() {
        let store = restarted(2);
        let fail = |byte: u8| {
            let Found::Coming(coming) = store.restore(&key(byte)) else { panic!("on disk") };
            let Some(Job::Read(asked, 10)) = store.next_job() else { panic!("it is read") };
            let is_first = store.not_read(&asked);
            assert!(matches!(coming.poll(), Found::Late), "there is an answer each time");
            is_first
        };
        let mut pauses = Vec::new();
        for idx in 0..9 {
            assert_eq!(fail(0), idx == 0, "it is worth a word once");
            assert!(store.news().is_empty(), "or it would be tried again and again");
            let due = store.lock().unread_due().expect("it is told in the end");
            pauses.push(due.saturating_duration_since(Instant::now()).as_secs());
            assert!(!store.lock().tell_unread(due - Duration::from_secs(1)));
            assert!(store.lock().tell_unread(due));
            assert_eq!(
                (store.news()[0].kept.clone(), store.lock().unread_due()),
                (keys(&[0]), None)
            );
        }
        assert!(pauses.is_sorted() && pauses[1] > pauses[0] && pauses[8] < 3_600, "{pauses:?}");
        assert!(!fail(1), "nor is another beside it");
        assert_eq!((store.held().count, store.held().disk_bytes), (2, 20));
        store.evict(&key(1)).unwrap();
        let Found::Coming(coming) = store.restore(&key(0)) else { panic!("on disk") };
        let Some(Job::Read(asked, 10)) = store.next_job() else { panic!("it is read") };
        store.was_read(&asked, Some(snapshot(0)));
        assert_eq!(here(coming.poll()).as_deref(), Some(&snapshot(0)), "it passed");
        assert!(store.lock().disk.unread.is_empty());
        assert!(store.not_read(&key(1)) && store.lock().disk.unread.is_empty(), "it is evicted");
    }

    #[test]
    fn what_cannot_be_read_is_written_anew_when_it_is_kept_again() {
        let store = restarted(2);
        let keep = |byte: u8| store.keep(key(byte), Some(snapshot(byte.into())));
        store.not_read(&key(0));
        keep(0);
        let job = store.lock().next_job();
        assert!(matches!(job, Some(Job::Write(asked, _)) if asked == key(0)));
        store.lock().forget_file(&key(0));
        assert!(store.lock().disk.deletes.is_empty(), "it is being replaced");
        store.written(&key(0), None);
        assert_eq!((store.held().count, store.held().disk_bytes), (2, 20), "its file stays");
        keep(5);
        assert_eq!(write_all(&store), [key(5)]);
        keep(0);
        assert_eq!(write_all(&store), [key(0)], "it is tried again");
        assert_eq!((store.held().count, store.held().disk_bytes), (3, 30));
        assert!(store.lock().disk.unread.is_empty());
        keep(6);
        assert_eq!(write_all(&store), [key(6)]);
        keep(0);
        keep(1);
        assert!(write_all(&store).is_empty(), "their files are good");
    }

    #[test]
    fn files_stay_within_their_bytes() {
        let most = snapshot(0).bytes() + 1;
        let store = store(9, Some(most));
        for byte in 0..=most / 10 {
            store.keep(key(byte as u8), Some(snapshot(byte as u32)));
            write_all(&store);
        }
        assert_eq!(store.held().disk_bytes, most / 10 * 10, "of the first none is left");
        store.keep(key(200), Some(Snapshot { layers: vec![Arc::new(set(40, 1))], ..snapshot(0) }));
        assert!(write_all(&store).is_empty(), "one that is larger than all is not written");
    }

    #[test]
    fn a_disk_that_is_too_slow_costs_snapshots() {
        let store = store(1, Some(10_000));
        store.keep(key(1), Some(snapshot(1)));
        let Some(Job::Write(first, _)) = store.next_job() else { panic!("it is to be written") };
        store.keep(key(2), Some(snapshot(2)));
        store.keep(key(3), Some(snapshot(3)));
        assert_eq!(store.news()[0].dropped, [key(2)], "the first is being written");
        let Found::Coming(coming) = store.restore(&first) else { panic!("it will be on disk") };
        store.written(&first, None);
        assert_eq!(write_all(&store), [key(3)]);
        assert!(matches!(coming.poll(), Found::Gone), "writing failed");
        // Who waits for it may have looked before that was said.
        store.keep(key(4), Some(snapshot(4)));
        let Some(Job::Write(fourth, _)) = store.next_job() else { panic!("it is to be written") };
        store.keep(key(5), Some(snapshot(5)));
        let Found::Coming(coming) = store.restore(&fourth) else { panic!("it will be on disk") };
        store.written(&fourth, None);
        store.doorbell.wait_until(None);
        assert!(matches!(store.next_job(), Some(Job::Write(..))));
        assert!(store.doorbell.is_rung());
        assert!(matches!(coming.poll(), Found::Gone));
    }
}
