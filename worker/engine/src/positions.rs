//! Numbers that a token's position adds to its embedding, in models whose queries and keys are not
//! rotated.

use aqueduct_core::{Refusal, TokenId};
use aqueduct_kernels::{Backend, Linear, Rows};

use crate::error::EngineError;
use crate::model::Model;
use crate::prefill::Block;

/// A trained row for each position  (Radford et al. 2019, GPT-2).
pub struct PositionTable {
    /// `[first + positions, width]`.
    pub table: Linear,
    /// The row of position 0.
    pub first: u32,
}

impl PositionTable {
    /// Refuses a table without rows for all positions that the model is said to have.
    pub(crate) fn check(&self, max_positions: u32, width: u32) -> Result<(), Refusal> {
        let most = (self.table.outputs as u64).saturating_sub(self.first.into());
        Refusal::unless_within("max_positions", max_positions.into(), 1, most)?;
        let (seen, want) = (self.table.inputs, width as usize);
        Refusal::unless_within("positions.table.inputs", seen, want, want).map(drop)
    }

    /// `x`, `[tokens, width]`, with the rows of where its tokens stand.
    pub(crate) fn add(
        &self,
        backend: &dyn Backend,
        x: &Rows,
        positions: &[u32],
    ) -> Result<Rows, EngineError> {
        let most = (self.table.outputs as u64).saturating_sub(self.first.into());
        let row = |&position: &u32| -> Result<u32, Refusal> {
            Refusal::unless_within("position", position.into(), 0, most.saturating_sub(1))?;
            Ok(self.first + position)
        };
        let rows = positions.iter().map(row).collect::<Result<Vec<_>, _>>()?;
        let own = backend.embed(&self.table, &rows, 1.0)?;
        // Once in a chunk, so it may be done on the host.
        let (x_numbers, own) = (x.array().host()?, own.array().host()?);
        let sums = x_numbers.iter().zip(own).map(|(embedding, own)| embedding + own).collect();
        Ok(Rows::from_vec(x.rows(), x.cols(), sums))
    }
}

impl Model {
    /// `[tokens, width]`; each token stands at one of `positions`.
    ///
    /// # Errors
    /// A token outside the vocabulary, or a position that the model has no row for.
    pub fn embed(&self, tokens: &[TokenId], positions: &[u32]) -> Result<Rows, EngineError> {
        tokens.iter().enumerate().try_for_each(|(idx, &token)| self.check_token(idx, token))?;
        let parts = &self.parts;
        let x = parts.backend.embed(&parts.embed, tokens, parts.embed_scale)?;
        match &parts.positions {
            Some(table) => table.add(self.backend(), &x, positions),
            None => Ok(x),
        }
    }

    /// The same of a block.
    pub(crate) fn embed_block(&self, block: Block<'_>) -> Result<Rows, EngineError> {
        let end = block.start.saturating_add(block.tokens.len() as u32);
        self.embed(block.tokens, &(block.start..end).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_kernels::{LayerOps, Matrix, MatrixData, Reference};

    use super::*;

    #[test]
    fn each_token_gets_the_row_of_its_position() {
        let rows = (0..5).flat_map(|row| [row as f32, 10.0 * row as f32]).collect();
        let data = MatrixData::F32(rows);
        let table = Reference.pack(Matrix { outputs: 5, inputs: 2, data }, None).unwrap();
        let table = PositionTable { table, first: 2 };
        let x = Rows::from_vec(2, 2, vec![0.5, 0.25, -1.0, 1.0]);
        let sums = table.add(&Reference, &x, &[2, 0]).unwrap();
        assert_eq!(sums.array().host().unwrap(), [4.5, 40.25, 1.0, 21.0]);
        let beyond = table.add(&Reference, &x, &[0, 3]).unwrap_err().to_string();
        assert_eq!(beyond, "position = 3: must be between 0 and 2");
        assert_eq!(table.check(3, 2), Ok(()));
        let check = |max_positions, width, field: &str| {
            assert_eq!(table.check(max_positions, width).unwrap_err().field, field);
        };
        check(4, 2, "max_positions");
        check(0, 2, "max_positions");
        check(3, 4, "positions.table.inputs");
    }
}
