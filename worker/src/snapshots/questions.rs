//! What those who look after the cluster ask about snapshots: a thread for each question, of
//! which there are few.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

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
    exported: Mutex<Option<(SnapshotKey, Arc<Vec<u8>>)>>,
    /// What has come of a file, from its beginning on.
    imported: Mutex<Vec<u8>>,
}

impl Curator {
    pub(super) fn new(store: Arc<Store>, model: file::Model) -> Self {
        let (exported, imported) = (Mutex::default(), Mutex::default());
        Self { store, model, under_way: AtomicUsize::new(0), exported, imported }
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
            let reply = this.answer(question);
            this.under_way.fetch_sub(1, Ordering::AcqRel);
            answered(reply);
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
        let file = match exported.as_ref().filter(|(known, _)| *known == key && start > 0) {
            Some((_, file)) => file.clone(),
            None => {
                let file = file::encode(&self.model, &key, &*self.find(&key)?);
                exported.insert((key, Arc::new(file))).1.clone()
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
            imported.clear();
        }
        if part.start != imported.len() as u64 {
            return Err(Declined::Refused("another import has begun meanwhile".into()));
        }
        imported.extend(part.bytes);
        if (imported.len() as u64) < part.total {
            return Ok(Reply::Done);
        }
        let bytes = std::mem::take(&mut *imported);
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
