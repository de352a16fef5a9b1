//! Attention and masses: tiles of rows against tiles of keys.

mod all;
mod few;
// The forms that it is for are those of x86-64.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
mod layouts;
mod masses;
mod pass;
mod products;
mod rows;
mod sight;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // as above
mod stored;

use std::mem::MaybeUninit;

pub(super) use self::all::{attend_all, attend_each, fit_together, fits_one_pass};
pub(super) use self::masses::weigh;
use self::pass::Pass;
use self::products::{Path, Products, Work};
use self::rows::{RowTile, tile_tokens, turn};
use self::stored::Stored;
use super::gemm::{Place, is_finite};
use super::lines::Lines;
use super::simd::LANES;
use super::unwritten::{unwritten, written};
use crate::backend::{BackendError, Queries, Scope};
use crate::memory::{Keys, LeafKeys, Split};
use crate::shapes;
use crate::state::AttentionState;
use crate::tensor::Heads;

/// See [`crate::AttentionOps::attend`].
pub(super) fn attend(
    place: Place,
    queries: &Queries<'_>,
    keys: &Keys,
) -> Result<AttentionState, BackendError> {
    shapes::attention("attend", queries, keys)?;
    let q = queries.q;
    if keys.is_empty() || q.tokens == 0 {
        return Ok(AttentionState::empty(q.heads, q.tokens, q.head_dim));
    }
    if few::serves(queries, keys.kv_heads()) {
        return few::attend(place, queries, keys);
    }
    let path = Path::of(place.isa, keys.k.dtype());
    let group = q.heads / keys.kv_heads();
    let stored = Stored::new(path.form(), place.crew, LeafKeys::all(keys), true);
    let rows = q.heads * q.tokens;
    let (mut m, mut l, mut o) = (vec![0.0; rows], vec![0.0; rows], unwritten(rows * q.head_dim));
    let tasks = (0..keys.kv_heads())
        .flat_map(|g| RowTile { g, tokens: 0..q.tokens, group }.tiles())
        .zip(cut(q, group, (&mut m, &mut l, &mut o)))
        .collect();
    let finite = place.crew.map(tasks, |(rows, parts): (RowTile, Vec<Part<'_>>)| {
        path.run(place.isa, Attend { queries, rows, keys: &stored, parts })
    });
    if finite.contains(&false) {
        return Err(BackendError::NotFinite { op: "attend", what: "a weighted sum of values" });
    }
    let Heads { heads, tokens, head_dim, .. } = *q;
    // SAFETY: tiles cover all rows, and their tasks wrote them.
    let o = unsafe { written(o) };
    Ok(AttentionState { heads, tokens, head_dim, m: m.into(), l: l.into(), o: o.into() })
}

/// What rows see: the leaves of the past, and the own keys.
fn sides<'a>(scope: &Scope<'a>, split: Option<&'a Split>) -> Vec<LeafKeys<'a>> {
    let mut sides = LeafKeys::each(scope.past, split);
    sides.push(LeafKeys::all(scope.own));
    sides
}

/// A tile's part of one head of a state.
struct Part<'a> {
    /// `[tokens]`.
    m: &'a mut [f32],
    /// `[tokens]`.
    l: &'a mut [f32],
    /// `[tokens, head_dim]`, to be written.
    o: &'a mut [MaybeUninit<f32>],
}

/// m, l and o of a state.
type Parts<'a> = (&'a mut [f32], &'a mut [f32], &'a mut [MaybeUninit<f32>]);

/// For every tile, in the order of KV heads and within one of [`RowTile::tiles`]: its parts of
/// the group's heads.
fn cut<'a>(q: &Heads, group: usize, (m, l, o): Parts<'a>) -> Vec<Vec<Part<'a>>> {
    let Heads { heads, tokens, head_dim, .. } = *q;
    let size = tile_tokens(group);
    let per_head = tokens.div_ceil(size);
    let mut tiles: Vec<Vec<Part<'_>>> = Vec::new();
    tiles.resize_with(heads / group * per_head, Vec::new);
    let rows = m.chunks_mut(tokens).zip(l.chunks_mut(tokens));
    let heads = rows.zip(o.chunks_mut(tokens * head_dim));
    for (head, ((m, l), o)) in heads.enumerate() {
        let rows = m.chunks_mut(size).zip(l.chunks_mut(size));
        for (idx, ((m, l), o)) in rows.zip(o.chunks_mut(size * head_dim)).enumerate() {
            tiles[head / group * per_head + idx].push(Part { m, l, o });
        }
    }
    tiles
}

/// One task: a tile of rows over all keys. Returns whether the state is finite.
struct Attend<'a> {
    queries: &'a Queries<'a>,
    rows: RowTile,
    keys: &'a Stored<'a>,
    /// One for each of the group's heads.
    parts: Vec<Part<'a>>,
}

impl Work for Attend<'_> {
    type Out = bool;

    #[inline(always)]
    fn run<P: Products>(self, mut products: P) -> bool {
        let Self { queries, rows, keys, mut parts } = self;
        let panels = rows.panels();
        products.take(queries, &rows, keys.dtype());
        let mut pass = Pass::new(queries, &rows, keys);
        let mut o = Lines::left_over(queries.q.head_dim * panels);
        let mut p = Lines::left_over(P::KEYS * panels);
        for (first, last) in pass.spans(&products) {
            let p = &mut p[..(last - first) * panels];
            pass.soften(&mut products, (first, last), p, false);
            pass.add(&mut products, (first, last), p, &mut o);
        }
        if !pass.saw() {
            o.clear();
        }
        let simd = products.simd();
        let (m, l) = (pass.m(), pass.l());
        let mut turned = Lines::default();
        for panel in 0..panels {
            let width = turn(simd, &o, (panel, panels), &mut turned);
            let o_rows = turned.as_flattened().chunks_exact(width);
            for ((row, o), lane) in (panel * LANES..rows.len()).zip(o_rows).zip(0..) {
                let (head, t) = (row / rows.tokens.len(), row % rows.tokens.len());
                parts[head].put(t, (m[panel][lane], l[panel][lane], o));
            }
        }
        is_finite(simd, pass.l().as_flattened()) && is_finite(simd, o.as_flattened())
    }
}

impl Part<'_> {
    /// Takes m, l and o, padded, of row `t`.
    fn put(&mut self, t: usize, (m, l, o): (f32, f32, &[f32])) {
        let head_dim = self.o.len() / self.m.len();
        (self.m[t], self.l[t]) = (m, l);
        self.o[t * head_dim..(t + 1) * head_dim].write_copy_of_slice(&o[..head_dim]);
    }
}
