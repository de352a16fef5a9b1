//! Tensors of a safetensors file.

use std::path::Path;

use safetensors::{SafeTensorError, SafeTensors};

use super::shards::encoding;
use crate::error::LoadError;
use crate::load::checkpoint::Stored;

/// Reads the header; all tensors' byte ranges are valid from here on.
pub(super) fn read<'a>(
    path: &'a str,
    file: &'a [u8],
) -> Result<Vec<(String, Stored<'a>)>, LoadError> {
    let parsed = SafeTensors::deserialize(file)
        .map_err(|err| LoadError::malformed(Path::new(path), said(file, &err)))?;
    let stored = parsed.tensors().into_iter().map(|(name, tensor)| {
        let dtype = format!("{:?}", tensor.dtype());
        let kind = (&*dtype, encoding(&dtype));
        (name, Stored::new(path, tensor.shape(), kind, tensor.data()))
    });
    Ok(stored.collect())
}

/// What is wrong with a file: most often it was not fetched to its end.
fn said(file: &[u8], err: &SafeTensorError) -> String {
    match err {
        SafeTensorError::MetadataIncompleteBuffer => {
            format!("{} bytes, which are fewer or more than its header lists", file.len())
        }
        err => err.to_string(),
    }
}
