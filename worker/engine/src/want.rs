//! Which rows of a block are computed: those that a caller has a use for, and what these need.

use aqueduct_kernels::{Op, Rows};

use crate::error::EngineError;
use crate::prefill::Step;

/// Where nothing but the last token's hidden state is wanted, so many of the block's last rows
/// attend in the last layer if every key is kept, and in all that keep none: enough that a backend
/// computes them as it computes many, so that the bits are those which they have among all.
const LAST_ROWS: usize = 64;

/// Which hidden states the caller has a use for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// None: the block is prefilled for its memory.
    Memory,
    /// The last token's.
    Last,
    /// Every token's.
    All,
}

impl Want {
    /// Those of the computed ones that are wanted.
    pub(crate) fn of(self, hidden: Rows) -> Result<Rows, EngineError> {
        Ok(match self {
            Self::Memory => hidden.of_last(0)?,
            Self::Last => hidden.of_last(1)?,
            Self::All => hidden,
        })
    }
}

impl Step<'_> {
    /// Of how many of the last hidden states behind layer `idx` anything comes, where the caller
    /// has a use for these of the last layer. All of them are needed up to the last layer that
    /// remembers something, and few from there on.
    pub(crate) fn outputs(&self, idx: usize, want: Want) -> usize {
        match want {
            _ if idx + 1 < self.model.memory_layers() => self.tokens,
            Want::All => self.tokens,
            Want::Memory => 0,
            Want::Last if self.ends_alone() && idx + 1 == self.model.layers() => 1,
            Want::Last => self.last_rows(),
        }
    }

    /// How many of the block's last rows are computed where only the last is wanted.
    pub(crate) fn last_rows(&self) -> usize {
        if self.ends_alone() { self.tokens.min(LAST_ROWS) } else { self.tokens }
    }

    fn ends_alone(&self) -> bool {
        self.model.backend().supports(Op::LastRows)
    }
}
