//! Rows of the token embedding.

use super::linear::widened;
use crate::backend::BackendError;
use crate::shapes;
use crate::tensor::Rows;
use crate::weights::Linear;

/// See [`crate::LayerOps::embed`].
pub(super) fn embed(table: &Linear, tokens: &[u32]) -> Result<Rows, BackendError> {
    shapes::embedding(table, tokens)?;
    let (width, rows) = (table.inputs, widened("embed", table)?);
    let mut x = Rows::zeros(tokens.len(), width);
    for (i, &token) in tokens.iter().enumerate() {
        let token = token as usize;
        x.row_mut(i).copy_from_slice(&rows[token * width..(token + 1) * width]);
    }
    Ok(x)
}
