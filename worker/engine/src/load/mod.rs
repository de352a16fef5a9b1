//! From files on disk to a [`Model`]: a Hugging Face folder or a GGUF file.
//!
//! Both containers end in the same two things: a [`Decoder`](decoder::Decoder), which says what
//! the model is, and a [`Checkpoint`](checkpoint::Checkpoint), which says where its tensors
//! lie. `assemble` makes the model of them. Every tensor's shape is checked against the
//! configuration before its elements are looked at, every element is checked to be finite.

mod assemble;
mod block_scales;
mod blocks;
mod checkpoint;
mod decoder;
mod encoding;
mod few_bits;
mod fingerprint;
mod folded;
mod gguf;
mod held;
mod hf;
mod names;
mod row_order;
mod side_by_side;
mod stored;

use std::path::Path;
use std::sync::Arc;

use aqueduct_gguf::ModelFiles;
use aqueduct_kernels::{Backend, KvDtype};

pub use self::held::WeightDtype;
use crate::error::LoadError;
use crate::model::Model;

/// What a loader needs to know besides the path.
#[derive(Clone)]
pub struct LoadOptions {
    /// How keys and values are stored.
    pub kv: KvDtype,
    /// How weights are kept.
    pub weights: WeightDtype,
    /// What packs the weights and computes with them.
    pub backend: Arc<dyn Backend>,
}

/// How far loading has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoadProgress {
    /// Tensors packed, or skipped because the model has no use for them.
    pub tensors_done: usize,
    /// Tensors in the files.
    pub tensors: usize,
    /// Their bytes in the files.
    pub bytes_done: u64,
    /// Bytes of all tensors in the files.
    pub bytes: u64,
}

impl Model {
    /// Loads the model at `path`: a Hugging Face folder (`config.json` and weights), a
    /// GGUF file, a part of one that is split, or a folder that holds exactly one. `report` is
    /// called after every tensor.
    ///
    /// # Errors
    /// The first thing that is missing, broken or not supported, by file and field.
    pub fn load(
        path: &Path,
        options: &LoadOptions,
        report: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, LoadError> {
        match ModelFiles::find(path)? {
            ModelFiles::Folder => hf::load(path, options, report),
            ModelFiles::Gguf(files) => gguf::load(&files, options, report),
        }
    }
}
