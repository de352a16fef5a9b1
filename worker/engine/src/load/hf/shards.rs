//! Files of a folder that have its tensors: safetensors, or where there are none what `torch.save`
//! writes; one file, or the shards that an index names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use aqueduct_kernels::MappedFile;
use serde::Deserialize;

use super::{read_json, safetensors, torch};
use crate::error::LoadError;
use crate::load::checkpoint::Checkpoint;
use crate::load::encoding::Encoding;

/// How files begin that stand for others in a checkout of Git LFS.
const LFS_POINTER: &[u8] = b"version https://git-lfs";
/// A hundred bytes for each of ten million tensors' names.
const INDEX_BYTES_MAX: u64 = 1 << 30;

#[derive(Deserialize)]
struct Index {
    /// Tensor -> file.
    weight_map: BTreeMap<String, String>,
}

/// What holds tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Container {
    Safetensors,
    Torch,
}

impl Container {
    /// What is looked for first is taken.
    const ALL: [Self; 2] = [Self::Safetensors, Self::Torch];

    /// The file that has all tensors.
    fn single(self) -> &'static str {
        match self {
            Self::Safetensors => "model.safetensors",
            Self::Torch => "pytorch_model.bin",
        }
    }

    fn index(self) -> &'static str {
        match self {
            Self::Safetensors => "model.safetensors.index.json",
            Self::Torch => "pytorch_model.bin.index.json",
        }
    }

    /// Of how many the shard called `name` is one: `model-00001-of-00003.safetensors`.
    fn shards_of(self, name: &str) -> Option<u32> {
        let (stem, extension) = self.single().split_once('.')?;
        let rest = name.strip_prefix(stem)?.strip_prefix('-')?;
        let (number, count) = rest.split_once("-of-")?;
        number.parse::<u32>().ok()?;
        count.strip_suffix(extension)?.strip_suffix('.')?.parse().ok()
    }
}

/// The mapped files, and which tensor lies in which when an index says so.
pub(crate) struct Shards {
    folder: String,
    container: Container,
    files: Vec<(String, MappedFile)>,
    /// Tensor -> index into `files`.
    placed: Option<BTreeMap<String, usize>>,
}

impl Shards {
    pub(crate) fn open(folder: &Path) -> Result<Self, LoadError> {
        let names = names(folder)?;
        for container in Container::ALL {
            let mut shards = Self {
                folder: folder.display().to_string(),
                container,
                files: Vec::new(),
                placed: None,
            };
            if shards.find(folder, &names)? {
                return Ok(shards);
            }
        }
        let [one, other] = Container::ALL;
        let looked = [one.single(), one.index(), other.single(), other.index()].join(", ");
        let pickled = names.iter().find(|name| name.ends_with(".bin") || name.ends_with(".pt"));
        let hint = pickled.map_or_else(String::new, |name| {
            format!("; {name} is not read: save the model as safetensors")
        });
        let what = format!("not a model: looked for {looked} beside config.json{hint}");
        Err(LoadError::malformed(folder, what))
    }

    /// Maps what there is of these files: false if there are none.
    fn find(&mut self, folder: &Path, names: &BTreeSet<String>) -> Result<bool, LoadError> {
        let single = folder.join(self.container.single());
        let index = folder.join(self.container.index());
        if single.is_file() {
            self.map(single)?;
        } else if index.is_file() {
            self.open_indexed(folder, &index)?;
        } else {
            for path in self.all_shards(folder, names)? {
                self.map(path)?;
            }
        }
        Ok(!self.files.is_empty() || self.placed.is_some())
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

    /// Shards without an index: all of them, by the number that their names end with.
    fn all_shards(
        &self,
        folder: &Path,
        names: &BTreeSet<String>,
    ) -> Result<Vec<PathBuf>, LoadError> {
        let shards: Vec<(&String, u32)> =
            names.iter().filter_map(|name| Some((name, self.container.shards_of(name)?))).collect();
        match shards.first() {
            Some((name, count)) if shards.len() != *count as usize => {
                let (seen, index) = (shards.len(), self.container.index());
                let what = format!("{seen} of {count} shards such as {name}, and no {index}");
                Err(LoadError::malformed(folder, what))
            }
            _ => Ok(shards.iter().map(|(name, _)| folder.join(name)).collect()),
        }
    }

    /// Reads what every file lists; all tensors' byte ranges are valid from here on.
    pub(crate) fn checkpoint(&self) -> Result<Checkpoint<'_>, LoadError> {
        let mut tensors = BTreeMap::new();
        for (file_idx, (path, file)) in self.files.iter().enumerate() {
            if file.starts_with(LFS_POINTER) {
                let what =
                    "a pointer of Git LFS, without the weights: fetch them with `git lfs pull`";
                return Err(LoadError::malformed(Path::new(path), what));
            }
            let stored = match self.container {
                Container::Safetensors => safetensors::read(path, file)?,
                Container::Torch => torch::read(path, file)?,
            };
            for (name, tensor) in stored {
                let here = |placed: &BTreeMap<_, _>| placed.get(&name) == Some(&file_idx);
                if self.placed.as_ref().is_none_or(here) {
                    tensors.insert(name, tensor);
                }
            }
        }
        Ok(Checkpoint { path: self.folder.clone(), tensors })
    }
}

/// What lies in a folder.
fn names(folder: &Path) -> Result<BTreeSet<String>, LoadError> {
    let io = |err| LoadError::io(folder, err);
    let entries = std::fs::read_dir(folder).map_err(io)?.collect::<Result<Vec<_>, _>>();
    let names = entries.map_err(io)?.into_iter().filter_map(|it| it.file_name().into_string().ok());
    Ok(names.collect())
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

/// What can be read, by what safetensors calls it.
pub(super) fn encoding(dtype: &str) -> Option<Encoding> {
    match dtype {
        "F32" => Some(Encoding::F32),
        "F16" => Some(Encoding::F16),
        "BF16" => Some(Encoding::Bf16),
        "F8_E4M3" => Some(Encoding::F8E4M3),
        "F8_E8M0" => Some(Encoding::F8E8M0),
        "I8" => Some(Encoding::Int),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use ::safetensors::tensor::TensorView;
    use ::safetensors::{Dtype, serialize_to_file};
    use aqueduct_torch::write::Writer;

    use super::*;

    fn shard(folder: &Path, name: &str, tensor: &str) {
        let data = 1.5_f32.to_le_bytes();
        let view = TensorView::new(Dtype::F32, vec![1], &data).unwrap();
        serialize_to_file([(tensor, view)], None, &folder.join(name)).unwrap();
    }

    fn torch(folder: &Path, name: &str, tensor: &str) {
        let file = Writer::new().tensor(tensor, "FloatStorage", &[1], &1.5_f32.to_le_bytes());
        std::fs::write(folder.join(name), file.finish()).unwrap();
    }

    fn tensors(folder: &Path) -> Result<Vec<String>, String> {
        let said = |error: LoadError| error.to_string();
        let shards = Shards::open(folder).map_err(said)?;
        Ok(shards.checkpoint().map_err(said)?.tensors.into_keys().collect())
    }

    fn check(folder: &Path, want: Result<&[&str], &str>) {
        match (tensors(folder), want) {
            (Ok(seen), Ok(want)) => assert_eq!(seen, want),
            (Err(seen), Err(want)) => assert!(seen.contains(want), "{seen}"),
            (seen, want) => panic!("{seen:?}, {want:?}"),
        }
    }

    #[test]
    fn shards_need_no_index_if_all_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        check(folder, Err("not a model: looked for model.safetensors, model.safetensors.index"));
        std::fs::write(folder.join("model.pt"), "x").unwrap();
        check(folder, Err("; model.pt is not read: save the model as safetensors"));
        shard(folder, "model-00002-of-00002.safetensors", "b");
        shard(folder, "consolidated.safetensors", "c");
        check(folder, Err("1 of 2 shards such as model-00002-of-00002.safetensors, and no "));
        shard(folder, "model-00001-of-00002.safetensors", "a");
        check(folder, Ok(&["a", "b"]));
    }

    /// Of a folder without safetensors, in the order in which they are looked for.
    #[test]
    fn files_of_pytorch_are_read_as_safetensors_are() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        shard(folder, "adapter_model.safetensors", "lora");
        torch(folder, "pytorch_model-00002-of-00002.bin", "b");
        check(folder, Err("1 of 2 shards such as pytorch_model-00002-of-00002.bin, and no "));
        torch(folder, "pytorch_model-00001-of-00002.bin", "a");
        check(folder, Ok(&["a", "b"]));
        let index = folder.join("pytorch_model.bin.index.json");
        let place = |names: &str| std::fs::write(&index, names).unwrap();
        place(r#"{"weight_map":{"b":"pytorch_model-00002-of-00002.bin"}}"#);
        check(folder, Ok(&["b"]));
        place(r#"{"weight_map":{"b":"../b.bin"}}"#);
        check(folder, Err("\"../b.bin\": must be a file beside the index"));
        torch(folder, "pytorch_model.bin", "c");
        check(folder, Ok(&["c"]));
        shard(folder, "model.safetensors", "d");
        check(folder, Ok(&["d"]));
    }

    #[test]
    fn files_that_were_not_fetched_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n";
        let cut = |name: &str, want: &str| {
            let path = folder.join(name);
            let whole = std::fs::read(&path).unwrap();
            let cut = &whole[..whole.len() - 1];
            std::fs::write(&path, cut).unwrap();
            check(folder, Err(&want.replace("{}", &cut.len().to_string())));
            std::fs::write(&path, pointer).unwrap();
            check(folder, Err("git lfs pull"));
        };
        torch(folder, "pytorch_model.bin", "a");
        cut("pytorch_model.bin", "pytorch_model.bin: not a whole ZIP archive: ");
        shard(folder, "model.safetensors", "a");
        cut("model.safetensors", "{} bytes, which are fewer or more than its header lists");
    }
}
