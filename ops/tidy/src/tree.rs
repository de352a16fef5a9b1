//! The files of the repository, as git sees them: tracked, or new and not ignored.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::RustFile;
use crate::manifest::Manifest;

/// Generated wire code: nobody writes it, so no budget applies to it.
const GENERATED: &str = "proto/src/generated/";

/// A checkout of the repository.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    /// Paths from the root, ascending.
    pub paths: Vec<String>,
}

impl Tree {
    /// The checkout that this crate was built from.
    pub fn open() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
        let listing = Command::new("git")
            .args(["-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard"])
            .current_dir(&root)
            .output()
            .context("running git ls-files")?;
        ensure!(listing.status.success(), "git ls-files failed in {}", root.display());
        let mut paths: Vec<String> = String::from_utf8(listing.stdout)?
            .split('\0')
            .filter(|path| !path.is_empty() && root.join(path).is_file())
            .map(str::to_owned)
            .collect();
        paths.sort();
        paths.dedup();
        Ok(Self { root, paths })
    }

    /// The text of one file, or `None` if it is not text.
    pub fn text(&self, path: &str) -> Result<Option<String>> {
        let bytes = std::fs::read(self.root.join(path)).with_context(|| path.to_owned())?;
        Ok(String::from_utf8(bytes).ok())
    }

    /// The text of a file that must be there.
    pub fn required_text(&self, path: &str) -> Result<String> {
        self.text(path)?.with_context(|| format!("{path} is not text"))
    }

    /// Every Rust file that a person wrote, parsed.
    pub fn rust_files(&self) -> Result<Vec<RustFile>> {
        self.paths
            .iter()
            .filter(|path| path.ends_with(".rs") && !path.starts_with(GENERATED))
            .map(|path| RustFile::parse(path, &self.required_text(path)?))
            .collect()
    }

    /// Every crate manifest of the workspace.
    pub fn manifests(&self) -> Result<Vec<Manifest>> {
        self.paths
            .iter()
            .filter(|path| path.ends_with("/Cargo.toml") && !path.starts_with("ops/fuzz/"))
            .map(|path| Manifest::parse(path, &self.required_text(path)?))
            .collect()
    }
}
