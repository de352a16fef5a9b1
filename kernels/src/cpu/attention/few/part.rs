//! Few rows over a part of the keys. Lanes are elements of D, and keys in the softmax.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use half::bf16;

use super::streamed::{Halves, Streamed};
use crate::backend::Queries;
use crate::cells::{HeadRows, RowsOf};
use crate::cpu::attention::rows::Lanes;
use crate::cpu::exp::exp2;
use crate::cpu::gemm::is_finite;
use crate::cpu::simd::{Element, Kernel, LANES, LINE, Simd, Vector, load_front, store_front, sum};

/// All rows of a KV head over some of its keys.
pub(super) struct Task<'a> {
    pub(super) queries: &'a Queries<'a>,
    /// R.
    pub(super) group: usize,
    /// KV head.
    pub(super) g: usize,
    /// Whether o is asked for.
    pub(super) with_values: bool,
    /// Keys that are of one type.
    pub(super) parts: Vec<Part<'a>>,
}

/// Keys that are summed by themselves.
pub(super) struct Part<'a> {
    /// Which of several sets they are of.
    pub(super) side: usize,
    /// Keys and values of the KV head.
    pub(super) rows: (HeadRows<'a>, HeadRows<'a>),
    /// Which of these, ascending.
    pub(super) keys: Vec<Range<usize>>,
    /// Their place among all that are summed together.
    pub(super) span: Range<usize>,
    /// Per token: the keys it sees.
    pub(super) sight: Vec<Range<usize>>,
}

/// What the rows saw of a part; row r * tokens + i is token i of the group's head r.
pub(super) struct Seen {
    pub(super) side: usize,
    pub(super) g: usize,
    pub(super) span: Range<usize>,
    /// `[rows]`.
    pub(super) m: Vec<f32>,
    /// `[rows]`.
    pub(super) l: Vec<f32>,
    /// `[rows, D / 32, 32]`, zero behind D; empty unless asked for.
    pub(super) o: Vec<Lanes>,
    /// `[rows, keys / 16, 16]`: exp(z - m), zero behind the last key.
    pub(super) p: Vec<Lanes>,
    /// Whether l and o are.
    pub(super) finite: bool,
}

impl Seen {
    /// o of a row, `[D]`.
    pub(super) fn o(&self, row: usize, head_dim: usize) -> &[f32] {
        let width = self.o.len() / self.m.len() * LANES;
        &self.o.as_flattened()[row * width..][..head_dim]
    }
}

impl Kernel for Task<'_> {
    type Out = Vec<Seen>;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Vec<Seen> {
        let mut seen = Vec::with_capacity(self.parts.len());
        let Some(first) = self.parts.first() else { return seen };
        let q = match first.rows.0 {
            HeadRows::F32(_) => self.queries::<f32>(|q| q),
            HeadRows::Bf16(_) => self.queries::<bf16>(|q| bf16::from_f32(q).to_f32()),
        };
        for part in &self.parts {
            seen.push(match part.rows {
                (HeadRows::F32(k), HeadRows::F32(v)) => self.look(simd, part, &q, (k, v)),
                (HeadRows::Bf16(k), HeadRows::Bf16(v)) => self.look(simd, part, &q, (k, v)),
                // Refused with other shapes that do not belong together.
                _ => self.nothing(part),
            });
        }
        seen
    }
}

impl Task<'_> {
    fn nothing(&self, part: &Part<'_>) -> Seen {
        let rows = self.queries.q.tokens * self.group;
        Seen {
            side: part.side,
            g: self.g,
            m: vec![f32::NEG_INFINITY; rows],
            l: vec![0.0; rows],
            o: Vec::new(),
            p: vec![[f32::NEG_INFINITY; LANES]; rows * part.span.len().div_ceil(LANES)],
            span: part.span.clone(),
            finite: true,
        }
    }

    #[inline(always)]
    fn look<S: Simd, E: Element>(
        &self,
        simd: S,
        part: &Part<'_>,
        q: &[Halves],
        (k, v): (RowsOf<'_, E>, RowsOf<'_, E>),
    ) -> Seen {
        let Part { keys, sight, span, .. } = part;
        let mut seen = self.nothing(part);
        let rows = seen.m.len();
        let steps = seen.p.len() / rows;
        Streamed::new(k, keys).dots(simd, q, &mut seen.p);
        for (row, p) in seen.p.chunks_exact_mut(steps).enumerate() {
            hide(&sight[row % sight.len()], span.clone(), p.as_flattened_mut());
            (seen.m[row], seen.l[row]) = soften(simd, p, self.queries.scale);
        }
        seen.finite = is_finite(simd, &seen.l);
        if self.with_values {
            let mut o = vec![[[0.0; LANES]; 2]; q.len()];
            Streamed::new(v, keys).add(simd, &seen.p, &mut o);
            seen.o = o.iter().flat_map(E::in_order).collect();
            seen.finite &= is_finite(simd, seen.o.as_flattened());
        }
        seen
    }

    /// `[rows, D / 32]` of the KV head's query heads as keys of `E` are loaded, zero behind D.
    fn queries<E: Element>(&self, round: impl Fn(f32) -> f32) -> Vec<Halves> {
        let Self { group, queries: Queries { q, .. }, .. } = *self;
        let lines = q.head_dim.div_ceil(LINE);
        let mut all = vec![[[0.0; LANES]; 2]; group * q.tokens * lines];
        for (row, halves) in all.chunks_exact_mut(lines).enumerate() {
            let from = q.row(self.g * group + row / q.tokens, row % q.tokens);
            for (from, to) in from.chunks(LINE).zip(halves) {
                let mut line = [[0.0; LANES]; 2];
                line.as_flattened_mut().iter_mut().zip(from).for_each(|(to, &q)| *to = round(q));
                *to = E::as_loaded(&line);
            }
        }
        all
    }
}

/// What is out of sight, and what is behind the last key, becomes -inf.
fn hide(sight: &Range<usize>, span: Range<usize>, dots: &mut [f32]) {
    let seen = sight.start.clamp(span.start, span.end)..sight.end.clamp(span.start, span.end);
    dots[..seen.start - span.start].fill(f32::NEG_INFINITY);
    dots[seen.end.max(seen.start) - span.start..].fill(f32::NEG_INFINITY);
}

/// One row's dot products become exp(z - m). Returns m and l.
#[inline(always)]
fn soften<S: Simd>(simd: S, p: &mut [Lanes], scale: f32) -> (f32, f32) {
    let mut tops = simd.splat(f32::NEG_INFINITY);
    for lanes in p.iter() {
        tops = tops.max(simd.load(lanes));
    }
    let mut lanes = [0.0; LANES];
    tops.store(&mut lanes);
    let top = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
    if top == f32::NEG_INFINITY && lanes.iter().all(|lane| !lane.is_nan()) {
        p.fill([0.0; LANES]);
        return (top, 0.0);
    }
    let scale2 = scale * LOG2_E;
    let (base, factor) = (simd.splat(-top * scale2), simd.splat(scale2));
    let mut l = simd.splat(0.0);
    for lanes in p.iter_mut() {
        let p = exp2(simd, simd.load(lanes).fma(factor, base));
        l = l + p;
        p.store(lanes);
    }
    (top * scale, sum(l))
}

/// What few rows spend on the keys of a part: `to` (`[keys]`) = sum of p times the weights.
pub(super) struct Spend<'a> {
    /// `[rows, keys / 16, 16]`.
    pub(super) p: &'a [Lanes],
    /// `[rows]`: w exp(m - lse).
    pub(super) weights: &'a [f32],
    pub(super) to: &'a mut [f32],
}

impl Kernel for Spend<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let steps = self.to.len().div_ceil(LANES);
        for (step, to) in self.to.chunks_mut(LANES).enumerate() {
            let mut spent = load_front(simd, to);
            for (p, &weight) in self.p.chunks_exact(steps).zip(self.weights) {
                spent = simd.load(&p[step]).fma(simd.splat(weight), spent);
            }
            store_front(spent, to);
        }
    }
}
