//! What becomes of what heads have read of their states.

use super::super::gemm::{Place, norm_row};
use super::super::simd::{Kernel, LANES, Simd, load_front, store_front};
use super::walk::span;
use super::{Block, parts, silu};
use crate::recurrent::{Recurrent, Rule};
use crate::tensor::Rows;

/// `[rows, outputs]`, of [`walked`](super::walk::walk), or `convolved` where there are no states.
pub(super) fn output_of(
    place: Place<'_>,
    recurrent: &Recurrent,
    columns: &Rows,
    (convolved, walked, blocks): (Vec<f32>, Vec<f32>, &[Block]),
) -> Rows {
    let (rows, cols) = (columns.rows(), recurrent.outputs());
    let Some(states) = recurrent.rule.states() else {
        return Rows::from_vec(rows, cols, convolved);
    };
    let mut output = Rows::from_vec(rows, cols, vec![0.0; rows * cols]);
    place.crew.map(parts(blocks, output.data_mut(), cols), |(block, first, to)| {
        let walked = &walked[block.rows.start * cols..block.rows.end * cols];
        for (t, to) in (first..).zip(to.chunks_exact_mut(cols)) {
            let (rows, span) = (block.rows.len(), span(states, block.rows.len()));
            for (head, to) in to.chunks_exact_mut(states.cols).enumerate() {
                let mut at = head * rows * states.cols;
                for to in to.chunks_mut(span) {
                    to.copy_from_slice(&walked[at + t * to.len()..][..to.len()]);
                    at += rows * to.len();
                }
            }
            let columns = columns.row(block.rows.start + t);
            place.isa.run(Finish { recurrent, columns, to });
        }
    });
    output
}

struct Finish<'a> {
    recurrent: &'a Recurrent,
    columns: &'a [f32],
    to: &'a mut [f32],
}

impl Kernel for Finish<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { recurrent, columns, to } = self;
        match &recurrent.rule {
            Rule::Gated => {}
            Rule::Delta(delta) => {
                for head in to.chunks_exact_mut(delta.value_dim) {
                    norm_row(simd, head, &delta.norm, delta.norm_eps);
                }
                let [z, ..] = delta.gates();
                multiply(simd, to, &columns[z]);
            }
            Rule::Scan(scan) => {
                multiply(simd, to, &columns[..scan.outputs()]);
                if let Some(norm) = &scan.norm {
                    let size = to.len() / norm.groups;
                    let weights = norm.weights.chunks_exact(size);
                    for (part, weights) in to.chunks_exact_mut(size).zip(weights) {
                        norm_row(simd, part, weights, norm.eps);
                    }
                }
            }
        }
    }
}

/// Each element times silu of its gate.
#[inline(always)]
fn multiply<S: Simd>(simd: S, row: &mut [f32], gates: &[f32]) {
    for (x, gate) in row.chunks_mut(LANES).zip(gates.chunks(LANES)) {
        store_front(load_front(simd, x) * silu(simd, load_front(simd, gate)), x);
    }
}
