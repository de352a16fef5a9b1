//! Few rows over a part of the keys. Lanes are elements of D, and keys in the softmax.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use half::bf16;

use crate::backend::Queries;
use crate::cells::{HeadRows, RowsOf};
use crate::cpu::exp::exp2;
use crate::cpu::gemm::is_finite;
use crate::cpu::simd::{
    Element, Kernel, LANES, Simd, Vector, load_front, prefetch, store_front, sum,
};

type Lanes = [f32; LANES];

/// Keys whose values are added to a piece of o at a stretch: 8 KiB of bf16 at D = 128.
const STRETCH: usize = 32;

/// Rows between the one in use and the one that is asked for: 6 KiB of bf16 at D = 128. The
/// processor's own reading ahead ends at every 4 KiB page, and here at every row of a table.
const AHEAD: usize = 24;

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
    /// `[rows, D / 16, 16]`, zero behind D; empty unless asked for.
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
            HeadRows::F32(_) => self.queries(|q| q),
            HeadRows::Bf16(_) => self.queries(|q| bf16::from_f32(q).to_f32()),
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
        q: &[Lanes],
        (k, v): (RowsOf<'_, E>, RowsOf<'_, E>),
    ) -> Seen {
        let head_dim = self.queries.q.head_dim;
        let Part { sight, span, .. } = part;
        let mut seen = self.nothing(part);
        let rows = seen.m.len();
        let steps = seen.p.len() / rows;
        let keys = Stretch { rows: k, keys: span.clone(), end: span.end, head_dim };
        keys.dots(simd, q, seen.p.as_flattened_mut(), steps * LANES);
        for (row, p) in seen.p.chunks_exact_mut(steps).enumerate() {
            hide(&sight[row % sight.len()], span.clone(), p.as_flattened_mut());
            (seen.m[row], seen.l[row]) = soften(simd, p, self.queries.scale);
        }
        seen.finite = is_finite(simd, &seen.l);
        if self.with_values {
            seen.o = vec![[0.0; LANES]; rows * head_dim.div_ceil(LANES)];
            for start in span.clone().step_by(STRETCH) {
                let keys = start..span.end.min(start + STRETCH);
                let p = &seen.p.as_flattened()[start - span.start..];
                let values = Stretch { rows: v, keys, end: span.end, head_dim };
                values.add(simd, (p, steps * LANES), &mut seen.o);
            }
            seen.finite &= is_finite(simd, seen.o.as_flattened());
        }
        seen
    }

    /// `[rows, D / 16, 16]` of the KV head's query heads, zero behind D.
    fn queries(&self, round: impl Fn(f32) -> f32) -> Vec<Lanes> {
        let Self { group, queries: Queries { q, .. }, .. } = *self;
        let steps = q.head_dim.div_ceil(LANES);
        let mut lanes = vec![[0.0; LANES]; group * q.tokens * steps];
        for (row, lanes) in lanes.chunks_exact_mut(steps).enumerate() {
            let from = q.row(self.g * group + row / q.tokens, row % q.tokens);
            let lanes = lanes.as_flattened_mut().iter_mut();
            lanes.zip(from).for_each(|(lane, &q)| *lane = round(q));
        }
        lanes
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

/// Some rows of keys or values.
struct Stretch<'a, E> {
    rows: RowsOf<'a, E>,
    keys: Range<usize>,
    /// Behind the last row that will be read after these.
    end: usize,
    head_dim: usize,
}

impl<E: Element> Stretch<'_, E> {
    #[inline(always)]
    fn row(&self, idx: usize) -> &[E] {
        &self.rows.row(idx)[..self.head_dim]
    }

    /// Has row `idx` brought near, if there is one.
    #[inline(always)]
    fn ask_for(&self, idx: usize) {
        if idx < self.end {
            prefetch(self.row(idx));
        }
    }

    /// `out` (`[rows, stride]`) = dot products of `q` (`[rows, D / 16, 16]`) with the keys.
    #[inline(always)]
    fn dots<S: Simd>(&self, simd: S, q: &[Lanes], out: &mut [f32], stride: usize) {
        let rows = q.len() / self.head_dim.div_ceil(LANES);
        let mut row = 0;
        while row < rows {
            row += match rows - row {
                4.. => self.dot_rows::<S, 4, 2>(simd, q, (row, stride), out),
                2.. => self.dot_rows::<S, 2, 4>(simd, q, (row, stride), out),
                _ => self.dot_rows::<S, 1, 4>(simd, q, (row, stride), out),
            };
        }
    }

    /// R rows, J keys at a time; returns R.
    #[inline(always)]
    fn dot_rows<S: Simd, const R: usize, const J: usize>(
        &self,
        simd: S,
        q: &[Lanes],
        (row, stride): (usize, usize),
        out: &mut [f32],
    ) -> usize {
        let (q, out) = (&q[row * self.head_dim.div_ceil(LANES)..], &mut out[row * stride..]);
        let (mut j, count) = (0, self.keys.len());
        while j < count {
            j += match count - j {
                left if left >= J => self.dot::<S, R, J>(simd, q, j, (&mut out[j..], stride)),
                _ => self.dot::<S, R, 1>(simd, q, j, (&mut out[j..], stride)),
            };
        }
        R
    }

    /// R rows with J keys from `j` on: several chains of sums at once, and the rows are read
    /// once for all of them; returns J.
    #[inline(always)]
    fn dot<S: Simd, const R: usize, const J: usize>(
        &self,
        simd: S,
        q: &[Lanes],
        j: usize,
        (out, stride): (&mut [f32], usize),
    ) -> usize {
        let steps = self.head_dim.div_ceil(LANES);
        let mut keys: [&[E]; J] = [&[]; J];
        for (i, key) in keys.iter_mut().enumerate() {
            let idx = self.keys.start + j + i;
            self.ask_for(idx + AHEAD);
            *key = self.row(idx);
        }
        let mut acc = [[simd.splat(0.0); J]; R];
        for step in 0..steps {
            let mut k = [simd.splat(0.0); J];
            for (k, key) in k.iter_mut().zip(&keys) {
                *k = front(simd, &key[step * LANES..]);
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let q = simd.load(&q[r * steps + step]);
                for (acc, &k) in acc.iter_mut().zip(&k) {
                    *acc = q.fma(k, *acc);
                }
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            for (i, &acc) in acc.iter().enumerate() {
                out[r * stride + i] = sum(acc);
            }
        }
        J
    }

    /// `o` (`[rows, D / 16, 16]`) += values * p (`[rows, stride]`).
    #[inline(always)]
    fn add<S: Simd>(&self, simd: S, (p, stride): (&[f32], usize), o: &mut [Lanes]) {
        let steps = self.head_dim.div_ceil(LANES);
        let rows = o.len() / steps;
        let mut row = 0;
        while row < rows {
            let (p, o) = (&p[row * stride..], &mut o[row * steps..]);
            row += match rows - row {
                4.. => self.add_rows::<S, 4>(simd, (p, stride), o),
                2.. => self.add_rows::<S, 2>(simd, (p, stride), o),
                _ => self.add_rows::<S, 1>(simd, (p, stride), o),
            };
        }
    }

    #[inline(always)]
    fn add_rows<S: Simd, const R: usize>(
        &self,
        simd: S,
        p: (&[f32], usize),
        o: &mut [Lanes],
    ) -> usize {
        let steps = self.head_dim.div_ceil(LANES);
        let mut step = 0;
        while step < steps {
            step += match steps - step {
                8.. if R <= 2 => self.add_piece::<S, R, 8>(simd, p, step, o),
                4.. => self.add_piece::<S, R, 4>(simd, p, step, o),
                2.. => self.add_piece::<S, R, 2>(simd, p, step, o),
                _ => self.add_piece::<S, R, 1>(simd, p, step, o),
            };
        }
        R
    }

    /// Vectors `step..step + C` of R rows of o.
    #[inline(always)]
    fn add_piece<S: Simd, const R: usize, const C: usize>(
        &self,
        simd: S,
        (p, stride): (&[f32], usize),
        step: usize,
        o: &mut [Lanes],
    ) -> usize {
        let steps = self.head_dim.div_ceil(LANES);
        let mut acc = [[simd.splat(0.0); C]; R];
        for (r, acc) in acc.iter_mut().enumerate() {
            for (c, acc) in acc.iter_mut().enumerate() {
                *acc = simd.load(&o[r * steps + step + c]);
            }
        }
        for (j, key) in self.keys.clone().enumerate() {
            if step == 0 {
                self.ask_for(key + AHEAD);
            }
            let value = &self.row(key)[step * LANES..];
            let mut v = [simd.splat(0.0); C];
            for (c, v) in v.iter_mut().enumerate() {
                *v = front(simd, &value[c * LANES..]);
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let p = simd.splat(p[r * stride + j]);
                for (acc, &v) in acc.iter_mut().zip(&v) {
                    *acc = p.fma(v, *acc);
                }
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            for (c, acc) in acc.iter().enumerate() {
                acc.store(&mut o[r * steps + step + c]);
            }
        }
        C
    }
}

/// Up to sixteen elements from the front, zero behind their end.
#[inline(always)]
fn front<S: Simd, E: Element>(simd: S, from: &[E]) -> S::V {
    match from.first_chunk() {
        Some(full) => E::load(simd, full),
        None => {
            let mut lanes = [E::default(); LANES];
            lanes[..from.len()].copy_from_slice(from);
            E::load(simd, &lanes)
        }
    }
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
