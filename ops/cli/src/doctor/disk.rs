//! Whether folders can be written to, safely and for long enough.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use super::Check;
use crate::report::bytes;

/// A journal that waits longer for its disk keeps callers waiting.
const SYNC_SLOW: Duration = Duration::from_millis(50);

/// Looks at the folder of `--FLAG`, which should have room for `wanted_bytes` more.
pub(crate) fn look(flag: &str, folder: &Path, wanted_bytes: u64) -> Check {
    let check = format!("disk {flag}");
    let next = format!("make the folder of --{flag} one that this user may write to");
    let fails = |why: String| Check::fail(&check, format!("{}: {why}", folder.display()), &*next);
    // What is not there yet will be made. Of a relative path the first part may be missing too.
    let whole = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let Some(there) = whole.ancestors().find(|part| part.exists()) else {
        return fails("no such folder".into());
    };
    let took = match write_and_sync(there) {
        Ok(took) => took,
        Err(error) => return fails(format!("cannot be written to: {error}")),
    };
    let free = match rustix::fs::statvfs(there) {
        Ok(disk) => disk.f_bavail.saturating_mul(disk.f_frsize),
        Err(error) => return fails(format!("its disk says nothing: {error}")),
    };
    let found =
        format!("{} free, safe on disk within {:.1} ms", bytes(free), took.as_secs_f64() * 1e3);
    if free < wanted_bytes {
        let next = format!("make room, up to {} are written there", bytes(wanted_bytes));
        return Check::warn(&check, found, next);
    }
    if took > SYNC_SLOW {
        let next = "take a disk that is quicker, or less busy: requests wait for it";
        return Check::warn(&check, found, next);
    }
    Check::ok(&check, found)
}

/// How long a few bytes take until no loss of power would lose them.
fn write_and_sync(folder: &Path) -> std::io::Result<Duration> {
    let path = folder.join(format!(".aqueduct-doctor-{}", std::process::id()));
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
        let look = |path: &Path, bytes| look("data-dir", path, bytes);
        assert_ne!(look(folder.path(), 0).state, State::Fail);
        assert_ne!(look(&folder.path().join("not/there/yet"), 0).state, State::Fail);
        assert_ne!(look(Path::new("not/there/from/here"), 0).state, State::Fail);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
        let full = look(folder.path(), u64::MAX);
        assert_eq!((full.state, full.next.starts_with("make room")), (State::Warn, true));
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let wrong = look(&file.join("below"), 0);
        assert_eq!(wrong.state, State::Fail, "{wrong:?}");
        assert!(wrong.found.contains("cannot be written to"), "{wrong:?}");
    }
}
