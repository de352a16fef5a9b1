//! Short convolutions, and what is made of their outputs before states see them.

use super::super::gemm::{Place, over_root};
use super::super::simd::{Kernel, LANES, Simd, Vector, load_front, store_front, sum};
use super::{Block, parts, silu};
use crate::recurrent::{Convolution, Delta, Recurrent, Rule};
use crate::tensor::Rows;

/// `[rows, channels]`: of [`Rule::Gated`] the layer's output already, of others silu(conv(.)), of
/// which queries and keys are normed. Blocks remember their last inputs; whether these are finite.
pub(super) fn convolve(
    place: Place<'_>,
    recurrent: &Recurrent,
    columns: &Rows,
    blocks: &mut [Block],
) -> (Vec<f32>, Vec<bool>) {
    let channels = recurrent.channels();
    let products;
    let (inputs, stride) = match &recurrent.rule {
        Rule::Gated => {
            products = multiplied(place, columns, channels);
            (&*products, channels)
        }
        Rule::Delta(_) => (columns.data(), columns.cols()),
        Rule::Scan(scan) => (columns.data().get(scan.outputs()..).unwrap_or(&[]), columns.cols()),
    };
    let inputs = Inputs { data: inputs, stride, channels };
    let mut convolved = vec![0.0; columns.rows() * channels];
    let tasks = parts(blocks, &mut convolved, channels);
    place.crew.map(tasks, |(block, first, to)| {
        let first = block.rows.start + first;
        place.isa.run(Convolve { recurrent, inputs, block, columns, first, to });
    });
    let remember = |block| remember(recurrent, inputs, block);
    let good = place.crew.map(blocks.iter_mut().collect(), remember);
    (convolved, good)
}

/// b · x.
fn multiplied(place: Place<'_>, columns: &Rows, channels: usize) -> Vec<f32> {
    let mut products = vec![0.0; columns.rows() * channels];
    let rows = columns.data().chunks(columns.cols().max(1));
    let tasks = products.chunks_mut(channels.max(1)).zip(rows).collect();
    place.crew.map(tasks, |(to, row): (&mut [f32], &[f32])| {
        let (b, x) = (&row[..channels], &row[2 * channels..]);
        to.iter_mut().zip(b.iter().zip(x)).for_each(|(to, (b, x))| *to = b * x);
    });
    products
}

/// What is convolved: a row has it at its beginning.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    data: &'a [f32],
    stride: usize,
    channels: usize,
}

impl<'a> Inputs<'a> {
    fn row(self, row: usize) -> &'a [f32] {
        &self.data[row * self.stride..][..self.channels]
    }

    /// The row that is `age` rows before row `row` of a block; of those before the block, the
    /// oldest of `last` is `taps - 1` rows before its first.
    #[inline(always)]
    fn before(self, (row, age): (usize, usize), block: &'a Block, taps: usize) -> &'a [f32] {
        match row.checked_sub(age).filter(|&row| row >= block.rows.start) {
            Some(row) => self.row(row),
            None => {
                let missing = age - (row - block.rows.start); // 1 is the last of them
                &block.state[(taps - 1 - missing) * self.channels..][..self.channels]
            }
        }
    }
}

/// The last inputs of a block become the first elements of its state; whether these are finite.
fn remember(recurrent: &Recurrent, inputs: Inputs<'_>, Block { rows, state }: &mut Block) -> bool {
    let (kept, channels) = (recurrent.conv.taps - 1, inputs.channels);
    let new = rows.len().min(kept);
    let last = &mut state[..kept * channels];
    last.copy_within(new * channels.., 0);
    for (row, to) in (rows.end - new..).zip(last[(kept - new) * channels..].chunks_mut(channels)) {
        to.copy_from_slice(inputs.row(row));
    }
    last.iter().fold(true, |all, x| all & x.is_finite())
}

struct Convolve<'a> {
    recurrent: &'a Recurrent,
    inputs: Inputs<'a>,
    block: &'a Block,
    columns: &'a Rows,
    first: usize,
    to: &'a mut [f32],
}

impl Kernel for Convolve<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { recurrent, inputs, block, columns, first, to } = self;
        let (conv, channels) = (&recurrent.conv, inputs.channels);
        for (i, to) in to.chunks_exact_mut(channels).enumerate() {
            let row = first + i;
            convolve_row(simd, conv, (inputs, block, row), to);
            match &recurrent.rule {
                Rule::Gated => {
                    let gates = &columns.row(row)[channels..2 * channels];
                    for (to, gate) in to.chunks_mut(LANES).zip(gates.chunks(LANES)) {
                        store_front(load_front(simd, to) * load_front(simd, gate), to);
                    }
                }
                Rule::Delta(delta) => {
                    activate(simd, to);
                    norm_keys(simd, delta, to);
                }
                Rule::Scan(_) => activate(simd, to),
            }
        }
    }
}

#[inline(always)]
fn convolve_row<S: Simd>(
    simd: S,
    conv: &Convolution,
    (inputs, block, row): (Inputs<'_>, &Block, usize),
    to: &mut [f32],
) {
    let channels = to.len();
    for (part, to) in to.chunks_mut(LANES).enumerate() {
        let here = part * LANES..part * LANES + to.len();
        let mut y = match &conv.bias {
            Some(bias) => load_front(simd, &bias[here.clone()]),
            None => simd.splat(0.0),
        };
        for tap in 0..conv.taps {
            let x = inputs.before((row, conv.taps - 1 - tap), block, conv.taps);
            let weights = &conv.weights[tap * channels..][here.clone()];
            y = load_front(simd, weights).fma(load_front(simd, &x[here.clone()]), y);
        }
        store_front(y, to);
    }
}

#[inline(always)]
fn activate<S: Simd>(simd: S, row: &mut [f32]) {
    for part in row.chunks_mut(LANES) {
        store_front(silu(simd, load_front(simd, part)), part);
    }
}

/// Queries and keys of a row, as [`Delta`] has them.
#[inline(always)]
fn norm_keys<S: Simd>(simd: S, delta: &Delta, row: &mut [f32]) {
    let keys = delta.keys();
    for (idx, head) in row[..2 * keys].chunks_exact_mut(delta.key_dim).enumerate() {
        let mut squares = simd.splat(0.0);
        for part in head.chunks(LANES) {
            let x = load_front(simd, part);
            squares = x.fma(x, squares);
        }
        let is_query = idx < delta.key_heads;
        let factor = if is_query { 1.0 / (delta.key_dim as f32).sqrt() } else { 1.0 };
        let scale = simd.splat(over_root(factor, sum(squares) + Delta::EPS));
        for part in head.chunks_mut(LANES) {
            store_front(load_front(simd, part) * scale, part);
        }
    }
}
