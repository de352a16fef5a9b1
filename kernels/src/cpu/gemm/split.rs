//! The result of a product, cut into tiles that tasks own.

/// A part of a `[rows, columns]` array.
pub(super) struct Tile<'y> {
    /// Its first row.
    pub(super) row: usize,
    /// Its first column.
    pub(super) column: usize,
    /// How many columns it has.
    pub(super) columns: usize,
    /// `[columns]` of each of its rows.
    pub(super) rows: Vec<&'y mut [f32]>,
}

/// Cuts `data`, rows of `width`, into tiles of at most `block` rows and columns.
pub(super) fn split(data: &mut [f32], width: usize, block: (usize, usize)) -> Vec<Tile<'_>> {
    let mut tiles: Vec<Tile<'_>> = Vec::new();
    for (i, row) in data.chunks_exact_mut(width.max(1)).enumerate() {
        let per_row = width.div_ceil(block.1);
        if i.is_multiple_of(block.0) {
            tiles.extend((0..per_row).map(|j| {
                let column = j * block.1;
                let columns = block.1.min(width - column);
                Tile { row: i, column, columns, rows: Vec::with_capacity(block.0) }
            }));
        }
        let here = tiles.len() - per_row;
        for (tile, part) in tiles[here..].iter_mut().zip(row.chunks_mut(block.1)) {
            tile.rows.push(part);
        }
    }
    tiles
}
