//! What tiles of rows make of some keys, and how two of these become one.

use std::ops::Range;

use super::masses::Voters;
use super::pass::{Pass, Span};
use super::products::Products;
use super::rows::{Lanes, RowTile, turn};
use super::stored::Stored;
use crate::backend::Queries;
use crate::cpu::gemm::is_finite;
use crate::cpu::lines::Lines;
use crate::cpu::simd::{LANES, Simd, Vector};
use crate::state::{common, lse};

/// Keys of a block that several tiles of rows pass one after the other: with their values 512 KiB
/// at D = 128 in bf16, a quarter of a second level of 2 MiB. A multiple of every tile of keys.
pub(super) const BLOCK: usize = 1024;

/// What is made of rows and keys besides m and l.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    /// Weighted sums of values; there is no o otherwise.
    pub(super) o: bool,
    /// p is kept.
    pub(super) p: bool,
}

/// Tiles of rows, taken by `products`, over some keys: all pass a block before the next is looked
/// at.
#[inline(always)]
pub(super) fn fill<P: Products>(
    products: &mut P,
    (queries, tiles): (&Queries<'_>, &[RowTile]),
    keys: &Stored<'_>,
    (sides, wanted): (Vec<&mut Side>, Wanted),
) {
    let mut on_their_way = Vec::with_capacity(tiles.len());
    for (tile, side) in tiles.iter().zip(sides) {
        let pass = Pass::new(queries, tile, keys);
        let kept = if wanted.p { pass.keys(products) } else { 0 };
        let head_dim = if wanted.o { queries.q.head_dim } else { 0 };
        side.begin(pass.panels(), head_dim, kept);
        on_their_way.push((pass, side));
    }
    let mut passing = Lines::default();
    for first in (0..keys.len()).step_by(BLOCK) {
        for (idx, (pass, side)) in on_their_way.iter_mut().enumerate() {
            products.turn_to(idx);
            side.add(products, pass, first..first + BLOCK, (wanted, &mut passing));
        }
    }
    for (pass, side) in on_their_way {
        side.end_of(pass);
    }
}

/// Merges the sides of one tile of rows; the first becomes that over all keys.
#[inline(always)]
pub(super) fn merge_all<S: Simd>(simd: S, sides: &mut [Side], merges: &[(usize, usize)]) {
    for &(into, of) in merges {
        let [into, of] = sides.get_disjoint_mut([into, of]).expect("two sides");
        into.take_in(simd, of);
    }
}

/// A tile of rows after some keys.
#[derive(Default)]
pub(super) struct Side {
    /// `[panels, 16]`.
    pub(super) m: Vec<Lanes>,
    /// `[panels, 16]`.
    pub(super) l: Vec<Lanes>,
    /// `[head_dim, panels, 16]`, or nothing.
    o: Lines<f32>,
    /// Per tile of keys whose p was kept: `[keys, panels, 16]`, one behind the other.
    p: Lines<f32>,
    /// Rows of p that were written.
    used: usize,
    /// These tiles of keys, with m as it was then.
    kept: Vec<(Span, Vec<Lanes>)>,
    /// Whether there was any key.
    saw: bool,
}

impl Side {
    /// What rows see besides keys: `sinks` is `[heads]`, and this to be merged with `other`.
    pub(super) fn of_sinks(rows: &RowTile, sinks: &[f32], other: &Self) -> Self {
        Self {
            m: rows.lanes(f32::NEG_INFINITY, |head, _| sinks[head]),
            l: rows.lanes(0.0, |_, _| 1.0),
            o: Lines::zeros(other.o.len()),
            saw: true,
            ..Self::default()
        }
    }

    /// Before any key, of which so many's p will be kept.
    fn begin(&mut self, panels: usize, head_dim: usize, kept: usize) {
        self.kept.clear();
        self.used = 0;
        self.o.resize(panels * head_dim);
        self.p.resize(panels * kept);
    }

    /// With the keys of `block` that are in sight. Their p stands in `passing` if it is not kept.
    #[inline(always)]
    fn add<P: Products>(
        &mut self,
        products: &mut P,
        pass: &mut Pass<'_>,
        block: Range<usize>,
        (wanted, passing): (Wanted, &mut Lines<f32>),
    ) {
        let panels = pass.panels();
        for (first, last) in pass.spans(products, block) {
            let size = (last - first) * panels;
            let p = match wanted.p {
                true => &mut self.p[self.used..][..size],
                false => {
                    passing.resize(size);
                    &mut passing[..]
                }
            };
            pass.soften(products, (first, last), p, wanted.p);
            match wanted.o {
                true => pass.add(products, (first, last), p, &mut self.o),
                false => pass.pass_over(),
            }
            if wanted.p {
                self.kept.push(((first, last), pass.m()));
                self.used += size;
            }
        }
    }

    /// Behind all keys.
    #[inline(always)]
    fn end_of(&mut self, pass: Pass<'_>) {
        self.saw = pass.saw();
        if !self.saw {
            self.o.clear();
        }
        (self.m, self.l) = (pass.m(), pass.l().to_vec());
    }

    #[inline(always)]
    pub(super) fn is_finite<S: Simd>(&self, simd: S) -> bool {
        is_finite(simd, self.l.as_flattened()) && is_finite(simd, self.o.as_flattened())
    }

    /// Past merged with own, and then with sinks if there are any, as
    /// [`crate::AttentionState::merge`] does it: o becomes the output. Returns lse, `[panels, 16]`.
    #[inline(always)]
    pub(super) fn end<S: Simd>(&mut self, simd: S, own: &Self, sinks: Option<&Self>) -> Vec<Lanes> {
        match sinks {
            None => self.merge::<S, true>(simd, own),
            Some(sinks) => {
                self.merge::<S, false>(simd, own);
                self.merge::<S, true>(simd, sinks);
            }
        }
        let each = self.m.iter().zip(&self.l);
        each.map(|(m, l)| std::array::from_fn(|lane| lse(m[lane], l[lane]))).collect()
    }

    /// Another leaf merged in: o stays un-normalised. m, l and o of the other are lost.
    #[inline(always)]
    fn take_in<S: Simd>(&mut self, simd: S, other: &mut Self) {
        if !self.saw {
            std::mem::swap(&mut self.m, &mut other.m);
            std::mem::swap(&mut self.l, &mut other.l);
            std::mem::swap(&mut self.o, &mut other.o);
        } else if other.saw {
            self.merge::<S, false>(simd, other);
        }
        self.saw |= other.saw;
    }

    /// m, l and o of both; with `LAST` o becomes the output.
    #[inline(always)]
    fn merge<S: Simd, const LAST: bool>(&mut self, simd: S, other: &Self) {
        let ours = self.m.iter().zip(&self.l);
        let both = ours.zip(other.m.iter().zip(&other.l));
        let merged: Vec<_> = both.map(|(a, b)| Both::of(a, b)).collect();
        match self.m.iter().chain(&other.m).flatten().all(|&m| m > f32::NEG_INFINITY) {
            true => self.add_scaled::<S, LAST, true>(simd, other, &merged),
            false => self.add_scaled::<S, LAST, false>(simd, other, &merged),
        }
        for (merged, (m, l)) in merged.iter().zip(self.m.iter_mut().zip(&mut self.l)) {
            (*m, *l) = (merged.m, merged.l);
        }
    }

    /// o of both; `ALL` says that every row saw keys of either.
    #[inline(always)]
    fn add_scaled<S: Simd, const LAST: bool, const ALL: bool>(
        &mut self,
        simd: S,
        other: &Self,
        merged: &[Both],
    ) {
        let (none, zero) = (simd.splat(f32::NEG_INFINITY), simd.splat(0.0));
        assert!(self.o.len() == other.o.len() && self.o.len().is_multiple_of(merged.len()));
        let others = other.o.chunks_exact(merged.len());
        for (to, other_o) in self.o.chunks_exact_mut(merged.len()).zip(others) {
            let ms = self.m.iter().zip(&other.m);
            for (((to, other_o), merged), (ma, mb)) in
                to.iter_mut().zip(other_o).zip(merged).zip(ms)
            {
                let (a, b) = (simd.load(to), simd.load(other_o));
                let [sa, sb] = &merged.scales;
                let mut o = a * simd.load(sa) + b * simd.load(sb);
                if !ALL {
                    o = none.below(simd.load(mb), none.below(simd.load(ma), o, b), a);
                }
                if LAST {
                    let l = simd.load(&merged.l);
                    o = zero.below(l, o / l, zero);
                }
                o.store(to);
            }
        }
    }

    /// Gives `take` every row: its place among all, head of the group and token of the tile, and o.
    #[inline(always)]
    pub(super) fn each_row<S: Simd>(
        &self,
        simd: S,
        rows: &RowTile,
        mut take: impl FnMut(usize, (usize, usize), &[f32]),
    ) {
        let panels = rows.panels();
        let head_dim = self.o.len() / panels;
        let mut turned = Lines::default();
        for panel in 0..panels {
            let width = turn(simd, &self.o, (panel, panels), &mut turned);
            let o_rows = turned.as_flattened().chunks_exact(width);
            for (row, o) in (panel * LANES..rows.len()).zip(o_rows) {
                let tokens = rows.tokens.len();
                take(row, (row / tokens, row % tokens), &o[..head_dim]);
            }
        }
    }

    /// Adds what the rows spend to `spent`, `[keys, 16]`.
    #[inline(always)]
    pub(super) fn spend<S: Simd>(&self, simd: S, voters: &Voters, spent: &mut [Lanes]) {
        let mut rest = &self.p[..];
        for ((first, last), m) in &self.kept {
            let (p, behind) = rest.split_at((last - first) * m.len());
            voters.spend(simd, m, p, &mut spent[*first..*last]);
            rest = behind;
        }
    }
}

/// m and l of a panel of rows over both of two sets of keys, and what o of each is scaled by.
struct Both {
    m: Lanes,
    l: Lanes,
    scales: [Lanes; 2],
}

impl Both {
    /// Of (m, l) of each set; where one has no key for a row, the row is the other's.
    fn of((ma, la): (&Lanes, &Lanes), (mb, lb): (&Lanes, &Lanes)) -> Self {
        let mut merged = Self { m: *ma, l: *la, scales: [[0.0; LANES]; 2] };
        for lane in 0..LANES {
            let (la, lb) = (la[lane], lb[lane]);
            (merged.m[lane], merged.l[lane]) = match (ma[lane], mb[lane]) {
                (ma, f32::NEG_INFINITY) => (ma, la),
                (f32::NEG_INFINITY, mb) => (mb, lb),
                (ma, mb) => {
                    let (m, sa, sb) = common(ma, mb);
                    (merged.scales[0][lane], merged.scales[1][lane]) = (sa, sb);
                    (m, la * sa + lb * sb)
                }
            };
        }
        merged
    }
}
