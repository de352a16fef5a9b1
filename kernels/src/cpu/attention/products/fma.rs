//! Products by multiply-adds of f32.

use half::bf16;

use super::{Products, raise};
use crate::backend::Queries;
use crate::cpu::attention::layouts::PairLanes;
use crate::cpu::attention::rows::{Lanes, RowTile};
use crate::cpu::attention::stored::{Stored, Widener};
use crate::cpu::lines::Lines;
use crate::cpu::simd::{LANES, Simd, Vector};
use crate::cpu::tile::{Block, ByColumn, ByRow, Panels, SideBySide, multiply, sweep};
use crate::tensor::KvDtype;

/// f32 beside f32, on any vectors.
pub(super) struct Fma<S> {
    simd: S,
    /// D.
    head_dim: usize,
    /// KV head.
    g: usize,
    /// Which of the tiles of rows that were taken is multiplied, and its panels.
    at: usize,
    panels: usize,
    /// Per tile of rows: `[panels, head_dim, 16]`; lanes without a row are zero.
    q: Vec<Lines<f32>>,
    wide: Widener,
}

impl<S> Fma<S> {
    pub(super) fn new(simd: S) -> Self {
        let (q, wide) = (Vec::new(), Widener::default());
        Self { simd, head_dim: 0, g: 0, at: 0, panels: 0, q, wide }
    }
}

impl<S: Simd> Products for Fma<S> {
    type Simd = S;
    type Rounder = ();
    const KEYS: usize = 64;
    const IN_PLACE: bool = true;

    #[inline(always)]
    fn simd(&self) -> S {
        self.simd
    }

    #[inline(always)]
    fn take(&mut self, queries: &Queries<'_>, tiles: &[RowTile], dtype: KvDtype) {
        (self.head_dim, self.g) = (queries.q.head_dim, tiles[0].g);
        self.q.resize_with(tiles.len(), Lines::default);
        for (rows, to) in tiles.iter().zip(&mut self.q) {
            in_lanes(queries, rows, dtype, to);
        }
        self.turn_to(0);
    }

    #[inline(always)]
    fn turn_to(&mut self, idx: usize) {
        (self.at, self.panels) = (idx, self.q[idx].len() / self.head_dim);
    }

    #[inline(always)]
    fn dots(
        &mut self,
        keys: &Stored<'_>,
        span: (usize, usize),
        out: &mut [Lanes],
        tops: Option<&mut [Lanes]>,
    ) {
        let Self { simd, head_dim, panels, .. } = *self;
        let keys = self.wide.tile(simd, keys.k_rows(self.g), span);
        let mut dots = Dots { head_dim, panels, keys, q: &self.q[self.at], out };
        sweep(simd, span.1 - span.0, panels, &mut dots);
        if let Some(tops) = tops {
            raise(simd, dots.out, tops);
        }
    }

    #[inline(always)]
    fn pairs(&mut self) -> ((), &mut [PairLanes]) {
        ((), &mut [])
    }

    #[inline(always)]
    fn pair(_rounder: (), _p: [S::V; 2], _to: &mut PairLanes) {}

    #[inline(always)]
    fn values(
        &mut self,
        keys: &Stored<'_>,
        span: (usize, usize),
        p: &[Lanes],
        fade: Option<&[Lanes]>,
        o: &mut [Lanes],
    ) {
        let Self { simd, head_dim, panels, .. } = *self;
        let values = self.wide.tile(simd, keys.v_rows(self.g), span);
        sweep(simd, head_dim, panels, &mut Values { head_dim, panels, values, p, fade, o });
    }
}

/// The rows' queries, `[panels, head_dim, 16]`, rounded as keys of `dtype` are.
fn in_lanes(queries: &Queries<'_>, rows: &RowTile, dtype: KvDtype, to: &mut Lines<f32>) {
    let head_dim = queries.q.head_dim;
    to.resize(rows.panels() * head_dim);
    to.clear();
    for row in 0..rows.len() {
        let (head, t) = rows.origin(row);
        let panel = &mut to[row / LANES * head_dim..][..head_dim];
        for (lanes, &q) in panel.iter_mut().zip(queries.q.row(head, t)) {
            lanes[row % LANES] = match dtype {
                KvDtype::F32 => q,
                KvDtype::Bf16 => bf16::from_f32(q).to_f32(),
            };
        }
    }
}

/// K q of one tile of keys.
struct Dots<'a> {
    head_dim: usize,
    panels: usize,
    /// `[keys, head_dim]`.
    keys: &'a [f32],
    /// `[panels, head_dim, 16]`.
    q: &'a [Lanes],
    /// `[keys, panels, 16]`.
    out: &'a mut [Lanes],
}

impl Block for Dots<'_> {
    #[inline(always)]
    fn run<S: Simd, const M: usize, const N: usize>(&mut self, simd: S, row: usize, panel: usize) {
        let head_dim = self.head_dim;
        let left = ByRow { data: &self.keys[row * head_dim..], stride: head_dim };
        let right = Panels { data: &self.q[panel * head_dim..], stride: head_dim };
        let mut acc = [[simd.splat(0.0); N]; M];
        multiply(simd, &mut acc, left, right, head_dim);
        for (i, acc) in acc.iter().enumerate() {
            for (j, &acc) in acc.iter().enumerate() {
                acc.store(&mut self.out[(row + i) * self.panels + panel + j]);
            }
        }
    }
}

/// o = o * fade + V p of one tile of keys, or V p.
struct Values<'a> {
    head_dim: usize,
    panels: usize,
    /// `[keys, head_dim]`.
    values: &'a [f32],
    /// `[keys, panels, 16]`.
    p: &'a [Lanes],
    /// `[panels, 16]`.
    fade: Option<&'a [Lanes]>,
    /// `[head_dim, panels, 16]`.
    o: &'a mut [Lanes],
}

impl Block for Values<'_> {
    #[inline(always)]
    fn run<S: Simd, const M: usize, const N: usize>(&mut self, simd: S, row: usize, panel: usize) {
        let Self { head_dim, panels, .. } = *self;
        let mut acc = [[simd.splat(0.0); N]; M];
        if let Some(fade) = self.fade {
            for (i, acc) in acc.iter_mut().enumerate() {
                for (j, acc) in acc.iter_mut().enumerate() {
                    let o = simd.load(&self.o[(row + i) * panels + panel + j]);
                    *acc = o * simd.load(&fade[panel + j]);
                }
            }
        }
        let left = ByColumn { data: &self.values[row..], stride: head_dim };
        let right = SideBySide { data: &self.p[panel..], panels };
        multiply(simd, &mut acc, left, right, self.values.len() / head_dim);
        for (i, acc) in acc.iter().enumerate() {
            for (j, &acc) in acc.iter().enumerate() {
                acc.store(&mut self.o[(row + i) * panels + panel + j]);
            }
        }
    }
}
