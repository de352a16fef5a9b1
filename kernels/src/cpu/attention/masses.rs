//! Column masses: what rows spend on keys.
//!
//! A task owns a segment of a KV head's rows and adds what they spend in their order, in lanes;
//! segments are cut alike on any number of threads, and added in ascending order.

use std::slice::from_ref;

use super::few;
use super::pass::Pass;
use super::products::{Path, Products, Work};
use super::rows::{Lanes, RowTile, tile_tokens};
use super::stored::Stored;
use crate::backend::{BackendError, Queries};
use crate::cpu::exp::exp;
use crate::cpu::gemm::Place;
use crate::cpu::lines::Lines;
use crate::cpu::simd::{LANES, Simd, Vector, sum};
use crate::memory::{Keys, LeafKeys};
use crate::shapes;

/// Tiles of rows in a segment whose masses are summed together.
pub(super) const TILES: usize = 8;

/// See [`crate::AttentionOps::weigh`].
pub(in crate::cpu) fn weigh(
    place: Place,
    queries: &Queries<'_>,
    keys: &Keys,
    lse: &[f32],
    row_weights: &[f32],
) -> Result<Vec<f32>, BackendError> {
    shapes::weighing(queries, keys, lse, row_weights)?;
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    if few::serves(queries, keys.kv_heads()) {
        return few::weigh(place, queries, keys, lse, row_weights);
    }
    let path = Path::of(place.isa, keys.k.dtype());
    let stored = &Stored::new(path.form(), place.crew, LeafKeys::all(keys), false);
    let tasks = segments(queries, keys.kv_heads(), TILES)
        .map(|rows| Weigh { queries, rows, keys: stored, lse, row_weights })
        .collect();
    let partials = place.crew.map(tasks, |task: Weigh<'_>| path.run(place.isa, task));
    let mut masses = vec![0.0; keys.positions.len()];
    total(stored.leaf(), &partials, &mut masses);
    shapes::finite("weigh", "a column mass", &masses)?;
    Ok(masses)
}

/// Segments of so many tiles of every KV head's rows, ascending.
pub(super) fn segments(
    queries: &Queries<'_>,
    kv_heads: usize,
    tiles: usize,
) -> impl Iterator<Item = RowTile> + use<> {
    let (tokens, group) = (queries.q.tokens, queries.q.heads / kv_heads);
    let step = tiles * tile_tokens(group);
    let cut = move |g| {
        let segment = move |start: usize| start..tokens.min(start + step);
        (0..tokens).step_by(step).map(move |start| RowTile { g, tokens: segment(start), group })
    };
    (0..kv_heads).flat_map(cut)
}

/// What a segment spends on each key of its KV head.
pub(super) struct Partial {
    pub(super) g: usize,
    /// `[keys]`.
    pub(super) spent: Vec<f32>,
}

impl Partial {
    /// Sums of lanes.
    #[inline(always)]
    pub(super) fn new<S: Simd>(simd: S, g: usize, spent: &[Lanes]) -> Self {
        let mut sums = vec![0.0; spent.len()];
        let (sixteens, rest) = spent.as_chunks();
        let (to_sixteens, to_rest) = sums.as_chunks_mut();
        for (to, lanes) in to_sixteens.iter_mut().zip(sixteens) {
            simd.sums(lanes, to);
        }
        for (to, lanes) in to_rest.iter_mut().zip(rest) {
            *to = sum(simd.load(lanes));
        }
        Self { g, spent: sums }
    }
}

/// Adds column masses from all segments to those of the set's keys, `[kv_heads, keys]`.
pub(super) fn total<'p>(
    keys: &LeafKeys<'_>,
    partials: impl IntoIterator<Item = &'p Partial>,
    masses: &mut [f32],
) {
    let len = keys.of.len();
    for Partial { g, spent } in partials {
        keys.add(*g, 0..keys.count(*g), spent, &mut masses[g * len..(g + 1) * len]);
    }
}

/// One task: what a segment of rows spends.
struct Weigh<'a> {
    queries: &'a Queries<'a>,
    rows: RowTile,
    keys: &'a Stored<'a>,
    /// `[heads, tokens]`.
    lse: &'a [f32],
    /// `[tokens]`.
    row_weights: &'a [f32],
}

impl Work for Weigh<'_> {
    type Out = Partial;

    #[inline(always)]
    fn run<P: Products>(self, mut products: P) -> Partial {
        let Self { queries, rows, keys, lse, row_weights } = self;
        let mut spent = Lines::zeros(keys.len());
        let mut p = Lines::default();
        for rows in rows.tiles() {
            let Some(mut voters) = Voters::new(&rows, row_weights) else { continue };
            voters.settle(rows.lanes(f32::INFINITY, |head, t| lse[head * queries.q.tokens + t]));
            products.take(queries, from_ref(&rows), keys.dtype());
            let mut pass = Pass::new(queries, &rows, keys);
            p.resize(P::KEYS * rows.panels());
            for (first, last) in pass.spans(&products, 0..keys.len()) {
                let p = &mut p[..(last - first) * rows.panels()];
                pass.soften(&mut products, (first, last), p, true);
                voters.spend(products.simd(), &pass.m(), p, &mut spent[first..last]);
            }
        }
        Partial::new(products.simd(), rows.g, &spent)
    }
}

/// A tile of rows of which some vote.
pub(super) struct Voters {
    /// `[panels, 16]`: +inf where nothing is spent.
    lse: Vec<Lanes>,
    /// `[panels, 16]`.
    weights: Vec<Lanes>,
}

impl Voters {
    /// `None` where no row votes. Before [`settle`](Self::settle) they spend nothing.
    pub(super) fn new(rows: &RowTile, row_weights: &[f32]) -> Option<Self> {
        if row_weights[rows.tokens.clone()].iter().all(|&weight| weight == 0.0) {
            return None;
        }
        let weights = rows.lanes(0.0, |_, t| row_weights[t]);
        Some(Self { lse: vec![[f32::INFINITY; LANES]; weights.len()], weights })
    }

    /// Tells what each row's log-sum-exp is, `[panels, 16]`; at -inf it spends nothing.
    pub(super) fn settle(&mut self, mut lse: Vec<Lanes>) {
        for lse in lse.as_flattened_mut() {
            *lse = if *lse == f32::NEG_INFINITY { f32::INFINITY } else { *lse };
        }
        self.lse = lse;
    }

    /// Adds w exp(z - lse) of every row to its lane of `spent`, `[keys, 16]`, for `p`
    /// (`[keys, panels, 16]`) = exp(z - m).
    #[inline(always)]
    pub(super) fn spend<S: Simd>(&self, simd: S, m: &[Lanes], p: &[Lanes], spent: &mut [Lanes]) {
        let panels = m.len();
        let mut factors = vec![[0.0; LANES]; panels];
        for (panel, factor) in factors.iter_mut().enumerate() {
            let scale = exp(simd, simd.load(&m[panel]) - simd.load(&self.lse[panel]));
            (simd.load(&self.weights[panel]) * scale).store(factor);
        }
        // Four panels at once keep their factors in registers.
        let (fours, rest) = factors.as_chunks();
        for (idx, factors) in fours.iter().enumerate() {
            add_spent::<S, 4>(simd, factors, (p, panels, 4 * idx), spent);
        }
        for (idx, factor) in rest.iter().enumerate() {
            add_spent::<S, 1>(simd, &[*factor], (p, panels, 4 * fours.len() + idx), spent);
        }
    }
}

/// Adds what N panels, from `first` on of those in `p`, spend on each key.
#[inline(always)]
fn add_spent<S: Simd, const N: usize>(
    simd: S,
    factors: &[Lanes; N],
    (p, panels, first): (&[Lanes], usize, usize),
    spent: &mut [Lanes],
) {
    let mut held = [simd.splat(0.0); N];
    for (held, factor) in held.iter_mut().zip(factors) {
        *held = simd.load(factor);
    }
    for (p, spent) in p.chunks_exact(panels).zip(spent) {
        let p: &[Lanes; N] = p[first..].first_chunk().expect("N panels");
        let mut sum = simd.load(spent);
        for (p, &factor) in p.iter().zip(&held) {
            sum = simd.load(p).fma(factor, sum);
        }
        sum.store(spent);
    }
}
