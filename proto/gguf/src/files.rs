//! Which files a model's path means.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// What lies at a model's path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelFiles {
    /// A folder with a `.safetensors` file or a `pytorch_model.bin`, or without a GGUF file.
    Folder,
    /// A GGUF file, or all parts of one in their order: those that `llama-gguf-split` names
    /// `NAME-00001-of-00003.gguf`. Any of them means all, and so does a folder of them.
    Gguf(Vec<PathBuf>),
}

/// A path that means no model.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// What lies there could not be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Several files, or a part alone.
    #[error("{}: {what}", path.display())]
    Unclear {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
}

impl ModelFiles {
    /// Looks at `path`.
    ///
    /// # Errors
    /// Nothing is there, a part is missing, or the folder holds several models.
    pub fn find(path: &Path) -> Result<Self, FilesError> {
        let read = |source| FilesError::Read { path: path.to_owned(), source };
        if !fs::metadata(path).map_err(read)?.is_dir() {
            return Ok(Self::Gguf(parts(path)?));
        }
        let mut found = Vec::new();
        for entry in fs::read_dir(path).map_err(read)? {
            let file = entry.map_err(read)?.path();
            let is = |kind: &str| file.extension().is_some_and(|extension| extension == kind);
            // A config.json alone may lie beside .gguf files.
            if is("safetensors") || is_torch(&file) {
                return Ok(Self::Folder);
            }
            if is("gguf") {
                found.push(file);
            }
        }
        found.sort();
        let Some(first) = found.first() else { return Ok(Self::Folder) };
        let parts = parts(first)?;
        if parts == found {
            return Ok(Self::Gguf(parts));
        }
        let what = format!("{} .gguf files: name one of them", found.len());
        Err(FilesError::Unclear { path: path.to_owned(), what })
    }
}

/// Whether it is one of the files in which PyTorch saves a model, of which an index or a number
/// may say that there are several.
fn is_torch(file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_part = |rest: &str| rest.starts_with('-') && rest.ends_with(".bin");
    name == "pytorch_model.bin" || name.strip_prefix("pytorch_model").is_some_and(is_part)
}

/// What the model at `path` is called: its folder, or its file without `.gguf` and without what
/// says which part it is.
pub fn name_of(path: &Path) -> String {
    let name = |path: &Path| Some(path.file_name()?.to_string_lossy().into_owned());
    // `.` and `..` have no name of their own. Others keep theirs, wherever a link leads.
    let name = name(path).or_else(|| name(&path.canonicalize().ok()?));
    let Some(name) = name else { return "model".into() };
    let stem = match stem_and_count(&name) {
        Some((stem, _)) => stem,
        None => name.strip_suffix(".gguf").unwrap_or(&name),
    };
    stem.to_owned()
}

/// All parts of the file that `file` is a part of; most are the only one.
fn parts(file: &Path) -> Result<Vec<PathBuf>, FilesError> {
    let name = file.file_name().and_then(|name| name.to_str());
    let Some((stem, count)) = name.and_then(stem_and_count) else {
        return Ok(vec![file.to_owned()]);
    };
    let part = |number| {
        let path = file.with_file_name(format!("{stem}-{number:05}-of-{count:05}.gguf"));
        if path.is_file() {
            return Ok(path);
        }
        let what = format!("part {number} of {count} is missing");
        Err(FilesError::Unclear { path, what })
    };
    (1..=count).map(part).collect()
}

/// Of a part's name what all parts begin with, and how many they are.
fn stem_and_count(name: &str) -> Option<(&str, u32)> {
    let number = |digits: &str| -> Option<u32> {
        let is_number = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| digits.parse().ok()).flatten()
    };
    let (before, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, part) = before.rsplit_once('-')?;
    let (part, count) = (number(part)?, number(count)?);
    (1..=count).contains(&part).then_some((stem, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at `of` in a folder with these files; what is found by name, or the error.
    fn check(files: &[&str], of: &str, want: Result<&[&str], &str>) {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        files.iter().for_each(|name| fs::write(folder.join(name), "").unwrap());
        let seen = ModelFiles::find(&folder.join(of));
        match (seen, want) {
            (Ok(ModelFiles::Folder), Ok([])) => {}
            (Ok(ModelFiles::Gguf(seen)), Ok(want)) => {
                let want: Vec<_> = want.iter().map(|name| folder.join(name)).collect();
                assert_eq!(seen, want, "{of} of {files:?}");
            }
            (Err(error), Err(want)) => assert!(error.to_string().contains(want), "{error}"),
            (seen, want) => panic!("{of} of {files:?}: {seen:?} where {want:?} is wanted"),
        }
    }

    #[test]
    fn models_are_called_what_their_files_are() {
        let check = |path: &str, want| assert_eq!(name_of(Path::new(path)), want);
        check("/models/Qwen2.5-0.5B-Instruct", "Qwen2.5-0.5B-Instruct");
        check("Qwen2.5-0.5B-Instruct/", "Qwen2.5-0.5B-Instruct");
        check("Llama-3.2-1B.Q4_K_M.gguf", "Llama-3.2-1B.Q4_K_M");
        check("m/Llama-3.3-70B-00002-of-00003.gguf", "Llama-3.3-70B");
        check("src/..", "gguf");
        check("/", "model");
    }

    #[test]
    fn a_path_means_files() {
        let parts = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
        check(&["a.gguf"], "a.gguf", Ok(&["a.gguf"]));
        check(&["a.gguf", "notes"], "", Ok(&["a.gguf"]));
        check(&parts, "", Ok(&parts));
        check(&parts, parts[1], Ok(&parts));
        check(&["b.gguf", parts[0], parts[1]], parts[0], Ok(&parts));
        check(&["a.gguf", "config.json"], "", Ok(&["a.gguf"]));
        check(&["a.gguf", "config.json", "model.safetensors"], "", Ok(&[]));
        check(&["a.gguf", "pytorch_model.bin"], "", Ok(&[]));
        check(&["a.gguf", "pytorch_model-00001-of-00002.bin"], "", Ok(&[]));
        check(&["a.gguf", "imatrix.bin", "pytorch_model.bin.index.json"], "", Ok(&["a.gguf"]));
        check(&[], "", Ok(&[]));
        // Names that only look like those of parts.
        for alone in ["m-00003-of-00002.gguf", "m-1-of-2.gguf", "m-00000-of-00000.gguf"] {
            check(&[alone], "", Ok(&[alone]));
        }
        check(&["a.gguf", "b.gguf"], "", Err("2 .gguf files: name one of them"));
        check(&["b.gguf", parts[0], parts[1]], "", Err("3 .gguf files"));
        check(&parts[1..], "", Err("m-00001-of-00002.gguf: part 1 of 2 is missing"));
        check(&parts[..1], parts[0], Err("m-00002-of-00002.gguf: part 2 of 2 is missing"));
        check(&[], "none", Err("none: No such file"));
    }
}
