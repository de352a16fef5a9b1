//! Partial softmax states: tiles of rows against tiles of keys, online softmax
//! (Milakov and Gimelshein 2018; Dao et al. 2022).

use super::exp::exp;
use super::gemm::{Place, is_finite};
use super::keys::{KEYS, Widener, key_tiles};
use super::queries::{Bounds, Dots, QueryTile, tile_tokens, token_tiles};
use super::simd::{Kernel, LANES, Simd, Vector};
use super::tile::{Block, ByColumn, Panels, multiply, sweep};
use crate::backend::{BackendError, Queries};
use crate::memory::Keys;
use crate::shapes;
use crate::state::AttentionState;

/// See [`crate::AttentionOps::attend`].
pub(super) fn attend(
    place: Place,
    queries: &Queries<'_>,
    keys: &Keys,
) -> Result<AttentionState, BackendError> {
    shapes::attention("attend", queries, keys)?;
    let q = queries.q;
    let mut state = AttentionState::empty(q.heads, q.tokens, q.head_dim);
    if keys.is_empty() || q.tokens == 0 {
        return Ok(state);
    }
    let tokens: Vec<usize> = (0..q.tokens).collect();
    let group = q.heads / keys.kv_heads();
    let tasks = (0..keys.kv_heads())
        .flat_map(|g| token_tiles(&tokens, group).map(move |tokens| (g, tokens)))
        .zip(cut(&mut state, group))
        .collect();
    let finite = place.crew.map(tasks, |((g, tokens), parts): ((usize, &[usize]), _)| {
        let tile = QueryTile::new(queries, keys, g, tokens);
        place.isa.run(Attend { tile, keys, scale: queries.scale, parts })
    });
    if finite.contains(&false) {
        return Err(BackendError::NotFinite { op: "attend", what: "a weighted sum of values" });
    }
    Ok(state)
}

/// A tile's part of one head of a state.
struct Part<'a> {
    /// `[tokens]`.
    m: &'a mut [f32],
    /// `[tokens]`.
    l: &'a mut [f32],
    /// `[tokens, head_dim]`.
    o: &'a mut [f32],
}

/// For every tile, in the order of KV heads and within one of [`token_tiles`]: its parts of
/// the group's heads.
fn cut(state: &mut AttentionState, group: usize) -> Vec<Vec<Part<'_>>> {
    let (tokens, head_dim) = (state.tokens, state.head_dim);
    let size = tile_tokens(group);
    let per_head = tokens.div_ceil(size);
    let mut tiles: Vec<Vec<Part<'_>>> = Vec::new();
    tiles.resize_with(state.heads / group * per_head, Vec::new);
    let rows = state.m.chunks_mut(tokens).zip(state.l.chunks_mut(tokens));
    let heads = rows.zip(state.o.chunks_mut(tokens * head_dim));
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
    tile: QueryTile,
    keys: &'a Keys,
    scale: f32,
    /// One for each of the group's heads.
    parts: Vec<Part<'a>>,
}

/// m and l of a panel's rows.
#[derive(Clone, Copy)]
struct Running {
    m: [f32; LANES],
    l: [f32; LANES],
    /// exp(old m - new m) of the last tile.
    fade: [f32; LANES],
}

impl Kernel for Attend<'_> {
    type Out = bool;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> bool {
        let Self { tile, keys, scale, parts } = self;
        let (panels, head_dim) = (tile.panels(), tile.head_dim);
        let nothing =
            Running { m: [f32::NEG_INFINITY; LANES], l: [0.0; LANES], fade: [0.0; LANES] };
        let mut running = vec![nothing; panels];
        let mut o = vec![[0.0; LANES]; panels * head_dim];
        let mut logits = vec![[0.0; LANES]; panels * KEYS];
        let (mut wide_k, mut wide_v) = (Widener::default(), Widener::default());
        for (first, last) in key_tiles(tile.reach()) {
            let count = last - first;
            let logits = &mut logits[..panels * count];
            let k = wide_k.tile(simd, keys.k_rows(tile.g), (first, last));
            Dots { queries: &tile, keys: k, out: logits }.compute(simd);
            let mask = tile.mask(first, last);
            for (panel, running) in running.iter_mut().enumerate() {
                let mask = mask.as_ref().map(|mask| &mask[panel]);
                let logits = &mut logits[panel * count..(panel + 1) * count];
                running.soften(simd, logits, scale, mask);
            }
            let v = wide_v.tile(simd, keys.v_rows(tile.g), (first, last));
            let mut values =
                Values { head_dim, values: v, p: logits, running: &running, o: &mut o };
            sweep(simd, head_dim, panels, &mut values);
        }
        for (head, part) in parts.into_iter().enumerate() {
            part.fill(head * tile.tokens.len(), &running, &o);
        }
        running.iter().all(|running| is_finite(simd, &running.l))
            && is_finite(simd, o.as_flattened())
    }
}

impl Running {
    /// Turns a tile's dot products into exp(z - m) and moves m and l on.
    #[inline(always)]
    fn soften<S: Simd>(
        &mut self,
        simd: S,
        dots: &mut [[f32; LANES]],
        scale: f32,
        mask: Option<&Bounds>,
    ) {
        let scale = simd.splat(scale);
        let before = simd.load(&self.m);
        let mut m = before;
        for (key, lanes) in dots.iter_mut().enumerate() {
            let mut z = simd.load(lanes) * scale;
            if let Some(mask) = mask {
                z = mask.apply(simd, key, z);
            }
            m = m.max(z);
            z.store(lanes);
        }
        m.store(&mut self.m);
        // A row that has seen nothing subtracts 0 instead of -inf, which would make NaN.
        let base = simd.splat(f32::NEG_INFINITY).below(m, m, simd.splat(0.0));
        let fade = exp(simd, before - base);
        fade.store(&mut self.fade);
        let mut l = simd.load(&self.l) * fade;
        for lanes in dots {
            let p = exp(simd, simd.load(lanes) - base);
            l = l + p;
            p.store(lanes);
        }
        l.store(&mut self.l);
    }
}

/// o = o * fade + P V of one tile of keys.
struct Values<'a> {
    head_dim: usize,
    /// `[keys, head_dim]`.
    values: &'a [f32],
    /// `[panels, keys, 16]`.
    p: &'a [[f32; LANES]],
    running: &'a [Running],
    /// `[panels, head_dim, 16]`.
    o: &'a mut [[f32; LANES]],
}

impl Block for Values<'_> {
    #[inline(always)]
    fn run<S: Simd, const M: usize, const N: usize>(&mut self, simd: S, row: usize, panel: usize) {
        let head_dim = self.head_dim;
        let keys = self.values.len() / head_dim;
        let mut acc = [[simd.splat(0.0); N]; M];
        for j in 0..N {
            let fade = simd.load(&self.running[panel + j].fade);
            for (i, acc) in acc.iter_mut().enumerate() {
                acc[j] = simd.load(&self.o[(panel + j) * head_dim + row + i]) * fade;
            }
        }
        let left = ByColumn { data: &self.values[row..], stride: head_dim };
        let right = Panels { data: &self.p[panel * keys..], stride: keys };
        multiply(simd, &mut acc, left, right, keys);
        for (i, acc) in acc.iter().enumerate() {
            for (j, &acc) in acc.iter().enumerate() {
                acc.store(&mut self.o[(panel + j) * head_dim + row + i]);
            }
        }
    }
}

impl Part<'_> {
    /// Takes the tile's rows from `first` on; `o` is `[panels, head_dim, 16]`.
    fn fill(self, first: usize, running: &[Running], o: &[[f32; LANES]]) {
        let head_dim = self.o.len() / self.m.len();
        let rows = self.m.iter_mut().zip(self.l).zip(self.o.chunks_exact_mut(head_dim));
        for (row, ((m, l), to)) in (first..).zip(rows) {
            let (panel, lane) = (row / LANES, row % LANES);
            (*m, *l) = (running[panel].m[lane], running[panel].l[lane]);
            let from = &o[panel * head_dim..(panel + 1) * head_dim];
            for (to, from) in to.iter_mut().zip(from) {
                *to = from[lane];
            }
        }
    }
}
