//! Column masses: a second pass over the dot products, with the merged lse.

use super::exp::exp;
use super::gemm::{Place, is_finite};
use super::keys::{KEYS, Widener};
use super::queries::{Dots, QueryTile, token_tiles};
use super::simd::{Kernel, LANES, Simd, Vector, sum};
use crate::backend::{BackendError, Queries};
use crate::memory::Keys;
use crate::shapes;

/// See [`crate::AttentionOps::weigh`].
///
/// A task owns a tile of keys and goes through the rows in order, so a mass is summed alike
/// on any number of threads. Rows that do not vote are never looked at.
pub(super) fn weigh(
    place: Place,
    queries: &Queries<'_>,
    keys: &Keys,
    lse: &[f32],
    row_weights: &[f32],
) -> Result<Vec<f32>, BackendError> {
    shapes::weighing(queries, keys, lse, row_weights)?;
    let mut masses = vec![0.0; keys.positions.len()];
    if keys.is_empty() {
        return Ok(masses);
    }
    let voters = voters(place, queries, keys, lse, row_weights);
    let tasks = masses
        .chunks_mut(keys.len())
        .zip(&voters)
        .flat_map(|(masses, voters)| {
            masses.chunks_mut(KEYS).enumerate().map(move |(idx, masses)| (idx, masses, voters))
        })
        .collect();
    let finite = place.crew.map(tasks, |(idx, masses, voters): (usize, _, &Vec<Voters>)| {
        let first = idx * KEYS;
        place.isa.run(Weigh { keys, first, voters, scale: queries.scale, masses })
    });
    if finite.into_iter().all(|finite| finite) {
        Ok(masses)
    } else {
        Err(BackendError::NotFinite { op: "weigh", what: "a column mass" })
    }
}

/// A tile of rows with what they spend.
struct Voters {
    tile: QueryTile,
    /// Per panel: lse, +inf where nothing is spent.
    lse: Vec<[f32; LANES]>,
    /// Per panel: row weights.
    weights: Vec<[f32; LANES]>,
}

/// Per KV head, all rows whose weight is not 0, in tiles.
fn voters(
    place: Place,
    queries: &Queries<'_>,
    keys: &Keys,
    lse: &[f32],
    row_weights: &[f32],
) -> Vec<Vec<Voters>> {
    let tokens: Vec<usize> = (0..row_weights.len()).filter(|&t| row_weights[t] != 0.0).collect();
    let group = queries.q.heads / keys.kv_heads();
    let per_head = token_tiles(&tokens, group).count();
    let tasks = (0..keys.kv_heads())
        .flat_map(|g| token_tiles(&tokens, group).map(move |tokens| (g, tokens)))
        .collect();
    let mut voters = place
        .crew
        .map(tasks, |(g, tokens)| {
            let tile = QueryTile::new(queries, keys, g, tokens);
            Voters::new(tile, queries.q.tokens, lse, row_weights)
        })
        .into_iter();
    (0..keys.kv_heads()).map(|_| voters.by_ref().take(per_head).collect()).collect()
}

impl Voters {
    fn new(tile: QueryTile, block_tokens: usize, lse: &[f32], row_weights: &[f32]) -> Self {
        let mut voters = Self {
            lse: vec![[f32::INFINITY; LANES]; tile.panels()],
            weights: vec![[0.0; LANES]; tile.panels()],
            tile,
        };
        for row in 0..voters.tile.rows() {
            let (head, t) = voters.tile.origin(row);
            let lse = lse[head * block_tokens + t];
            if lse != f32::NEG_INFINITY {
                voters.lse[row / LANES][row % LANES] = lse;
                voters.weights[row / LANES][row % LANES] = row_weights[t];
            }
        }
        voters
    }
}

/// One task: what all voters of a KV head spend on a tile of keys. Returns whether the masses
/// are finite.
struct Weigh<'a> {
    keys: &'a Keys,
    first: usize,
    voters: &'a [Voters],
    scale: f32,
    /// `[keys of the tile]`.
    masses: &'a mut [f32],
}

impl Kernel for Weigh<'_> {
    type Out = bool;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> bool {
        let (first, last) = (self.first, self.first + self.masses.len());
        let mut spent = [[0.0; LANES]; KEYS];
        let sees = |voters: &&Voters| {
            let reach = voters.tile.reach();
            reach.start < last && reach.end > first
        };
        let voters: Vec<&Voters> = self.voters.iter().filter(sees).collect();
        let Some(g) = voters.first().map(|voters| voters.tile.g) else {
            return true;
        };
        let mut wide = Widener::default();
        let k = wide.tile(simd, self.keys.k_rows(g), (first, last));
        let mut dots = Vec::new();
        for voters in voters {
            dots.resize(voters.tile.panels() * self.masses.len(), [0.0; LANES]);
            Dots { queries: &voters.tile, keys: k, out: &mut dots }.compute(simd);
            voters.spend(simd, (first, last), &dots, self.scale, &mut spent);
        }
        for (mass, lanes) in self.masses.iter_mut().zip(&spent) {
            *mass = sum(simd.load(lanes));
        }
        is_finite(simd, self.masses)
    }
}

impl Voters {
    /// Adds w exp(z - lse) of every row to its lane of `spent`, `[keys, 16]`.
    #[inline(always)]
    fn spend<S: Simd>(
        &self,
        simd: S,
        (first, last): (usize, usize),
        dots: &[[f32; LANES]],
        scale: f32,
        spent: &mut [[f32; LANES]],
    ) {
        let scale = simd.splat(scale);
        let mask = self.tile.mask(first, last);
        for (panel, dots) in dots.chunks_exact(last - first).enumerate() {
            let (lse, weights) = (simd.load(&self.lse[panel]), simd.load(&self.weights[panel]));
            for (key, (dots, spent)) in dots.iter().zip(&mut *spent).enumerate() {
                let mut z = simd.load(dots) * scale;
                if let Some(mask) = &mask {
                    z = mask[panel].apply(simd, key, z);
                }
                weights.fma(exp(simd, z - lse), simd.load(spent)).store(spent);
            }
        }
    }
}
