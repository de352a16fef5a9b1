//! Products by dot products of pairs of bf16 (`vdpbf16ps`).

use std::array::from_fn;

use half::bf16;

use super::{Products, Work};
use crate::backend::Queries;
use crate::cpu::attention::layouts::PairLanes;
use crate::cpu::attention::rows::{Lanes, RowTile};
use crate::cpu::attention::stored::Stored;
use crate::cpu::lines::Lines;
use crate::cpu::simd::avx512::{Avx512, Dots, DotsKernel};
use crate::cpu::simd::{LANES, Pair, Simd, Square, Vector, prefetch, store_front_bf16};
use crate::tensor::KvDtype;

pub(super) struct OnDots<W>(pub(super) W);

impl<W: Work> DotsKernel for OnDots<W> {
    type Out = W::Out;

    #[inline(always)]
    fn run(self, simd: Avx512, dots: Dots) -> W::Out {
        self.0.run(Dotted::new(simd, dots))
    }
}

/// Pairs beside pairs.
pub(super) struct Dotted {
    simd: Avx512,
    dots: Dots,
    /// D.
    head_dim: usize,
    /// KV head.
    g: usize,
    /// Which of the tiles of rows that were taken is multiplied, and its panels.
    at: usize,
    panels: usize,
    /// Per tile of rows: `[panels, head_dim / 2, 16]`; lanes without a row are zero.
    q: Vec<Lines<Pair>>,
    /// `[panels, KEYS / 2, 16]`.
    p: Lines<Pair>,
}

impl Dotted {
    fn new(simd: Avx512, dots: Dots) -> Self {
        let p = Lines::default();
        Self { simd, dots, head_dim: 0, g: 0, at: 0, panels: 0, q: Vec::new(), p }
    }
}

impl Products for Dotted {
    type Simd = Avx512;
    type Rounder = Dots;
    const KEYS: usize = 128;
    const IN_PLACE: bool = false;

    #[inline(always)]
    fn simd(&self) -> Avx512 {
        self.simd
    }

    #[inline(always)]
    fn take(&mut self, queries: &Queries<'_>, tiles: &[RowTile], _dtype: KvDtype) {
        (self.head_dim, self.g) = (queries.q.head_dim, tiles[0].g);
        self.q.resize_with(tiles.len(), Lines::default);
        for (rows, q) in tiles.iter().zip(&mut self.q) {
            pair_queries(self.simd, queries, rows, self.head_dim.div_ceil(2), q);
        }
        self.turn_to(0);
    }

    #[inline(always)]
    fn turn_to(&mut self, idx: usize) {
        (self.at, self.panels) = (idx, self.q[idx].len() / self.head_dim.div_ceil(2));
        self.p.resize(self.panels * Self::KEYS / 2);
    }

    #[inline(always)]
    fn dots(
        &mut self,
        keys: &Stored<'_>,
        (first, last): (usize, usize),
        out: &mut [Lanes],
        tops: Option<&mut [Lanes]>,
    ) {
        let (k, width) = keys.padded_k(self.g);
        let pairs = self.head_dim.div_ceil(2);
        let product = Product {
            left: Left { data: &k[first * width..last * width], row: width, step: 2 },
            right: &self.q[self.at],
            stride: pairs,
            pairs,
            panels: self.panels,
            fade: None,
        };
        match tops {
            Some(tops) => product.compute::<true>(self.simd, self.dots, last - first, (out, tops)),
            None => product.compute::<false>(self.simd, self.dots, last - first, (out, &mut [])),
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
        let (pairs, width) = ((last - first).div_ceil(2), 2 * self.head_dim);
        let v = &keys.paired_v(self.g)[first / 2 * width..][..pairs * width];
        let product = Product {
            left: Left { data: v, row: 2, step: width },
            right: &self.p,
            stride: Self::KEYS / 2,
            pairs,
            panels: self.panels,
            fade,
        };
        product.compute::<false>(self.simd, self.dots, self.head_dim, (o, &mut []));
    }
}

/// Queries are asked for so many rows before they are read: they come from far away.
const AHEAD: usize = 6;

/// The rows' queries rounded to bf16, `[panels, pairs, 16]`, zero behind D and in lanes
/// without a row.
#[inline(always)]
pub(super) fn pair_queries(
    simd: Avx512,
    queries: &Queries<'_>,
    rows: &RowTile,
    pairs: usize,
    to: &mut Lines<Pair>,
) {
    to.resize(rows.panels() * pairs);
    let mut rounded = vec![bf16::ZERO; LANES * 2 * pairs];
    for (panel, to) in to.chunks_exact_mut(pairs).enumerate() {
        let count = (rows.len() - panel * LANES).min(LANES);
        for lane in 0..count {
            let row = panel * LANES + lane;
            if row + AHEAD < rows.len() {
                let (head, t) = rows.origin(row + AHEAD);
                let row = queries.q.row(head, t);
                prefetch(row.as_ptr(), size_of_val(row));
            }
            let (head, t) = rows.origin(row);
            let to = &mut rounded[lane * 2 * pairs..];
            for (from, to) in queries.q.row(head, t).chunks(LANES).zip(to.chunks_mut(LANES)) {
                let from_lanes = crate::cpu::simd::load_front(simd, from);
                store_front_bf16(from_lanes, &mut to[..from.len()]);
            }
        }
        let (rows, _) = rounded.as_chunks::<2>();
        for (step, to) in to.chunks_mut(LANES).enumerate() {
            let mut block = [[0.0; LANES]; LANES];
            for (to, row) in block.iter_mut().zip(rows.chunks_exact(pairs)).take(count) {
                for (to, &[even, odd]) in to.iter_mut().zip(&row[step * LANES..]) {
                    *to =
                        f32::from_bits(u32::from(odd.to_bits()) << 16 | u32::from(even.to_bits()));
                }
            }
            simd.transpose(&mut block);
            for (to, from) in to.iter_mut().zip(&block) {
                *to = from.map(|pair| {
                    let bits = pair.to_bits();
                    [bf16::from_bits(bits as u16), bf16::from_bits((bits >> 16) as u16)]
                });
            }
        }
    }
}

/// The left factor, in elements: pair k of row i starts at `i * row + k * step`.
#[derive(Clone, Copy)]
struct Left<'a> {
    data: &'a [bf16],
    row: usize,
    step: usize,
}

/// C (`[rows, panels, 16]`) = C * fade + A B, or A B.
struct Product<'a> {
    left: Left<'a>,
    /// `[panels, stride, 16]`, of which `pairs` are used.
    right: &'a [PairLanes],
    stride: usize,
    pairs: usize,
    panels: usize,
    fade: Option<&'a [Lanes]>,
}

impl Product<'_> {
    /// In register tiles of 6 x 4 or 8 x 2 vectors. With `RAISE` no element of C is above what
    /// stands in `tops` (`[panels, 16]`) then, as [`raise`](super::raise) does it.
    #[inline(always)]
    fn compute<const RAISE: bool>(
        &self,
        simd: Avx512,
        dots: Dots,
        rows: usize,
        (c, tops): (&mut [Lanes], &mut [Lanes]),
    ) {
        assert!(rows > 0 && self.pairs > 0);
        assert!(!RAISE || tops.len() == self.panels);
        let Left { data, row, step } = self.left;
        assert!((rows - 1) * row + (self.pairs - 1) * step + 2 <= data.len());
        assert!((self.panels - 1) * self.stride + self.pairs <= self.right.len());
        assert!(rows * self.panels <= c.len());
        let mut panel = 0;
        while panel < self.panels {
            match self.panels - panel {
                4.. => {
                    self.strip::<6, 4, RAISE>(simd, dots, (rows, panel), (c, tops));
                    panel += 4;
                }
                2.. => {
                    self.strip::<8, 2, RAISE>(simd, dots, (rows, panel), (c, tops));
                    panel += 2;
                }
                _ => {
                    self.strip::<8, 1, RAISE>(simd, dots, (rows, panel), (c, tops));
                    panel += 1;
                }
            }
        }
    }

    #[inline(always)]
    fn strip<const M: usize, const N: usize, const RAISE: bool>(
        &self,
        simd: Avx512,
        dots: Dots,
        (rows, panel): (usize, usize),
        (c, tops): (&mut [Lanes], &mut [Lanes]),
    ) {
        let mut row = 0;
        while row < rows {
            let to = (&mut *c, &mut *tops);
            row += match rows - row {
                // Two rows alone would wait for their sums: two times four, not six and two.
                8 if M == 6 => self.block::<4, N, RAISE>(simd, dots, (row, panel), to),
                left if left >= M => self.block::<M, N, RAISE>(simd, dots, (row, panel), to),
                4.. => self.block::<4, N, RAISE>(simd, dots, (row, panel), to),
                2.. => self.block::<2, N, RAISE>(simd, dots, (row, panel), to),
                _ => self.block::<1, N, RAISE>(simd, dots, (row, panel), to),
            }
        }
    }

    /// One register tile; returns its rows.
    #[inline(always)]
    fn block<const M: usize, const N: usize, const RAISE: bool>(
        &self,
        simd: Avx512,
        dots: Dots,
        (row, panel): (usize, usize),
        (c, tops): (&mut [Lanes], &mut [Lanes]),
    ) -> usize {
        let mut acc = [[simd.splat(0.0); N]; M];
        let to = c.as_mut_ptr();
        let to: [_; M] = from_fn(|i| to.wrapping_add((row + i) * self.panels + panel).cast());
        if let Some(fade) = self.fade {
            let fade: &[Lanes; N] = fade[panel..].first_chunk().expect("N panels");
            for (acc, to) in acc.iter_mut().zip(to) {
                // SAFETY: `compute` has checked that all rows have `panels` panels.
                let to: &[Lanes; N] = unsafe { &*to };
                for (j, acc) in acc.iter_mut().enumerate() {
                    *acc = simd.load(&to[j]) * simd.load(&fade[j]);
                }
            }
        }
        // Addresses of rows and panels stay in registers; one offset moves for each.
        let left = self.left.data.as_ptr();
        let left: [_; M] = from_fn(|i| left.wrapping_add((row + i) * self.left.row));
        let right = self.right.as_ptr();
        let right: [_; N] = from_fn(|j| right.wrapping_add((panel + j) * self.stride));
        let mut offset = 0;
        for k in 0..self.pairs {
            let b = right.map(|right| {
                // SAFETY: `compute` has checked that all panels have `pairs` rows.
                dots.load(unsafe { &*right.wrapping_add(k) })
            });
            for (acc, &left) in acc.iter_mut().zip(&left) {
                // SAFETY: `compute` has checked that all rows have `pairs` pairs; a pair has
                // the alignment of an element.
                let a = dots.splat(unsafe { *left.wrapping_add(offset).cast::<Pair>() });
                for (acc, &b) in acc.iter_mut().zip(&b) {
                    *acc = dots.add(*acc, a, b);
                }
            }
            offset += self.left.step;
        }
        for (acc, to) in acc.iter().zip(to) {
            // SAFETY: as above; `c` is borrowed for writing, and rows do not overlap.
            let to: &mut [Lanes; N] = unsafe { &mut *to };
            for (acc, to) in acc.iter().zip(to) {
                acc.store(to);
            }
        }
        if RAISE {
            for (j, to) in tops[panel..panel + N].iter_mut().enumerate() {
                let mut top = simd.load(to);
                for acc in &acc {
                    top = top.max(acc[j]);
                }
                top.store(to);
            }
        }
        M
    }
}
