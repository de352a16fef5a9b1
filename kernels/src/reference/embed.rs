//! Rows of the token embedding.

use super::linear::read;
use crate::backend::BackendError;
use crate::shapes;
use crate::tensor::Rows;
use crate::weights::Linear;

/// See [`crate::LayerOps::embed`].
pub(super) fn embed(table: &Linear, tokens: &[u32], scale: f32) -> Result<Rows, BackendError> {
    shapes::embedding(table, tokens)?;
    let mut x = Rows::zeros(tokens.len(), table.inputs);
    for (i, &token) in tokens.iter().enumerate() {
        read("embed", table, token as usize, x.row_mut(i))?;
        x.row_mut(i).iter_mut().for_each(|x| *x *= scale);
    }
    Ok(x)
}
