//! Past and own keys in one pass: what rows spend is known as soon as they have seen both, and
//! their p of all keys is still at hand.

use std::mem::MaybeUninit;

use super::masses::{Partial, Voters, segments, total};
use super::pass::{Pass, Span};
use super::products::{Path, Products, Work};
use super::rows::{Lanes, RowTile, turn};
use super::stored::Stored;
use super::{few, sides};
use crate::array::Array;
use crate::backend::{Attended, BackendError, Queries, Scope};
use crate::cpu::gemm::{Place, is_finite};
use crate::cpu::lines::Lines;
use crate::cpu::simd::{LANES, Simd, Vector};
use crate::cpu::unwritten::{unwritten, written};
use crate::memory::leaf_merges;
use crate::shapes;
use crate::state::{common, lse};
use crate::tensor::Rows;

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
    row_weights.map_or(Ok(()), |row_weights| shapes::voting(queries, row_weights))
}

/// See [`crate::AttentionOps::attend_all`].
pub(in crate::cpu) fn attend_all(
    place: Place,
    queries: &Queries<'_>,
    scope: &Scope<'_>,
) -> Result<Attended, BackendError> {
    let Scope { past, own, row_weights, .. } = *scope;
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
    let width = q.heads * q.head_dim;
    let mut output = unwritten(q.tokens * width);
    let segments: Vec<RowTile> = match row_weights {
        Some(_) => segments(queries, own.kv_heads()).collect(),
        None => segments(queries, own.kv_heads()).flat_map(|rows| rows.tiles()).collect(),
    };
    let parts = cut(&mut output, width, &segments, own.kv_heads());
    let tasks = segments
        .into_iter()
        .zip(parts)
        .map(|(rows, output)| All { queries, rows, keys: &stored, row_weights, output })
        .collect();
    let spent = place.crew.map(tasks, |task: All<'_>| path.run(place.isa, task));
    let Some(spent) = spent.into_iter().collect::<Option<Vec<_>>>() else {
        return Err(BackendError::NotFinite { op: "attend", what: "a weighted sum of values" });
    };
    // SAFETY: segments cover all rows of all heads, and their tasks wrote them.
    let output = Rows::from_vec(q.tokens, width, unsafe { written(output) });
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

/// For every segment: of each of its tokens' rows, the columns of its KV head.
fn cut<'a>(
    output: &'a mut [MaybeUninit<f32>],
    cols: usize,
    segments: &[RowTile],
    kv_heads: usize,
) -> Vec<Vec<&'a mut [MaybeUninit<f32>]>> {
    let rows = output.len() / cols;
    let mut heads: Vec<Vec<_>> = Vec::new();
    heads.resize_with(kv_heads, || Vec::with_capacity(rows));
    for row in output.chunks_exact_mut(cols) {
        let columns = row.chunks_exact_mut(cols / kv_heads);
        heads.iter_mut().zip(columns).for_each(|(head, columns)| head.push(columns));
    }
    let mut heads: Vec<_> = heads.into_iter().map(Vec::into_iter).collect();
    segments.iter().map(|rows| heads[rows.g].by_ref().take(rows.tokens.len()).collect()).collect()
}

/// One task: a segment of rows over past and own keys. Returns what they spend on each part of
/// them, or `None` where a state is not finite.
struct All<'a> {
    queries: &'a Queries<'a>,
    rows: RowTile,
    /// The parts of the past, and the own.
    keys: &'a [Stored<'a>],
    row_weights: Option<&'a [f32]>,
    /// `[tokens]` of `[group * head_dim]`.
    output: Vec<&'a mut [MaybeUninit<f32>]>,
}

impl Work for All<'_> {
    type Out = Option<Vec<Partial>>;

    #[inline(always)]
    fn run<P: Products>(self, mut products: P) -> Self::Out {
        let Self { queries, rows, keys, row_weights, mut output } = self;
        let simd = products.simd();
        let mut sides: Vec<Side> = keys.iter().map(|_| Side::default()).collect();
        let spent = keys.iter().map(|keys| match row_weights {
            Some(_) => Lines::zeros(keys.len()),
            None => Lines::default(),
        });
        let mut spent: Vec<Lines<f32>> = spent.collect();
        let merges = if keys.len() > 2 { leaf_merges() } else { Vec::new() };
        for tile in rows.tiles() {
            let voters = row_weights.and_then(|weights| Voters::new(&tile, weights));
            products.take(queries, &tile, keys[0].dtype());
            // Loops and no closures: what vectors are in must be inlined here.
            for (side, keys) in sides.iter_mut().zip(keys) {
                side.fill(&mut products, Pass::new(queries, &tile, keys), voters.is_some());
            }
            let (own, past) = sides.split_last_mut().expect("own keys at least");
            for &(into, of) in &merges {
                let [into, of] = past.get_disjoint_mut([into, of]).expect("two leaves");
                into.take_in(simd, of);
            }
            let past = &mut past[0];
            // Of leaves what is not finite shows in what they are merged to.
            if !past.is_finite(simd) || !own.is_finite(simd) {
                return None;
            }
            let merged = past.end(simd, own);
            let first = tile.tokens.start - rows.tokens.start;
            past.write(simd, &tile, &mut output[first..]);
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

/// A tile of rows after the past's keys, or after the own.
#[derive(Default)]
struct Side {
    /// `[panels, 16]`.
    m: Vec<Lanes>,
    /// `[panels, 16]`.
    l: Vec<Lanes>,
    /// `[head_dim, panels, 16]`.
    o: Lines<f32>,
    /// Per tile of keys: `[keys, panels, 16]`, one behind the other, or only the last one's.
    p: Lines<f32>,
    /// The tiles of keys whose p was kept, with m as it was then.
    kept: Vec<(Span, Vec<Lanes>)>,
    /// Whether there was any key.
    saw: bool,
}

impl Side {
    #[inline(always)]
    fn fill<P: Products>(&mut self, products: &mut P, mut pass: Pass<'_>, keep: bool) {
        let panels = pass.panels();
        self.kept.clear();
        self.o.resize(products.head_dim() * panels);
        self.p.resize(panels * if keep { pass.keys(products) } else { P::KEYS });
        let mut used = 0;
        for (first, last) in pass.spans(products) {
            let size = (last - first) * panels;
            let p = &mut self.p[used..used + size];
            pass.soften(products, (first, last), p, keep);
            pass.add(products, (first, last), p, &mut self.o);
            if keep {
                self.kept.push(((first, last), pass.m()));
                used += size;
            }
        }
        self.saw = pass.saw();
        if !self.saw {
            self.o.clear();
        }
        (self.m, self.l) = (pass.m(), pass.l().to_vec());
    }

    #[inline(always)]
    fn is_finite<S: Simd>(&self, simd: S) -> bool {
        is_finite(simd, self.l.as_flattened()) && is_finite(simd, self.o.as_flattened())
    }

    /// Past merged with own, as [`crate::AttentionState::merge`] does it: o becomes the output.
    /// Returns lse, `[panels, 16]`.
    #[inline(always)]
    fn end<S: Simd>(&mut self, simd: S, own: &Self) -> Vec<Lanes> {
        self.merge::<S, true>(simd, own);
        let each = self.m.iter().zip(&self.l);
        each.map(|(m, l)| std::array::from_fn(|lane| lse(m[lane], l[lane]))).collect()
    }

    /// Another leaf merged in: o stays un-normalised. m, l and o of the other are lost.
    #[inline(always)]
    fn take_in<S: Simd>(&mut self, simd: S, other: &mut Self) {
        if !self.saw {
            std::mem::swap(&mut self.m, &mut other.m);
            std::mem::swap(&mut self.l, &mut other.l);
            std::mem::swap(&mut self.o, &mut other.o);
        } else if other.saw {
            self.merge::<S, false>(simd, other);
        }
        self.saw |= other.saw;
    }

    /// m, l and o of both; with `LAST` o becomes the output.
    #[inline(always)]
    fn merge<S: Simd, const LAST: bool>(&mut self, simd: S, other: &Self) {
        let panels = self.m.len();
        let none = simd.splat(f32::NEG_INFINITY);
        for panel in 0..panels {
            let (ma, mb) = (&self.m[panel], &other.m[panel]);
            let (mut m, mut l, mut scales) = ([0.0; LANES], [0.0; LANES], [[0.0; LANES]; 2]);
            for lane in 0..LANES {
                let (la, lb) = (self.l[panel][lane], other.l[panel][lane]);
                (m[lane], l[lane]) = match (ma[lane], mb[lane]) {
                    (ma, f32::NEG_INFINITY) => (ma, la),
                    (f32::NEG_INFINITY, mb) => (mb, lb),
                    (ma, mb) => {
                        let (m, sa, sb) = common(ma, mb);
                        (scales[0][lane], scales[1][lane]) = (sa, sb);
                        (m, la * sa + lb * sb)
                    }
                };
            }
            let (ma, mb, joint) = (simd.load(ma), simd.load(mb), simd.load(&l));
            let (sa, sb) = (simd.load(&scales[0]), simd.load(&scales[1]));
            let columns = self.o.iter_mut().zip(other.o.iter()).skip(panel).step_by(panels);
            for (oa, ob) in columns {
                let (a, b) = (simd.load(oa), simd.load(ob));
                let mut o = none.below(mb, none.below(ma, a * sa + b * sb, b), a);
                if LAST {
                    o = simd.splat(0.0).below(joint, o / joint, simd.splat(0.0));
                }
                o.store(oa);
            }
            (self.m[panel], self.l[panel]) = (m, l);
        }
    }

    /// Rows of o into those of `output`, `[tokens]` of `[group * head_dim]`.
    #[inline(always)]
    fn write<S: Simd>(&self, simd: S, rows: &RowTile, output: &mut [&mut [MaybeUninit<f32>]]) {
        let panels = rows.panels();
        let head_dim = self.o.len() / panels;
        let mut turned = Lines::default();
        for panel in 0..panels {
            let width = turn(simd, &self.o, (panel, panels), &mut turned);
            let o_rows = turned.as_flattened().chunks_exact(width);
            for (row, o) in (panel * LANES..rows.len()).zip(o_rows) {
                let (head, t) = (row / rows.tokens.len(), row % rows.tokens.len());
                let to = &mut output[t][head * head_dim..(head + 1) * head_dim];
                to.write_copy_of_slice(&o[..head_dim]);
            }
        }
    }

    /// Adds what the rows spend to `spent`, `[keys, 16]`.
    #[inline(always)]
    fn spend<S: Simd>(&self, simd: S, voters: &Voters, spent: &mut [Lanes]) {
        let mut rest = &self.p[..];
        for ((first, last), m) in &self.kept {
            let (p, behind) = rest.split_at((last - first) * m.len());
            voters.spend(simd, m, p, &mut spent[*first..*last]);
            rest = behind;
        }
    }
}
