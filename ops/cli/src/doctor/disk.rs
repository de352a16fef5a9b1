//! Whether folders can be written to, safely and for long enough.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use super::Check;
use crate::report::bytes;

/// A journal that waits longer for its disk keeps callers waiting.
const SYNC_SLOW: Duration = Duration::from_millis(50);
/// The file that whoever has a journal open holds a lock on.
const JOURNAL: &str = "journal.redb";

/// Looks at the folder of `--FLAG`, which should have room for `room.end` bytes more, and without
/// `room.start` is of no use.
pub(crate) fn look(flag: &str, folder: &Path, room: Range<u64>) -> Check {
    let check = format!("disk {flag}");
    let next = format!("make the folder of --{flag} one that this user may write to");
    let fails = |why: String| Check::fail(&check, format!("{}: {why}", folder.display()), &*next);
    // What is not there yet will be made. Of a relative path the first part may be missing too.
    let whole = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let Some(there) = whole.ancestors().find(|part| part.exists()) else {
        return fails("no such folder".into());
    };
    if !there.is_dir() {
        return fails(format!("{} is no folder", there.display()));
    }
    let took = match write_and_sync(there, flag) {
        Ok(took) => took,
        Err(error) => return fails(format!("cannot be written to: {error}")),
    };
    let free = match rustix::fs::statvfs(there) {
        Ok(disk) => disk.f_bavail.saturating_mul(disk.f_frsize),
        Err(error) => return fails(format!("its disk says nothing: {error}")),
    };
    let found =
        format!("{} free, safe on disk within {:.1} ms", bytes(free), took.as_secs_f64() * 1e3);
    let next = format!("make room, up to {} are written there", bytes(room.end));
    if free < room.start {
        return Check::fail(&check, found, next);
    }
    if free < room.end {
        return Check::warn(&check, found, next);
    }
    if is_open_elsewhere(&whole.join(JOURNAL)) {
        let found = format!("{found}; the journal is open in another process");
        let next = "that is well if it is the one that is to run: another one would not start, so \
                    stop it, or give --data-dir another folder";
        return Check::warn(&check, found, next);
    }
    if took > SYNC_SLOW {
        let next = "take a disk that is quicker, or less busy: requests wait for it";
        return Check::warn(&check, found, next);
    }
    Check::ok(&check, found)
}

/// Whether another process holds the lock of this file, if there is one.
fn is_open_elsewhere(journal: &Path) -> bool {
    // Shared, and let go of at once: nothing that starts meanwhile should find it held for long.
    let held = File::open(journal).map(|file| file.try_lock_shared());
    matches!(held, Ok(Err(TryLockError::WouldBlock)))
}

/// How long a few bytes take until no loss of power would lose them. Folders of several flags are
/// looked at together, and may be made in the same one.
fn write_and_sync(folder: &Path, flag: &str) -> std::io::Result<Duration> {
    let path = folder.join(format!(".aqueduct-doctor-{}-{flag}", std::process::id()));
    let written = OpenOptions::new().write(true).create_new(true).open(&path).and_then(timed);
    let removed = std::fs::remove_file(&path);
    written.and_then(|took| removed.map(|()| took))
}

fn timed(mut file: File) -> std::io::Result<Duration> {
    file.write_all(&[0; 4096])?;
    let started = Instant::now();
    file.sync_all()?;
    Ok(started.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn folders_are_tried() {
        let folder = tempfile::tempdir().unwrap();
        let look = |path: &Path, bytes| look("data-dir", path, 0..bytes);
        assert_ne!(look(folder.path(), 0).state, State::Fail);
        assert_ne!(look(&folder.path().join("not/there/yet"), 0).state, State::Fail);
        assert_ne!(look(Path::new("not/there/from/here"), 0).state, State::Fail);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
        let full = look(folder.path(), u64::MAX);
        assert_eq!((full.state, full.next.starts_with("make room")), (State::Warn, true));
        let none = super::look("data-dir", folder.path(), u64::MAX..u64::MAX);
        assert_eq!((none.state, none.next), (State::Fail, full.next));
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let wrong = look(&file.join("below"), 0);
        assert_eq!(wrong.state, State::Fail, "{wrong:?}");
        assert!(wrong.found.contains("is no folder"), "{wrong:?}");
        assert!(look(&file, 0).found.contains("is no folder"));
    }

    #[test]
    fn folders_of_two_flags_are_tried_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let look = |flag: &str| {
            let tries = (0..50).map(|_| super::look(flag, &folder.path().join(flag), 0..0));
            tries.filter(|check| check.state == State::Fail).collect::<Vec<_>>()
        };
        let [journal, snapshots] = std::thread::scope(|scope| {
            ["data-dir", "snapshot-dir"]
                .map(|flag| scope.spawn(move || look(flag)))
                .map(|looks| looks.join().unwrap())
        });
        assert_eq!((journal, snapshots), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_journal_that_is_open_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let journal = File::create(folder.path().join(JOURNAL)).unwrap();
        let is_told =
            || look("data-dir", folder.path(), 0..0).found.contains("open in another process");
        assert!(!is_told());
        journal.lock().unwrap();
        assert!(is_told());
    }
}
