//! States merged, and made activations, by all threads: what a prompt's chunks know of each other
//! is as large as its activations, and goes through here once for every chunk before.

use std::mem::MaybeUninit;

use super::gemm::Place;
use super::simd::{Kernel, Simd};
use super::unwritten::{unwritten, written};
use crate::state::{AttentionState, merge_row};
use crate::tensor::Rows;

/// Elements of o of a task, about.
const TASK: usize = 1 << 14;

/// Whether a state is too small for several tasks.
pub(super) fn is_small(state: &AttentionState) -> bool {
    state.o.len() <= TASK
}

/// See [`AttentionState::merge`].
pub(super) fn merge(
    place: Place<'_>,
    mut state: AttentionState,
    other: &AttentionState,
) -> AttentionState {
    state.check_shape(other);
    let head_dim = state.head_dim;
    let rows = (TASK / head_dim).max(1);
    let (m, l, o) = (state.m.make_mut(), state.l.make_mut(), state.o.make_mut());
    let to = m.chunks_mut(rows).zip(l.chunks_mut(rows)).zip(o.chunks_mut(rows * head_dim));
    let from = other.m.chunks(rows).zip(other.l.chunks(rows));
    let from = from.zip(other.o.chunks(rows * head_dim));
    let tasks = to.zip(from).map(|(to, from)| Merge { to, from, head_dim }).collect();
    place.crew.map(tasks, |task: Merge<'_>| place.isa.run(task));
    state
}

/// Neighbouring rows of two states: `[rows]` of m, `[rows]` of l, `[rows, head_dim]` of o.
struct Merge<'a> {
    to: ((&'a mut [f32], &'a mut [f32]), &'a mut [f32]),
    from: ((&'a [f32], &'a [f32]), &'a [f32]),
    head_dim: usize,
}

impl Kernel for Merge<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Self { to: ((m, l), o), from: ((mb, lb), ob), head_dim } = self;
        let a = m.iter_mut().zip(l).zip(o.chunks_exact_mut(head_dim));
        let b = mb.iter().zip(lb).zip(ob.chunks_exact(head_dim));
        for (((m, l), o), ((&mb, &lb), ob)) in a.zip(b) {
            merge_row((m, l, o), (mb, lb, ob));
        }
    }
}

/// See [`AttentionState::output`].
pub(super) fn output(place: Place<'_>, state: &AttentionState) -> Rows {
    let AttentionState { heads, tokens, head_dim, .. } = *state;
    let width = heads * head_dim;
    let mut output = unwritten(tokens * width);
    let task_tokens = (TASK / width).max(1);
    let tasks = output.chunks_mut(task_tokens * width).enumerate();
    let tasks = tasks.map(|(idx, to)| Output { to, first: idx * task_tokens, state }).collect();
    place.crew.map(tasks, |task: Output<'_>| place.isa.run(task));
    // SAFETY: the tasks wrote all heads of all tokens.
    Rows::from_vec(tokens, width, unsafe { written(output) })
}

/// Activations of neighbouring tokens.
struct Output<'a> {
    /// `[tokens, heads * head_dim]`.
    to: &'a mut [MaybeUninit<f32>],
    /// The first token.
    first: usize,
    state: &'a AttentionState,
}

impl Kernel for Output<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Self { to, first, state } = self;
        let AttentionState { heads, tokens, head_dim, .. } = *state;
        let (l, o) = (&state.l[..], &state.o[..]);
        for (t, to) in (first..).zip(to.chunks_exact_mut(heads * head_dim)) {
            for (h, to) in to.chunks_exact_mut(head_dim).enumerate() {
                let row = h * tokens + t;
                let (l, o) = (l[row], &o[row * head_dim..(row + 1) * head_dim]);
                if l > 0.0 {
                    for (to, o) in to.iter_mut().zip(o) {
                        to.write(o / l);
                    }
                } else {
                    to.fill(MaybeUninit::new(0.0));
                }
            }
        }
    }
}
