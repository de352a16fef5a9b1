//! Files that appear when they are whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Where a command writes what it was asked for: a file that appears, or is replaced, when it is
/// whole; a pipe or a device, as it is; or stdout, where the path is `-`.
pub(crate) struct Whole {
    to: Box<dyn Write + Send>,
    /// What is written to, and what it becomes.
    becomes: Option<(PathBuf, PathBuf)>,
}

impl Whole {
    /// # Errors
    /// A path that cannot be written to.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self { to: Box::new(io::stdout()), becomes: None });
        }
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        match fs::metadata(&path) {
            Ok(is) if is.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(is) if !is.is_file() => {
                let to = OpenOptions::new().write(true).open(&path)?;
                return Ok(Self { to: Box::new(to), becomes: None });
            }
            _ => {}
        }
        let Some(name) = path.file_name() else {
            return Err(io::ErrorKind::IsADirectory.into());
        };
        let mut part = name.to_owned();
        part.push(format!(".{}.part", std::process::id()));
        let part = path.with_file_name(part);
        let to = File::create_new(&part)?;
        Ok(Self { to: Box::new(to), becomes: Some((part, path)) })
    }

    /// # Errors
    /// No room, or nobody who reads.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.to.write_all(bytes)
    }

    /// Everything is written.
    ///
    /// # Errors
    /// What the system reports; then there is no file.
    pub(crate) fn end(mut self) -> io::Result<()> {
        self.to.flush()?;
        let Some((part, path)) = self.becomes.take() else { return Ok(()) };
        fs::rename(&part, path).inspect_err(|_| drop(fs::remove_file(&part)))
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        if let Some((part, _)) = self.becomes.take() {
            drop(fs::remove_file(part));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_is_whole_or_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("walden.part"), "precious").unwrap();
        let mut whole = Whole::create(&at("walden")).unwrap();
        whole.write(b"ha").unwrap();
        assert!(!at("walden").exists());
        drop(whole);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "something is left");
        let mut whole = Whole::create(&at("walden")).unwrap();
        whole.write(b"ha").unwrap();
        whole.write(b"lf").unwrap();
        whole.end().unwrap();
        assert_eq!(fs::read(at("walden")).unwrap(), b"half");
        symlink("walden", at("link")).unwrap();
        Whole::create(&at("link")).unwrap().end().unwrap();
        assert_eq!(fs::read(at("walden")).unwrap(), b"");
        assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
        assert_eq!(fs::read(at("walden.part")).unwrap(), b"precious");
    }

    #[test]
    fn what_is_no_file_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let refused = Whole::create(folder.path()).err().map(|error| error.kind());
        assert_eq!(refused, Some(io::ErrorKind::IsADirectory));
        let mut null = Whole::create(Path::new("/dev/null")).unwrap();
        null.write(b"gone").unwrap();
        null.end().unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
