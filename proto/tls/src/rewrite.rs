//! Files that are written anew while others read them.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long whoever changes a file waits for others who do.
const LOCK_DEADLINE: Duration = Duration::from_secs(10);
const LOCK_LOOK: Duration = Duration::from_millis(10);

/// Writes a file anew in one step: whoever reads it finds the old one or the new one. A link is
/// followed. Owner, group and mode stay as they were; a new file is for its owner alone.
///
/// # Errors
/// What is there is no plain file, or its owner cannot be kept; what the system reports.
pub fn rewrite(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = behind_links(path)?;
    let before = known(&path)?;
    if before.as_ref().is_some_and(|before| !before.is_file()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a plain file"));
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let beside = path.with_file_name(name);
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&beside)?;
    let done = before.map_or(Ok(()), |before| belongs(&file, &before));
    let done = done.and_then(|()| file.write_all(bytes)).and_then(|()| file.sync_all());
    let done = done.and_then(|()| fs::rename(&beside, &path));
    done.inspect_err(|_| drop(fs::remove_file(&beside)))
}

/// Until what it gives is dropped, nobody else who asks changes files in the folder of `path`:
/// what was read there may be written again.
///
/// # Errors
/// Others take too long; no such folder.
pub fn alone(path: &Path) -> io::Result<impl Drop + use<>> {
    let path = behind_links(path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = File::open(folder.unwrap_or(Path::new(".")))?;
    let until = Instant::now() + LOCK_DEADLINE;
    loop {
        match folder.try_lock() {
            Ok(()) => return Ok(Alone(folder)),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "others are changing it"));
            }
            Err(TryLockError::WouldBlock) => std::thread::park_timeout(LOCK_LOOK),
        }
    }
}

struct Alone(File);

impl Drop for Alone {
    fn drop(&mut self) {
        drop(self.0.unlock()); // closing it would do that too
    }
}

/// The file itself; where there is none, the path.
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(path.to_owned()),
        found => found,
    }
}

fn known(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// Makes a new file whose the one before was, who could read it then and can still.
fn belongs(file: &File, before: &Metadata) -> io::Result<()> {
    let is = file.metadata()?;
    if (is.uid(), is.gid()) != (before.uid(), before.gid()) {
        fchown(file, Some(before.uid()), Some(before.gid()))?;
    }
    file.set_permissions(before.permissions())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn who_could_read_a_file_still_can() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        rewrite(&at("file"), b"one").unwrap();
        assert_eq!(mode(&at("file")), 0o600);
        fs::set_permissions(at("file"), PermissionsExt::from_mode(0o640)).unwrap();
        let group = fs::metadata(at("file")).unwrap().gid() + 1;
        // Root alone may give files away; for others the group is what it was.
        let is_given = std::os::unix::fs::chown(at("file"), None, Some(group)).is_ok();
        symlink("file", at("link")).unwrap();
        rewrite(&at("link"), b"two").unwrap();
        assert_eq!(fs::read(at("file")).unwrap(), b"two");
        assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
        let is = fs::metadata(at("file")).unwrap();
        assert_eq!((mode(&at("file")), is.gid() == group), (0o640, is_given));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left beside");
    }

    #[test]
    fn what_is_no_file_stays_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let refused = rewrite(folder.path(), b"");
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let dangling = folder.path().join("dangling");
        symlink("nowhere", &dangling).unwrap();
        assert_eq!(rewrite(&dangling, b"").unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn changes_are_made_one_after_the_other() {
        const EACH: usize = 20;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("count");
        rewrite(&path, b"0").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let _alone = alone(&path).unwrap();
                        let count: usize = fs::read_to_string(&path).unwrap().parse().unwrap();
                        rewrite(&path, (count + 1).to_string().as_bytes()).unwrap();
                    }
                });
            }
        });
        assert_eq!(fs::read_to_string(&path).unwrap(), (4 * EACH).to_string());
    }
}
