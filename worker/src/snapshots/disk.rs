//! The folder behind the snapshots in memory, and the thread that alone reads and writes it: the
//! device thread never waits for a disk. Writing follows behind keeping, so what memory lets go
//! of is on disk already, and a restart finds nearly all of it. A disk that cannot keep up costs
//! snapshots, not time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use std::{fs, io};

use aqueduct_core::{Refusal, SnapshotKey, limits};

use super::file::{self, FileError, Model};
use super::store::{Job, Store};

const SUFFIX: &str = "snapshot";
/// What is still being written, and no snapshot yet.
const UNFINISHED: &str = "snapshot-part";

/// The files of one worker.
#[derive(Debug, Clone)]
pub(super) struct Folder {
    path: PathBuf,
    model: Model,
}

/// A file that was found.
#[derive(Debug, PartialEq)]
struct Found {
    modified: SystemTime,
    key: SnapshotKey,
    bytes: u64,
}

impl Folder {
    /// The folder at `path`, made if there is none.
    ///
    /// # Errors
    /// One that cannot be made or listed.
    pub(super) fn open(path: &Path, model: Model) -> Result<Self, Refusal> {
        let refusal = |error: io::Error| {
            Refusal::new("snapshot_dir", path.display(), format!("a folder to write in: {error}"))
        };
        fs::create_dir_all(path).map_err(refusal)?;
        fs::read_dir(path).map_err(refusal)?;
        Ok(Self { path: path.to_owned(), model })
    }

    /// Files with their bytes, the oldest first. Those that bear our name and cannot be used are
    /// deleted; others are left alone. One that cannot be read just now may be good, and counts;
    /// it has 0 bytes if not even these are known.
    ///
    /// # Errors
    /// Not all can be listed: what is not known of is never deleted, and the folder would outgrow
    /// its bound.
    pub(super) fn list(&self) -> Result<Vec<(SnapshotKey, u64)>, Refusal> {
        let entries = fs::read_dir(&self.path);
        let entries = entries.and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
        let entries = entries.map_err(|error| {
            Refusal::new("snapshot_dir", self.path.display(), format!("a folder to list: {error}"))
        })?;
        let mut unread = 0;
        let look = |entry: fs::DirEntry| self.look(&entry.path(), &mut unread);
        let mut found: Vec<Found> = entries.into_iter().filter_map(look).collect();
        found.sort_by_key(|found| (found.modified, found.key));
        Ok(found.into_iter().map(|found| (found.key, found.bytes)).collect())
    }

    fn look(&self, path: &Path, unread: &mut usize) -> Option<Found> {
        let name = path.file_stem()?.to_str()?.parse::<SnapshotKey>();
        match path.extension()?.to_str()? {
            UNFINISHED => {
                remove(path);
                return None;
            }
            SUFFIX => {}
            _ => return None,
        }
        let key = name.ok()?;
        // Else opening it may wait for ever, as of a pipe that nobody writes to.
        let metadata = match path.metadata().map_err(FileError::from) {
            Ok(metadata) if metadata.is_file() => metadata,
            Err(error) if error.may_pass() => {
                tell_unread(path, &error, *unread == 0);
                *unread += 1;
                // As if it were new: to delete it first would make no room that is known of.
                return Some(Found { modified: SystemTime::now(), key, bytes: 0 });
            }
            Ok(_) | Err(_) => {
                tracing::warn!(path = %path.display(), "it is no file: left alone");
                return None;
            }
        };
        let bytes = match file::peek(path, &self.model, &key) {
            Ok(bytes) => bytes,
            Err(error) if error.may_pass() => {
                tell_unread(path, &error, *unread == 0);
                *unread += 1;
                metadata.len()
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a snapshot is deleted");
                remove(path);
                return None;
            }
        };
        let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        Some(Found { modified, key, bytes })
    }

    /// Reads a file for who waits for it. It is deleted only if something is wrong with itself.
    fn read(&self, store: &Store, (key, bytes): (&SnapshotKey, u64)) {
        let path = self.path_of(key, SUFFIX);
        let bytes = if bytes > 0 { Ok(bytes) } else { self.size(&path, key) };
        let read = |bytes: u64| {
            let snapshot = file::read(&path, &self.model, (key, bytes));
            snapshot.map(|snapshot| (snapshot, bytes))
        };
        match bytes.and_then(read) {
            Ok((snapshot, bytes)) => {
                store.has_size(key, bytes);
                store.was_read(key, Some(snapshot));
            }
            Err(error) if error.may_pass() => {
                let is_first = store.not_read(key);
                tell_unread(&path, &error, is_first);
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a snapshot is deleted");
                remove(&path);
                store.was_read(key, None);
            }
        }
    }

    /// How large a file is of which that could not be known when it was found.
    fn size(&self, path: &Path, key: &SnapshotKey) -> Result<u64, FileError> {
        if !path.metadata()?.is_file() {
            // Left alone, as at start: opening it may wait for ever.
            return Err(io::Error::other("it is no file").into());
        }
        file::peek(path, &self.model, key)
    }

    fn path_of(&self, key: &SnapshotKey, suffix: &str) -> PathBuf {
        self.path.join(format!("{key}.{suffix}"))
    }

    fn delete(&self, key: &SnapshotKey) {
        remove(&self.path_of(key, SUFFIX));
    }
}

/// Says that a file stays that cannot be read just now; where many are so, the first of them.
fn tell_unread(path: &Path, error: &FileError, is_first: bool) {
    let path = path.display();
    if is_first {
        let what = "a snapshot cannot be read now, and stays; what follows is not told";
        tracing::warn!(%path, %error, what);
    } else {
        tracing::debug!(%path, %error, "a snapshot cannot be read now, and stays");
    }
}

/// Deletes a file that is ours.
fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "a snapshot cannot be deleted");
        }
        _ => {}
    }
}

/// Reads, writes and deletes until the store is stopped.
pub(super) fn run(store: &Arc<Store>, folder: &Folder) {
    let mut has_failed = false; // a disk that is full stays so, which is said once
    while let Some(job) = store.next_job() {
        match job {
            Job::Delete(key) => folder.delete(&key),
            Job::Write(key, snapshot) => {
                let bytes = file::encode(&folder.model, &key, &snapshot);
                let (part, whole) =
                    (folder.path_of(&key, UNFINISHED), folder.path_of(&key, SUFFIX));
                // Not synchronised: a file that a crash leaves half written has a wrong checksum.
                let written = fs::write(&part, &bytes).and_then(|()| fs::rename(&part, whole));
                match &written {
                    Err(error) => {
                        let path = part.display();
                        if has_failed {
                            tracing::debug!(%path, %error, "a snapshot was not written");
                        } else {
                            let what = "a snapshot was not written; what follows is not told";
                            tracing::warn!(%path, %error, what);
                        }
                        remove(&part);
                    }
                    Ok(()) if has_failed => tracing::info!("snapshots are written again"),
                    Ok(()) => {}
                }
                has_failed = written.is_err();
                store.written(&key, written.is_ok().then_some(bytes.len() as u64));
            }
            Job::Read(key, bytes) => folder.read(store, (&key, bytes)),
        }
    }
}

/// What a listing may hold; more is deleted, the oldest first.
pub(super) fn within_bounds(
    mut found: Vec<(SnapshotKey, u64)>,
    bytes_max: u64,
) -> (Vec<(SnapshotKey, u64)>, Vec<SnapshotKey>) {
    let mut bytes: u64 = found.iter().map(|(_, bytes)| bytes).sum();
    let mut surplus = Vec::new();
    while bytes > bytes_max || found.len() > limits::SNAPSHOTS_MAX {
        let (key, size) = found.remove(0);
        bytes -= size;
        surplus.push(key);
    }
    (found, surplus)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::link::conformance::{fit, set};
    use crate::snapshots::{Found, Snapshot};

    #[test]
    fn what_cannot_be_read_at_start_stays_and_what_is_bad_goes() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::open(directory.path(), Model::new("model", fit())).unwrap();
        let (unread, bad, missing) =
            (SnapshotKey([1; 32]), SnapshotKey([2; 32]), SnapshotKey([3; 32]));
        let path = |key: &SnapshotKey| folder.path_of(key, SUFFIX);
        // Whoever reads it is told EIO, root too.
        symlink("/proc/self/mem", path(&unread)).unwrap();
        fs::write(path(&bad), "short").unwrap();
        assert_eq!(folder.list().unwrap(), [(unread, 0)]);
        assert!(path(&unread).is_symlink() && !path(&bad).exists());

        let store = Store::new((1 << 20, Some(1 << 20)), Arc::default());
        store.found(vec![(unread, 9), (missing, 9)], Vec::new());
        for _ in 0..3 {
            folder.read(&store, (&unread, 9));
        }
        folder.read(&store, (&missing, 9));
        assert!(path(&unread).is_symlink());
        assert_eq!((store.held().count, store.held().disk_bytes), (1, 9), "the other is gone");
    }

    #[test]
    fn what_cannot_be_looked_at_at_start_counts_and_is_read_later() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::open(directory.path(), Model::new("model", fit())).unwrap();
        let (key, other) = (SnapshotKey([1; 32]), SnapshotKey([2; 32]));
        let path = folder.path_of(&key, SUFFIX);
        // Whoever asks for its metadata is told ELOOP, root too.
        symlink(&path, &path).unwrap();
        fs::create_dir(folder.path_of(&other, SUFFIX)).unwrap();
        assert_eq!(folder.list().unwrap(), [(key, 0)], "the other is no file");

        let store = Store::new((1 << 20, Some(1 << 20)), Arc::default());
        store.found(vec![(key, 0)], Vec::new());
        folder.read(&store, (&key, 0));
        assert!(path.is_symlink());
        assert_eq!(store.held().count, 1, "it stays");

        let layers = (0..fit().layers()).map(|layer| Arc::new(set(2, layer))).collect();
        let snapshot = Snapshot { layers, retained: Vec::new(), is_prefix: false };
        let bytes = file::encode(&folder.model, &key, &snapshot);
        fs::remove_file(&path).unwrap();
        fs::write(&path, &bytes).unwrap();
        folder.read(&store, (&key, 0));
        assert_eq!(store.held().disk_bytes, bytes.len() as u64);
        let Found::Here(found) = store.restore(&key) else { panic!("it was read") };
        assert_eq!(*found, snapshot);
        assert!(path.exists());
    }

    #[test]
    fn a_folder_that_cannot_be_listed_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("snapshots");
        let folder = Folder::open(&path, Model::new("model", fit())).unwrap();
        fs::remove_dir(&path).unwrap();
        folder.list().unwrap_err();
    }
}
