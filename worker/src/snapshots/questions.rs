//! What those who look after the cluster ask about snapshots: a thread for each question, of
//! which there are few.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use aqueduct_core::ask::{Declined, FilePart, Question, Rememberer, Reply};
use aqueduct_core::{SnapshotKey, limits};

use super::store::Store;
use super::{Found, Snapshot, file};
use crate::executor::shown;

/// What answers, and what it has in its hands.
#[derive(Debug)]
pub(super) struct Curator {
    store: Arc<Store>,
    model: file::Model,
    under_way: AtomicUsize,
    /// The file that was asked for last: it is asked for in parts.
    exported: Mutex<Option<Exported>>,
    /// What has come of a file, from its beginning on.
    imported: Mutex<Imported>,
}

/// A file that is read in parts.
#[derive(Debug)]
struct Exported {
    key: SnapshotKey,
    file: Arc<Vec<u8>>,
    /// When a part was asked for last.
    asked: Instant,
}

/// A file that comes in parts.
#[derive(Debug, Default)]
struct Imported {
    bytes: Vec<u8>,
    /// When the last part came.
    came: Option<Instant>,
}

/// How long a file stays of which nothing more is asked for, or comes.
const PATIENCE: Duration = Duration::from_mins(1);

impl Curator {
    pub(super) fn new(store: Arc<Store>, model: file::Model) -> Self {
        let (exported, imported) = (Mutex::default(), Mutex::default());
        Self { store, model, under_way: AtomicUsize::new(0), exported, imported }
    }

    /// Lets go of files that nobody went on with up to `now`.
    pub(super) fn tidy(&self, now: Instant) {
        let is_idle = |since: Instant| now.saturating_duration_since(since) > PATIENCE;
        let mut exported = self.exported.lock().unwrap_or_else(PoisonError::into_inner);
        exported.take_if(|exported| is_idle(exported.asked));
        drop(exported);
        let mut imported = self.imported.lock().unwrap_or_else(PoisonError::into_inner);
        if imported.came.is_some_and(is_idle) {
            *imported = Imported::default();
        }
    }

    /// Has `answered` told what a thread of its own finds.
    ///
    /// # Errors
    /// Enough are at work.
    pub(super) fn ask(
        self: &Arc<Self>,
        question: Question,
        answered: impl FnOnce(Result<Reply, Declined>) + Send + 'static,
    ) -> Result<(), Declined> {
        let this = self.clone();
        if self.under_way.fetch_add(1, Ordering::AcqRel) >= limits::SNAPSHOT_QUESTIONS_MAX {
            self.under_way.fetch_sub(1, Ordering::AcqRel);
            return Err(Declined::Busy);
        }
        let run = move || {
            answered(this.answer(question));
            this.under_way.fetch_sub(1, Ordering::AcqRel);
        };
        let thread = std::thread::Builder::new().name("operator".into()).spawn(run);
        thread.map(drop).map_err(|_| {
            self.under_way.fetch_sub(1, Ordering::AcqRel);
            Declined::Busy
        })
    }

    fn answer(&self, question: Question) -> Result<Reply, Declined> {
        match question {
            Question::Snapshots { from, limit } => {
                Ok(Reply::Snapshots(self.store.list(&from, limit as usize)))
            }
            Question::Evict(snapshot) => self.store.evict(&snapshot).map(|()| Reply::Done),
            Question::Pin { snapshot, pinned } => {
                self.store.pin(&snapshot, pinned).map(|()| Reply::Done)
            }
            Question::Memory { of: Rememberer::Snapshot(snapshot), layer, head, start } => {
                let found = self.find(&snapshot)?;
                let layers = found.layers.len() as u32;
                let set = found.layers.get(layer as usize).ok_or_else(|| {
                    Declined::Refused(format!("layer = {layer}: must be below {layers}"))
                })?;
                shown(set, (layers, head, start)).map(|it| Reply::Memory(Box::new(it)))
            }
            Question::Memory { of: Rememberer::Request { .. }, .. } => Err(Declined::Gone),
            Question::Export { snapshot, start } => self.export(snapshot, start).map(Reply::Part),
            Question::Import(part) => self.import(part),
        }
    }

    fn find(&self, key: &SnapshotKey) -> Result<Arc<Snapshot>, Declined> {
        match self.store.restore(key) {
            Found::Here(snapshot) => Some(snapshot),
            Found::Coming(coming) => {
                coming.wait(Duration::from_millis(limits::SNAPSHOT_READ_DEADLINE_MS))
            }
            Found::Gone => None,
        }
        .ok_or(Declined::Gone)
    }

    fn export(&self, key: SnapshotKey, start: u64) -> Result<FilePart, Declined> {
        let mut exported = self.exported.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = Instant::now();
        let file = match exported.as_mut().filter(|known| known.key == key && start > 0) {
            Some(known) => {
                known.asked = asked;
                known.file.clone()
            }
            None => {
                let file = Arc::new(file::encode(&self.model, &key, &*self.find(&key)?));
                exported.insert(Exported { key, file, asked }).file.clone()
            }
        };
        let total = file.len() as u64;
        let from = usize::try_from(start.min(total)).unwrap_or(usize::MAX);
        let to = file.len().min(from + limits::SNAPSHOT_PART_BYTES_MAX);
        if from == to {
            let bound = format!("start = {start}: must be below {total}, the bytes of the file");
            return Err(Declined::Refused(bound));
        }
        if to == file.len() {
            *exported = None; // nobody asks for more
        }
        Ok(FilePart { start, total, bytes: file[from..to].to_vec() })
    }

    /// Adds what has come; keeps it when it is whole.
    fn import(&self, part: FilePart) -> Result<Reply, Declined> {
        let most = self.store.bytes_max().saturating_add(file::OVERHEAD_BYTES_MAX);
        if part.total > most {
            let bound = format!("{} bytes: must be at most {most}, which are kept", part.total);
            return Err(Declined::Refused(bound));
        }
        let mut imported = self.imported.lock().unwrap_or_else(PoisonError::into_inner);
        if part.start == 0 {
            *imported = Imported::default();
        }
        if part.start != imported.bytes.len() as u64 {
            let reason = "another import has begun meanwhile, or this one was left";
            return Err(Declined::Refused(reason.into()));
        }
        imported.bytes.extend(part.bytes);
        imported.came = Some(Instant::now());
        if (imported.bytes.len() as u64) < part.total {
            return Ok(Reply::Done);
        }
        let bytes = std::mem::take(&mut *imported).bytes;
        drop(imported);
        let refused = |error: file::FileError| Declined::Refused(error.to_string());
        let (key, snapshot) = file::open(&bytes, &self.model).map_err(refused)?;
        self.store.keep(key, Some(snapshot));
        self.store.tell();
        let held = self.store.list(&key, 1);
        let is_kept = held.first().is_some_and(|held| held.snapshot == key);
        is_kept.then_some(Reply::Snapshots(held)).ok_or_else(|| {
            Declined::Refused("there is no room for it within --snapshot-bytes".into())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::conformance::{fit, set};

    fn curator() -> (Curator, SnapshotKey) {
        let store = Arc::new(Store::new((u64::MAX, None), Arc::default()));
        let key = SnapshotKey([7; 32]);
        let layers = (0..fit().layers).map(|layer| Arc::new(set(4000, layer))).collect();
        store.keep(key, Some(Snapshot { layers, retained: Vec::new() }));
        (Curator::new(store, file::Model::new("model", fit())), key)
    }

    #[test]
    fn files_that_nobody_goes_on_with_are_let_go() {
        let (curator, key) = curator();
        let now = Instant::now();
        let part = curator.export(key, 0).unwrap();
        let second = part.bytes.len() as u64;
        assert!(second < part.total, "several parts");
        curator.tidy(now + PATIENCE / 2);
        assert!(curator.exported.lock().unwrap().is_some());
        curator.tidy(now + 2 * PATIENCE);
        assert!(curator.exported.lock().unwrap().is_none());
        assert_eq!(curator.export(key, second).unwrap().start, second, "it is read anew");

        assert_eq!(curator.import(part.clone()), Ok(Reply::Done));
        curator.tidy(Instant::now() + 2 * PATIENCE);
        let rest = FilePart { start: second, ..part };
        let Err(Declined::Refused(why)) = curator.import(rest) else { panic!("it was let go") };
        assert!(why.contains("was left"), "{why}");
    }
}
