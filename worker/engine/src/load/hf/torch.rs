//! Tensors of a file that `torch.save` wrote.

use std::path::Path;

use aqueduct_torch::{Data, Tensor, TorchError, TorchFile};

use super::shards::encoding;
use crate::error::LoadError;
use crate::load::checkpoint::Stored;

/// Reads what the file lists; all tensors' byte ranges are valid from here on.
pub(super) fn read<'a>(
    path: &'a str,
    file: &'a [u8],
) -> Result<Vec<(String, Stored<'a>)>, LoadError> {
    let file = TorchFile::parse(file).map_err(|err| match err {
        TorchError::Tensor { name, what } => LoadError::tensor(path, &name, what),
        err => LoadError::malformed(Path::new(path), err.to_string()),
    })?;
    Ok(file.tensors().map(|tensor| (tensor.name.to_owned(), stored(path, tensor))).collect())
}

fn stored<'a>(path: &'a str, tensor: &Tensor<'a>) -> Stored<'a> {
    let dtype = tensor.dtype.name;
    match &tensor.data {
        Data::InOrder(bytes) => Stored::new(path, &tensor.shape, (dtype, encoding(dtype)), bytes),
        // Of a type that is not read: who has no use for it loads the model, who has is told.
        Data::Strided(strides) => {
            let dtype = format!("{dtype} of strides {strides:?} in {}", tensor.name);
            Stored::new(path, &tensor.shape, (&dtype, None), &[])
        }
    }
}
