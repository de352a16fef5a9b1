//! Recurrent layers: rows one after the other, heads and columns of states beside each other.
//!
//! A column of a state depends on no other column. So a task has a head's state, or sixteen columns
//! of it where rows are many, and walks it sixteen columns at a time through all rows of a block:
//! these stay in the first level cache (8 KiB where keys have 128 elements), and one pass over them
//! does a row. It is 4 operations an element, which is 2 to 5 in 100 of what the products around it
//! cost; the chunked form of the same rule (Yang et al. 2024) needs more of them and rounds by
//! where chunks begin.

mod convolve;
mod gates;
mod walk;

use std::ops::Range;

use self::convolve::convolve;
use self::gates::output_of;
use self::walk::walk;
use super::gemm::{Place, linear};
use super::layer::normed;
use super::simd::{Kernel, LANES, Simd, load_front, store_front};
use crate::array::Array;
use crate::backend::BackendError;
use crate::recurrent::{Recurred, Recurrent};
use crate::shapes;
use crate::tensor::Rows;
use crate::weights::{LayerWeights, Linear};

/// Rows of one sequence that follow each other, and what it remembers before them.
struct Block {
    rows: Range<usize>,
    state: Vec<f32>,
}

/// Rows that a task convolves, or finishes.
const ROWS: usize = 16;

/// A part of a block: the first of its rows in the block, and where `cols` numbers of each go.
type Part<'a> = (&'a Block, usize, &'a mut [f32]);

/// `to`, `[rows of all blocks, cols]`, in parts of at most [`ROWS`] rows.
fn parts<'a>(blocks: &'a [Block], mut to: &'a mut [f32], cols: usize) -> Vec<Part<'a>> {
    let mut parts = Vec::new();
    for block in blocks {
        let of_block;
        (of_block, to) = to.split_at_mut(block.rows.len() * cols);
        let each = of_block.chunks_mut((ROWS * cols).max(1)).enumerate();
        parts.extend(each.map(|(idx, to)| (block, idx * ROWS, to)));
    }
    parts
}

/// See [`crate::MixerOps::mix`].
pub(super) fn mix(place: Place<'_>, layer: &LayerWeights, x: &Rows) -> Result<Rows, BackendError> {
    shapes::mixing(layer, x)?;
    linear("mix", place, normed(layer, x), &layer.qkv, None)
}

/// See [`crate::MixerOps::recur`].
pub(super) fn recur(
    place: Place<'_>,
    recurrent: &Recurrent,
    columns: &Rows,
    state: Array<f32>,
) -> Result<Recurred, BackendError> {
    shapes::recurring(recurrent, columns, &state)?;
    let block = Block { rows: 0..columns.rows(), state: recurrent.begin(state) };
    all(place, recurrent, columns, vec![block]).remove(0)
}

/// See [`crate::MixerOps::recur_each`].
pub(super) fn recur_each(
    place: Place<'_>,
    recurrent: &Recurrent,
    columns: &Rows,
    states: Vec<Array<f32>>,
) -> Vec<Result<Recurred, BackendError>> {
    let is_good = |state| shapes::recurring(recurrent, columns, state).is_ok();
    let fit = columns.rows() == states.len() && states.iter().all(is_good);
    let states = states.into_iter().enumerate();
    if !fit {
        let alone = |(i, state)| {
            shapes::at_most("recur", "states", i + 1, columns.rows())?;
            recur(place, recurrent, &columns.some(i..i + 1), state)
        };
        return states.map(alone).collect();
    }
    let block = |(i, state)| Block { rows: i..i + 1, state: recurrent.begin(state) };
    all(place, recurrent, columns, states.map(block).collect())
}

/// Blocks that have nothing to do with each other.
fn all(
    place: Place<'_>,
    recurrent: &Recurrent,
    columns: &Rows,
    mut blocks: Vec<Block>,
) -> Vec<Result<Recurred, BackendError>> {
    let (convolved, mut good) = convolve(place, recurrent, columns, &mut blocks);
    let walked = walk(place, recurrent, (columns, &convolved), (&mut blocks, &mut good));
    let output = output_of(place, recurrent, columns, (convolved, walked, &blocks));
    let outputs = match blocks.len() {
        1 => vec![output],
        _ => blocks.iter().map(|block| output.some(block.rows.clone())).collect(),
    };
    let of_block = |((block, output), good): ((Block, Rows), bool)| match good {
        true => Ok(Recurred { output, state: block.state.into() }),
        false => Err(BackendError::NotFinite { op: "recur", what: "a state" }),
    };
    blocks.into_iter().zip(outputs).zip(good).map(of_block).collect()
}

/// See [`crate::MixerOps::gate`].
pub(super) fn gate(
    place: Place<'_>,
    (layer, weight): (&LayerWeights, &Linear),
    x: &Rows,
    mut attention: Rows,
) -> Result<Rows, BackendError> {
    shapes::gating(layer, x, &attention)?;
    let gates = linear("gate", place, normed(layer, x), weight, None)?;
    let (cols, each) = (attention.cols(), layer.spec.head_dim);
    if cols == 0 {
        return Ok(attention);
    }
    let of_heads = weight.outputs < cols;
    let rows = attention.data_mut().chunks_mut(cols);
    let tasks = rows.zip(gates.data().chunks(weight.outputs)).collect();
    place.crew.map(tasks, |(row, gates): (&mut [f32], &[f32])| match of_heads {
        true => place.isa.run(ByHead { row, gates, each }),
        false => place.isa.run(ByElement { row, gates }),
    });
    Ok(attention)
}

/// 1 / (1 + e^-x).
#[inline(always)]
fn sigmoid<S: Simd>(simd: S, x: S::V) -> S::V {
    let one = simd.splat(1.0);
    one / (one + super::exp::exp(simd, simd.splat(0.0) - x))
}

/// x / (1 + e^-x).
#[inline(always)]
fn silu<S: Simd>(simd: S, x: S::V) -> S::V {
    x / (simd.splat(1.0) + super::exp::exp(simd, simd.splat(0.0) - x))
}

struct ByElement<'a> {
    row: &'a mut [f32],
    gates: &'a [f32],
}

impl Kernel for ByElement<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (x, gate) in self.row.chunks_mut(LANES).zip(self.gates.chunks(LANES)) {
            store_front(load_front(simd, x) * sigmoid(simd, load_front(simd, gate)), x);
        }
    }
}

struct ByHead<'a> {
    row: &'a mut [f32],
    gates: &'a [f32],
    each: usize,
}

impl Kernel for ByHead<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (head, &gate) in self.row.chunks_mut(self.each).zip(self.gates) {
            let factor = sigmoid(simd, simd.splat(gate));
            for x in head.chunks_mut(LANES) {
                store_front(load_front(simd, x) * factor, x);
            }
        }
    }
}
