//! Blocks that are computed together, as the rows of a decode batch are: what each gives alone.

use crate::backend::{Attended, Backend, BackendError, Queries, Scope};
use crate::compare::identical;
use crate::memory::{Keys, Leaves};
use crate::tensor::{KvDtype, Rows};
use crate::weights::Angles;
use crate::window::Window;

use super::layers::{angles, row_bits, rows};
use super::plain::PlainLayer;
use super::scene::{Block, Shape};

/// Positions in any order, some of them twice.
const POSITIONS: [u32; 19] =
    [7, 0, 90_000, 7, 3, 1_000_000, 2, 41, 5, 6, 8, 99, 100, 12, 13, 14, 15, 16, 17];

/// Rows at positions that have nothing to do with each other, projected at once.
pub fn rows_are_projected_at_their_own_positions(backend: &dyn Backend) {
    for plain in [PlainLayer::shared(), PlainLayer::latent()] {
        rows_are_projected(backend, &plain);
    }
}

fn rows_are_projected(backend: &dyn Backend, plain: &PlainLayer) {
    let layer = plain.pack(backend);
    let head_dim = layer.spec.head_dim;
    for count in [0, 1, 2, POSITIONS.len()] {
        let (x, positions) = (rows(31, count, plain.width()), &POSITIONS[..count]);
        let each: Vec<Angles> = positions.iter().map(|&at| angles(at, 1, head_dim)).collect();
        let join = |of: fn(&Angles) -> &[f32]| each.iter().flat_map(of).copied().collect();
        let (cos, sin) = (join(|it| &it.cos), join(|it| &it.sin));
        let together = Angles { tokens: count, half: head_dim / 2, cos, sin };
        let seen = backend.project_each(&layer, &x, positions, &together).expect("fits");
        assert_eq!(seen.len(), count);
        for (i, seen) in seen.iter().enumerate() {
            let row = x.some(i..i + 1);
            let want =
                backend.project(&layer, &row, (positions[i], &each[i]), row.rows()).expect("fits");
            identical("project", &row_bits(seen, 0), &row_bits(&want, 0)).unwrap();
            assert_eq!((seen.q.tokens, &seen.keys.positions), (1, &want.keys.positions));
        }
        let too_many = backend.project_each(&layer, &x, &[&[9], positions].concat(), &together);
        assert!(matches!(too_many, Err(BackendError::Shape { op: "project", .. })));
    }
}

/// One sequence's row and what it looks at.
struct Sequence {
    past: Keys,
    block: Block,
    /// `[tokens]`, where masses are asked for.
    row_weights: Option<Vec<f32>>,
    leaves: Leaves,
}

impl Sequence {
    fn new(shape: Shape, (past, tokens): (usize, usize), idx: usize) -> Self {
        let row_weights = [None, Some(vec![1.0; tokens]), Some(vec![0.05; tokens])];
        Self {
            past: shape.past(past),
            block: shape.block(2 * past as u32 + idx as u32, tokens),
            row_weights: row_weights[idx % 3].clone(),
            leaves: [Leaves::ONE, Leaves::of_chunks(20)][idx % 2],
        }
    }

    fn block(&self) -> (Queries<'_>, Scope<'_>) {
        let row_weights = self.row_weights.as_deref();
        let rounded = row_weights.is_none();
        let (leaves, own) = (self.leaves, &self.block.keys);
        let (past, outputs) = (&self.past, own.len());
        let sinks = self.block.sinks.as_ref();
        let scope = Scope { past, leaves, own, row_weights, sinks, outputs, rounded };
        (self.block.queries(), scope)
    }
}

fn same(seen: &Attended, want: &Attended) {
    identical("output", seen.output.data(), want.output.data()).unwrap();
    identical("past mass", &seen.past_mass, &want.past_mass).unwrap();
    identical("own mass", &seen.own_mass, &want.own_mass).unwrap();
}

/// Over memories of all sizes, with masses and without; a block of several tokens among them.
pub fn blocks_attend_as_they_do_alone(backend: &dyn Backend) {
    let pasts = [(0, 1), (300, 1), (1, 1), (1100, 1), (40, 1), (41, 1), (130, 3), (0, 1)];
    let (f32, bf16) = (KvDtype::F32, KvDtype::Bf16);
    let last = Some(Window::Last(90));
    for (head_dim, kv, window) in
        [(16, f32, None), (80, bf16, last), (128, bf16, None), (64, bf16, None)]
    {
        let (sinks, softcap) = (head_dim == 80, window.map(|_| 2.0));
        let slopes = matches!(head_dim, 64 | 80);
        let odd = Shape { heads: 6, window, sinks, softcap, slopes, ..Shape::default() };
        let shape = Shape { head_dim, kv, ..odd };
        let sequence = |(idx, size)| Sequence::new(shape, size, idx);
        let sequences: Vec<_> = pasts.into_iter().enumerate().map(sequence).collect();
        for count in [0, 1, pasts.len()] {
            let blocks: Vec<_> = sequences[..count].iter().map(Sequence::block).collect();
            let seen = backend.attend_each(&blocks);
            assert_eq!(seen.len(), count);
            check_stack(backend, 6 * head_dim, &seen);
            for (seen, &(queries, scope)) in seen.into_iter().zip(&blocks) {
                let want = backend.attend_all(queries, scope).expect("fits");
                same(&seen.expect("fits"), &want);
            }
        }
    }
}

/// Outputs one below the other, before anybody has read one: of either form, and of both.
fn check_stack(backend: &dyn Backend, cols: usize, seen: &[Result<Attended, BackendError>]) {
    let outputs: Vec<Rows> = seen.iter().flatten().map(|it| it.output.clone()).collect();
    for step in [1, 3] {
        let mut parts: Vec<Rows> = outputs.iter().step_by(step).cloned().collect();
        for on_host in [false, true] {
            if on_host {
                parts.push(rows(5, 2, cols));
            }
            let stacked = backend.stack(cols, parts.clone()).expect("they fit");
            let want = Rows::stack(cols, parts.clone());
            assert_eq!((stacked.rows(), stacked.cols()), (want.rows(), cols));
            identical("stack", stacked.data(), want.data()).unwrap();
        }
    }
}

/// A block that is refused, or that meets a broken number, leaves the others as they are.
pub fn a_broken_block_ends_alone(backend: &dyn Backend) {
    let shape = Shape { heads: 6, head_dim: 64, kv: KvDtype::Bf16, ..Shape::default() };
    let mut sequences: Vec<_> =
        (0..5).map(|idx| Sequence::new(shape, (60 + idx, 1), idx)).collect();
    sequences[1].row_weights = Some(vec![1.0; 2]);
    let lift = |_, position: u32| if position < 40 { f32::NAN } else { 0.0 };
    sequences[3].past = shape.lifted_past(63, lift);
    let blocks: Vec<_> = sequences.iter().map(Sequence::block).collect();
    for (idx, seen) in backend.attend_each(&blocks).into_iter().enumerate() {
        let (queries, scope) = blocks[idx];
        match (seen, idx) {
            (Err(BackendError::Shape { .. }), 1) | (Err(BackendError::NotFinite { .. }), 3) => {}
            (seen, 0 | 2 | 4) => {
                same(&seen.expect("fits"), &backend.attend_all(queries, scope).expect("fits"));
            }
            (seen, _) => panic!("block {idx}: {seen:?}"),
        }
    }
}
