//! The state of the tiles of a thread, and what instructions do to it.

use super::arithmetic;
use super::decode::{Product, TileIndex};

/// Bytes of a row.
pub(super) const ROW: usize = 64;
/// Rows of a tile.
pub(super) const ROWS: usize = 16;

/// Sixteen rows of 64 bytes.
#[derive(Clone)]
#[repr(C, align(64))]
pub(super) struct Tile(pub(super) [[u8; ROW]; ROWS]);

/// Rows and bytes of a row that a tile is configured to have; no rows, no tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) rows: usize,
    pub(super) row_bytes: usize,
}

/// Why the processor would refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault(pub(super) &'static str);

/// The tiles of a thread. What lies outside of a tile's shape is zero.
pub(super) struct Machine {
    is_configured: bool,
    shapes: [Shape; 8],
    tiles: [Tile; 8],
}

impl Machine {
    /// As a thread starts: nothing is configured.
    pub(super) const fn new() -> Self {
        Self {
            is_configured: false,
            shapes: [Shape { rows: 0, row_bytes: 0 }; 8],
            tiles: [const { Tile([[0; ROW]; ROWS]) }; 8],
        }
    }

    /// `ldtilecfg`. A start row other than zero, which only an interrupted instruction leaves,
    /// is refused: nothing here is interrupted.
    pub(super) fn configure(&mut self, config: &[u8; 64]) -> Result<(), Fault> {
        let palette = config[0];
        if palette == 0 {
            self.release();
            return Ok(());
        }
        let reserved = [&config[1..16], &config[32..48], &config[56..]];
        if palette != 1 {
            return Err(Fault("#GP: ldtilecfg: no such palette"));
        }
        if reserved.iter().any(|part| part.iter().any(|&byte| byte != 0)) {
            return Err(Fault("#GP: ldtilecfg: reserved bytes or the start row are not zero"));
        }
        let mut shapes = self.shapes;
        for (i, shape) in shapes.iter_mut().enumerate() {
            let row_bytes = u16::from_le_bytes([config[16 + 2 * i], config[17 + 2 * i]]);
            *shape = Shape { rows: config[48 + i].into(), row_bytes: row_bytes.into() };
            if shape.rows > ROWS || shape.row_bytes > ROW {
                return Err(Fault("#GP: ldtilecfg: more rows or bytes than a tile has"));
            }
            if (shape.rows == 0) != (shape.row_bytes == 0) {
                return Err(Fault("#GP: ldtilecfg: rows without bytes, or bytes without rows"));
            }
        }
        self.release();
        self.is_configured = true;
        self.shapes = shapes;
        Ok(())
    }

    /// `sttilecfg`
    pub(super) fn config(&self) -> [u8; 64] {
        let mut config = [0; 64];
        config[0] = self.is_configured.into();
        for (i, shape) in self.shapes.iter().enumerate() {
            config[16 + 2 * i] = shape.row_bytes as u8;
            config[48 + i] = shape.rows as u8;
        }
        config
    }

    /// `tilerelease`
    pub(super) fn release(&mut self) {
        *self = Self::new();
    }

    /// `tilezero`
    pub(super) fn zero(&mut self, tile: TileIndex) -> Result<(), Fault> {
        self.shape(tile)?;
        self.tiles[tile].0 = [[0; ROW]; ROWS];
        Ok(())
    }

    /// Rows of a tile to be loaded; the others become zero.
    pub(super) fn rows_to_load(
        &mut self,
        tile: TileIndex,
    ) -> Result<impl Iterator<Item = &mut [u8]>, Fault> {
        let shape = self.whole_shape(tile)?;
        self.tiles[tile].0 = [[0; ROW]; ROWS];
        let rows = self.tiles[tile].0[..shape.rows].iter_mut();
        Ok(rows.map(move |row| &mut row[..shape.row_bytes]))
    }

    /// Rows of a tile to be stored.
    pub(super) fn rows_to_store(
        &self,
        tile: TileIndex,
    ) -> Result<impl Iterator<Item = &[u8]>, Fault> {
        let shape = self.whole_shape(tile)?;
        let rows = self.tiles[tile].0[..shape.rows].iter();
        Ok(rows.map(move |row| &row[..shape.row_bytes]))
    }

    /// `tdp*`: sums of `[m, n]` dwords, left of `[m, k]`, right of `[k, n]`.
    pub(super) fn multiply(
        &mut self,
        product: Product,
        tiles: [TileIndex; 3],
    ) -> Result<(), Fault> {
        let [sums, left, right] = tiles;
        if sums == left || sums == right || left == right {
            return Err(Fault("#UD: tdp: the three tiles must differ"));
        }
        let [c, a, b] =
            [self.whole_shape(sums)?, self.whole_shape(left)?, self.whole_shape(right)?];
        if c.rows != a.rows || c.row_bytes != b.row_bytes || a.row_bytes != 4 * b.rows {
            return Err(Fault("#UD: tdp: the shapes of the tiles do not fit each other"));
        }
        let mut result = self.tiles[sums].clone();
        let (left, right) = (&self.tiles[left], &self.tiles[right]);
        for (to, from) in result.0.iter_mut().zip(&left.0).take(c.rows) {
            let right = &right.0[..b.rows];
            // SAFETY: the emulator is only installed where AVX-512F is.
            unsafe {
                match product {
                    Product::Bf16 => arithmetic::bf16_row(to, from, right),
                    Product::Int8 { left_signed, right_signed } => {
                        arithmetic::int8_row(to, from, right, (left_signed, right_signed));
                    }
                }
            }
            to[c.row_bytes..].fill(0);
        }
        self.tiles[sums] = result;
        Ok(())
    }

    fn shape(&self, tile: TileIndex) -> Result<Shape, Fault> {
        match self.shapes[tile] {
            _ if !self.is_configured => Err(Fault("#UD: tiles are not configured")),
            Shape { rows: 0, .. } => Err(Fault("#UD: the tile has no rows")),
            shape => Ok(shape),
        }
    }

    /// The shape of a tile whose rows must be whole dwords.
    fn whole_shape(&self, tile: TileIndex) -> Result<Shape, Fault> {
        match self.shape(tile)? {
            shape if !shape.row_bytes.is_multiple_of(4) => {
                Err(Fault("#UD: the tile's rows are not whole dwords"))
            }
            shape => Ok(shape),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INT8: Product = Product::Int8 { left_signed: true, right_signed: false };

    /// A configuration of the first tiles.
    fn config(shapes: &[(u8, u16)]) -> [u8; 64] {
        let mut config = [0; 64];
        config[0] = 1;
        for (i, &(rows, row_bytes)) in shapes.iter().enumerate() {
            config[16 + 2 * i..][..2].copy_from_slice(&row_bytes.to_le_bytes());
            config[48 + i] = rows;
        }
        config
    }

    fn machine(shapes: &[(u8, u16)]) -> Machine {
        let mut machine = Machine::new();
        machine.configure(&config(shapes)).unwrap();
        machine
    }

    /// Whether products can be computed; where they cannot, nobody installs the emulator.
    fn multiplies() -> bool {
        let multiplies = is_x86_feature_detected!("avx512f");
        if !multiplies {
            println!("skipped: no AVX-512");
        }
        multiplies
    }

    #[test]
    fn configurations_are_read_back() {
        let mut machine = Machine::new();
        assert_eq!(machine.config(), [0; 64]);
        let some = config(&[(16, 64), (1, 4), (0, 0), (7, 3)]);
        machine.configure(&some).unwrap();
        assert_eq!(machine.config(), some);
        machine.configure(&[0; 64]).unwrap();
        assert_eq!(machine.config(), [0; 64]);
        machine.configure(&some).unwrap();
        machine.release();
        assert_eq!(machine.config(), [0; 64]);
    }

    #[test]
    fn bad_configurations_are_refused_and_change_nothing() {
        let good = config(&[(16, 64)]);
        let mut machine = machine(&[(16, 64)]);
        let mut check = |byte: usize, value: u8| {
            let mut bad = good;
            bad[byte] = value;
            assert!(machine.configure(&bad).is_err(), "byte {byte} = {value}");
            assert_eq!(machine.config(), good);
        };
        check(0, 2);
        check(48, 17);
        check(48, 0);
        check(16, 65);
        check(16, 0);
        check(17, 1);
        check(18, 4); // bytes without rows
        check(55, 4); // rows without bytes
        for byte in [1, 2, 15, 32, 47, 56, 63] {
            check(byte, 1);
        }
    }

    #[test]
    fn loads_clear_what_they_do_not_fill() {
        let mut machine = machine(&[(3, 8), (0, 0), (2, 6)]);
        machine.tiles[0] = Tile([[9; ROW]; ROWS]);
        machine.rows_to_load(0).unwrap().for_each(|row| row.fill(7));
        let stored: Vec<_> = machine.rows_to_store(0).unwrap().map(<[u8]>::to_vec).collect();
        assert_eq!(stored, vec![vec![7; 8]; 3]);
        assert_eq!(
            machine.tiles[0].0.as_flattened().iter().map(|&x| u32::from(x)).sum::<u32>(),
            168
        );
        machine.zero(0).unwrap();
        assert!(machine.tiles[0].0.as_flattened().iter().all(|&x| x == 0));
        for absent in [1, 7] {
            assert!(machine.zero(absent).is_err());
            assert!(machine.rows_to_load(absent).is_err());
            assert!(machine.rows_to_store(absent).is_err());
        }
        assert!(machine.zero(2).is_ok());
        assert!(machine.rows_to_load(2).is_err(), "rows of one and a half dwords");
        assert!(Machine::new().zero(0).is_err());
    }

    #[test]
    fn factors_must_fit() {
        if !multiplies() {
            return;
        }
        // [5, 3] is [5, 4 bytes * 2] by [2, 3].
        let fitting = [(5, 12), (5, 8), (2, 12)];
        assert_eq!(machine(&fitting).multiply(INT8, [0, 1, 2]), Ok(()));
        assert_eq!(machine(&fitting).multiply(Product::Bf16, [0, 1, 2]), Ok(()));
        for (tile, shape) in [
            (0, (4, 12)),
            (0, (5, 16)),
            (1, (6, 8)),
            (1, (5, 12)),
            (2, (3, 12)),
            (2, (2, 8)),
            (2, (0, 0)),
        ] {
            let mut shapes = fitting;
            shapes[tile] = shape;
            assert!(machine(&shapes).multiply(INT8, [0, 1, 2]).is_err(), "tile {tile}: {shape:?}");
        }
        let mut square = machine(&[(16, 64); 3]);
        for tiles in [[0, 0, 1], [0, 1, 0], [0, 1, 1]] {
            assert!(square.multiply(INT8, tiles).is_err(), "{tiles:?}");
        }
        assert!(Machine::new().multiply(INT8, [0, 1, 2]).is_err());
    }

    #[test]
    fn nothing_is_written_outside_of_the_sums() {
        if !multiplies() {
            return;
        }
        let mut machine = machine(&[(2, 8), (2, 8), (2, 8)]);
        for tile in 0..3 {
            machine.rows_to_load(tile).unwrap().for_each(|row| row.fill(1));
        }
        machine.multiply(INT8, [0, 1, 2]).unwrap();
        let sum = 0x0101_0101 + 8;
        for (i, row) in machine.tiles[0].0.iter().enumerate() {
            for (j, seen) in row.as_chunks::<4>().0.iter().enumerate() {
                let want = if i < 2 && j < 2 { sum } else { 0 };
                assert_eq!(u32::from_le_bytes(*seen), want, "[{i}, {j}]");
            }
        }
    }
}
