//! Files that `torch.save` writes (`pytorch_model.bin`): a ZIP archive of stored entries, in which
//! a pickle says what the tensors are and each storage lies as it is.
//!
//! Written for files from strangers. A pickle is a program, and Python runs whatever it names; here
//! nothing is run: the machine in `pickle` knows the few instructions and names that tensors are
//! made of and refuses all others. What it makes is bounded, and so are the sizes that it reads.
//! Every tensor's bytes lie in its storage, every storage in the file; they are borrowed from it,
//! so a memory map is parsed without being copied.
//!
//! The archive's directory is read by `rawzip`. The pickle's machine was written here because
//! those that there are come with more than a file needs: `pytorch-reader` with tar and deflate,
//! and it copies storages; candle's with all of candle. It is a crate so that it is fuzzed without
//! the kernels.
#![forbid(unsafe_code)]

mod archive;
mod cursor;
mod dtype;
mod error;
mod globals;
mod pickle;
mod tensor;
pub mod write;

use std::collections::BTreeMap;

use archive::Archive;

pub use dtype::Dtype;
pub use error::TorchError;
pub use tensor::{Data, Tensor};

/// More than any model has in one file.
const TENSORS_MAX: usize = 1 << 18;
/// What PyTorch's own reader takes.
const VERSIONS: std::ops::RangeInclusive<u32> = 1..=10;

/// The tensors of a file, which are borrowed from it.
#[derive(Debug, Clone)]
pub struct TorchFile<'a> {
    tensors: BTreeMap<&'a str, Tensor<'a>>,
}

impl<'a> TorchFile<'a> {
    /// Reads the archive's directory and the pickle; the tensors' bytes are located, not looked at.
    ///
    /// # Errors
    /// The first thing that is wrong, by entry, by byte of the pickle or by tensor.
    pub fn parse(file: &'a [u8]) -> Result<Self, TorchError> {
        if is_legacy(file) {
            return Err(TorchError::Legacy);
        }
        let archive = Archive::read(file)?;
        check_said(&archive)?;
        let mut tensors = BTreeMap::new();
        for rebuilt in pickle::read(archive.entry("data.pkl")?)? {
            let tensor = Tensor::locate(&rebuilt, &archive)?;
            if let Some(twice) = tensors.insert(tensor.name, tensor) {
                return Err(TorchError::tensor(twice.name, "appears twice"));
            }
        }
        Ok(Self { tensors })
    }

    /// The tensor `name`, if the file has it.
    pub fn tensor(&self, name: &str) -> Option<&Tensor<'a>> {
        self.tensors.get(name)
    }

    /// All tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor<'a>> {
        self.tensors.values()
    }
}

/// Before 1.6 `torch.save` wrote a stream of pickles, and long before that a tar archive.
fn is_legacy(file: &[u8]) -> bool {
    matches!(file, [0x80, 2..=5, ..]) || file.get(257..262) == Some(b"ustar")
}

/// What a file says of itself.
fn check_said(archive: &Archive<'_>) -> Result<(), TorchError> {
    // Before 2.1 it did not say so, and had no other.
    if let Ok(order) = archive.entry("byteorder")
        && order != b"little"
    {
        let what = format!("{:?}: must be little", String::from_utf8_lossy(order));
        return Err(archive.refused("byteorder", what));
    }
    let version = String::from_utf8_lossy(archive.entry("version")?);
    match version.trim().parse() {
        Ok(known) if VERSIONS.contains(&known) => Ok(()),
        _ => {
            let what =
                format!("{version:?}: must be from {} to {}", VERSIONS.start(), VERSIONS.end());
            Err(archive.refused("version", what))
        }
    }
}

#[cfg(test)]
mod tests;
