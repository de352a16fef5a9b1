//! Products by tiles of bf16 (AMX).
//!
//! Keys and transposed values come in blocks of 32 rows cut into steps of 64 bytes, as `amx`
//! wants its left factors; queries and p in panels of pairs, of which a step is 1 KiB. Dots go
//! straight to where the softmax reads them, o is added to where it lies.

use half::bf16;

use super::dots::pair_queries;
use super::{Products, Work, raise};
use crate::backend::Queries;
use crate::cpu::amx::{Ahead, BLOCK_ROWS, Block, Reads, Square, Tiles};
use crate::cpu::attention::layouts::{PairLanes, STEP};
use crate::cpu::attention::rows::{Lanes, RowTile};
use crate::cpu::attention::stored::Stored;
use crate::cpu::lines::Lines;
use crate::cpu::simd::avx512::{Avx512, Dots, DotsKernel};
use crate::cpu::simd::{LANES, Pair, Simd, Vector};
use crate::tensor::KvDtype;

/// Bytes of a step of a row.
const LINE_BYTES: usize = 64;

pub(super) struct OnTiles<W>(pub(super) W);

impl<W: Work> DotsKernel for OnTiles<W> {
    type Out = W::Out;

    #[inline(always)]
    fn run(self, simd: Avx512, dots: Dots) -> W::Out {
        self.0.run(Tiled {
            simd,
            dots,
            tiles: Tiles::new(BLOCK_ROWS),
            head_dim: 0,
            g: 0,
            at: 0,
            panels: 0,
            q: Vec::new(),
            p: Lines::default(),
        })
    }
}

/// Tiles beside tiles.
struct Tiled {
    simd: Avx512,
    dots: Dots,
    tiles: Tiles,
    /// D.
    head_dim: usize,
    /// KV head.
    g: usize,
    /// Which of the tiles of rows that were taken is multiplied, and its panels.
    at: usize,
    panels: usize,
    /// Per tile of rows: `[panels, D / 32, 16, 16]` pairs; lanes without a row are zero.
    q: Vec<Lines<Pair>>,
    /// `[panels, KEYS / 32, 16, 16]` pairs.
    p: Lines<Pair>,
}

impl Products for Tiled {
    type Simd = Avx512;
    type Rounder = Dots;
    /// o is loaded and stored once for so many.
    const KEYS: usize = 256;
    const IN_PLACE: bool = false;

    #[inline(always)]
    fn simd(&self) -> Avx512 {
        self.simd
    }

    #[inline(always)]
    fn take(&mut self, queries: &Queries<'_>, tiles: &[RowTile], _dtype: KvDtype) {
        (self.head_dim, self.g) = (queries.q.head_dim, tiles[0].g);
        let pairs = self.head_dim.next_multiple_of(STEP) / 2;
        self.q.resize_with(tiles.len(), Lines::default);
        for (rows, q) in tiles.iter().zip(&mut self.q) {
            pair_queries(self.simd, queries, rows, pairs, q);
        }
        self.turn_to(0);
    }

    #[inline(always)]
    fn turn_to(&mut self, idx: usize) {
        let pairs = self.head_dim.next_multiple_of(STEP) / 2;
        (self.at, self.panels) = (idx, self.q[idx].len() / pairs);
        self.p.resize(self.panels * Self::KEYS / 2);
    }

    #[inline(always)]
    fn dots(
        &mut self,
        keys: &Stored<'_>,
        (first, last): (usize, usize),
        out: &mut [Lanes],
        mut tops: Option<&mut [Lanes]>,
    ) {
        let steps = self.head_dim.div_ceil(STEP);
        let left = &keys.tiled_k(self.g)[first * steps..];
        let product = Product {
            left,
            block: BLOCK_ROWS * steps,
            step: BLOCK_ROWS,
            right: &self.q[self.at],
            stride: steps * LANES,
            steps,
            panels: self.panels,
            accumulate: false,
        };
        // A block's dot products are put down while the next one's are computed, and are still near
        // when they are looked at.
        let mut seen = 0;
        for row in (0..last - first).step_by(BLOCK_ROWS) {
            for panel in (0..self.panels).step_by(2) {
                product.block(&mut self.tiles, (row, last - first), panel, out);
            }
            if let Some(tops) = &mut tops {
                raise(self.simd, &out[seen * self.panels..row * self.panels], tops);
                seen = row;
            }
        }
        self.tiles.put_square();
        if let Some(tops) = &mut tops {
            raise(self.simd, &out[seen * self.panels..], tops);
        }
    }

    #[inline(always)]
    fn pairs(&mut self) -> (Dots, &mut [PairLanes]) {
        (self.dots, &mut self.p)
    }

    #[inline(always)]
    fn pair(dots: Dots, [even, odd]: [<Avx512 as Simd>::V; 2], to: &mut PairLanes) {
        dots.pair(even, odd, to);
    }

    #[inline(always)]
    fn values(
        &mut self,
        keys: &Stored<'_>,
        (first, last): (usize, usize),
        _p: &[Lanes],
        fade: Option<&[Lanes]>,
        o: &mut [Lanes],
    ) {
        let (pairs, steps) = ((last - first).div_ceil(2), (last - first).div_ceil(STEP));
        for panel in self.p.chunks_exact_mut(Self::KEYS / 2) {
            panel[pairs..steps * LANES].fill([[bf16::ZERO; 2]; LANES]);
        }
        if let Some(fade) = fade {
            for o in o.chunks_exact_mut(self.panels) {
                for (o, fade) in o.iter_mut().zip(fade) {
                    (self.simd.load(o) * self.simd.load(fade)).store(o);
                }
            }
        }
        let product = Product {
            left: &keys.tiled_v(self.g)[first / STEP * self.head_dim..],
            block: BLOCK_ROWS,
            step: self.head_dim,
            right: &self.p,
            stride: Self::KEYS / 2,
            steps,
            panels: self.panels,
            accumulate: fade.is_some(),
        };
        // The rows' p stays there instead, of which a product reads more.
        for panel in (0..self.panels).step_by(2) {
            for row in (0..self.head_dim).step_by(BLOCK_ROWS) {
                product.block(&mut self.tiles, (row, self.head_dim), panel, o);
            }
        }
        self.tiles.put_square();
    }
}

/// C (`[rows, panels, 16]`) = A B, or C + A B.
struct Product<'a> {
    /// Lines of A: those of a block of rows and a step are neighbours.
    left: &'a [PairLanes],
    /// Lines from a block of rows to the next.
    block: usize,
    /// Lines from a step to the next.
    step: usize,
    /// `[panels, stride, 16]`, of which `16 * steps` are used.
    right: &'a [PairLanes],
    stride: usize,
    steps: usize,
    panels: usize,
    accumulate: bool,
}

impl Product<'_> {
    /// Up to [`BLOCK_ROWS`] rows of `count`, from `row` on, and two panels or the last one. Sums of
    /// a whole block are put down with those of the next, or by the caller.
    #[inline(always)]
    fn block(
        &self,
        tiles: &mut Tiles,
        (row, count): (usize, usize),
        panel: usize,
        c: &mut [Lanes],
    ) {
        let Self { left, block, step, right, stride, steps, panels, accumulate } = *self;
        let (rows, first) = (BLOCK_ROWS.min(count - row), row / BLOCK_ROWS * block);
        assert!(rows > 0 && steps > 0 && panel < panels && c.len() >= (row + rows) * panels);
        assert!((panels - 1) * stride + steps * LANES <= right.len());
        assert!(first + rows + (steps - 1) * step <= left.len());
        let b = right.as_ptr().wrapping_add(panel * stride);
        let next = b.wrapping_add(if panel + 1 < panels { stride } else { 0 });
        if rows == BLOCK_ROWS && panel + 1 < panels {
            let square = Square {
                a: left.as_ptr().wrapping_add(first).cast(),
                a_step: step * LINE_BYTES,
                b: [b, next].map(<*const PairLanes>::cast),
                steps,
                c: c.as_mut_ptr().wrapping_add(row * panels + panel).cast(),
                c_stride: panels * LINE_BYTES,
                accumulate,
                ahead: Ahead::Nothing,
            };
            // SAFETY: as below; whoever calls looks at C when all sums were put down.
            return unsafe { tiles.bf16_square(&square) };
        }
        tiles.put_square();
        tiles.set_rows(rows);
        let block = Block {
            a: left.as_ptr().wrapping_add(first).cast(),
            a_stride: LINE_BYTES,
            a_step: step * LINE_BYTES,
            b: [b, next, b, b].map(<*const PairLanes>::cast),
            panels: 2.min(panels - panel),
            steps,
            reads: Reads::Near,
            c: c.as_mut_ptr().wrapping_add(row * panels + panel).cast(),
            c_stride: panels * LINE_BYTES,
            accumulate,
        };
        // SAFETY: A has the lines of every row and step, B those of every panel, as asserted; C's
        // rows and panels are within `c`, which is borrowed alone.
        unsafe { tiles.bf16(&block) };
    }
}
