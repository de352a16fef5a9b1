//! What a KV head's rows make of all parts that they saw.

use super::ROWS_MAX;
use super::part::{Seen, Spend};
use super::streamed::Halves;
use crate::cpu::attention::rows::Lanes;
use crate::cpu::isa::Isa;
use crate::cpu::lines::Lines;
use crate::cpu::simd::{LANES, LINE};
use crate::memory::{LEAVES, LeafKeys};
use crate::state::merge_row;

/// Sides at most: the leaves of the past, and the own keys.
const SIDES_MAX: usize = LEAVES as usize + 1;

/// The state of some parts.
struct State<'s> {
    side: usize,
    m: [f32; ROWS_MAX],
    l: [f32; ROWS_MAX],
    /// `[rows, D / 32, 2]`.
    o: &'s mut [Lanes],
}

/// The state over all parts.
pub(super) struct Merged<'s> {
    /// `[rows]`.
    pub(super) m: [f32; ROWS_MAX],
    /// `[rows]`.
    pub(super) l: [f32; ROWS_MAX],
    /// `[rows, D / 32, 2]`.
    o: &'s [Lanes],
    pub(super) rows: usize,
    in_order: fn(&Halves) -> Halves,
}

impl<'s> Merged<'s> {
    /// Parts of a side are merged in their order, then sides as `merges` says, the first of which
    /// becomes the whole. `None` where there is no part. Their o is lost.
    pub(super) fn new(
        seen: &'s mut [Seen],
        merges: impl IntoIterator<Item = (usize, usize)>,
    ) -> Option<Self> {
        let (rows, in_order) = seen.first().map(|seen| (seen.rows(), seen.in_order))?;
        let mut states = Vec::with_capacity(seen.iter().map(|seen| seen.parts.len()).sum());
        for Seen { parts, m, l, o, .. } in seen {
            let size = o.len() / parts.len().max(1);
            let each = m.chunks_exact(rows.max(1)).zip(l.chunks_exact(rows.max(1)));
            for ((part, (m, l)), o) in parts.iter().zip(each).zip(o.chunks_exact_mut(size.max(1))) {
                let own = |of: &[f32]| {
                    let mut own = [0.0; ROWS_MAX];
                    own[..rows].copy_from_slice(of);
                    own
                };
                states.push(State { side: part.side, m: own(m), l: own(l), o });
            }
        }
        let mut of_side = [None; SIDES_MAX];
        for idx in 0..states.len() {
            let side = &mut of_side[states[idx].side];
            match *side {
                Some(into) => take_in(&mut states, rows, (into, idx)),
                None => *side = Some(idx),
            }
        }
        for (into, of) in merges {
            match (of_side[into], of_side[of]) {
                (Some(into), Some(of)) => take_in(&mut states, rows, (into, of)),
                (None, of) => of_side[into] = of,
                (Some(_), None) => {}
            }
        }
        let State { m, l, o, .. } = states.swap_remove(of_side[0]?);
        Some(Self { m, l, o, rows, in_order })
    }

    /// o of a row, `[D]`.
    pub(super) fn put(&self, row: usize, to: &mut [f32]) {
        let width = self.o.len() / self.rows;
        let lines = self.o[row * width..][..width].as_chunks().0;
        for (line, to) in lines.iter().zip(to.chunks_mut(LINE)) {
            to.copy_from_slice(&(self.in_order)(line).as_flattened()[..to.len()]);
        }
    }
}

/// Merges one state into another, as [`crate::AttentionState::merge`] does it.
fn take_in(states: &mut [State<'_>], rows: usize, (into, of): (usize, usize)) {
    let [into, of] = states.get_disjoint_mut([into, of]).expect("two states");
    let width = into.o.len() / rows;
    for row in 0..rows {
        let o = into.o[row * width..][..width].as_flattened_mut();
        merge_row(
            (&mut into.m[row], &mut into.l[row], o),
            (of.m[row], of.l[row], of.o[row * width..][..width].as_flattened()),
        );
    }
}

/// Adds to `masses`, of which the last is that of the last side and the first that of the others,
/// what the rows of KV head `g` spend on its keys, for lse `[rows]` and row weights `[tokens]`.
pub(super) fn spend(
    isa: Isa,
    (g, sides): (usize, &[LeafKeys<'_>]),
    seen: &[Seen],
    (lse, row_weights): (&[f32], &[f32]),
    masses: &mut [&mut [f32]],
) {
    let rows = lse.len();
    for Seen { parts, m, p, .. } in seen {
        let mut first = 0;
        for (part, m) in parts.iter().zip(m.chunks_exact(rows.max(1))) {
            let mut weights = [0.0; ROWS_MAX];
            for row in 0..rows {
                weights[row] = match lse[row] {
                    f32::NEG_INFINITY => 0.0,
                    lse => row_weights[row % row_weights.len()] * (m[row] - lse).exp(),
                };
            }
            let count = part.span.len();
            let mut spent = Lines::left_over(count.div_ceil(LANES));
            isa.run(Spend { p, first, weights: &weights[..rows], to: &mut spent });
            let of = match part.side + 1 == sides.len() {
                true => masses.len() - 1,
                false => 0,
            };
            let spent = &spent.as_flattened()[..count];
            sides[part.side].add(g, part.span.clone(), spent, masses[of]);
            first += count;
        }
    }
}
