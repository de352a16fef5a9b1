//! A model file in memory without being read: the one place that maps files.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

/// A file's bytes, brought in by the system page by page as they are looked at.
///
/// The file must not be changed or cut short while it is mapped: nobody could be told. Model
/// files are replaced by renaming, which leaves the old bytes where they are.
#[derive(Debug)]
pub struct MappedFile {
    map: memmap2::Mmap,
}

impl MappedFile {
    /// Maps the whole of a regular file.
    ///
    /// # Errors
    /// The file cannot be opened or mapped, or is not a regular file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        // SAFETY: the map is read-only and private to this process; that nobody else writes to
        // the file meanwhile is the documented contract of this type.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Self { map })
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}
