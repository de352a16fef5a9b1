//! The GGUF container, versions 2 and 3: header, metadata and tensor index, validated; and which
//! files a model's path means.
//!
//! Written for files from strangers. Every count and length is checked against what is left of
//! the file before anything is allocated on its word; names are unique; every tensor's byte
//! range lies in the file; errors name the offset or the key. Text and tensors are borrowed
//! from the file, so a memory map is parsed without being copied.
//!
//! Written here because what there is was made for files one trusts: `gguf-rs` and the reader
//! inside candle read from a stream, so they allocate on a file's own counts, and neither
//! checks that a tensor's bytes are in the file.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.
#![forbid(unsafe_code)]

mod cursor;
mod error;
mod field;
mod files;
mod tensor;
mod value;
pub mod write;

use std::collections::BTreeMap;

use cursor::Cursor;
use tensor::Entry;

pub use error::GgufError;
pub use field::Field;
pub use files::{FilesError, ModelFiles, name_of};
pub use tensor::{TENSOR_TYPES, Tensor, TensorType};
pub use value::{Array, Scalar, ScalarType, Value};

const ALIGNMENT_DEFAULT: u64 = 32;
const ALIGNMENT_MAX: u64 = 1 << 20;
/// Key length, value type and one byte of value.
const METADATA_BYTES_MIN: u64 = 13;
/// Name length, dimension count, type and offset.
const TENSOR_BYTES_MIN: u64 = 24;

/// A parsed file; text and tensors are borrowed from it.
#[derive(Debug, Clone)]
pub struct Gguf<'a> {
    metadata: BTreeMap<&'a str, Value<'a>>,
    tensors: BTreeMap<&'a str, Tensor<'a>>,
}

impl<'a> Gguf<'a> {
    /// Reads the whole index; tensor bytes are located, not looked at.
    ///
    /// # Errors
    /// The first thing that is wrong, by offset.
    pub fn parse(file: &'a [u8]) -> Result<Self, GgufError> {
        let (mut gguf, cursor, tensor_count) = Self::parse_head(file)?;
        gguf.read_tensors(file, cursor, tensor_count)?;
        Ok(gguf)
    }

    /// Reads the metadata alone, from the first bytes of a file; there will be no tensors.
    ///
    /// # Errors
    /// The first thing that is wrong; [`GgufError::Truncated`] when more bytes are needed.
    pub fn parse_metadata(prefix: &'a [u8]) -> Result<Self, GgufError> {
        Self::parse_head(prefix).map(|(gguf, ..)| gguf)
    }

    fn parse_head(file: &'a [u8]) -> Result<(Self, Cursor<'a>, u64), GgufError> {
        let mut cursor = Cursor::new(file);
        if file.get(..4) != Some(b"GGUF".as_slice()) {
            return Err(GgufError::Magic);
        }
        cursor.take(4, "magic")?;
        let version = cursor.u32("version")?;
        if !matches!(version, 2 | 3) {
            return Err(GgufError::Version { version });
        }
        let tensor_count = cursor.count(TENSOR_BYTES_MIN, "tensor count")?;
        let metadata_count = cursor.count(METADATA_BYTES_MIN, "metadata count")?;
        let metadata = read_metadata(&mut cursor, metadata_count)?;
        Ok((Self { metadata, tensors: BTreeMap::new() }, cursor, tensor_count))
    }

    /// The entry `key`, if the file has it.
    pub fn get(&self, key: &str) -> Option<Field<'_, 'a>> {
        self.metadata.get_key_value(key).map(|(key, value)| Field { key, value })
    }

    /// The entry `key`, which must be there: `gguf.field("llama.block_count")?.u32()?`.
    ///
    /// # Errors
    /// [`GgufError::Missing`].
    pub fn field(&self, key: &str) -> Result<Field<'_, 'a>, GgufError> {
        self.get(key).ok_or_else(|| GgufError::Missing { key: key.to_owned() })
    }

    /// All metadata, by key.
    pub fn fields(&self) -> impl Iterator<Item = Field<'_, 'a>> {
        self.metadata.iter().map(|(key, value)| Field { key, value })
    }

    /// The tensor `name`, if the file has it.
    pub fn tensor(&self, name: &str) -> Option<&Tensor<'a>> {
        self.tensors.get(name)
    }

    /// All tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor<'a>> {
        self.tensors.values()
    }

    fn read_tensors(
        &mut self,
        file: &'a [u8],
        mut cursor: Cursor<'a>,
        count: u64,
    ) -> Result<(), GgufError> {
        let entries =
            (0..count).map(|_| Entry::read(&mut cursor)).collect::<Result<Vec<_>, _>>()?;
        let alignment = self.alignment()?;
        let data_start = cursor.offset().next_multiple_of(alignment).min(file.len() as u64);
        tensor::refuse_overlaps(&entries)?;
        for entry in entries {
            let tensor = entry.locate(&file[data_start as usize..], alignment)?;
            if let Some(twice) = self.tensors.insert(tensor.name, tensor) {
                let what = format!("tensor {} appears twice", twice.name);
                return Err(GgufError::Malformed { offset: cursor.offset(), what });
            }
        }
        Ok(())
    }

    fn alignment(&self) -> Result<u64, GgufError> {
        let Some(field) = self.get("general.alignment") else {
            return Ok(ALIGNMENT_DEFAULT);
        };
        let alignment = field.u64()?;
        if alignment.is_power_of_two() && alignment <= ALIGNMENT_MAX {
            return Ok(alignment);
        }
        let (key, seen) = (field.key.to_owned(), alignment.to_string());
        Err(GgufError::Type { key, seen, want: "a power of two of at most 2^20" })
    }
}

fn read_metadata<'a>(
    cursor: &mut Cursor<'a>,
    count: u64,
) -> Result<BTreeMap<&'a str, Value<'a>>, GgufError> {
    let mut metadata = BTreeMap::new();
    for _ in 0..count {
        let offset = cursor.offset();
        let key = cursor.name("metadata key")?;
        if metadata.insert(key, Value::read(cursor, key)?).is_some() {
            let what = format!("metadata key {key} appears twice");
            return Err(GgufError::Malformed { offset, what });
        }
    }
    Ok(metadata)
}
