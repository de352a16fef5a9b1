//! States: what rows make of one set of keys, or of several that are merged before they are put
//! down.

use std::mem::MaybeUninit;

use super::few;
use super::products::{Path, Products, Work};
use super::rows::{RowTile, tile_tokens};
use super::side::{BLOCK, Side, Wanted, fill, merge_all};
use super::stored::Stored;
use crate::backend::{BackendError, Queries};
use crate::cpu::gemm::Place;
use crate::cpu::simd::LANES;
use crate::cpu::unwritten::{unwritten, written};
use crate::memory::{Keys, LeafKeys};
use crate::shapes;
use crate::state::AttentionState;
use crate::tensor::Heads;

/// Up to so many keys stay in the second level from one tile of rows to the next.
const NEAR_KEYS: usize = 2 * BLOCK;
/// Tiles of rows that pass a block of keys where there are more.
const TOGETHER: usize = 4;
/// Elements of keys, and as many of values, that are laid out at once: with 16 MiB of bf16 a
/// thread has room for them that it keeps.
const LAID_MAX: usize = 1 << 22;

/// See [`crate::AttentionOps::attend`].
pub(in crate::cpu) fn attend(
    place: Place,
    queries: &Queries<'_>,
    keys: &Keys,
) -> Result<AttentionState, BackendError> {
    if few::serves(queries, keys.kv_heads()) {
        shapes::attention("attend", queries, keys)?;
        return match keys.is_empty() || queries.q.tokens == 0 {
            true => Ok(empty(queries)),
            false => few::attend(place, queries, keys),
        };
    }
    attend_merged(place, queries, &[keys], &[])
}

/// Whether [`attend_merged`] is for these; the others are attended to one by one.
pub(in crate::cpu) fn fit_merged(queries: &Queries<'_>, sets: &[&Keys]) -> bool {
    let Some((first, others)) = sets.split_first() else { return false };
    let like =
        |keys: &&Keys| (keys.k.dtype(), keys.kv_heads()) == (first.k.dtype(), first.kv_heads());
    let elements = |keys: &&Keys| keys.positions.len() * keys.k.head_dim;
    !few::serves(queries, first.kv_heads())
        && others.iter().all(like)
        && sets.iter().map(elements).sum::<usize>() <= LAID_MAX
}

/// The state over all `sets`, merged in this order, the first at last the whole: see
/// [`crate::AttentionOps::attend_folded`]. They must [fit](fit_merged) if there are several.
pub(in crate::cpu) fn attend_merged(
    place: Place,
    queries: &Queries<'_>,
    sets: &[&Keys],
    merges: &[(usize, usize)],
) -> Result<AttentionState, BackendError> {
    for keys in sets {
        shapes::attention("attend", queries, keys)?;
    }
    let q = queries.q;
    if sets.iter().all(|keys| keys.is_empty()) || q.tokens == 0 {
        return Ok(empty(queries));
    }
    let (kv_heads, dtype) = (sets[0].kv_heads(), sets[0].k.dtype());
    let path = Path::of(place.isa, dtype);
    let group = q.heads / kv_heads;
    let store = |keys| Stored::new(path.form(), place.crew, LeafKeys::all(keys), true);
    let stored: Vec<Stored<'_>> = sets.iter().copied().map(store).collect();
    let together = match stored.iter().map(Stored::len).sum() {
        0..=NEAR_KEYS => 1,
        _ => TOGETHER,
    };
    let rows = q.heads * q.tokens;
    let (mut m, mut l, mut o) = (vec![0.0; rows], vec![0.0; rows], unwritten(rows * q.head_dim));
    let mut parts = cut(q, group, (&mut m, &mut l, &mut o)).into_iter();
    let mut tasks = Vec::new();
    for g in 0..kv_heads {
        let tiles: Vec<_> = RowTile { g, tokens: 0..q.tokens, group }.tiles().collect();
        for tiles in tiles.chunks(together) {
            let parts = parts.by_ref().take(tiles.len()).collect();
            let tiles = tiles.to_vec();
            tasks.push(Attend { queries, tiles, sets: &stored, merges, parts });
        }
    }
    let finite = place.crew.map(tasks, |task: Attend<'_>| path.run(place.isa, task));
    if finite.contains(&false) {
        return Err(BackendError::NotFinite { op: "attend", what: "a weighted sum of values" });
    }
    let Heads { heads, tokens, head_dim, .. } = *q;
    // SAFETY: tiles cover all rows, and their tasks wrote them.
    let o = unsafe { written(o) };
    Ok(AttentionState { heads, tokens, head_dim, m: m.into(), l: l.into(), o: o.into() })
}

fn empty(queries: &Queries<'_>) -> AttentionState {
    AttentionState::empty(queries.q.heads, queries.q.tokens, queries.q.head_dim)
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

/// One task: neighbouring tiles of rows over all keys. Returns whether their states are finite.
struct Attend<'a> {
    queries: &'a Queries<'a>,
    tiles: Vec<RowTile>,
    sets: &'a [Stored<'a>],
    merges: &'a [(usize, usize)],
    /// Per tile one for each of the group's heads.
    parts: Vec<Vec<Part<'a>>>,
}

impl Work for Attend<'_> {
    type Out = bool;

    #[inline(always)]
    fn run<P: Products>(self, mut products: P) -> bool {
        let Self { queries, tiles, sets, merges, parts } = self;
        let simd = products.simd();
        products.take(queries, &tiles, sets[0].dtype());
        let mut seen: Vec<Vec<Side>> = Vec::with_capacity(tiles.len());
        seen.resize_with(tiles.len(), || sets.iter().map(|_| Side::default()).collect());
        for (idx, keys) in sets.iter().enumerate() {
            let sides = seen.iter_mut().map(|sides| &mut sides[idx]).collect();
            fill(&mut products, (queries, &tiles), keys, (sides, Wanted { o: true, p: false }));
        }
        let mut is_finite = true;
        for ((rows, sides), mut parts) in tiles.iter().zip(&mut seen).zip(parts) {
            merge_all(simd, sides, merges);
            let side = &sides[0];
            side.each_row(simd, rows, |row, (head, t), o| {
                let (panel, lane) = (row / LANES, row % LANES);
                parts[head].put(t, (side.m[panel][lane], side.l[panel][lane], o));
            });
            is_finite &= side.is_finite(simd);
        }
        is_finite
    }
}

impl Part<'_> {
    /// Takes m, l and o of row `t`.
    fn put(&mut self, t: usize, (m, l, o): (f32, f32, &[f32])) {
        (self.m[t], self.l[t]) = (m, l);
        self.o[t * o.len()..][..o.len()].write_copy_of_slice(o);
    }
}
