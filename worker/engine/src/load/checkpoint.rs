//! Where a model's tensors lie and how their elements are stored.

use std::collections::BTreeMap;

use aqueduct_kernels::MatrixData;
use half::{bf16, f16};

use crate::error::LoadError;

/// How elements are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    F32,
    F16,
    Bf16,
}

/// What can be read.
pub(crate) const ENCODINGS: &str = "F32, F16, BF16";

/// A tensor in a file.
#[derive(Debug, Clone)]
pub(crate) struct Stored<'a> {
    /// Of the file, for errors.
    pub(crate) path: &'a str,
    /// Row-major: `[outputs, inputs]` or `[elements]`.
    pub(crate) shape: Vec<usize>,
    /// The file's own name for its element type.
    pub(crate) dtype: String,
    /// `None` for types that are not read here; such a tensor may be ignored, not used.
    pub(crate) encoding: Option<Encoding>,
    /// Exactly as many as shape and type ask for.
    pub(crate) bytes: &'a [u8],
}

/// All tensors of a model, by name.
#[derive(Debug)]
pub(crate) struct Checkpoint<'a> {
    /// The file or folder, for errors about what is missing.
    pub(crate) path: String,
    pub(crate) tensors: BTreeMap<String, Stored<'a>>,
}

impl<'a> Checkpoint<'a> {
    /// The tensor `name`, which must have exactly `shape`.
    pub(crate) fn find(&self, name: &str, shape: &[usize]) -> Result<&Stored<'a>, LoadError> {
        let Some(tensor) = self.tensors.get(name) else {
            let what = format!("missing; the configuration asks for {shape:?}");
            return Err(LoadError::tensor(&self.path, name, what));
        };
        if tensor.shape != shape {
            let what = format!("shape {:?}, the configuration asks for {shape:?}", tensor.shape);
            return Err(LoadError::tensor(tensor.path, name, what));
        }
        Ok(tensor)
    }
}

impl Stored<'_> {
    /// The elements, exactly: bf16 as bf16, everything else as f32.
    pub(crate) fn decode(&self, name: &str) -> Result<MatrixData, LoadError> {
        let Some(encoding) = self.encoding else {
            return Err(LoadError::Unsupported {
                path: self.path.to_owned(),
                what: "tensor type",
                name: self.dtype.clone(),
                supported: ENCODINGS,
            });
        };
        let data = encoding.decode(self.bytes);
        match first_not_finite(&data) {
            None => Ok(data),
            Some((idx, value)) => {
                let what = format!("element {idx} is {value}: must be finite");
                Err(LoadError::tensor(self.path, name, what))
            }
        }
    }
}

impl Encoding {
    fn decode(self, bytes: &[u8]) -> MatrixData {
        match self {
            Self::F32 => MatrixData::F32(words(bytes).map(f32::from_le_bytes).collect()),
            Self::F16 => MatrixData::F32(
                words(bytes).map(|word| f16::from_le_bytes(word).to_f32()).collect(),
            ),
            Self::Bf16 => MatrixData::Bf16(words(bytes).map(bf16::from_le_bytes).collect()),
        }
    }
}

fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks().0.iter().copied()
}

fn first_not_finite(data: &MatrixData) -> Option<(usize, f32)> {
    let (idx, value) = match data {
        MatrixData::F32(data) => {
            let idx = data.iter().position(|x| !x.is_finite())?;
            (idx, data[idx])
        }
        MatrixData::Bf16(data) => {
            let idx = data.iter().position(|x| !x.is_finite())?;
            (idx, data[idx].to_f32())
        }
    };
    Some((idx, value))
}
