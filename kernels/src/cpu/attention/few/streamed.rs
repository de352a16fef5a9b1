//! The two products of few rows, each of which reads every key once.

use std::marker::PhantomData;
use std::ops::Range;

use crate::cells::RowsOf;
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

/// Rows that are looked at behind the last one: those asked for with it, and the rest of a block
/// or of a stretch.
const BEHIND: usize = AHEAD + STRETCH;

/// Rows of a register tile at most.
const ROWS: usize = 4;

/// Values of [`STRETCH`] rows, what is asked for with each, and which of all keys they are.
type Stretch<'s, E> = (&'s [Row<E>; STRETCH], &'s [Row<E>; STRETCH], Range<usize>);

/// Where a row begins, which has the elements of its head's rows and need not end with a line.
#[derive(Clone, Copy)]
struct Row<E>(*const [E; LINE]);

impl<E: Element> Row<E> {
    /// # Safety
    /// The row has all of line `idx`, and lives as long as the caller wants it.
    #[inline(always)]
    unsafe fn line<'l>(self, idx: usize) -> &'l [E; LINE] {
        // SAFETY: the caller's.
        unsafe { &*self.0.add(idx) }
    }

    /// Has line `idx` brought near, whether it is there or not.
    #[inline(always)]
    fn ask_for(self, idx: usize) {
        prefetch(self.0.wrapping_add(idx), size_of::<[E; LINE]>());
    }
}

/// Keys or values of one KV head, wherever they lie: `[keys]` of `[head_dim]`.
pub(super) struct Streamed<'a, E> {
    /// Of all keys, and [`BEHIND`] more rows that may be read and count for nothing.
    rows: Vec<Row<E>>,
    keys: usize,
    head_dim: usize,
    owner: PhantomData<&'a [E]>,
}

impl<'a, E: Element> Streamed<'a, E> {
    /// The rows of `runs` of keys, `keys` in all; `next` is what is read behind them.
    ///
    /// # Panics
    /// When there are others: a bug of the caller.
    #[inline(always)]
    pub(super) fn new(
        runs: impl Iterator<Item = (RowsOf<'a, E>, Range<usize>)>,
        (keys, head_dim): (usize, usize),
        next: Option<&Self>,
    ) -> Self {
        let mut all = Vec::with_capacity(keys + BEHIND);
        runs.for_each(|(rows, run)| {
            all.extend(run.map(|j| {
                let row = rows.row(j);
                assert_eq!(row.len(), head_dim, "elements of a row");
                Row(row.as_ptr().cast())
            }));
        });
        assert_eq!(all.len(), keys, "rows of all keys");
        if let Some(next) = next {
            assert_eq!(next.head_dim, head_dim, "elements of a row");
            all.extend(next.rows.iter().take(BEHIND));
        }
        if let Some(&last) = all.last() {
            all.resize(keys + BEHIND, last);
        }
        Self { rows: all, keys, head_dim, owner: PhantomData }
    }

    /// Lines of a row, the last maybe in part.
    #[inline(always)]
    fn width(&self) -> usize {
        self.head_dim.div_ceil(LINE)
    }

    /// `N` rows from `first` on, which have whole lines: those that do not are copied to `spare`.
    #[inline(always)]
    fn whole<const N: usize>(&self, first: usize, spare: &mut Vec<[E; LINE]>) -> [Row<E>; N] {
        let mut rows: [_; N] = *self.rows[first..].first_chunk().expect("rows behind the last");
        if !self.head_dim.is_multiple_of(LINE) {
            let width = self.width();
            spare.resize(N * width, [E::default(); LINE]);
            for (to, row) in spare.chunks_exact_mut(width).zip(&mut rows) {
                // SAFETY: `new` was given so many elements, which live as long as this does.
                let from = unsafe { std::slice::from_raw_parts(row.0.cast(), self.head_dim) };
                to.as_flattened_mut()[..self.head_dim].copy_from_slice(from);
                *row = Row(to.as_ptr());
            }
        }
        rows
    }

    /// `out` (`[rows, width]`) = dot products of `q` (`[rows, D / 32]`) with the keys, something or
    /// other behind the last one.
    #[inline(always)]
    pub(super) fn dots<S: Simd>(&self, simd: S, q: &[Halves], (out, width): (&mut [Lanes], usize)) {
        let lines = self.width();
        let (rows, steps) = (q.len() / lines, self.keys.div_ceil(BLOCK));
        let (mut spare, mut sums) = (Vec::new(), [[[0.0; LANES]; BLOCK]; ROWS]);
        for step in 0..steps {
            let keys: [_; BLOCK] = self.whole(step * BLOCK, &mut spare);
            let next = self.rows[step * BLOCK + AHEAD..].first_chunk();
            let next = next.expect("rows behind the last");
            let mut row = 0;
            while row < rows {
                // Others find the next keys near, too.
                let next = (row == 0).then_some(next);
                let q = &q[row * lines..];
                // SAFETY: `whole` has whole lines of all.
                let count = unsafe {
                    match (rows - row, S::PANELS > 1) {
                        (4.., true) => self.dot::<S, 4, 4>(simd, q, (&keys, next), &mut sums),
                        (2.., true) => self.dot::<S, 2, 8>(simd, q, (&keys, next), &mut sums),
                        (_, true) => self.dot::<S, 1, 8>(simd, q, (&keys, next), &mut sums),
                        (2.., false) => self.dot::<S, 2, 2>(simd, q, (&keys, next), &mut sums),
                        (_, false) => self.dot::<S, 1, 4>(simd, q, (&keys, next), &mut sums),
                    }
                };
                for (i, sums) in sums[..count].iter().enumerate() {
                    simd.sums(sums, &mut out[(row + i) * width + step]);
                }
                row += count;
            }
        }
    }

    /// Sums in lanes of R rows with a block of keys, J at a time: several chains at once. The
    /// `next` are asked for. Returns R.
    ///
    /// # Safety
    /// Keys have [`Self::width`] whole lines.
    #[inline(always)]
    unsafe fn dot<S: Simd, const R: usize, const J: usize>(
        &self,
        simd: S,
        q: &[Halves],
        (keys, next): (&[Row<E>; BLOCK], Option<&[Row<E>; BLOCK]>),
        sums: &mut [[Lanes; BLOCK]; ROWS],
    ) -> usize {
        let lines = self.width();
        let q = &q[..R * lines];
        for first in (0..BLOCK).step_by(J) {
            let mut acc = [[simd.splat(0.0); J]; R];
            for line in 0..lines {
                if let Some(next) = next {
                    next[first..first + J].iter().for_each(|row| row.ask_for(line));
                }
                let mut halves = [[simd.splat(0.0); 2]; R];
                for (r, halves) in halves.iter_mut().enumerate() {
                    let [first, second] = &q[r * lines + line];
                    *halves = [simd.load(first), simd.load(second)];
                }
                for j in 0..J {
                    // SAFETY: the caller's.
                    let [a, b] = E::load_line(simd, unsafe { keys[first + j].line(line) });
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
        assert!(span.end <= self.keys);
        let lines = self.width();
        let (rows, mut spare) = (o.len() / lines, Vec::new());
        let (p, stride) = (p.as_flattened(), width * LANES);
        for first in span.clone().step_by(STRETCH) {
            let values = self.whole(first, &mut spare);
            let next = self.rows[first + AHEAD..].first_chunk().expect("rows behind the last");
            let values = (&values, next, first..span.end.min(first + STRETCH));
            let mut row = 0;
            while row < rows {
                let (p, o) = (&p[row * stride..], &mut o[row * lines..]);
                // SAFETY: `whole` has whole lines of all.
                row += unsafe {
                    match (rows - row, S::PANELS > 1) {
                        (4.., true) => self.add_rows::<S, 4>(simd, &values, (p, stride), o),
                        (2.., _) => self.add_rows::<S, 2>(simd, &values, (p, stride), o),
                        _ => self.add_rows::<S, 1>(simd, &values, (p, stride), o),
                    }
                };
            }
        }
    }

    /// A stretch of values for R rows. Returns R.
    ///
    /// # Safety
    /// Values have [`Self::width`] whole lines.
    #[inline(always)]
    unsafe fn add_rows<S: Simd, const R: usize>(
        &self,
        simd: S,
        values: &Stretch<'_, E>,
        p: (&[f32], usize),
        o: &mut [Halves],
    ) -> usize {
        let lines = self.width();
        let mut line = 0;
        while line < lines {
            // SAFETY: the caller's, and so many lines are left.
            line += unsafe {
                match (lines - line, S::PANELS > 1) {
                    (4.., true) if R <= 2 => self.piece::<S, R, 4>(simd, values, (p, line), o),
                    (2.., wide) if wide || R == 1 => {
                        self.piece::<S, R, 2>(simd, values, (p, line), o)
                    }
                    _ => self.piece::<S, R, 1>(simd, values, (p, line), o),
                }
            };
        }
        R
    }

    /// Lines `line..line + C` of R rows of o. Returns C.
    ///
    /// # Safety
    /// Values have these lines.
    #[inline(always)]
    unsafe fn piece<S: Simd, const R: usize, const C: usize>(
        &self,
        simd: S,
        (values, next, span): &Stretch<'_, E>,
        ((p, stride), line): ((&[f32], usize), usize),
        o: &mut [Halves],
    ) -> usize {
        let lines = self.width();
        let (first, count) = (span.start, span.len());
        assert!(count <= STRETCH);
        let mut weights: [&[f32]; R] = [&[]; R];
        let mut acc = [[[simd.splat(0.0); 2]; C]; R];
        for r in 0..R {
            weights[r] = &p[r * stride + first..][..count];
            for (acc, [a, b]) in acc[r].iter_mut().zip(&o[r * lines + line..]) {
                *acc = [simd.load(a), simd.load(b)];
            }
        }
        for j in 0..count {
            let mut p = [simd.splat(0.0); R];
            for (p, weights) in p.iter_mut().zip(&weights) {
                *p = simd.splat(weights[j]);
            }
            for c in 0..C {
                next[j].ask_for(line + c);
                // SAFETY: the caller's.
                let [a, b] = E::load_line(simd, unsafe { values[j].line(line + c) });
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
