//! Tensors of a folder: `model.safetensors`, or the shards that an index names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use aqueduct_kernels::MappedFile;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::Deserialize;

use super::read_json;
use crate::error::LoadError;
use crate::load::checkpoint::{Checkpoint, Stored};
use crate::load::encoding::Encoding;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// How files begin that stand for others in a checkout of Git LFS.
const LFS_POINTER: &[u8] = b"version https://git-lfs";
/// A hundred bytes for each of ten million tensors' names.
const INDEX_BYTES_MAX: u64 = 1 << 30;

#[derive(Deserialize)]
struct Index {
    /// Tensor -> file.
    weight_map: BTreeMap<String, String>,
}

/// The mapped files, and which tensor lies in which when an index says so.
pub(crate) struct Shards {
    folder: String,
    files: Vec<(String, MappedFile)>,
    /// Tensor -> index into `files`.
    placed: Option<BTreeMap<String, usize>>,
}

impl Shards {
    pub(crate) fn open(folder: &Path) -> Result<Self, LoadError> {
        let single = folder.join(SINGLE);
        let index = folder.join(INDEX);
        let mut shards =
            Self { folder: folder.display().to_string(), files: Vec::new(), placed: None };
        if single.is_file() {
            shards.map(single)?;
        } else if index.is_file() {
            shards.open_indexed(folder, &index)?;
        } else {
            for path in all_shards(folder)? {
                shards.map(path)?;
            }
        }
        Ok(shards)
    }

    fn open_indexed(&mut self, folder: &Path, index: &Path) -> Result<(), LoadError> {
        let Index { weight_map } = read_json(index, INDEX_BYTES_MAX)?;
        let names: BTreeSet<&String> = weight_map.values().collect();
        for name in &names {
            self.map(beside(folder, index, name)?)?;
        }
        let order: BTreeMap<&String, usize> = names.into_iter().zip(0..).collect();
        let placed = weight_map.iter().map(|(tensor, file)| (tensor.clone(), order[file]));
        self.placed = Some(placed.collect());
        Ok(())
    }

    fn map(&mut self, path: PathBuf) -> Result<(), LoadError> {
        let file = MappedFile::open(&path).map_err(|err| LoadError::io(&path, err))?;
        self.files.push((path.display().to_string(), file));
        Ok(())
    }

    /// Reads every file's header; all tensors' byte ranges are valid from here on.
    pub(crate) fn checkpoint(&self) -> Result<Checkpoint<'_>, LoadError> {
        let mut tensors = BTreeMap::new();
        for (file_idx, (path, file)) in self.files.iter().enumerate() {
            let parsed = SafeTensors::deserialize(file)
                .map_err(|err| LoadError::malformed(Path::new(path), said(file, &err)))?;
            for (name, tensor) in parsed.tensors() {
                let here = |placed: &BTreeMap<_, _>| placed.get(&name) == Some(&file_idx);
                if self.placed.as_ref().is_none_or(here) {
                    let dtype = tensor.dtype();
                    let kind = (&*format!("{dtype:?}"), encoding(dtype));
                    let stored = Stored::new(path, tensor.shape(), kind, tensor.data());
                    tensors.insert(name, stored);
                }
            }
        }
        Ok(Checkpoint { path: self.folder.clone(), tensors })
    }
}

/// What is wrong with a file: most often it was never fetched, or not all of it.
fn said(file: &[u8], err: &SafeTensorError) -> String {
    if file.starts_with(LFS_POINTER) {
        return "a pointer of Git LFS, without the weights: fetch them with `git lfs pull`".into();
    }
    match err {
        SafeTensorError::MetadataIncompleteBuffer => {
            format!("{} bytes, which are fewer or more than its header lists", file.len())
        }
        err => err.to_string(),
    }
}

/// Shards without an index: all of them, by the number that their names end with.
fn all_shards(folder: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let io = |err| LoadError::io(folder, err);
    let entries = std::fs::read_dir(folder).map_err(io)?.collect::<Result<Vec<_>, _>>();
    let names = entries.map_err(io)?.into_iter().filter_map(|it| it.file_name().into_string().ok());
    let names: BTreeSet<String> = names.collect();
    let shards: Vec<(&String, u32)> =
        names.iter().filter_map(|name| Some((name, shards_of(name)?))).collect();
    let missing = |what: String| Err(LoadError::malformed(folder, what));
    match shards.first() {
        Some((_, count)) if shards.len() == *count as usize => {
            Ok(shards.iter().map(|(name, _)| folder.join(name)).collect())
        }
        Some((name, count)) => {
            missing(format!("{} of {count} shards such as {name}, and no {INDEX}", shards.len()))
        }
        None => {
            let pickled = names.iter().find(|name| name.ends_with(".bin") || name.ends_with(".pt"));
            let hint = pickled.map_or_else(String::new, |name| {
                format!("; {name} is not read: save the model as safetensors")
            });
            missing(format!(
                "not a model: looked for {SINGLE} and {INDEX} beside config.json{hint}"
            ))
        }
    }
}

/// Of how many the shard called `name` is one: `model-00001-of-00003.safetensors`.
fn shards_of(name: &str) -> Option<u32> {
    let (number, count) = name.strip_prefix("model-")?.split_once("-of-")?;
    number.parse::<u32>().ok()?;
    count.strip_suffix(".safetensors")?.parse().ok()
}

/// An index may only name files that lie beside it.
fn beside(folder: &Path, index: &Path, name: &str) -> Result<PathBuf, LoadError> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(_)), None) => Ok(folder.join(name)),
        _ => {
            let what = format!("weight_map names {name:?}: must be a file beside the index");
            Err(LoadError::malformed(index, what))
        }
    }
}

fn encoding(dtype: Dtype) -> Option<Encoding> {
    match dtype {
        Dtype::F32 => Some(Encoding::F32),
        Dtype::F16 => Some(Encoding::F16),
        Dtype::BF16 => Some(Encoding::Bf16),
        Dtype::F8_E4M3 => Some(Encoding::F8E4M3),
        Dtype::F8_E8M0 => Some(Encoding::F8E8M0),
        Dtype::I8 => Some(Encoding::Int),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::TensorView;

    use super::*;

    fn shard(folder: &Path, name: &str, tensor: &str) {
        let data = 1.5_f32.to_le_bytes();
        let view = TensorView::new(Dtype::F32, vec![1], &data).unwrap();
        safetensors::serialize_to_file([(tensor, view)], None, &folder.join(name)).unwrap();
    }

    fn tensors(folder: &Path) -> Result<Vec<String>, String> {
        let said = |error: LoadError| error.to_string();
        let shards = Shards::open(folder).map_err(said)?;
        Ok(shards.checkpoint().map_err(said)?.tensors.into_keys().collect())
    }

    #[test]
    fn shards_need_no_index_if_all_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let check = |want: Result<&[&str], &str>| match (tensors(folder.path()), want) {
            (Ok(seen), Ok(want)) => assert_eq!(seen, want),
            (Err(seen), Err(want)) => assert!(seen.contains(want), "{seen}"),
            (seen, want) => panic!("{seen:?}, {want:?}"),
        };
        check(Err("not a model: looked for model.safetensors"));
        std::fs::write(folder.path().join("pytorch_model.bin"), "x").unwrap();
        check(Err("; pytorch_model.bin is not read: save the model as safetensors"));
        shard(folder.path(), "model-00002-of-00002.safetensors", "b");
        shard(folder.path(), "consolidated.safetensors", "c");
        check(Err("1 of 2 shards such as model-00002-of-00002.safetensors, and no "));
        shard(folder.path(), "model-00001-of-00002.safetensors", "a");
        check(Ok(&["a", "b"]));
    }

    #[test]
    fn files_that_were_not_fetched_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(SINGLE);
        let check = |bytes: &[u8], want: &str| {
            std::fs::write(&path, bytes).unwrap();
            let seen = tensors(folder.path()).unwrap_err();
            assert!(seen.contains(want), "{seen}");
        };
        check(b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "git lfs pull");
        shard(folder.path(), SINGLE, "a");
        let whole = std::fs::read(&path).unwrap();
        let cut = &whole[..whole.len() - 1];
        check(cut, &format!("{} bytes, which are fewer or more than its header lists", cut.len()));
    }
}
