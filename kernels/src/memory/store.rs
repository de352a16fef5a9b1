//! Rows that come to lie in a set's cells: the one place that writes them.

use bytemuck::Pod;

use super::Keys;
use crate::array::Array;
use crate::backend::BackendError;
use crate::cells::{Lain, LainMut};
use crate::pool::{PAGE_CELLS, Page};
use crate::select::Workers;
use crate::tensor::{KvData, KvHeads};

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
        let (cells, sides) = self.sides(cells, moves, own)?;
        sides.into_iter().for_each(|side| side.lay(cells, moves, own));
        Ok(())
    }

    /// [`Self::store`], keys by one worker and values by another.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn store_by(
        &mut self,
        workers: impl Workers,
        cells: usize,
        moves: &[Move],
        own: &Self,
    ) -> Result<(), BackendError> {
        let (cells, sides) = self.sides(cells, moves, own)?;
        workers.map(Vec::from(sides), |side| side.lay(cells, moves, own));
        Ok(())
    }

    /// How many cells there will be, and keys and values, each with the pages that it takes.
    fn sides<'a>(
        &'a mut self,
        cells: usize,
        moves: &[Move],
        own: &'a Self,
    ) -> Result<(usize, [Side<'a>; 2]), BackendError> {
        let (mut cells, mut for_k, mut for_v) = (cells, Vec::new(), Vec::new());
        if let Some(pool) = self.pool().cloned() {
            self.k.hold_pages();
            self.v.hold_pages();
            let of_page = self.k.page_cells();
            cells = cells.next_multiple_of(of_page);
            let added = self.kv_heads() * cells.saturating_sub(self.k.tokens) / of_page;
            let [k, v] = [&self.k, &self.v].map(|heads| added + shared_pages(heads, moves));
            if k + v > 0 {
                for_k = pool.take(k + v)?;
                for_v = for_k.split_off(k);
            }
        }
        let k = Side { heads: &mut self.k, own: &own.k, fresh: for_k };
        let v = Side { heads: &mut self.v, own: &own.v, fresh: for_v };
        Ok((cells, [k, v]))
    }
}

/// The keys of a set, or its values.
struct Side<'a> {
    heads: &'a mut KvHeads,
    /// Those that are added.
    own: &'a KvHeads,
    /// Pages to take.
    fresh: Vec<Page>,
}

impl Side<'_> {
    fn lay(self, cells: usize, moves: &[Move], own: &Keys) {
        let Self { heads, own: own_heads, mut fresh } = self;
        let fresh = &mut fresh;
        // A row may lie behind the cells that will be left, or come to lie behind those
        // that there were.
        heads.restride(cells.max(heads.tokens), fresh);
        let stride = (heads.tokens, heads.head_dim);
        match (&mut heads.data, &own_heads.data) {
            (KvData::F32(to), KvData::F32(from)) => lay(stride, to, (from, own), moves, fresh),
            (KvData::Bf16(to), KvData::Bf16(from)) => lay(stride, to, (from, own), moves, fresh),
            _ => panic!("rows of one dtype do not go into an array of another"),
        }
        heads.restride(cells, fresh);
    }
}

/// Carries `moves` out in `to`, of so many cells for each KV head and so many elements a row; own
/// keys' rows are those of `from`.
fn lay<T: Pod + Send + Sync>(
    (cells, width): (usize, usize),
    to: &mut Array<T>,
    (from, own): (&Array<T>, &Keys),
    mut moves: &[Move],
    fresh: &mut Vec<Page>,
) {
    if moves.is_empty() {
        return; // wherever the rows lie, they stay there
    }
    let (mut cells_of, own_rows) = (LainMut::of(to), Lain::of(from));
    while let [Move { g, from, to }, ..] = *moves {
        let (first, mut count) = (g * cells, 1);
        match from {
            Source::Cell(cell) => {
                let row = cells_of.lain().row(first + cell, width).to_vec();
                cells_of.put(first + to, &row, width, fresh);
            }
            Source::Own(j) => {
                let row = own.row(g, j);
                count = cells_of.lain().reach(first + to, neighbours(moves, own));
                count = own_rows.reach(row, count);
                cells_of.put(first + to, own_rows.rows(row, count, width), width, fresh);
            }
        }
        moves = &moves[count..];
    }
}

/// How many of the first moves take own keys whose rows follow each other to cells that do.
fn neighbours(moves: &[Move], own: &Keys) -> usize {
    let follows = |pair: &&[Move]| match (pair[0], pair[1]) {
        (
            Move { g, from: Source::Own(j), to },
            Move { g: next_g, from: Source::Own(next_j), to: next_to },
        ) => next_g == g && next_to == to + 1 && own.row(g, next_j) == own.row(g, j) + 1,
        _ => false,
    };
    // No run is longer than a page.
    moves.windows(2).take(PAGE_CELLS).take_while(follows).count() + 1
}

/// How many shared pages of `heads` change.
fn shared_pages(heads: &KvHeads, moves: &[Move]) -> usize {
    let mut last = None;
    let mut is_another = |page: usize| last.replace(page) != Some(page);
    moves
        .iter()
        .filter(|moved| moved.to < heads.tokens)
        .map(|moved| moved.g * heads.tokens + moved.to)
        .filter(|row| is_another(row / heads.page_cells()) && heads.is_shared(*row))
        .count()
}
