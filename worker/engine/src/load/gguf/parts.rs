//! The files of one model.

use std::path::{Path, PathBuf};

use aqueduct_gguf::{Field, Gguf};
use aqueduct_kernels::MappedFile;

use crate::error::LoadError;

/// Mapped files and their names.
pub(super) struct Files(Vec<(String, MappedFile)>);

/// One of them, parsed.
pub(super) struct Part<'a> {
    /// For errors.
    pub(super) path: &'a str,
    /// All metadata is the first part's.
    pub(super) gguf: Gguf<'a>,
}

impl Files {
    pub(super) fn open(paths: &[PathBuf]) -> Result<Self, LoadError> {
        let open = |path: &PathBuf| {
            let file = MappedFile::open(path).map_err(|err| LoadError::io(path, err))?;
            Ok((path.display().to_string(), file))
        };
        paths.iter().map(open).collect::<Result<_, _>>().map(Self)
    }

    /// What they say of themselves must agree with their names.
    pub(super) fn parse(&self) -> Result<Vec<Part<'_>>, LoadError> {
        let named = self.0.iter().enumerate();
        named.map(|(idx, (path, file))| Part::parse(path, file, (idx, self.0.len()))).collect()
    }
}

impl<'a> Part<'a> {
    /// Part `idx` of `count`.
    fn parse(
        path: &'a str,
        file: &'a [u8],
        (idx, count): (usize, usize),
    ) -> Result<Self, LoadError> {
        let malformed = |what: String| LoadError::malformed(Path::new(path), what);
        let gguf = Gguf::parse(file).map_err(|err| malformed(err.to_string()))?;
        let said = |key| {
            let number = gguf.get(key).map(Field::u32).transpose();
            number.map_err(|err| malformed(err.to_string()))
        };
        // What was merged again has 0 of them.
        let parts = said("split.count")?.unwrap_or(1).max(1);
        if usize::try_from(parts) != Ok(count) {
            return Err(malformed(format!(
                "split in {parts}, but the name is that of {count}: parts are named \
                 NAME-00001-of-{parts:05}.gguf"
            )));
        }
        if said("split.no")?.is_some_and(|number| usize::try_from(number) != Ok(idx)) {
            return Err(malformed(format!("split.no is not {idx}, as the name says")));
        }
        Ok(Self { path, gguf })
    }
}
