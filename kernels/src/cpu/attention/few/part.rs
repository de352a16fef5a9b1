//! Few rows over parts of the keys. Lanes are elements of D, and keys in the softmax.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use half::bf16;

use super::streamed::{Halves, Streamed};
use crate::backend::Queries;
use crate::cells::{HeadRows, RowsOf};
use crate::cpu::attention::rows::Lanes;
use crate::cpu::attention::side::Wanted;
use crate::cpu::attention::sight::in_sight;
use crate::cpu::exp::{cap, exp2};
use crate::cpu::gemm::is_finite;
use crate::cpu::lines::Lines;
use crate::cpu::simd::{Element, Kernel, LANES, LINE, Simd, Vector, sum};
use crate::memory::LeafKeys;

/// All rows of a KV head over some of its keys.
pub(super) struct Task<'a> {
    pub(super) queries: &'a Queries<'a>,
    /// R.
    pub(super) group: usize,
    /// KV head.
    pub(super) g: usize,
    pub(super) wanted: Wanted,
    /// Sets of keys of one type.
    pub(super) sides: &'a [LeafKeys<'a>],
    pub(super) parts: Vec<Part>,
}

/// Keys that are summed by themselves.
pub(super) struct Part {
    /// Which of the sides they are of.
    pub(super) side: usize,
    /// Which of its keys.
    pub(super) span: Range<usize>,
}

/// What the rows saw of some parts; row r * tokens + i is token i of the group's head r.
pub(super) struct Seen {
    pub(super) parts: Vec<Part>,
    /// `[parts, rows]`.
    pub(super) m: Vec<f32>,
    /// `[parts, rows]`.
    pub(super) l: Vec<f32>,
    /// `[parts, rows, D / 32, 2]`, zero behind D; empty unless asked for.
    pub(super) o: Lines<f32>,
    /// What a line of o is in its own order.
    pub(super) in_order: fn(&Halves) -> Halves,
    /// `[rows, width]`: exp(z - m) of the keys of all parts, one behind the other; empty unless
    /// asked for.
    pub(super) p: Lines<f32>,
    /// Whether l and o are.
    pub(super) finite: bool,
}

impl Seen {
    /// How many rows.
    pub(super) fn rows(&self) -> usize {
        self.m.len() / self.parts.len().max(1)
    }
}

impl Kernel for Task<'_> {
    type Out = Seen;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Seen {
        match self.sides[0].of.k_rows(self.g) {
            HeadRows::F32(_) => self.look::<S, f32>(simd, |rows| match rows {
                HeadRows::F32(rows) => rows,
                HeadRows::Bf16(_) => unreachable!("sides are of one type"),
            }),
            HeadRows::Bf16(_) => self.look::<S, bf16>(simd, |rows| match rows {
                HeadRows::Bf16(rows) => rows,
                HeadRows::F32(_) => unreachable!("sides are of one type"),
            }),
        }
    }
}

impl<'a> Task<'a> {
    #[inline(always)]
    fn look<S: Simd, E: Element>(
        self,
        simd: S,
        typed: impl Fn(HeadRows<'a>) -> RowsOf<'a, E>,
    ) -> Seen {
        let (rows, keys) = (self.queries.q.tokens * self.group, self.keys());
        let lines = self.queries.q.head_dim.div_ceil(LINE);
        let q = self.queries::<E>(lines);
        // A vector may begin at any key, so one more than they fill.
        let width = keys.div_ceil(LANES) + 1;
        let mut p = Lines::left_over(rows * width);
        let values = self.wanted.o.then(|| {
            let of = |side: &LeafKeys<'a>| typed(side.of.v_rows(self.g));
            self.streamed(of, None)
        });
        let of = |side: &LeafKeys<'a>| typed(side.of.k_rows(self.g));
        self.streamed(of, values.as_ref()).dots(simd, q.as_chunks().0, (&mut p, width));
        let mut scale = self.queries.scale;
        if let Some(softcap) = self.queries.softcap {
            cap(simd, (scale / softcap, softcap), &mut p);
            scale = 1.0;
        }
        if self.queries.slopes.is_some() {
            self.fall(scale, &mut p, width);
            scale = 1.0;
        }
        let [mut m, mut l] = [(); 2].map(|()| Vec::with_capacity(rows * self.parts.len()));
        let mut first = 0;
        for Part { side, span } in &self.parts {
            for (row, p) in p.chunks_exact_mut(width).enumerate() {
                let p = &mut p.as_flattened_mut()[first..first + span.len()];
                let t = row % self.queries.q.tokens;
                hide(&in_sight(self.queries, t, &self.sides[*side], self.g), span, p);
                let (row_m, row_l) = soften(simd, p, scale);
                m.push(row_m);
                l.push(row_l);
            }
            first += span.len();
        }
        let mut finite = is_finite(simd, &l);
        let mut o = Lines::default();
        if let Some(values) = values {
            o = Lines::zeros(self.parts.len() * rows * lines * 2);
            let (mut first, size) = (0, rows * lines * 2);
            for (Part { span, .. }, o) in self.parts.iter().zip(o.chunks_exact_mut(size.max(1))) {
                let span = first..first + span.len();
                first = span.end;
                values.add(simd, span, (&p, width), o.as_chunks_mut().0);
            }
            finite &= is_finite(simd, o.as_flattened());
        }
        if !self.wanted.p {
            p = Lines::default(); // what stays with this thread is there for its next task
        }
        Seen { parts: self.parts, m, l, o, in_order: E::in_order, p, finite }
    }

    /// Dot products `[rows, width]`, of all keys of the parts, become logits that fall with
    /// distance; those of keys behind a row become anything.
    #[inline(always)]
    fn fall(&self, scale: f32, dots: &mut [Lanes], width: usize) {
        let Queries { q, start, slopes: Some(slopes), .. } = *self.queries else { return };
        for (row, dots) in dots.chunks_exact_mut(width).enumerate() {
            let slope = slopes[self.g * self.group + row / q.tokens];
            let (own, mut dots) = (start + (row % q.tokens) as u32, dots.as_flattened_mut());
            for Part { side, span } in &self.parts {
                let (keys, count) = (&self.sides[*side], span.len());
                let positions = keys.of.head_positions(self.g);
                let (part, rest) = std::mem::take(&mut dots).split_at_mut(count);
                dots = rest;
                let seen = keys.within(self.g, span.clone()).flat_map(|run| &positions[run]);
                for (z, &position) in part.iter_mut().zip(seen) {
                    // Of whole numbers: exact wherever both stand.
                    *z = *z * scale - slope * own.wrapping_sub(position) as f32;
                }
            }
        }
    }

    /// Keys of all parts.
    fn keys(&self) -> usize {
        self.parts.iter().map(|part| part.span.len()).sum()
    }

    /// Keys or values of all parts, one behind the other, and then `next`.
    fn streamed<E: Element>(
        &self,
        of: impl Fn(&LeafKeys<'a>) -> RowsOf<'a, E>,
        next: Option<&Streamed<'a, E>>,
    ) -> Streamed<'a, E> {
        let runs = self.parts.iter().flat_map(|Part { side, span }| {
            let (keys, of) = (&self.sides[*side], of(&self.sides[*side]));
            keys.within(self.g, span.clone()).map(move |run| (of, run))
        });
        Streamed::new(runs, (self.keys(), self.queries.q.head_dim), next)
    }

    /// `[rows, D / 32, 2]` of the KV head's query heads as keys of `E` are loaded, zero behind D.
    fn queries<E: Element>(&self, lines: usize) -> Lines<f32> {
        let Self { group, queries: Queries { q, .. }, .. } = *self;
        let mut all = Lines::zeros(group * q.tokens * lines * 2);
        for (row, halves) in all.chunks_exact_mut((lines * 2).max(1)).enumerate() {
            let from = q.row(self.g * group + row / q.tokens, row % q.tokens);
            for (from, to) in from.chunks(LINE).zip(halves.as_chunks_mut().0) {
                let mut line = [[0.0; LANES]; 2];
                let each = line.as_flattened_mut().iter_mut().zip(from);
                each.for_each(|(to, &q)| *to = E::rounded(q));
                *to = E::as_loaded(&line);
            }
        }
        all
    }
}

/// What is out of sight becomes -inf.
fn hide(sight: &Range<usize>, span: &Range<usize>, dots: &mut [f32]) {
    let seen = sight.start.clamp(span.start, span.end)..sight.end.clamp(span.start, span.end);
    dots[..seen.start - span.start].fill(f32::NEG_INFINITY);
    dots[seen.end.max(seen.start) - span.start..].fill(f32::NEG_INFINITY);
}

/// One row's dot products become exp(z - m). Returns m and l.
#[inline(always)]
fn soften<S: Simd>(simd: S, p: &mut [f32], scale: f32) -> (f32, f32) {
    let (whole, rest) = p.as_chunks_mut::<LANES>();
    let mut last = [f32::NEG_INFINITY; LANES];
    last[..rest.len()].copy_from_slice(rest);
    let mut tops = simd.load(&last);
    for lanes in whole.iter() {
        tops = tops.max(simd.load(lanes));
    }
    let mut lanes = [0.0; LANES];
    tops.store(&mut lanes);
    let top = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
    if top == f32::NEG_INFINITY && lanes.iter().all(|lane| !lane.is_nan()) {
        p.fill(0.0);
        return (top, 0.0);
    }
    let scale2 = scale * LOG2_E;
    let (base, factor) = (simd.splat(-top * scale2), simd.splat(scale2));
    let mut l = simd.splat(0.0);
    for lanes in whole {
        let p = exp2(simd, simd.load(lanes).fma(factor, base));
        l = l + p;
        p.store(lanes);
    }
    if !rest.is_empty() {
        let p = exp2(simd, simd.load(&last).fma(factor, base));
        l = l + p;
        p.store(&mut last);
        rest.copy_from_slice(&last[..rest.len()]);
    }
    (top * scale, sum(l))
}

/// What few rows spend on the keys of a part: `to` (`[keys / 16, 16]`) = sum of p times the
/// weights, something or other behind the last key.
pub(super) struct Spend<'a> {
    /// `[rows, width]`, of which the part's keys begin at `first`.
    pub(super) p: &'a [Lanes],
    pub(super) first: usize,
    /// `[rows]`: w exp(m - lse).
    pub(super) weights: &'a [f32],
    pub(super) to: &'a mut [Lanes],
}

impl Kernel for Spend<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let width = self.p.len() / self.weights.len().max(1);
        for (step, to) in self.to.iter_mut().enumerate() {
            let mut spent = simd.splat(0.0);
            for (p, &weight) in self.p.chunks_exact(width).zip(self.weights) {
                let p = p.as_flattened()[self.first + step * LANES..].first_chunk();
                let p = p.expect("a line more than there are keys");
                spent = simd.load(p).fma(simd.splat(weight), spent);
            }
            spent.store(to);
        }
    }
}
