//! States, through the rows of their blocks.

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
/// no states. And for each block whether its state is finite.
pub(super) fn walk(
    place: Place<'_>,
    recurrent: &Recurrent,
    (columns, convolved): (&Rows, &[f32]),
    blocks: &mut [Block],
) -> (Vec<f32>, Vec<bool>) {
    let (channels, inputs) = (recurrent.channels(), recurrent.inputs_len());
    let are_finite = |values: &[f32]| values.iter().all(|x| x.is_finite());
    let mut good: Vec<_> = blocks.iter().map(|block| are_finite(&block.state[..inputs])).collect();
    let Some(states) = recurrent.rule.states() else { return (Vec::new(), good) };
    let steps = steps(place, recurrent, states, columns);
    let mut walked = vec![0.0; columns.rows() * states.heads * states.cols];
    let (mut rest, mut tasks) = (&mut *walked, Vec::new());
    for (idx, block) in blocks.iter_mut().enumerate() {
        let rows = block.rows.clone();
        let span = span(states, rows.len());
        let heads = block.state[inputs..].chunks_exact_mut(states.rows * states.cols);
        for (head, state) in heads.enumerate() {
            let steps = &steps[head][rows.clone()];
            let mut rests: Vec<&mut [f32]> = state.chunks_exact_mut(states.cols).collect();
            for first in (0..states.cols).step_by(span) {
                let width = span.min(states.cols - first);
                let to;
                (to, rest) = rest.split_at_mut(rows.len() * width);
                let state = rests.iter_mut().map(|row| cut(row, width)).collect();
                let convolved = &convolved[rows.start * channels..rows.end * channels];
                let head = Head { recurrent, states, head, first };
                tasks.push((idx, Walk { of: head, convolved, steps, state, to }));
            }
        }
    }
    let walk = |(idx, walk)| (idx, place.isa.run(walk));
    for (idx, is_good) in place.crew.map(tasks, walk) {
        good[idx] &= is_good;
    }
    (walked, good)
}

/// The first `width` elements; `row` is what is behind them.
fn cut<'a>(row: &mut &'a mut [f32], width: usize) -> &'a mut [f32] {
    let (here, later) = std::mem::take(row).split_at_mut(width);
    *row = later;
    here
}

/// Decay and step of every head and row.
fn steps(
    place: Place<'_>,
    recurrent: &Recurrent,
    states: States,
    columns: &Rows,
) -> Vec<Vec<[f32; 2]>> {
    let rows = || (0..columns.rows()).map(|t| columns.row(t));
    place.crew.map((0..states.heads).collect(), |head| match &recurrent.rule {
        Rule::Gated => Vec::new(),
        Rule::Delta(delta) => {
            let [_, b, a] = delta.gates();
            let gates = |row: &[f32]| [row[b.start + head], row[a.start + head]];
            rows().map(|row| delta.decay_and_step(head, gates(row))).collect()
        }
        Rule::Scan(scan) => {
            let at = scan.steps().start + head;
            rows().map(|row| scan.decay_and_step(head, row[at])).collect()
        }
    })
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
    /// `[rows]`: decay and step.
    steps: &'a [[f32; 2]],
    /// These columns of each row of the state.
    state: Vec<&'a mut [f32]>,
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
        let Self { of, convolved, steps, mut state, to } = self;
        let (parts, channels) = (of.parts(), of.recurrent.channels());
        let cols = state.first().map_or(0, |row| row.len());
        let mut tile = vec![[0.0; LANES]; state.len()];
        let mut nothing = simd.splat(0.0); // times a number that is not finite it is NaN
        for first in (0..cols).step_by(LANES) {
            let width = LANES.min(cols - first);
            for (lanes, row) in tile.iter_mut().zip(&state) {
                lanes[..width].copy_from_slice(&row[first..first + width]);
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
            for (lanes, row) in tile.iter().zip(&mut state) {
                nothing = simd.load(lanes).fma(simd.splat(0.0), nothing);
                row[first..first + width].copy_from_slice(&lanes[..width]);
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
