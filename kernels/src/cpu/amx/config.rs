//! The shapes of tiles, and who holds them.

use std::arch::asm;
use std::cell::Cell;
use std::marker::PhantomData;

/// Rows of a whole tile.
pub(in crate::cpu) const TILE_ROWS: usize = 16;
/// Bytes of a whole tile's row.
pub(super) const TILE_BYTES: usize = 64;

/// What `ldtilecfg` reads: the shapes of all tiles, palette 1.
#[derive(Clone)]
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 8],
    reserved_too: [u8; 16],
    rows: [u8; 8],
    reserved_as_well: [u8; 8],
}

const _: () = assert!(size_of::<TileConfig>() == 64);

impl TileConfig {
    /// Whole rows in every tile; a tile of no rows does not exist.
    ///
    /// # Panics
    /// More rows than a tile has.
    fn new(rows: [usize; 8]) -> Self {
        assert!(
            rows.iter().all(|&rows| rows <= TILE_ROWS),
            "{rows:?}: a tile has {TILE_ROWS} rows"
        );
        Self {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: rows.map(|rows| if rows == 0 { 0 } else { TILE_BYTES as u16 }),
            reserved_too: [0; 16],
            rows: rows.map(|rows| rows as u8),
            reserved_as_well: [0; 8],
        }
    }

    /// Tiles for a block of 32 rows by two panels; [`super::squares`] names them.
    fn of_square() -> Self {
        let all = TILE_ROWS;
        Self::new([all, all, all, all, all, all, all, 0])
    }

    /// Tiles for a block of `rows`; [`super::blocks`] names them.
    fn of_block(rows: usize) -> Self {
        match rows {
            1..=TILE_ROWS => Self::new([rows, rows, rows, TILE_ROWS, 0, 0, 0, 0]),
            _ => {
                let (all, rest) = (TILE_ROWS, rows - TILE_ROWS);
                Self::new([all, all, all, all, rest, rest, rest, 0])
            }
        }
    }
}

thread_local! {
    static IN_USE: Cell<bool> = const { Cell::new(false) };
}

/// The tiles of this thread, shaped for blocks of so many rows; released when dropped.
pub(in crate::cpu) struct Tiles {
    /// 0 for those of [`super::squares`].
    rows: usize,
    /// Where the sums that are still in tiles belong, and bytes from a row of them to the next.
    pub(super) waiting: Option<(*mut f32, usize)>,
    /// Tiles belong to a thread.
    not_send: PhantomData<*mut ()>,
}

impl Tiles {
    /// Takes this thread's tiles for blocks of `rows`, 1 to 32.
    ///
    /// # Panics
    /// This process may not use tiles; this thread's are in use; `rows` is out of range.
    pub(in crate::cpu) fn new(rows: usize) -> Self {
        assert!(super::is_enabled(), "no permission to use tiles");
        assert!(!IN_USE.replace(true), "this thread's tiles are in use");
        let mut tiles = Self { rows: usize::MAX, waiting: None, not_send: PhantomData };
        tiles.set_rows(rows);
        tiles
    }

    /// Reshapes for blocks of `rows`, 1 to 32. Nothing happens if they have that shape; a
    /// change costs some ten cycles.
    ///
    /// # Panics
    /// `rows` is out of range.
    pub(in crate::cpu) fn set_rows(&mut self, rows: usize) {
        assert!((1..=2 * TILE_ROWS).contains(&rows), "rows = {rows}: must be 1 to 32");
        if self.rows == rows {
            return;
        }
        self.shape(rows, TileConfig::of_block(rows));
    }

    fn shape(&mut self, rows: usize, config: TileConfig) {
        assert!(self.waiting.is_none(), "sums in tiles that change their shape");
        // SAFETY: the process may use tiles, or `new` would have panicked; the configuration
        // is 64 bytes that palette 1 allows; no other code keeps anything in this thread's
        // tiles, since `IN_USE` lets one `Tiles` exist at a time.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const config,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, preserves_flags));
        }
        self.rows = rows;
    }

    /// Shapes tiles for a block of 32 rows by two panels, if they are not. Returns where the sums
    /// in them belong.
    #[inline(always)]
    pub(super) fn begin_square(&mut self) -> Option<(*mut f32, usize)> {
        if self.rows != 0 {
            self.shape(0, TileConfig::of_square());
        }
        self.waiting.take()
    }

    /// Rows of a block.
    pub(in crate::cpu) fn rows(&self) -> usize {
        self.rows
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: the process may use tiles, or `new` would have panicked; nobody else of
        // this thread has anything in them.
        unsafe {
            asm!("tilerelease",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nomem, nostack, preserves_flags));
        }
        IN_USE.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_its_tiles_once() {
        if !super::super::is_enabled() {
            return println!("skipped: no AMX and no emulator");
        }
        let mut tiles = Tiles::new(7);
        assert!(std::panic::catch_unwind(|| Tiles::new(7)).is_err());
        let none = std::thread::spawn(|| drop(Tiles::new(0))).join();
        assert!(none.is_err(), "no rows");
        tiles.set_rows(32);
        assert_eq!(tiles.rows(), 32);
        std::thread::spawn(|| drop(Tiles::new(1))).join().unwrap();
        drop(tiles);
        drop(Tiles::new(20));
    }

    #[test]
    fn blocks_have_one_to_32_rows() {
        for rows in [0, 33] {
            assert!(std::panic::catch_unwind(|| Tiles::new(rows)).is_err());
        }
    }
}
