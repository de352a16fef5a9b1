//! The log on disk: one file of redb. All of a [`Write`] is there or nothing of it, and when
//! [`Store::write`] returns it is flushed. Every value has a checksum of its own, and opening
//! checks the whole file, so that what is corrupt is refused rather than believed.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use redb::{Builder, Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};

use crate::config::Identity;
use crate::log::{Entry, Frozen, Hard, Point, Saved, Write};

const FORMAT: u64 = 1;
const FILE: &str = "journal.redb";
/// Until it is whole.
const NEW_FILE: &str = "journal.redb.new";
const CACHE_BYTES: usize = 16 << 20;

/// Numbers by name.
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
/// Entries by index: checksum, term, record.
const ENTRIES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("entries");
/// At most one, by its index: checksum, term, what is kept.
const FROZEN: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("frozen");
/// Of this member first, then of all.
const MEMBERS: TableDefinition<'_, u32, u64> = TableDefinition::new("members");

/// Why a store is not opened, or not written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system refused.
    #[error("{path}: {source}")]
    Io {
        /// Of what.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Another process has it open.
    #[error("the journal is open in another process")]
    InUse,
    /// It is not what a journal writes. Whoever may lose what is in it moves the file away.
    #[error("the journal is corrupt: {0}; nothing of it is used")]
    Corrupt(String),
    /// Another version of this program wrote it.
    #[error("the journal has format {found}; this program reads {FORMAT}")]
    Format {
        /// Its format.
        found: u64,
    },
    /// It belongs to another member, or to another group.
    #[error("the journal is of {}, not of {}", shown(found), shown(wanted))]
    Identity {
        /// Whose it is: the member, then all.
        found: Vec<u64>,
        /// Who asks.
        wanted: Vec<u64>,
    },
    /// It belongs to a group that is as large.
    #[error("the journal is of a group whose members have other names, or another token")]
    OtherGroup,
    /// It could not be written. What it holds by now is known when it is opened again.
    #[error("the journal could not be written: {0}")]
    Unwritten(#[from] redb::Error),
}

/// An open store.
#[derive(Debug)]
pub struct Store {
    database: Database,
}

/// A member and all of them, as people say it.
fn shown(identity: &[u64]) -> String {
    match identity {
        [member, members @ ..] => format!("member {member} of {}", members.len()),
        [] => "nobody".to_owned(),
    }
}

/// What a journal that cannot be opened is: corrupt, unless it is its file system that refuses.
fn unread(error: redb::Error) -> StoreError {
    use std::io::ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    match &error {
        redb::Error::Io(io)
            if [PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull]
                .contains(&io.kind()) =>
        {
            StoreError::Unwritten(error)
        }
        _ => StoreError::Corrupt(error.to_string()),
    }
}

impl Store {
    /// Opens the journal of `identity` in `folder`, which is made, with an empty journal, if
    /// there is none.
    ///
    /// # Errors
    /// A journal that is corrupt, of another format or of another member, and whatever the file
    /// system refuses.
    pub fn open(folder: &Path, identity: &Identity) -> Result<(Self, Saved), StoreError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| StoreError::Io { path, source }
        };
        make(folder).map_err(io(folder))?;
        let (path, new) = (folder.join(FILE), folder.join(NEW_FILE));
        if !path.try_exists().map_err(io(&path))? {
            // What is half made was never used.
            let _ = fs::remove_file(&new);
            drop(Self::create(builder().create(&new), identity, drawn())?);
            fs::rename(&new, &path).map_err(io(&path))?;
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(io(folder))?;
        }
        Self::guarded(|| Self::load(builder().open(&path), identity))
    }

    /// The same on other storage than a file; `is_new` where nothing is there yet.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_on(
        backend: impl StorageBackend,
        identity: &Identity,
        is_new: bool,
    ) -> Result<(Self, Saved), StoreError> {
        if is_new {
            let birth = drawn();
            let store = Self::create(builder().create_with_backend(backend), identity, birth)?;
            let group = identity.group;
            return Ok((store, Saved { group, birth, is_newborn: true, ..Saved::default() }));
        }
        Self::guarded(|| Self::load(builder().create_with_backend(backend), identity))
    }

    /// A file that is broken enough makes the library panic.
    fn guarded<T>(open: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        let panicked = |_| StoreError::Corrupt("its structure is broken".to_owned());
        catch_unwind(AssertUnwindSafe(open)).map_err(panicked)?
    }

    fn create(
        opened: Result<Database, redb::DatabaseError>,
        identity: &Identity,
        birth: u64,
    ) -> Result<Self, StoreError> {
        let database = opened.map_err(|error| StoreError::Unwritten(error.into()))?;
        let make = || -> Result<(), redb::Error> {
            let transaction = database.begin_write()?;
            let mut members = transaction.open_table(MEMBERS)?;
            for (at, member) in (0..).zip(names(identity)) {
                members.insert(at, member)?;
            }
            drop(members);
            transaction.open_table(ENTRIES)?;
            transaction.open_table(FROZEN)?;
            let mut numbers = transaction.open_table(NUMBERS)?;
            for name in ["term", "vote", "commit", "cut_index", "cut_term"] {
                numbers.insert(name, 0)?;
            }
            numbers.insert("group", identity.group)?;
            numbers.insert("named", identity.named)?;
            numbers.insert("birth", birth)?;
            numbers.insert("newborn", 1)?;
            numbers.insert("format", FORMAT)?;
            drop(numbers);
            transaction.commit()?;
            Ok(())
        };
        make()?;
        Ok(Self { database })
    }

    fn load(
        opened: Result<Database, redb::DatabaseError>,
        identity: &Identity,
    ) -> Result<(Self, Saved), StoreError> {
        let mut database = opened.map_err(|error| match error {
            redb::DatabaseError::DatabaseAlreadyOpen => StoreError::InUse,
            other => unread(other.into()),
        })?;
        match database.check_integrity() {
            Ok(true) => {}
            Ok(false) => return Err(StoreError::Corrupt("its checksums differ".to_owned())),
            Err(error) => return Err(unread(error.into())),
        }
        let found = read_members(&database).map_err(unread)?;
        let format = read_number(&database, "format").map_err(unread)?;
        if format != FORMAT {
            return Err(StoreError::Format { found: format });
        }
        let wanted: Vec<_> = names(identity).collect();
        if found != wanted {
            return Err(StoreError::Identity { found, wanted });
        }
        let named = read_number(&database, "named").map_err(unread)?;
        if ![0, identity.named].contains(&named) && identity.named != 0 {
            return Err(StoreError::OtherGroup);
        }
        let saved = read(&database).map_err(unread)?.map_err(StoreError::Corrupt)?;
        check(&saved).map_err(StoreError::Corrupt)?;
        Ok((Self { database }, saved))
    }

    /// Writes, and flushes, all of `write`.
    ///
    /// # Errors
    /// It is not known what is there; the store must be opened again.
    pub fn write(&self, write: &Write) -> Result<(), StoreError> {
        Ok(self.write_all(write)?)
    }

    fn write_all(&self, write: &Write) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        let mut entries = transaction.open_table(ENTRIES)?;
        if let Some(cut) = write.cut {
            let last = if cut.all { u64::MAX } else { cut.point.index };
            entries.retain_in(..=last, |_, _| false)?;
        }
        if let Some(first) = write.entries.first() {
            entries.retain_in(first.index.., |_, _| false)?;
        }
        for entry in &write.entries {
            entries.insert(entry.index, sealed(entry.term, &entry.data).as_slice())?;
        }
        drop(entries);
        if let Some(Frozen { point, data }) = &write.frozen {
            let mut frozen = transaction.open_table(FROZEN)?;
            frozen.retain(|_, _| false)?;
            frozen.insert(point.index, sealed(point.term, data).as_slice())?;
        }
        let mut numbers = transaction.open_table(NUMBERS)?;
        let Hard { term, vote, commit } = write.hard;
        for (name, value) in [("term", term), ("vote", vote), ("commit", commit)] {
            numbers.insert(name, value)?;
        }
        if write.is_grown {
            numbers.insert("newborn", 0)?;
        }
        if let Some(cut) = write.cut {
            numbers.insert("cut_index", cut.point.index)?;
            numbers.insert("cut_term", cut.point.term)?;
        }
        drop(numbers);
        transaction.commit()?;
        Ok(())
    }
}

/// Makes a folder, and those above it, where they are not there. After a crash they are there,
/// with what was flushed in them.
fn make(folder: &Path) -> std::io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let Some(above) = folder.parent() else { return fs::create_dir(folder) };
    // A name alone stands in the folder that the process is in.
    let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
    make(above)?;
    match fs::create_dir(folder) {
        Err(error) if !folder.is_dir() => Err(error),
        _ => File::open(above)?.sync_all(),
    }
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

fn names(identity: &Identity) -> impl Iterator<Item = u64> {
    std::iter::once(identity.member).chain(identity.members.iter().copied())
}

/// Any number.
fn drawn() -> u64 {
    RandomState::new().hash_one(FILE)
}

/// Checksum, term, data.
fn sealed(term: u64, data: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(12 + data.len());
    value.extend_from_slice(&[0; 4]);
    value.extend_from_slice(&term.to_le_bytes());
    value.extend_from_slice(data);
    let sum = crc32fast::hash(&value[4..]);
    value[..4].copy_from_slice(&sum.to_le_bytes());
    value
}

fn unsealed(what: &str, index: u64, value: &[u8]) -> Result<(u64, Vec<u8>), String> {
    let parts = value.split_first_chunk::<4>().filter(|(sum, rest)| {
        u32::from_le_bytes(**sum) == crc32fast::hash(rest) // of term and data
    });
    match parts.and_then(|(_, rest)| rest.split_first_chunk::<8>()) {
        Some((term, data)) => Ok((u64::from_le_bytes(*term), data.to_vec())),
        None => Err(format!("{what} {index} has another checksum")),
    }
}

fn read_members(database: &Database) -> Result<Vec<u64>, redb::Error> {
    let transaction = database.begin_read()?;
    let members = transaction.open_table(MEMBERS)?;
    members.iter()?.map(|entry| Ok(entry?.1.value())).collect()
}

/// 0 where there is none.
fn read_number(database: &Database, name: &str) -> Result<u64, redb::Error> {
    let numbers = database.begin_read()?.open_table(NUMBERS)?;
    Ok(numbers.get(name)?.map_or(0, |value| value.value()))
}

fn read(database: &Database) -> Result<Result<Saved, String>, redb::Error> {
    let number = |name| read_number(database, name);
    let mut saved = Saved {
        group: number("group")?,
        birth: number("birth")?,
        is_newborn: number("newborn")? != 0,
        hard: Hard { term: number("term")?, vote: number("vote")?, commit: number("commit")? },
        cut: Point { index: number("cut_index")?, term: number("cut_term")? },
        ..Saved::default()
    };
    let transaction = database.begin_read()?;
    for entry in transaction.open_table(FROZEN)?.iter()? {
        let (index, value) = entry?;
        match unsealed("snapshot", index.value(), value.value()) {
            Ok((term, data)) => {
                saved.frozen = Some(Frozen { point: Point { index: index.value(), term }, data });
            }
            Err(reason) => return Ok(Err(reason)),
        }
    }
    for entry in transaction.open_table(ENTRIES)?.iter()? {
        let (index, value) = entry?;
        match unsealed("entry", index.value(), value.value()) {
            Ok((term, data)) => saved.entries.push(Entry { index: index.value(), term, data }),
            Err(reason) => return Ok(Err(reason)),
        }
    }
    Ok(Ok(saved))
}

/// Whether the parts fit together.
fn check(saved: &Saved) -> Result<(), String> {
    let mut last = saved.cut;
    for entry in &saved.entries {
        if entry.index != last.index + 1 || entry.term < last.term {
            return Err(format!("entry {} of term {} after {last:?}", entry.index, entry.term));
        }
        last = entry.point();
    }
    let Hard { term, commit, .. } = saved.hard;
    if last.term > term {
        return Err(format!("an entry of term {}, which is after term {term}", last.term));
    }
    let frozen = saved.frozen.as_ref().map_or(0, |frozen| frozen.point.index);
    if frozen < saved.cut.index {
        return Err(format!("entries after {frozen} are missing"));
    }
    if !(frozen..=last.index).contains(&commit) {
        return Err(format!("commit = {commit}: must be between {frozen} and {}", last.index));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    #[test]
    fn a_folder_is_made_with_those_above_it() {
        let folder = tempfile::tempdir().unwrap();
        let check = |path: &str, is_made: bool| {
            let path = folder.path().join(path);
            assert_eq!(make(&path).is_ok(), is_made, "{path:?}");
            assert_eq!(path.is_dir(), is_made, "{path:?}");
        };
        check("a/b/c", true);
        check("a/b/c", true);
        check("a/d/../e", true);
        fs::write(folder.path().join("file"), []).unwrap();
        check("file", false);
        check("file/a", false);
    }

    #[test]
    fn a_file_system_that_refuses_makes_no_journal_corrupt() {
        let check = |kind: ErrorKind, is_corrupt: bool| {
            let error = unread(redb::Error::Io(Error::from(kind)));
            assert_eq!(matches!(error, StoreError::Corrupt(_)), is_corrupt, "{error}");
        };
        check(ErrorKind::ReadOnlyFilesystem, false);
        check(ErrorKind::PermissionDenied, false);
        check(ErrorKind::StorageFull, false);
        check(ErrorKind::UnexpectedEof, true);
        check(ErrorKind::InvalidData, true);
    }
}
