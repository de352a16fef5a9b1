//! States, through the rows of their blocks.

use std::ops::Range;

use super::super::gemm::Place;
use super::super::simd::{Kernel, LANES, Simd, Vector, load_front, store_front, sum};
use super::Block;
use crate::recurrent::{Recurrent, Rule, States};
use crate::tensor::Rows;

/// Sums of a product with a state: enough that each waits for none.
const SUMS: usize = 4;

/// Blocks of so many rows have a task for each sixteen columns of a head, others for each head.
const MANY: usize = 64;

/// Columns of a head of `states` that a task has in a block of `rows` rows.
pub(super) fn span(states: States, rows: usize) -> usize {
    if rows < MANY { states.cols } else { LANES.min(states.cols) }
}

/// What heads read of their states: for each block, one after the other, and each head
/// `[spans][rows, span]`, of [`span`] columns or what is left of them. Nothing where the rule has
/// no states. Of blocks whose states are not finite behind their rows it says so in `good`.
pub(super) fn walk(
    place: Place<'_>,
    recurrent: &Recurrent,
    (columns, convolved): (&Rows, &[f32]),
    (blocks, good): (&mut [Block], &mut [bool]),
) -> Vec<f32> {
    let (channels, inputs) = (recurrent.channels(), recurrent.inputs_len());
    let Some(states) = recurrent.rule.states() else { return Vec::new() };
    let steps = match blocks.iter().any(|block| span(states, block.rows.len()) < states.cols) {
        true => {
            let heads = (0..states.heads).collect();
            place.crew.map(heads, |head| steps(recurrent, head, (columns, 0..columns.rows())))
        }
        false => Vec::new(), // a task has a head, and makes its own
    };
    let mut walked = vec![0.0; columns.rows() * states.heads * states.cols];
    let (mut rest, mut tasks) = (&mut *walked, Vec::new());
    for (idx, block) in blocks.iter_mut().enumerate() {
        let rows = block.rows.clone();
        let span = span(states, rows.len());
        let convolved = &convolved[rows.start * channels..rows.end * channels];
        let heads = block.state[inputs..].chunks_exact_mut(states.rows * states.cols);
        for (head, state) in heads.enumerate() {
            let steps = steps.get(head).map(|steps| &steps[rows.clone()]);
            for (first, state) in Part::all(state, states.cols, span) {
                let to;
                (to, rest) = rest.split_at_mut(rows.len() * state.cols());
                let of = Head { recurrent, states, head, first };
                let walk = Walk { of, convolved, steps, columns, first: rows.start, state, to };
                tasks.push((idx, walk));
            }
        }
    }
    let walk = |(idx, walk)| (idx, place.isa.run(walk));
    for (idx, is_good) in place.crew.map(tasks, walk) {
        good[idx] &= is_good;
    }
    walked
}

/// Some columns of a head's state.
enum Part<'a> {
    /// All of so many.
    Whole(&'a mut [f32], usize),
    /// Those of each row.
    Some(Vec<&'a mut [f32]>),
}

impl<'a> Part<'a> {
    /// A state of `cols` columns, `span` of them in each part, and the first of each.
    fn all(state: &'a mut [f32], cols: usize, span: usize) -> Vec<(usize, Self)> {
        if span == cols {
            return vec![(0, Self::Whole(state, cols))];
        }
        let mut parts: Vec<_> = (0..cols).step_by(span).map(|first| (first, Vec::new())).collect();
        for row in state.chunks_exact_mut(cols) {
            parts.iter_mut().zip(row.chunks_mut(span)).for_each(|(part, row)| part.1.push(row));
        }
        parts.into_iter().map(|(first, rows)| (first, Self::Some(rows))).collect()
    }

    fn cols(&self) -> usize {
        match self {
            Self::Whole(_, cols) => *cols,
            Self::Some(rows) => rows.first().map_or(0, |row| row.len()),
        }
    }

    #[inline(always)]
    fn row(&mut self, i: usize) -> &mut [f32] {
        match self {
            Self::Whole(state, cols) => &mut state[i * *cols..(i + 1) * *cols],
            Self::Some(rows) => rows[i],
        }
    }
}

/// Decay and step of a head for some rows.
fn steps(
    recurrent: &Recurrent,
    head: usize,
    (columns, rows): (&Rows, Range<usize>),
) -> Vec<[f32; 2]> {
    let rows = rows.map(|t| columns.row(t));
    match &recurrent.rule {
        Rule::Gated => Vec::new(),
        Rule::Delta(delta) => {
            let [_, b, a] = delta.gates();
            let gates = |row: &[f32]| [row[b.start + head], row[a.start + head]];
            rows.map(|row| delta.decay_and_step(head, gates(row))).collect()
        }
        Rule::Scan(scan) => {
            let at = scan.steps().start + head;
            rows.map(|row| scan.decay_and_step(head, row[at])).collect()
        }
    }
}

/// Some columns of a head.
#[derive(Clone, Copy)]
struct Head<'a> {
    recurrent: &'a Recurrent,
    states: States,
    head: usize,
    /// The first of them.
    first: usize,
}

/// Some columns of a head's state through the rows of a block.
struct Walk<'a> {
    of: Head<'a>,
    /// `[rows, channels]`.
    convolved: &'a [f32],
    /// `[rows]`: decay and step, if they are there already.
    steps: Option<&'a [[f32; 2]]>,
    /// Of all blocks.
    columns: &'a Rows,
    /// Its first row among them.
    first: usize,
    state: Part<'a>,
    /// `[rows of the block, columns]`.
    to: &'a mut [f32],
}

/// First elements, among a row's convolved ones, of what a head takes.
#[derive(Clone, Copy)]
struct Parts {
    q: usize,
    k: usize,
    v: usize,
}

impl Head<'_> {
    fn parts(self) -> Parts {
        let States { rows, cols, .. } = self.states;
        match &self.recurrent.rule {
            Rule::Gated => Parts { q: 0, k: 0, v: 0 },
            Rule::Delta(delta) => {
                let q = delta.key_head(self.head) * rows;
                let v = 2 * delta.keys() + self.head * cols + self.first;
                Parts { q, k: delta.keys() + q, v }
            }
            Rule::Scan(scan) => {
                let k = scan.outputs() + scan.group(self.head) * rows;
                Parts { q: k + scan.groups * rows, k, v: self.head * cols + self.first }
            }
        }
    }
}

impl Kernel for Walk<'_> {
    /// Whether the state is finite behind the rows.
    type Out = bool;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> bool {
        let Self { of, convolved, mut state, to, .. } = self;
        let (parts, channels, cols) = (of.parts(), of.recurrent.channels(), state.cols());
        let own = match self.steps {
            Some(_) => Vec::new(),
            None => {
                let rows = self.first..self.first + to.len() / cols;
                self::steps(of.recurrent, of.head, (self.columns, rows))
            }
        };
        let steps = self.steps.unwrap_or(&own);
        let mut tile = vec![[0.0; LANES]; of.states.rows];
        let mut nothing = simd.splat(0.0); // times a number that is not finite it is NaN
        for first in (0..cols).step_by(LANES) {
            let width = LANES.min(cols - first);
            for (i, lanes) in tile.iter_mut().enumerate() {
                lanes[..width].copy_from_slice(&state.row(i)[first..first + width]);
            }
            let at = At { convolved, channels, parts, first, width };
            let to = to.chunks_exact_mut(cols).map(|row| &mut row[first..first + width]);
            match &of.recurrent.rule {
                Rule::Gated => {}
                Rule::Delta(_) => delta(simd, &mut tile, (at, steps), to),
                Rule::Scan(rule) => {
                    scan(simd, &mut tile, (at, steps, rule.skip[of.head]), to);
                }
            }
            for (i, lanes) in tile.iter().enumerate() {
                nothing = simd.load(lanes).fma(simd.splat(0.0), nothing);
                state.row(i)[first..first + width].copy_from_slice(&lanes[..width]);
            }
        }
        sum(nothing) == 0.0
    }
}

/// Sixteen columns of those that a task has, in convolved rows.
#[derive(Clone, Copy)]
struct At<'a> {
    convolved: &'a [f32],
    channels: usize,
    parts: Parts,
    first: usize,
    width: usize,
}

impl<'a> At<'a> {
    #[inline(always)]
    fn part(self, t: usize, first: usize, len: usize) -> &'a [f32] {
        &self.convolved[t * self.channels + first..][..len]
    }

    #[inline(always)]
    fn q(self, t: usize, rows: usize) -> &'a [f32] {
        self.part(t, self.parts.q, rows)
    }

    #[inline(always)]
    fn k(self, t: usize, rows: usize) -> &'a [f32] {
        self.part(t, self.parts.k, rows)
    }

    #[inline(always)]
    fn v(self, t: usize) -> &'a [f32] {
        self.part(t, self.parts.v + self.first, self.width)
    }
}

/// kᵀ S.
#[inline(always)]
fn product<S: Simd>(simd: S, k: &[f32], tile: &[[f32; LANES]]) -> S::V {
    let mut sums = [simd.splat(0.0); SUMS];
    let (quads, rest) = tile.as_chunks::<SUMS>();
    let (keys, last) = k.as_chunks::<SUMS>();
    for (lanes, k) in quads.iter().zip(keys) {
        for i in 0..SUMS {
            sums[i] = simd.load(&lanes[i]).fma(simd.splat(k[i]), sums[i]);
        }
    }
    for (lanes, &k) in rest.iter().zip(last) {
        sums[0] = simd.load(lanes).fma(simd.splat(k), sums[0]);
    }
    total::<S>(sums)
}

#[inline(always)]
fn total<S: Simd>([a, b, c, d]: [S::V; SUMS]) -> S::V {
    (a + b) + (c + d)
}

/// See [`crate::Delta`]. The pass that changes the state for a row also reads it with the next
/// row's key.
#[inline(always)]
fn delta<'t, S: Simd>(
    simd: S,
    tile: &mut [[f32; LANES]],
    (at, steps): (At<'_>, &[[f32; 2]]),
    to: impl Iterator<Item = &'t mut [f32]>,
) {
    let rows = tile.len();
    if steps.is_empty() {
        return;
    }
    let mut held = product(simd, at.k(0, rows), tile);
    for ((t, &[decay, step]), to) in steps.iter().enumerate().zip(to) {
        let (q, k) = (at.q(t, rows), at.k(t, rows));
        let next = at.k((t + 1).min(steps.len() - 1), rows);
        let decay = simd.splat(decay);
        let added = (load_front(simd, at.v(t)) - held * decay) * simd.splat(step);
        let (mut read, mut keep) = ([simd.splat(0.0); SUMS], [simd.splat(0.0); SUMS]);
        let (quads, rest) = tile.as_chunks_mut::<SUMS>();
        let ((keys, last_k), (nexts, last_n)) = (k.as_chunks::<SUMS>(), next.as_chunks::<SUMS>());
        let (queries, last_q) = q.as_chunks::<SUMS>();
        for (((lanes, k), q), next) in quads.iter_mut().zip(keys).zip(queries).zip(nexts) {
            for i in 0..SUMS {
                let new = simd.splat(k[i]).fma(added, simd.load(&lanes[i]) * decay);
                new.store(&mut lanes[i]);
                read[i] = simd.splat(q[i]).fma(new, read[i]);
                keep[i] = new.fma(simd.splat(next[i]), keep[i]);
            }
        }
        for (((lanes, &k), &q), &next) in rest.iter_mut().zip(last_k).zip(last_q).zip(last_n) {
            let new = simd.splat(k).fma(added, simd.load(lanes) * decay);
            new.store(lanes);
            read[0] = simd.splat(q).fma(new, read[0]);
            keep[0] = new.fma(simd.splat(next), keep[0]);
        }
        held = total::<S>(keep);
        store_front(total::<S>(read), to);
    }
}

/// See [`crate::Scan`].
#[inline(always)]
fn scan<'t, S: Simd>(
    simd: S,
    tile: &mut [[f32; LANES]],
    (at, steps, skip): (At<'_>, &[[f32; 2]], f32),
    to: impl Iterator<Item = &'t mut [f32]>,
) {
    let rows = tile.len();
    for ((t, &[decay, step]), to) in steps.iter().enumerate().zip(to) {
        let (c, b, x) = (at.q(t, rows), at.k(t, rows), load_front(simd, at.v(t)));
        let (decay, added) = (simd.splat(decay), x * simd.splat(step));
        let mut read = [simd.splat(0.0); SUMS];
        let (quads, rest) = tile.as_chunks_mut::<SUMS>();
        let ((keys, last_k), (queries, last_q)) = (b.as_chunks::<SUMS>(), c.as_chunks::<SUMS>());
        for ((lanes, b), c) in quads.iter_mut().zip(keys).zip(queries) {
            for i in 0..SUMS {
                let new = simd.splat(b[i]).fma(added, simd.load(&lanes[i]) * decay);
                new.store(&mut lanes[i]);
                read[i] = simd.splat(c[i]).fma(new, read[i]);
            }
        }
        for ((lanes, &b), &c) in rest.iter_mut().zip(last_k).zip(last_q) {
            let new = simd.splat(b).fma(added, simd.load(lanes) * decay);
            new.store(lanes);
            read[0] = simd.splat(c).fma(new, read[0]);
        }
        store_front(x.fma(simd.splat(skip), total::<S>(read)), to);
    }
}
