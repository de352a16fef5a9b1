//! What those who look after the cluster ask about snapshots: a thread for each question, of
//! which there are few.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use aqueduct_core::ask::{Declined, FilePart, Question, Rememberer, Reply};
use aqueduct_core::{SnapshotKey, limits};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::parts::{PATIENCE, Parts};
use super::store::Store;
use super::{Found, Snapshot, file};
use crate::executor::shown;

/// A place among the questions that are answered at once; whoever drops it gives it back.
pub(crate) type Place = OwnedSemaphorePermit;

/// What answers, and what it has in its hands.
#[derive(Debug)]
pub(super) struct Curator {
    store: Arc<Store>,
    model: file::Model,
    places: Arc<Semaphore>,
    parts: Arc<Parts>,
    /// Locked by who makes a file: as large as a snapshot, it is made for one at a time.
    making: Mutex<()>,
}

impl Curator {
    pub(super) fn new(store: Arc<Store>, model: file::Model) -> Self {
        let places = Arc::new(Semaphore::new(limits::SNAPSHOT_QUESTIONS_MAX));
        let (parts, making) = (Arc::new(Parts::new(PATIENCE)), Mutex::default());
        Self { store, model, places, parts, making }
    }

    /// Lets go of files that are held in parts, and holds none any more.
    pub(super) fn stop(&self) {
        self.parts.stop();
    }

    /// Has `answered` told what a thread of its own finds, which has a place for as long as it is
    /// not given back. The device thread asks, so nothing here may wait.
    ///
    /// # Errors
    /// Enough are at work.
    pub(super) fn ask(
        self: &Arc<Self>,
        question: Question,
        answered: impl FnOnce(Result<Reply, Declined>, Place) + Send + 'static,
    ) -> Result<(), Declined> {
        let place = self.places.clone().try_acquire_owned().map_err(|_| Declined::Busy)?;
        let this = self.clone();
        let run = move || {
            this.parts.tidy(Instant::now());
            answered(this.answer(question), place);
        };
        let thread = std::thread::Builder::new().name("operator".into()).spawn(run);
        thread.map(drop).map_err(|_| Declined::Busy)
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
        let found = match self.store.restore(key) {
            Found::Coming(coming) => {
                coming.wait(Duration::from_millis(limits::SNAPSHOT_READ_DEADLINE_MS))
            }
            found => found,
        };
        match found {
            Found::Here(snapshot) => Ok(snapshot),
            Found::Late => Err(Declined::Refused("it cannot be read from disk just now".into())),
            Found::Coming(_) | Found::Gone => Err(Declined::Gone),
        }
    }

    fn export(&self, key: SnapshotKey, start: u64) -> Result<FilePart, Declined> {
        let file = self.file(key, start)?;
        let total = file.len() as u64;
        let from = usize::try_from(start.min(total)).unwrap_or(usize::MAX);
        let to = file.len().min(from + limits::SNAPSHOT_PART_BYTES_MAX);
        if from == to {
            let bound = format!("start = {start}: must be below {total}, the bytes of the file");
            return Err(Declined::Refused(bound));
        }
        if to == file.len() {
            self.parts.done(&file); // nobody asks for more
        }
        Ok(FilePart { start, total, bytes: file[from..to].to_vec() })
    }

    /// The file of a snapshot: the one that is held, or a new one. What is held is not locked
    /// meanwhile, for a snapshot may be long in coming from disk, and its file in being made.
    fn file(&self, key: SnapshotKey, start: u64) -> Result<Arc<Vec<u8>>, Declined> {
        let asked = Instant::now();
        if let Some(file) = self.parts.find(&key, start, asked) {
            return Ok(file);
        }
        let _one = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        // Who was before may have wanted the same.
        if let Some(file) = self.parts.find(&key, start, asked) {
            return Ok(file);
        }
        let file = Arc::new(file::encode(&self.model, &key, &*self.find(&key)?));
        if file.len() > limits::SNAPSHOT_PART_BYTES_MAX {
            self.parts.keep(key, file.clone());
        }
        Ok(file)
    }

    /// Adds what has come; keeps it when it is whole.
    fn import(&self, part: FilePart) -> Result<Reply, Declined> {
        let most = self.store.bytes_max().saturating_add(file::OVERHEAD_BYTES_MAX);
        if part.total > most {
            let bound = format!("{} bytes: must be at most {most}, which are kept", part.total);
            return Err(Declined::Refused(bound));
        }
        let Some(bytes) = self.parts.add(part)? else { return Ok(Reply::Done) };
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
    use std::sync::mpsc::sync_channel;
    use std::thread;

    use super::super::store::Job;
    use super::*;
    use crate::link::conformance::{fit, set};

    const KEY: SnapshotKey = SnapshotKey([7; 32]);
    const SOON: Duration = Duration::from_secs(30);

    fn snapshot() -> Snapshot {
        let layers = (0..fit().layers()).map(|layer| Arc::new(set(4000, layer))).collect();
        Snapshot { layers, retained: Vec::new(), is_prefix: false }
    }

    fn curator() -> Curator {
        let store = Arc::new(Store::new((u64::MAX, None), Arc::default()));
        store.keep(KEY, Some(snapshot()));
        Curator::new(store, file::Model::new("model", fit()))
    }

    #[test]
    fn files_that_nobody_goes_on_with_are_let_go() {
        let curator = curator();
        let now = Instant::now();
        let part = curator.export(KEY, 0).unwrap();
        let second = part.bytes.len() as u64;
        assert!(second < part.total, "several parts");
        let is_held = || curator.parts.find(&KEY, second, now).is_some();
        curator.parts.tidy(now + PATIENCE / 2);
        assert!(is_held());
        curator.parts.tidy(Instant::now() + 2 * PATIENCE);
        assert!(!is_held());
        assert_eq!(curator.export(KEY, second).unwrap().start, second, "it is read anew");
        assert!(is_held());
        curator.export(KEY, part.total - 1).unwrap();
        assert!(!is_held(), "that was the last part");

        assert_eq!(curator.import(part.clone()), Ok(Reply::Done));
        curator.parts.tidy(Instant::now() + 2 * PATIENCE);
        let rest = FilePart { start: second, ..part };
        let Err(Declined::Refused(why)) = curator.import(rest) else { panic!("it was let go") };
        assert!(why.contains("was left"), "{why}");
    }

    #[test]
    fn two_may_want_one_file_at_once() {
        let store = Arc::new(Store::new((u64::MAX, Some(u64::MAX)), Arc::default()));
        store.found(vec![(KEY, 1)], Vec::new());
        let curator = Curator::new(store.clone(), file::Model::new("model", fit()));
        let export = || curator.export(KEY, 0);
        let [first, second] = thread::scope(|scope| {
            let asked = [scope.spawn(export), scope.spawn(export)];
            assert!(matches!(store.next_job(), Some(Job::Read(..))));
            store.was_read(&KEY, Some(snapshot()));
            asked.map(|asked| asked.join().unwrap())
        });
        assert!(first.is_ok());
        assert_eq!(first, second);
    }

    #[test]
    fn who_asks_for_a_file_that_cannot_be_read_now_is_not_told_that_it_is_gone() {
        let store = Arc::new(Store::new((u64::MAX, Some(u64::MAX)), Arc::default()));
        store.found(vec![(KEY, 1)], Vec::new());
        let curator = Curator::new(store.clone(), file::Model::new("model", fit()));
        let answer = thread::scope(|scope| {
            let asked = scope.spawn(|| curator.export(KEY, 0));
            assert!(matches!(store.next_job(), Some(Job::Read(..))));
            store.not_read(&KEY);
            asked.join().unwrap()
        });
        let Err(Declined::Refused(why)) = answer else { panic!("{answer:?}") };
        assert!(why.contains("just now"), "{why}");
        assert_eq!(store.list(&KEY, 1)[0].disk_bytes, 1, "it stays");
    }

    #[test]
    fn a_place_is_given_back_also_where_there_is_no_answer() {
        const PLACES: usize = limits::SNAPSHOT_QUESTIONS_MAX;
        let curator = Arc::new(curator());
        let question = || Question::Snapshots { from: KEY, limit: 1 };
        for _ in 0..PLACES {
            curator.ask(question(), |_, _| panic!("as a test wants it")).unwrap();
        }
        let deadline = Instant::now() + SOON;
        while curator.places.available_permits() < PLACES {
            assert!(Instant::now() < deadline, "a panic keeps its place");
            thread::yield_now();
        }

        let (keep, kept) = sync_channel(PLACES);
        for _ in 0..PLACES {
            let keep = keep.clone();
            curator.ask(question(), move |_, place| keep.send(place).unwrap()).unwrap();
        }
        let mut places: Vec<Place> =
            (0..PLACES).map(|_| kept.recv_timeout(SOON).unwrap()).collect();
        assert_eq!(curator.ask(question(), |_, _| {}), Err(Declined::Busy));
        places.pop();
        assert_eq!(curator.ask(question(), |_, _| {}), Ok(()));
    }
}
