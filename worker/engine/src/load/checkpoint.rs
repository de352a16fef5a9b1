//! Where a model's tensors lie and how their elements are stored.

use std::collections::BTreeMap;

use aqueduct_kernels::MatrixData;
use half::{bf16, f16};

use super::blocks::{self, widen};
use crate::error::LoadError;

/// How elements are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    F32,
    F16,
    Bf16,
    Q8_0,
    Q4_0,
    Q4K,
    Q6K,
}

/// What can be read.
pub(crate) const ENCODINGS: &str = "F32, F16, BF16; in GGUF Q8_0, Q4_0, Q4_K, Q6_K too";

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
    /// Rows of each head of this many stand in the order that rotates neighbours (llama.cpp's),
    /// not in the half-split order that is used here.
    pub(crate) interleaved: Option<usize>,
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
        if let Some((idx, value)) = first_not_finite(&data) {
            let what = format!("element {idx} is {value}: must be finite");
            return Err(LoadError::tensor(self.path, name, what));
        }
        let row_elements = self.shape.get(1).copied().unwrap_or(1);
        Ok(match (self.interleaved, data) {
            (None, data) => data,
            (Some(head_dim), MatrixData::F32(data)) => {
                MatrixData::F32(half_split(&data, head_dim, row_elements))
            }
            (Some(head_dim), MatrixData::Bf16(data)) => {
                MatrixData::Bf16(half_split(&data, head_dim, row_elements))
            }
        })
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
            Self::Q8_0 => MatrixData::F32(widen(bytes, blocks::q8_0)),
            Self::Q4_0 => MatrixData::F32(widen(bytes, blocks::q4_0)),
            Self::Q4K => MatrixData::F32(widen(bytes, blocks::q4_k)),
            Self::Q6K => MatrixData::F32(widen(bytes, blocks::q6_k)),
        }
    }
}

fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks().0.iter().copied()
}

/// Index and value of the first element that is not a finite number.
fn first_not_finite(data: &MatrixData) -> Option<(usize, f32)> {
    match data {
        MatrixData::F32(data) => first_that(data, |x| !x.is_finite()),
        MatrixData::Bf16(data) => {
            first_that(data, |x| !x.is_finite()).map(|(idx, x)| (idx, x.to_f32()))
        }
    }
}

fn first_that<T: Copy>(data: &[T], bad: impl Fn(T) -> bool) -> Option<(usize, T)> {
    // Without a way out of the loop it is done many elements at a time.
    if !data.iter().fold(false, |any, &x| any | bad(x)) {
        return None;
    }
    data.iter().copied().enumerate().find(|&(_, x)| bad(x))
}

/// Rows 0, 2, 4, ... of each head, then rows 1, 3, 5, ...: undoes what llama.cpp's converter
/// does so that element i is rotated with element i + head_dim / 2 again.
fn half_split<T: Copy>(data: &[T], head_dim: usize, row_elements: usize) -> Vec<T> {
    let mut split = Vec::with_capacity(data.len());
    for head in data.chunks_exact(head_dim * row_elements) {
        for parity in [0, 1] {
            for row in head.chunks_exact(row_elements).skip(parity).step_by(2) {
                split.extend_from_slice(row);
            }
        }
    }
    split
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_heads_become_half_split() {
        // Two heads of four rows of two elements, named head.pair.half.
        let interleaved = [
            "000", "000", "001", "001", "010", "010", "011", "011", //
            "100", "100", "101", "101", "110", "110", "111", "111",
        ];
        let want = [
            "000", "000", "010", "010", "001", "001", "011", "011", //
            "100", "100", "110", "110", "101", "101", "111", "111",
        ];
        assert_eq!(half_split(&interleaved, 4, 2), want);
    }

    #[test]
    fn elements_are_widened_and_checked() {
        let stored = |encoding, bytes| Stored {
            path: "file",
            shape: vec![2],
            dtype: "?".to_owned(),
            encoding,
            interleaved: None,
            bytes,
        };
        let f16 = stored(Some(Encoding::F16), &[0x00, 0x3c, 0x00, 0xc0]);
        let MatrixData::F32(data) = f16.decode("t").unwrap() else { panic!("f16 is widened") };
        assert_eq!(data, [1.0, -2.0]);
        let bf16 = stored(Some(Encoding::Bf16), &[0x80, 0x3f, 0x80, 0x7f]);
        let error = bf16.decode("t").unwrap_err().to_string();
        assert_eq!(error, "file: tensor t: element 1 is inf: must be finite");
        let error = stored(None, &[0; 2]).decode("t").unwrap_err().to_string();
        assert!(error.contains("tensor type `?` is not supported; supported: F32"), "{error}");
    }
}
