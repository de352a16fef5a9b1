//! Memory sets that outlive their requests: what all layers gave at a chunk boundary, or the keys
//! of one chunk under exact attention, so that another prompt that begins alike goes on from
//! there. Shared by reference with whoever uses them, in no pool's pages; bounded in bytes; what
//! was used least lately goes first, from memory and then from disk.
//!
//! ```text
//! store.rs      what there is, in memory and on disk, and in which order it goes
//! disk.rs       the folder, and the thread that reads and writes it
//! file.rs       one snapshot as bytes
//! questions.rs  what those who look after the cluster ask
//! parts.rs      files that they take or give in parts
//! ```

mod disk;
mod file;
mod parts;
mod questions;
mod store;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use aqueduct_core::ask::{Declined, Question, Reply};
use aqueduct_core::snapshot::SnapshotNews;
use aqueduct_core::work::RetainedMass;
use aqueduct_core::{Refusal, SnapshotKey, SnapshotsHeld};
use aqueduct_kernels::MemorySet;

use crate::doorbell::Doorbell;
use crate::inbox::Fit;
use disk::Folder;
use questions::Curator;
pub(crate) use questions::Place;
use store::Store;

/// How much a worker keeps beyond the requests that made it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SnapshotOptions {
    /// Most bytes in memory; 0 keeps nothing, on disk neither.
    pub bytes: u64,
    /// Where what memory lets go of is kept, over a restart too.
    pub disk: Option<DiskOptions>,
}

/// A folder of snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskOptions {
    /// The folder, this worker's alone.
    pub path: PathBuf,
    /// Most bytes of files in it.
    pub bytes: u64,
}

/// The memory of a whole prefix, or all keys of its last chunk where these stay in shards.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Snapshot {
    /// Of every layer.
    pub(crate) layers: Vec<Arc<MemorySet>>,
    /// What was kept from the prefix's beginning on, per layer; nothing where all is kept.
    pub(crate) retained: Vec<RetainedMass>,
    /// Whether a prompt's chunk gave it, so that it can be computed again, and it is certainly no
    /// session. What comes from disk does not say, and is taken for one.
    pub(crate) is_prefix: bool,
}

impl Snapshot {
    fn bytes(&self) -> u64 {
        self.layers.iter().map(|set| set.bytes() as u64).sum()
    }

    /// Whether it is large, a prompt has several, and it can be computed again: keys of exact
    /// attention, where no mass is counted, and what has states. With states it may also be a
    /// session, which nothing brings back, and then it is none of these.
    fn is_exact(&self) -> bool {
        let keeps_all = || self.retained.iter().all(|mass| mass.total == 0.0);
        match self.layers.iter().any(|set| !set.state.is_empty()) {
            true => self.is_prefix,
            false => keeps_all(),
        }
    }
}

/// A snapshot that was asked for.
#[derive(Debug)]
pub(crate) enum Found {
    /// In memory.
    Here(Arc<Snapshot>),
    /// On disk; the doorbell rings when it is there, or found to be gone.
    Coming(Coming),
    /// On disk, where it cannot be read just now, or too many others are waited for. That it is
    /// here is told anew.
    Late,
    /// Nowhere.
    Gone,
}

/// Why a snapshot that was asked for does not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Absent {
    /// It is on disk, and cannot be read just now.
    NotNow,
    /// It is nowhere.
    Gone,
}

/// How reading a snapshot went.
type Told = Result<Arc<Snapshot>, Absent>;

/// A snapshot that is being read, for as long as somebody waits for it.
#[derive(Debug)]
pub(crate) struct Coming {
    told: Receiver<Told>,
    _wanted: Arc<()>,
}

/// Where it is told how reading went.
#[derive(Debug)]
pub(crate) struct Teller {
    told: SyncSender<Told>,
    wanted: Weak<()>,
}

impl Teller {
    /// Tells it, once.
    pub(crate) fn tell(self, told: Result<Arc<Snapshot>, Absent>) {
        let _ = self.told.send(told); // who asked may be gone
    }

    fn is_wanted(&self) -> bool {
        self.wanted.strong_count() > 0
    }
}

impl Coming {
    /// One that is not there as long as nothing is told of it.
    pub(crate) fn pending() -> (Teller, Self) {
        let (told, coming) = sync_channel(1);
        let wanted = Arc::new(());
        let teller = Teller { told, wanted: Arc::downgrade(&wanted) };
        (teller, Self { told: coming, _wanted: wanted })
    }

    /// How it went; it is gone for who wants no longer to know.
    fn wait(self, deadline: Duration) -> Found {
        self.told.recv_timeout(deadline).unwrap_or(Err(Absent::Gone)).into()
    }

    /// How it went, or itself if it is not there yet.
    pub(crate) fn poll(self) -> Found {
        match self.told.try_recv() {
            Ok(told) => told.into(),
            Err(TryRecvError::Empty) => Found::Coming(self),
            Err(TryRecvError::Disconnected) => Found::Gone,
        }
    }
}

impl From<Told> for Found {
    fn from(told: Told) -> Self {
        match told {
            Ok(snapshot) => Self::Here(snapshot),
            Err(Absent::NotNow) => Self::Late,
            Err(Absent::Gone) => Self::Gone,
        }
    }
}

/// What a worker keeps. The last handle to be dropped ends the threads for it.
#[derive(Debug)]
pub(crate) struct Snapshots {
    is_on: bool,
    store: Arc<Store>,
    curator: Arc<Curator>,
}

impl Snapshots {
    /// None in memory, and what is found on disk of the model with this fingerprint.
    ///
    /// # Errors
    /// A folder that cannot be used; no thread.
    pub(crate) fn open(
        options: &SnapshotOptions,
        fingerprint: &str,
        fit: Fit,
        doorbell: Arc<Doorbell>,
    ) -> Result<Self, Refusal> {
        let is_on = options.bytes > 0;
        let model = file::Model::new(fingerprint, fit);
        let with = |store: Arc<Store>| {
            let curator = Arc::new(Curator::new(store.clone(), model.clone()));
            Self { is_on, store, curator }
        };
        let Some(disk) = options.disk.as_ref().filter(|_| is_on) else {
            return Ok(with(Arc::new(Store::new((options.bytes, None), doorbell))));
        };
        let folder = Folder::open(&disk.path, model.clone())?;
        let store = Arc::new(Store::new((options.bytes, Some(disk.bytes)), doorbell));
        let (found, surplus) = disk::within_bounds(folder.list()?, disk.bytes);
        store.found(found, surplus);
        let shared = store.clone();
        let run = move || disk::run(&shared, &folder);
        let thread = std::thread::Builder::new().name("snapshots".into()).spawn(run);
        thread.map_err(|error| {
            Refusal::new("snapshot_dir", disk.path.display(), format!("a thread: {error}"))
        })?;
        Ok(with(store))
    }

    /// Whether any are ever kept.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether one of `bytes` is worth the copies that [`keep`](Self::keep) is given of it: it is
    /// not here already, and there is room for it alone.
    pub(crate) fn would_keep(&self, key: &SnapshotKey, bytes: u64) -> bool {
        self.is_on && self.store.would_keep(key, bytes)
    }

    /// Most bytes in memory.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.store.bytes_max()
    }

    /// Keeps `snapshot` under `key` if it can. If there is nothing to keep, or no room for it
    /// alone, that is news too: whoever asked counts on it.
    pub(crate) fn keep(&self, key: SnapshotKey, snapshot: Option<Snapshot>) {
        self.store.keep(key, snapshot);
    }

    /// The snapshot, which is the latest used now.
    pub(crate) fn restore(&self, key: &SnapshotKey) -> Found {
        self.store.restore(key)
    }

    /// Has it told anew whether this one is here: a coordinator that could not have it takes it
    /// for gone.
    pub(crate) fn tell_again(&self, key: SnapshotKey) {
        self.store.tell_again(key);
    }

    /// The same when the disk has done something.
    pub(crate) fn tell_when_read(&self, key: SnapshotKey) {
        self.store.tell_when_read(key);
    }

    /// When the disk is to be taken for one that hangs, if it is still at what it is at.
    pub(crate) fn hangs_at(&self) -> Option<Instant> {
        self.store.hangs_at()
    }

    /// Has `answered` told the answer to a question about snapshots, by another thread. It is given
    /// the place that the question has: when it drops it, somebody else may ask.
    ///
    /// # Errors
    /// Too many are asked.
    pub(crate) fn ask(
        &self,
        question: Question,
        answered: impl FnOnce(Result<Reply, Declined>, Place) + Send + 'static,
    ) -> Result<(), Declined> {
        self.curator.ask(question, answered)
    }

    /// What changed since this was asked last.
    pub(crate) fn news(&self) -> Vec<SnapshotNews> {
        self.store.news()
    }

    /// All that there are; said even if there are none.
    pub(crate) fn all(&self) -> Vec<SnapshotNews> {
        self.store.all()
    }

    /// How many, and how large.
    pub(crate) fn held(&self) -> SnapshotsHeld {
        self.store.held()
    }
}

impl Drop for Snapshots {
    fn drop(&mut self) {
        self.store.stop();
        self.curator.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::store::Job;
    use super::*;
    use crate::link::conformance::{fit, set};

    #[test]
    fn nobody_who_asks_waits_for_a_file_that_comes_from_disk() {
        let store = Arc::new(Store::new((u64::MAX, Some(u64::MAX)), Arc::default()));
        let key = SnapshotKey([7; 32]);
        store.found(vec![(key, 1)], Vec::new());
        let curator = Arc::new(Curator::new(store.clone(), file::Model::new("model", fit())));
        let snapshots = Snapshots { is_on: true, store: store.clone(), curator };
        let (told, answers) = sync_channel(2);
        let ask = |question| {
            let told = told.clone();
            snapshots.ask(question, move |reply, _| told.send(reply).unwrap()).unwrap();
        };
        let answer = || answers.recv_timeout(Duration::from_secs(30)).unwrap();

        ask(Question::Export { snapshot: key, start: 0 });
        assert!(matches!(store.next_job(), Some(Job::Read(..))), "who exports waits for it");
        ask(Question::Snapshots { from: key, limit: 1 });
        assert_eq!(snapshots.held().count, 1);
        let first = answer();
        assert!(matches!(first, Ok(Reply::Snapshots(_))), "{first:?}");
        let layers = (0..fit().layers()).map(|layer| Arc::new(set(4, layer))).collect();
        store.was_read(&key, Some(Snapshot { layers, retained: Vec::new(), is_prefix: false }));
        let second = answer();
        assert!(matches!(second, Ok(Reply::Part(_))), "the others let it go on: {second:?}");
    }
}
