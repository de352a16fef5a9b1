//! Files that go out or come in in parts, over many questions: what is held of them between two
//! parts, and a thread that lets go of what nobody goes on with. A file may have gigabytes, so the
//! device thread has no part in this.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aqueduct_core::SnapshotKey;
use aqueduct_core::ask::{Declined, FilePart};

/// How long a file stays of which nothing more is asked for, or comes.
pub(super) const PATIENCE: Duration = Duration::from_mins(1);

/// What is held of files between two parts.
#[derive(Debug)]
pub(super) struct Parts {
    patience: Duration,
    held: Mutex<Held>,
    /// Rung when it is over.
    over: Condvar,
}

#[derive(Debug, Default)]
struct Held {
    /// The file that was asked for last: it is asked for in parts.
    exported: Option<Exported>,
    /// What has come of a file, from its beginning on.
    imported: Imported,
    /// Whether there is a thread that lets go of them.
    is_watched: bool,
    is_over: bool,
}

/// A file that is read in parts.
#[derive(Debug)]
struct Exported {
    key: SnapshotKey,
    file: Arc<Vec<u8>>,
    made: Instant,
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

impl Parts {
    /// Nothing yet, and for so long of what nobody goes on with.
    pub(super) fn new(patience: Duration) -> Self {
        Self { patience, held: Mutex::default(), over: Condvar::new() }
    }

    /// The file of which somebody wants the part from `start` on, and wanted it at `asked`. Who
    /// begins anew gets no file that was made before.
    pub(super) fn find(
        &self,
        key: &SnapshotKey,
        start: u64,
        asked: Instant,
    ) -> Option<Arc<Vec<u8>>> {
        let mut held = self.lock();
        let known = held.exported.as_mut().filter(|known| known.key == *key)?;
        if start == 0 && known.made < asked {
            return None;
        }
        known.asked = Instant::now();
        Some(known.file.clone())
    }

    /// Keeps a file of which more parts are going to be asked for, in place of another one.
    pub(super) fn keep(self: &Arc<Self>, key: SnapshotKey, file: Arc<Vec<u8>>) {
        let made = Instant::now();
        let mut held = self.lock();
        held.exported = Some(Exported { key, file, made, asked: made });
        self.watch(&mut held);
    }

    /// Nobody asks for more of `file`; another one, that came meanwhile, stays.
    pub(super) fn done(&self, file: &Arc<Vec<u8>>) {
        self.lock().exported.take_if(|known| Arc::ptr_eq(&known.file, file));
    }

    /// Adds what has come, and gives the file when it is whole.
    ///
    /// # Errors
    /// It is not what comes next.
    pub(super) fn add(self: &Arc<Self>, part: FilePart) -> Result<Option<Vec<u8>>, Declined> {
        let mut held = self.lock();
        if part.start == 0 {
            held.imported = Imported::default();
        }
        if part.start != held.imported.bytes.len() as u64 {
            let reason = "another import has begun meanwhile, or this one was left";
            return Err(Declined::Refused(reason.into()));
        }
        held.imported.bytes.extend(part.bytes);
        if held.imported.bytes.len() as u64 >= part.total {
            return Ok(Some(std::mem::take(&mut held.imported).bytes));
        }
        held.imported.came = Some(Instant::now());
        self.watch(&mut held);
        Ok(None)
    }

    /// Lets go of files that nobody went on with up to `now`.
    pub(super) fn tidy(&self, now: Instant) {
        self.lock().tidy(now, self.patience);
    }

    /// Lets go of everything, and ends the thread.
    pub(super) fn stop(&self) {
        let mut held = self.lock();
        (held.exported, held.imported) = (None, Imported::default());
        held.is_over = true;
        self.over.notify_all();
    }

    /// Has a thread let go of what is held, unless one does. Where there is none to be had, the
    /// next question does.
    fn watch(self: &Arc<Self>, held: &mut Held) {
        if held.is_watched || held.is_over {
            return;
        }
        let this = self.clone();
        let thread = std::thread::Builder::new().name("parts".into()).spawn(move || this.run());
        held.is_watched = thread.is_ok();
    }

    /// Until nothing is held.
    fn run(&self) {
        let mut held = self.lock();
        while let Some(due) = held.due(self.patience) {
            let left = due.saturating_duration_since(Instant::now());
            held = self.over.wait_timeout(held, left).unwrap_or_else(PoisonError::into_inner).0;
            held.tidy(Instant::now(), self.patience);
        }
        held.is_watched = false;
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// When something is to be let go of, unless somebody goes on with it; `None` is never.
    fn due(&self, patience: Duration) -> Option<Instant> {
        let asked = self.exported.as_ref().map(|exported| exported.asked);
        let first = asked.into_iter().chain(self.imported.came).min();
        first.filter(|_| !self.is_over).map(|since| since + patience)
    }

    fn tidy(&mut self, now: Instant, patience: Duration) {
        let is_idle = |since: Instant| now.saturating_duration_since(since) >= patience;
        self.exported.take_if(|exported| is_idle(exported.asked));
        if self.imported.came.is_some_and(is_idle) {
            self.imported = Imported::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: SnapshotKey = SnapshotKey([7; 32]);

    fn file(bytes: usize) -> Arc<Vec<u8>> {
        Arc::new(vec![0; bytes])
    }

    fn part(start: u64) -> FilePart {
        FilePart { start, total: 9, bytes: vec![1; 3] }
    }

    /// Whether there is a file to go out, one that comes in, and a thread.
    fn seen(parts: &Parts) -> [bool; 3] {
        let held = parts.lock();
        [held.exported.is_some(), !held.imported.bytes.is_empty(), held.is_watched]
    }

    fn wait_for(parts: &Parts, want: [bool; 3]) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while seen(parts) != want {
            assert!(Instant::now() < deadline, "{:?}, not {want:?}", seen(parts));
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_nobody_goes_on_with_is_let_go_of_though_nobody_asks_again() {
        let parts = Arc::new(Parts::new(Duration::from_millis(5)));
        for _ in 0..2 {
            parts.keep(KEY, file(9));
            wait_for(&parts, [false; 3]);
            assert_eq!(parts.add(part(0)), Ok(None));
            wait_for(&parts, [false; 3]);
        }
    }

    #[test]
    fn one_thread_is_there_and_ends_with_the_worker() {
        let parts = Arc::new(Parts::new(Duration::from_hours(1)));
        parts.keep(KEY, file(9));
        assert_eq!(parts.add(part(0)), Ok(None));
        assert_eq!(parts.add(part(3)), Ok(None));
        assert_eq!(Arc::strong_count(&parts), 2, "one thread has the other");
        assert_eq!(seen(&parts), [true; 3]);
        parts.stop();
        wait_for(&parts, [false; 3]);
        parts.keep(KEY, file(9));
        assert_eq!(seen(&parts), [true, false, false], "nothing begins any more");
    }

    #[test]
    fn files_that_are_whole_are_held_no_longer() {
        let parts = Arc::new(Parts::new(PATIENCE));
        assert_eq!(parts.add(part(0)), Ok(None));
        assert!(matches!(parts.add(part(6)), Err(Declined::Refused(_))), "one is missing");
        assert_eq!(parts.add(part(3)), Ok(None));
        assert_eq!(parts.add(part(6)), Ok(Some(vec![1; 9])));
        assert!(matches!(parts.add(part(3)), Err(Declined::Refused(_))), "it was whole");

        let (first, second) = (file(9), file(9));
        parts.keep(KEY, first.clone());
        parts.keep(KEY, second.clone());
        parts.done(&first);
        assert!(seen(&parts)[0], "another one came meanwhile");
        parts.done(&second);
        assert!(!seen(&parts)[0]);
    }

    #[test]
    fn who_begins_anew_gets_what_was_made_since() {
        let parts = Arc::new(Parts::new(PATIENCE));
        let before = Instant::now();
        parts.keep(KEY, file(9));
        let after = Instant::now() + Duration::from_millis(1);
        let check = |key: SnapshotKey, start: u64, asked: Instant, want: bool| {
            assert_eq!(parts.find(&key, start, asked).is_some(), want, "{start}");
        };
        check(KEY, 0, before, true);
        check(KEY, 0, after, false);
        check(KEY, 3, after, true);
        check(SnapshotKey([8; 32]), 3, before, false);
    }
}
