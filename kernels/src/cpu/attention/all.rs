//! Past and own keys in one pass: what rows spend is known as soon as they have seen both, and
//! their p of all keys is still at hand.

use std::slice::from_ref;
use std::sync::Arc;

use super::masses::{Partial, TILES, Voters, segments, total};
use super::output::{Output, Piece};
use super::products::{Path, Products, Work};
use super::rows::RowTile;
use super::side::{Side, Wanted, fill, merge_all};
use super::stored::Stored;
use super::{few, sides};
use crate::array::Array;
use crate::backend::{Attended, BackendError, Queries, Scope};
use crate::cpu::gemm::Place;
use crate::cpu::lines::Lines;
use crate::fold::{Node, merges};
use crate::memory::LEAVES;
use crate::shapes;

/// Keys of whose p a tile of rows keeps all: 16 MiB at 64 rows.
const KEYS_MAX: usize = 1 << 16;

/// Whether [`attend_all`] is for these; what is not is attended and weighed apart.
pub(in crate::cpu) fn fits_one_pass(queries: &Queries<'_>, scope: &Scope<'_>) -> bool {
    let Scope { past, own, row_weights, .. } = scope;
    let kept = if row_weights.is_some() { past.len() + own.len() } else { 0 };
    queries.q.tokens > 0
        && kept <= KEYS_MAX
        && past.k.dtype() == own.k.dtype()
        && past.kv_heads() == own.kv_heads()
}

/// How many of the first blocks [`attend_each`] is for: all have few rows, and together no more
/// keys than whose p can be kept.
pub(in crate::cpu) fn fit_together(blocks: &[(Queries<'_>, Scope<'_>)]) -> usize {
    let mut keys = 0;
    let fits = |(queries, scope): &&(Queries<'_>, Scope<'_>)| {
        keys += scope.past.len() + scope.own.len();
        keys <= KEYS_MAX
            && few::serves(queries, scope.own.kv_heads())
            && fits_one_pass(queries, scope)
            && check(queries, scope).is_ok()
    };
    blocks.iter().take_while(fits).count()
}

/// See [`crate::AttentionOps::attend_each`]; for blocks that [fit together](fit_together).
pub(in crate::cpu) fn attend_each(
    place: Place,
    blocks: &[(Queries<'_>, Scope<'_>)],
) -> Vec<Result<Attended, BackendError>> {
    few::attend_each(place, blocks)
}

fn check(queries: &Queries<'_>, scope: &Scope<'_>) -> Result<(), BackendError> {
    let Scope { past, own, row_weights, .. } = *scope;
    shapes::attention("attend", queries, own)?;
    shapes::attention("attend", queries, past)?;
    shapes::outputs("attend", queries, scope)?;
    shapes::sinks("attend", queries, scope)?;
    row_weights.map_or(Ok(()), |row_weights| shapes::voting(queries, row_weights))
}

/// See [`crate::AttentionOps::attend_all`].
pub(in crate::cpu) fn attend_all(
    place: Place,
    queries: &Queries<'_>,
    scope: &Scope<'_>,
) -> Result<Attended, BackendError> {
    let Scope { past, own, row_weights, sinks, outputs, rounded, .. } = *scope;
    check(queries, scope)?;
    if few::serves(queries, own.kv_heads()) {
        let mut alone = few::attend_each(place, &[(*queries, *scope)]);
        return alone.pop().expect("one for each block");
    }
    let path = Path::of(place.isa, own.k.dtype());
    let split = past.split(scope.leaves);
    let store = |keys| Stored::new(path.form(), place.crew, keys, true);
    let stored: Vec<_> = sides(scope, split.as_ref()).into_iter().map(store).collect();
    let q = queries.q;
    let silent = q.tokens - outputs;
    let mut output = Output::new(place.isa, (q.tokens, outputs), (q.heads, q.head_dim), rounded);
    let tiles = if row_weights.is_some() { TILES } else { 1 };
    let segments: Vec<RowTile> = segments(queries, own.kv_heads(), tiles).collect();
    let parts = output.cut(&segments, silent, own.kv_heads());
    // Of a head the last rows, which see most, first: threads end together.
    let tasks = segments
        .into_iter()
        .zip(parts)
        .rev()
        .map(|(rows, output)| All {
            queries,
            rows,
            keys: &stored,
            sinks,
            row_weights,
            silent,
            output,
        })
        .collect();
    let spent = place.crew.map(tasks, |task: All<'_>| path.run(place.isa, task));
    let Some(spent) = spent.into_iter().rev().collect::<Option<Vec<_>>>() else {
        return Err(BackendError::NotFinite { op: "attend", what: "a weighted sum of values" });
    };
    // SAFETY: segments cover all rows of all heads, and their tasks wrote those that are wanted.
    let output = unsafe { output.written() };
    if row_weights.is_none() {
        return Ok(Attended { output, past_mass: Array::default(), own_mass: Array::default() });
    }
    let (mut past_mass, mut own_mass) =
        (vec![0.0; past.positions.len()], vec![0.0; own.positions.len()]);
    for (idx, keys) in stored.iter().enumerate() {
        let masses = if idx + 1 == stored.len() { &mut own_mass } else { &mut past_mass };
        total(keys.leaf(), spent.iter().map(|sides| &sides[idx]), masses);
    }
    for masses in [&past_mass, &own_mass] {
        shapes::finite("weigh", "a column mass", masses)?;
    }
    Ok(Attended { output, past_mass: past_mass.into(), own_mass: own_mass.into() })
}

/// One task: a segment of rows over past and own keys. Returns what they spend on each part of
/// them, or `None` where a state is not finite.
struct All<'a> {
    queries: &'a Queries<'a>,
    rows: RowTile,
    /// The parts of the past, and the own.
    keys: &'a [Stored<'a>],
    sinks: Option<&'a Arc<[f32]>>,
    row_weights: Option<&'a [f32]>,
    /// So many of the block's first tokens have no output.
    silent: usize,
    output: Piece<'a>,
}

impl Work for All<'_> {
    type Out = Option<Vec<Partial>>;

    #[inline(always)]
    fn run<P: Products>(self, mut products: P) -> Self::Out {
        let Self { queries, rows, keys, sinks, row_weights, silent, mut output } = self;
        let simd = products.simd();
        let mut sides: Vec<Side> = keys.iter().map(|_| Side::default()).collect();
        let spent = keys.iter().map(|keys| match row_weights {
            Some(_) => Lines::zeros(keys.len()),
            None => Lines::default(),
        });
        let mut spent: Vec<Lines<f32>> = spent.collect();
        let merges = if keys.len() > 2 { merges(Node::ROOT, LEAVES) } else { Vec::new() };
        for tile in rows.tiles() {
            let voters = row_weights.and_then(|weights| Voters::new(&tile, weights));
            let wanted = Wanted { o: tile.tokens.end > silent, p: voters.is_some() };
            if !wanted.o && !wanted.p {
                continue;
            }
            let tiles = (queries, from_ref(&tile));
            products.take(queries, tiles.1, keys[0].dtype());
            // Loops and no closures: what vectors are in must be inlined here.
            for (side, keys) in sides.iter_mut().zip(keys) {
                fill(&mut products, tiles, keys, (vec![side], wanted));
            }
            let (own, past) = sides.split_last_mut().expect("own keys at least");
            merge_all(simd, past, &merges);
            let past = &mut past[0];
            // Of leaves what is not finite shows in what they are merged to.
            if !past.is_finite(simd) || !own.is_finite(simd) {
                return None;
            }
            let sinks = sinks.map(|sinks| Side::of_sinks(&tile, sinks, own));
            let merged = past.end(simd, own, sinks.as_ref());
            if wanted.o {
                let first = silent.max(rows.tokens.start);
                past.each_row(simd, &tile, |_, (head, t), o| {
                    if let Some(row) = (tile.tokens.start + t).checked_sub(first) {
                        output.write(simd, row, head * o.len()..(head + 1) * o.len(), o);
                    }
                });
            }
            if let Some(mut voters) = voters {
                voters.settle(merged);
                for (side, spent) in sides.iter().zip(&mut spent) {
                    side.spend(simd, &voters, spent);
                }
            }
        }
        let mut partials = Vec::with_capacity(spent.len());
        for spent in &spent {
            partials.push(Partial::new(simd, rows.g, spent));
        }
        Some(partials)
    }
}
