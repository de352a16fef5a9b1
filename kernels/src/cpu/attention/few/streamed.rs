//! The two products of few rows, each of which reads every key once.

use std::ops::Range;

use crate::cpu::attention::rows::Lanes;
use crate::cpu::simd::{Element, LANES, LINE, Simd, Vector, prefetch};

/// A line of a row as [`Element::load_line`] loads it.
pub(super) type Halves = [Lanes; 2];

/// Keys whose dot products are summed up side by side.
const BLOCK: usize = LANES;

/// Keys whose values are added to a piece of o at a stretch: 8 KiB of bf16 at D = 128.
const STRETCH: usize = 32;

/// Rows between the one in use and the one that is asked for: 6 KiB of bf16 at D = 128. The
/// processor's own reading ahead ends at every 4 KiB page, and here at every row of a table.
const AHEAD: usize = 24;

/// Rows of a register tile at most.
const ROWS: usize = 4;

/// Keys or values of one KV head, wherever they lie: `[keys]` of `[head_dim]`.
pub(super) struct Streamed<'a, E> {
    rows: Vec<&'a [E]>,
    head_dim: usize,
}

impl<'a, E: Element> Streamed<'a, E> {
    pub(super) fn new(rows: Vec<&'a [E]>, head_dim: usize) -> Self {
        Self { rows, head_dim }
    }

    /// The lines of `N` rows from `first` on, the last row instead of those behind it. Rows that
    /// end within a line stand in `spare`.
    #[inline(always)]
    fn lines<'s, const N: usize>(
        &'s self,
        first: usize,
        spare: &'s mut Vec<[E; LINE]>,
    ) -> [&'s [[E; LINE]]; N] {
        let row = |i: usize| self.rows[(first + i).min(self.rows.len() - 1)];
        let mut lines: [&[_]; N] = [&[]; N];
        if self.head_dim.is_multiple_of(LINE) {
            for (i, lines) in lines.iter_mut().enumerate() {
                *lines = row(i).as_chunks().0;
            }
        } else {
            let width = self.head_dim.div_ceil(LINE);
            spare.resize(N * width, [E::default(); LINE]);
            for (i, to) in spare.chunks_exact_mut(width).enumerate() {
                to.as_flattened_mut()[..self.head_dim].copy_from_slice(row(i));
            }
            for (lines, from) in lines.iter_mut().zip(spare.chunks_exact(width)) {
                *lines = from;
            }
        }
        lines
    }

    /// Has row `idx` brought near, if there is one.
    #[inline(always)]
    fn ask_for(&self, idx: usize) {
        if let Some(row) = self.rows.get(idx) {
            prefetch(row);
        }
    }

    /// `out` (`[rows, width]`) = dot products of `q` (`[rows, D / 32]`) with the keys, something or
    /// other behind the last one.
    #[inline(always)]
    pub(super) fn dots<S: Simd>(&self, simd: S, q: &[Halves], (out, width): (&mut [Lanes], usize)) {
        let lines = self.head_dim.div_ceil(LINE);
        let (rows, steps) = (q.len() / lines, self.rows.len().div_ceil(BLOCK));
        let (mut spare, mut sums) = (Vec::new(), [[[0.0; LANES]; BLOCK]; ROWS]);
        for step in 0..steps {
            let keys: [_; BLOCK] = self.lines(step * BLOCK, &mut spare);
            let mut row = 0;
            while row < rows {
                // Others find the next keys near, too.
                let next = if row == 0 { step * BLOCK + AHEAD } else { self.rows.len() };
                let q = &q[row * lines..];
                let count = match (rows - row, S::PANELS > 1) {
                    (4.., true) => self.dot::<S, 4, 4>(simd, q, (&keys, next), &mut sums),
                    (2.., true) => self.dot::<S, 2, 8>(simd, q, (&keys, next), &mut sums),
                    (_, true) => self.dot::<S, 1, 8>(simd, q, (&keys, next), &mut sums),
                    (2.., false) => self.dot::<S, 2, 2>(simd, q, (&keys, next), &mut sums),
                    (_, false) => self.dot::<S, 1, 4>(simd, q, (&keys, next), &mut sums),
                };
                for (i, sums) in sums[..count].iter().enumerate() {
                    simd.sums(sums, &mut out[(row + i) * width + step]);
                }
                row += count;
            }
        }
    }

    /// Sums in lanes of R rows with a block of keys, J at a time: several chains at once. The
    /// rows from `next` on are asked for. Returns R.
    #[inline(always)]
    fn dot<S: Simd, const R: usize, const J: usize>(
        &self,
        simd: S,
        q: &[Halves],
        (keys, next): (&[&[[E; LINE]]; BLOCK], usize),
        sums: &mut [[Lanes; BLOCK]; ROWS],
    ) -> usize {
        let lines = keys[0].len();
        let q = &q[..R * lines];
        assert!(keys.iter().all(|key| key.len() == lines));
        for first in (0..BLOCK).step_by(J) {
            let mut acc = [[simd.splat(0.0); J]; R];
            for j in 0..J {
                self.ask_for(next + first + j);
            }
            for line in 0..lines {
                let mut halves = [[simd.splat(0.0); 2]; R];
                for (r, halves) in halves.iter_mut().enumerate() {
                    let [first, second] = &q[r * lines + line];
                    *halves = [simd.load(first), simd.load(second)];
                }
                for j in 0..J {
                    // SAFETY: all keys have as many lines.
                    let key = unsafe { keys[first + j].get_unchecked(line) };
                    let [a, b] = E::load_line(simd, key);
                    for (acc, [q, _]) in acc.iter_mut().zip(&halves) {
                        acc[j] = q.fma(a, acc[j]);
                    }
                    for (acc, [_, q]) in acc.iter_mut().zip(&halves) {
                        acc[j] = q.fma(b, acc[j]);
                    }
                }
            }
            for (acc, sums) in acc.iter().zip(sums.iter_mut()) {
                acc.iter().zip(&mut sums[first..]).for_each(|(acc, to)| acc.store(to));
            }
        }
        R
    }

    /// `o` (`[rows, D / 32]`) += the values of `span` times `p` (`[rows, width]`).
    #[inline(always)]
    pub(super) fn add<S: Simd>(
        &self,
        simd: S,
        span: Range<usize>,
        (p, width): (&[Lanes], usize),
        o: &mut [Halves],
    ) {
        let lines = self.head_dim.div_ceil(LINE);
        let (rows, mut spare) = (o.len() / lines, Vec::new());
        let (p, stride) = (p.as_flattened(), width * LANES);
        for first in span.clone().step_by(STRETCH) {
            let values = (&self.lines(first, &mut spare), first..span.end.min(first + STRETCH));
            let mut row = 0;
            while row < rows {
                let (p, o) = (&p[row * stride..], &mut o[row * lines..]);
                row += match (rows - row, S::PANELS > 1) {
                    (4.., true) => self.add_rows::<S, 4>(simd, &values, (p, stride), o),
                    (2.., _) => self.add_rows::<S, 2>(simd, &values, (p, stride), o),
                    _ => self.add_rows::<S, 1>(simd, &values, (p, stride), o),
                };
            }
        }
    }

    /// A stretch of values for R rows. Returns R.
    #[inline(always)]
    fn add_rows<S: Simd, const R: usize>(
        &self,
        simd: S,
        values: &(&[&[[E; LINE]]; STRETCH], Range<usize>),
        p: (&[f32], usize),
        o: &mut [Halves],
    ) -> usize {
        let lines = values.0[0].len();
        let mut line = 0;
        while line < lines {
            line += match (lines - line, S::PANELS > 1) {
                (4.., true) if R <= 2 => self.piece::<S, R, 4>(simd, values, (p, line), o),
                (2.., wide) if wide || R == 1 => self.piece::<S, R, 2>(simd, values, (p, line), o),
                _ => self.piece::<S, R, 1>(simd, values, (p, line), o),
            };
        }
        R
    }

    /// Lines `line..line + C` of R rows of o. Returns C.
    #[inline(always)]
    fn piece<S: Simd, const R: usize, const C: usize>(
        &self,
        simd: S,
        (values, span): &(&[&[[E; LINE]]; STRETCH], Range<usize>),
        ((p, stride), line): ((&[f32], usize), usize),
        o: &mut [Halves],
    ) -> usize {
        let lines = values[0].len();
        let (first, count) = (span.start, span.len());
        assert!(count <= STRETCH && values.iter().all(|value| line + C <= value.len()));
        let mut weights: [&[f32]; R] = [&[]; R];
        let mut acc = [[[simd.splat(0.0); 2]; C]; R];
        for r in 0..R {
            weights[r] = &p[r * stride + first..][..count];
            for (acc, [a, b]) in acc[r].iter_mut().zip(&o[r * lines + line..]) {
                *acc = [simd.load(a), simd.load(b)];
            }
        }
        for j in 0..count {
            if line == 0 {
                self.ask_for(first + j + AHEAD);
            }
            let mut p = [simd.splat(0.0); R];
            for (p, weights) in p.iter_mut().zip(&weights) {
                *p = simd.splat(weights[j]);
            }
            for c in 0..C {
                // SAFETY: all values have as many lines.
                let value = unsafe { values[j].get_unchecked(line + c) };
                let [a, b] = E::load_line(simd, value);
                for (acc, p) in acc.iter_mut().zip(&p) {
                    acc[c] = [p.fma(a, acc[c][0]), p.fma(b, acc[c][1])];
                }
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            for ([a, b], to) in acc.iter().zip(&mut o[r * lines + line..]) {
                a.store(&mut to[0]);
                b.store(&mut to[1]);
            }
        }
        C
    }
}
