//! Tensors of a folder: `model.safetensors`, or the shards that an index names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use aqueduct_kernels::MappedFile;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use super::read_json;
use crate::error::LoadError;
use crate::load::checkpoint::{Checkpoint, Stored};
use crate::load::encoding::Encoding;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
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
            let what = format!("not a model: looked for {SINGLE} and {INDEX} beside config.json");
            return Err(LoadError::malformed(folder, what));
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
                .map_err(|err| LoadError::malformed(Path::new(path), err.to_string()))?;
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
