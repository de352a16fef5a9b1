//! One tile of rows over one set of keys: online softmax, tile of keys by tile of keys
//! (Milakov and Gimelshein 2018; Dao et al. 2022).
//!
//! Whoever needs p of some keys gets it from here, so that attention and masses see the same
//! bits.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use super::fall::Fall;
use super::products::{Products, raise};
use super::rows::{Lanes, RowTile};
use super::sight::{Bounds, Sight};
use super::stored::Stored;
use crate::backend::Queries;
use crate::cpu::exp::{cap, exp2};
use crate::cpu::simd::{LANES, Simd, Vector};

/// Keys `first..last`, looked at together.
pub(super) type Span = (usize, usize);

/// A tile of rows on its way over a set of keys.
pub(super) struct Pass<'a> {
    rows: &'a RowTile,
    keys: &'a Stored<'a>,
    sight: Sight,
    /// Logits from dot products, where these are not logits already.
    scale: f32,
    /// [`Queries::softcap`], by which they are: what [`cap`] takes.
    cap: Option<(f32, f32)>,
    /// [`Queries::slopes`], by which they are too.
    fall: Option<Fall>,
    /// `[panels, 16]`: the largest dot product in sight so far.
    tops: Vec<Lanes>,
    /// `[panels, 16]`: what it was before the last tile.
    before: Vec<Lanes>,
    /// `[panels, 16]`: sum of exp(z - m) so far.
    l: Vec<Lanes>,
    /// `[panels, 16]`: exp(old m - new m) of the last tile.
    fade: Vec<Lanes>,
    /// Tiles of keys that were added.
    added: usize,
}

impl<'a> Pass<'a> {
    /// `rows` of `queries` before the first of `keys`.
    pub(super) fn new(queries: &Queries<'_>, rows: &'a RowTile, keys: &'a Stored<'a>) -> Self {
        let are_logits = queries.softcap.is_some() || queries.slopes.is_some();
        Self {
            rows,
            keys,
            sight: Sight::new(queries, rows, keys.leaf()),
            scale: if are_logits { 1.0 } else { queries.scale },
            cap: queries.softcap.map(|cap| (queries.scale / cap, cap)),
            fall: queries.slopes.map(|slopes| Fall::new(queries, slopes, rows)),
            tops: vec![[f32::NEG_INFINITY; LANES]; rows.panels()],
            before: vec![[f32::NEG_INFINITY; LANES]; rows.panels()],
            l: vec![[0.0; LANES]; rows.panels()],
            fade: vec![[0.0; LANES]; rows.panels()],
            added: 0,
        }
    }

    /// Vectors that the rows fill.
    pub(super) fn panels(&self) -> usize {
        self.rows.panels()
    }

    /// The tiles of keys of `block`, which begins and ends where tiles do, that some row sees. They
    /// start at multiples of `KEYS` wherever sight starts, so a row is summed alike beside any
    /// others.
    pub(super) fn spans<P: Products>(
        &self,
        _products: &P,
        block: Range<usize>,
    ) -> impl Iterator<Item = Span> + use<P> {
        let reach = self.sight.reach();
        let (start, end) = (reach.start.max(block.start), reach.end.min(block.end));
        (start / P::KEYS..end.div_ceil(P::KEYS))
            .map(|idx| (idx * P::KEYS, (idx + 1) * P::KEYS))
            .map(move |(first, last)| (first, last.min(reach.end)))
    }

    /// Keys of all of them.
    pub(super) fn keys<P: Products>(&self, products: &P) -> usize {
        self.spans(products, 0..self.keys.len()).map(|(first, last)| last - first).sum()
    }

    /// p = exp(z - m) of a tile of keys, and m and l with them in it. `p` is
    /// `[keys, panels, 16]`; it is filled where `keep`, or where the products read it there.
    #[inline(always)]
    pub(super) fn soften<P: Products>(
        &mut self,
        products: &mut P,
        (first, last): Span,
        p: &mut [Lanes],
        keep: bool,
    ) {
        let mask = self.sight.mask(self.rows, first, last);
        self.before.copy_from_slice(&self.tops);
        let changed = mask.is_some() || self.cap.is_some() || self.fall.is_some();
        let tops = if changed { None } else { Some(&mut self.tops[..]) };
        products.dots(self.keys, (first, last), p, tops);
        if let Some(with) = self.cap {
            cap(products.simd(), with, p);
        }
        if let Some(fall) = &self.fall {
            fall.apply(products.simd(), self.keys.leaf(), (first, last), p);
        }
        for (panel, mask) in mask.iter().flatten().enumerate() {
            self.hide(products.simd(), panel, mask, p);
        }
        if changed {
            raise(products.simd(), p, &mut self.tops);
        }
        let (panels, mut panel) = (self.rows.panels(), 0);
        while panel < panels {
            // Four at once where there are registers for their bases and sums.
            let is_four = P::Simd::PANELS > 1 && panels - panel >= 4;
            match (is_four, keep || P::IN_PLACE) {
                (true, true) => self.exponentials::<P, 4, true>(products, panel, p),
                (true, false) => self.exponentials::<P, 4, false>(products, panel, p),
                (false, true) => self.exponentials::<P, 1, true>(products, panel, p),
                (false, false) => self.exponentials::<P, 1, false>(products, panel, p),
            }
            panel += if is_four { 4 } else { 1 };
        }
    }

    /// o (`[head_dim, panels, 16]`) with the tile of keys in it that was softened last; the first
    /// one writes it.
    #[inline(always)]
    pub(super) fn add<P: Products>(
        &mut self,
        products: &mut P,
        span: Span,
        p: &[Lanes],
        o: &mut [Lanes],
    ) {
        let fade = (self.added > 0).then_some(&self.fade[..]);
        products.values(self.keys, span, p, fade, o);
        self.added += 1;
    }

    /// Leaves the tile of keys that was softened last out of every o.
    pub(super) fn pass_over(&mut self) {
        self.added += 1;
    }

    /// Whether there was any key.
    pub(super) fn saw(&self) -> bool {
        self.added > 0
    }

    /// m of all rows so far, `[panels, 16]`.
    pub(super) fn m(&self) -> Vec<Lanes> {
        self.tops.iter().map(|tops| tops.map(|top| top * self.scale)).collect()
    }

    /// l of all rows so far, `[panels, 16]`.
    pub(super) fn l(&self) -> &[Lanes] {
        &self.l
    }

    /// What is out of sight becomes -inf.
    #[inline(always)]
    fn hide<S: Simd>(&self, simd: S, panel: usize, mask: &Bounds, dots: &mut [Lanes]) {
        let own = dots.iter_mut().skip(panel).step_by(self.rows.panels());
        for (key, lanes) in own.enumerate() {
            mask.apply(simd, key, simd.load(lanes)).store(lanes);
        }
    }

    /// Fades what was summed below the old maximum. Returns the exponent that is subtracted, in
    /// powers of two.
    #[inline(always)]
    fn fade<S: Simd>(&mut self, simd: S, panel: usize) -> S::V {
        let (before, top) = (simd.load(&self.before[panel]), simd.load(&self.tops[panel]));
        let scale = simd.splat(self.scale * LOG2_E);
        // A row that has seen nothing subtracts 0 instead of -inf, which would make NaN.
        let nothing = simd.splat(f32::NEG_INFINITY);
        let base = nothing.below(top, top * scale, simd.splat(0.0));
        // Of the difference, so that a maximum that stays fades by exactly 1: what is left of
        // rounding would otherwise be added up, tile by tile.
        let fade = exp2(simd, nothing.below(top, (before - top) * scale, nothing));
        fade.store(&mut self.fade[panel]);
        (simd.load(&self.l[panel]) * fade).store(&mut self.l[panel]);
        base
    }

    /// p of N panels from `first` on, two keys at a time, added to their l.
    #[inline(always)]
    fn exponentials<P: Products, const N: usize, const KEEP: bool>(
        &mut self,
        products: &mut P,
        first: usize,
        p: &mut [Lanes],
    ) {
        let (simd, panels) = (products.simd(), self.rows.panels());
        let zero = simd.splat(0.0);
        let scale = simd.splat(self.scale * LOG2_E);
        let (mut base, mut l) = ([zero; N], [[zero; 2]; N]);
        for j in 0..N {
            base[j] = zero - self.fade(simd, first + j);
            l[j][0] = simd.load(&self.l[first + j]);
        }
        let (rounder, pairs) = products.pairs();
        let stride = P::KEYS / 2;
        let in_pairs = if P::IN_PLACE { 0..0 } else { first * stride..(first + N) * stride };
        let pairs = &mut pairs[in_pairs];
        assert!(p.len() <= P::KEYS * panels && first + N <= panels);
        let whole = p.len() / (2 * panels);
        let mut keys = p.chunks_exact_mut(2 * panels);
        for (pair, keys) in keys.by_ref().enumerate() {
            let (even, odd) = keys.split_at_mut(panels);
            let even: &mut [_; N] = even[first..].first_chunk_mut().expect("N panels");
            let odd: &mut [_; N] = odd[first..].first_chunk_mut().expect("N panels");
            for j in 0..N {
                let both = [
                    exp2(simd, simd.load(&even[j]).fma(scale, base[j])),
                    exp2(simd, simd.load(&odd[j]).fma(scale, base[j])),
                ];
                if KEEP {
                    both[0].store(&mut even[j]);
                    both[1].store(&mut odd[j]);
                }
                if !P::IN_PLACE {
                    P::pair(rounder, both, &mut pairs[j * stride + pair]);
                }
                l[j] = [l[j][0] + both[0], l[j][1] + both[1]];
            }
        }
        if let Some(last) = keys.into_remainder().get_mut(first..first + N) {
            for (j, last) in last.iter_mut().enumerate() {
                let even = exp2(simd, simd.load(last).fma(scale, base[j]));
                if KEEP {
                    even.store(last);
                }
                if !P::IN_PLACE {
                    P::pair(rounder, [even, zero], &mut pairs[j * stride + whole]);
                }
                // A sum that is not negative stays what it is beside a zero.
                l[j][0] = l[j][0] + even;
            }
        }
        for (l, to) in l.iter().zip(&mut self.l[first..]) {
            (l[0] + l[1]).store(to);
        }
    }
}
