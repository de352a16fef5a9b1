//! Rows that come to lie in a set's cells: the one place that writes them.

use super::Keys;
use crate::backend::BackendError;
use crate::pool::{PAGE_CELLS, Page};
use crate::tensor::KvHeads;

/// A key that comes to lie in another cell.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Move {
    pub(crate) g: usize,
    pub(crate) from: Source,
    pub(crate) to: usize,
}

/// Where it was.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    /// A cell of the set.
    Cell(usize),
    /// Key j of those that are added.
    Own(usize),
}

impl Move {
    /// Own key `j` of KV head `g` comes to cell `to`.
    pub(crate) fn own(g: usize, j: usize, to: usize) -> Self {
        Self { g, from: Source::Own(j), to }
    }
}

impl Keys {
    /// Gives each KV head `cells` cells, or as many as whole pages have, and carries out `moves`,
    /// ascending by KV head and cell; no cell is both left and taken. Positions and table are the
    /// caller's.
    ///
    /// Of shared pages only those that change are copied. What is needed of the pool is taken
    /// before anything is changed.
    ///
    /// # Errors
    /// [`BackendError::Exhausted`].
    pub(crate) fn store(
        &mut self,
        cells: usize,
        moves: &[Move],
        own: &Self,
    ) -> Result<(), BackendError> {
        let Some(pool) = self.pool().cloned() else {
            self.lay(cells, moves, own, &mut Vec::new());
            return Ok(());
        };
        self.k.hold_pages();
        self.v.hold_pages();
        let cells = cells.next_multiple_of(PAGE_CELLS);
        let added = self.kv_heads() * cells.saturating_sub(self.k.tokens) / PAGE_CELLS;
        let shared = shared_pages(&self.k, moves) + shared_pages(&self.v, moves);
        let mut fresh = match 2 * added + shared {
            0 => Vec::new(),
            pages => pool.take(pages)?,
        };
        self.lay(cells, moves, own, &mut fresh);
        Ok(())
    }

    fn lay(&mut self, cells: usize, moves: &[Move], own: &Self, fresh: &mut Vec<Page>) {
        for (heads, own_heads) in [(&mut self.k, &own.k), (&mut self.v, &own.v)] {
            // A row may lie behind the cells that will be left, or come to lie behind those
            // that there were.
            heads.restride(cells.max(heads.tokens), fresh);
            for &Move { g, from, to } in moves {
                let first = g * heads.tokens;
                let from = match from {
                    Source::Cell(cell) => (None, first + cell),
                    Source::Own(j) => (Some(own_heads), own.row(g, j)),
                };
                heads.copy_row(first + to, from, fresh);
            }
            heads.restride(cells, fresh);
        }
    }
}

/// How many shared pages of `heads` change.
fn shared_pages(heads: &KvHeads, moves: &[Move]) -> usize {
    let mut last = None;
    let mut is_another = |page: usize| last.replace(page) != Some(page);
    moves
        .iter()
        .filter(|moved| moved.to < heads.tokens)
        .map(|moved| moved.g * heads.tokens + moved.to)
        .filter(|row| is_another(row / PAGE_CELLS) && heads.is_shared(*row))
        .count()
}
