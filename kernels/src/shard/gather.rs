//! Moving keys: what stays of a shard, and what is added to it.

use std::sync::Arc;

use crate::array::Array;
use crate::backend::{Backend, BackendError};
use crate::cells::HeadRows;
use crate::memory::{Keys, MemorySet, Ranking, Selection};
use crate::tensor::{KvData, KvDtype, KvHeads};
use crate::window::Window;

use super::Shard;

impl Shard {
    /// Brings positions, scores and votes to the host: see [`MemorySet::fetch_lists`].
    ///
    /// # Errors
    /// As there.
    pub fn fetch_lists(&self) -> Result<(), BackendError> {
        self.parts.iter().try_for_each(MemorySet::fetch_lists)
    }

    /// The same, and keys and values: see [`MemorySet::fetch`].
    ///
    /// # Errors
    /// As there.
    pub fn fetch(&self) -> Result<(), BackendError> {
        self.parts.iter().try_for_each(MemorySet::fetch)
    }

    /// Of a block's own keys those that rows behind it see, which see no further than `window`.
    ///
    /// # Errors
    /// What the backend refuses.
    pub fn seen_behind(
        self: &Arc<Self>,
        backend: &dyn Backend,
        window: Option<Window>,
    ) -> Result<Arc<Self>, BackendError> {
        let (Some(window), Some(keys)) = (window, self.of_all_heads()) else {
            return Ok(self.clone());
        };
        let local = self.end - window.first_seen(self.end).min(self.end);
        match local < keys.len() as u32 {
            true => Ok(Arc::new(self.last(backend, local)?)),
            false => Ok(self.clone()),
        }
    }

    /// The last `local` keys of a block's own, at least that many in a row.
    fn last(&self, backend: &dyn Backend, local: u32) -> Result<Self, BackendError> {
        let keys = &self.parts[0].keys;
        let (kv_heads, own) = (keys.kv_heads(), keys.len());
        let nothing = MemorySet::empty(kv_heads, keys.k.head_dim, keys.k.dtype());
        let before = Arc::new(MemorySet { end: self.end - own as u32, ..nothing });
        let masses = (&Array::default(), &vec![0.0; kv_heads * own].into());
        let selection = Selection { keep_all: false, local, ..ALL };
        let last = backend.select(before, keys, masses, &selection)?.memory;
        Ok(Self { parts: vec![last], end: self.end })
    }

    /// The parts with the keys `kept` of each KV head.
    pub(super) fn pruned(&self, kept: &[Vec<usize>]) -> Vec<MemorySet> {
        let heads: Vec<_> =
            self.each_head().zip(kept).map(|(at, kept)| (at, kept.as_slice())).collect();
        let equal = kept.iter().all(|head| head.len() == kept[0].len());
        match equal {
            true => vec![self.gathered(&heads)],
            false => heads.iter().map(|&head| self.gathered(&[head])).collect(),
        }
    }

    /// A part for each KV head.
    pub(super) fn split(&self) -> Result<Vec<MemorySet>, BackendError> {
        self.fetch()?;
        let all = |(part, _): (usize, usize)| (0..self.parts[part].keys.len()).collect::<Vec<_>>();
        let heads: Vec<_> = self.each_head().map(|at| (at, all(at))).collect();
        Ok(heads.iter().map(|(at, kept)| self.gathered(&[(*at, kept)])).collect())
    }

    /// One set of these KV heads, each with as many of its keys.
    fn gathered(&self, heads: &[((usize, usize), &[usize])]) -> MemorySet {
        let pick = |of: fn(&MemorySet) -> &[f32]| -> Vec<f32> {
            heads
                .iter()
                .flat_map(|&((part, g), kept)| {
                    let set = &self.parts[part];
                    kept.iter().map(move |&j| of(set)[g * set.keys.len() + j])
                })
                .collect()
        };
        let positions: Vec<u32> = heads
            .iter()
            .flat_map(|&((part, g), kept)| {
                kept.iter().map(move |&j| self.parts[part].keys.head_positions(g)[j])
            })
            .collect();
        let (score, votes) = (pick(|set| &set.score), pick(|set| &set.votes));
        let keys =
            Keys::new(positions, self.rows(heads, Keys::k_rows), self.rows(heads, Keys::v_rows));
        MemorySet {
            keys,
            score: score.into(),
            votes: votes.into(),
            state: Array::default(),
            end: self.end,
        }
    }

    fn rows(
        &self,
        heads: &[((usize, usize), &[usize])],
        of: fn(&Keys, usize) -> HeadRows<'_>,
    ) -> KvHeads {
        let (tokens, head_dim) = (heads[0].1.len(), self.parts[0].keys.k.head_dim);
        let (mut f32s, mut bf16s) = (Vec::new(), Vec::new());
        for &((part, g), kept) in heads {
            match of(&self.parts[part].keys, g) {
                HeadRows::F32(rows) => {
                    kept.iter().for_each(|&j| f32s.extend_from_slice(rows.row(j)));
                }
                HeadRows::Bf16(rows) => {
                    kept.iter().for_each(|&j| bf16s.extend_from_slice(rows.row(j)));
                }
            }
        }
        let data = match self.parts[0].keys.k.dtype() {
            KvDtype::F32 => KvData::F32(f32s.into()),
            KvDtype::Bf16 => KvData::Bf16(bf16s.into()),
        };
        KvHeads { kv_heads: heads.len(), tokens, head_dim, data }
    }
}

/// One KV head's keys, shard after shard: among which they are, and its place there.
type Pieces<'a> = Vec<(&'a Keys, usize)>;

/// See [`Shard::joined`]; of one shard at least.
pub(super) fn joined(shards: &[Arc<Shard>]) -> Shard {
    let kv_heads = shards[0].kv_heads();
    let pieces = |g: usize| shards.iter().map(|shard| shard.head(g)).collect();
    let heads: Vec<Pieces<'_>> = (0..kv_heads).map(pieces).collect();
    let count = |head: &Pieces<'_>| head.iter().map(|(keys, _)| keys.len()).sum();
    let counts: Vec<usize> = heads.iter().map(count).collect();
    let equal = counts.iter().all(|count| *count == counts[0]);
    let step = if equal { kv_heads.max(1) } else { 1 };
    let end = shards.iter().map(|shard| shard.end).max().unwrap_or(0);
    let like = &shards[0].parts[0].keys;
    let set = |(heads, counts): (&[Pieces<'_>], &[usize])| {
        let pieces = heads.iter().flatten();
        let positions: Vec<u32> =
            pieces.flat_map(|(keys, g)| keys.head_positions(*g)).copied().collect();
        let rows = |like: &KvHeads, of: fn(&Keys, usize) -> HeadRows<'_>| {
            let heads = heads.iter().map(|head| head.iter().map(move |(keys, g)| of(keys, *g)));
            like.gathered(counts[0], heads)
        };
        let (k, v) = (rows(&like.k, Keys::k_rows), rows(&like.v, Keys::v_rows));
        Shard::new(Keys::new(positions, k, v), end).parts
    };
    Shard { parts: heads.chunks(step).zip(counts.chunks(step)).flat_map(set).collect(), end }
}

/// What is spent on the keys of each of `shards`, from what is on those of all
/// [`joined`](Shard::joined): KV head after KV head, either.
pub fn apart(shards: &[Arc<Shard>], masses: &[f32]) -> Vec<Vec<f32>> {
    let mut each: Vec<_> = shards.iter().map(|shard| Vec::with_capacity(shard.keys())).collect();
    let (mut rest, kv_heads) = (masses, shards.first().map_or(0, |shard| shard.kv_heads()));
    for g in 0..kv_heads {
        for (shard, own) in shards.iter().zip(&mut each) {
            let (masses, behind) = rest.split_at(shard.head(g).0.len());
            own.extend_from_slice(masses);
            rest = behind;
        }
    }
    each
}

/// Keeps everything.
const ALL: Selection = Selection {
    keep_all: true,
    sinks: 0,
    local: 0,
    heavy: 0,
    ranking: Ranking { decay: 1.0, window: 0, age_normalised: false },
    window: None,
};

/// `part` and behind it `own`, of later positions and as many KV heads.
pub(super) fn join(
    backend: &dyn Backend,
    mut part: MemorySet,
    own: &MemorySet,
) -> Result<MemorySet, BackendError> {
    part.score.host()?;
    part.votes.host()?;
    own.fetch_lists()?;
    let (score, votes) =
        (beside(&part, own, |set| &set.score), beside(&part, own, |set| &set.votes));
    // What was given up in between left a gap that does not matter here.
    part.end = own.keys.positions.first().copied().unwrap_or(part.end);
    let nothing = (&Array::default(), &Array::default());
    let joined = backend.select(Arc::new(part), &own.keys, nothing, &ALL)?.memory;
    Ok(MemorySet { score: score.into(), votes: votes.into(), end: own.end, ..joined })
}

/// `[kv_heads, keys]` of both, head by head.
fn beside(a: &MemorySet, b: &MemorySet, of: fn(&MemorySet) -> &[f32]) -> Vec<f32> {
    let (n, t) = (a.keys.len(), b.keys.len());
    let heads = 0..a.keys.kv_heads();
    heads
        .flat_map(|g| of(a)[g * n..(g + 1) * n].iter().chain(&of(b)[g * t..(g + 1) * t]))
        .copied()
        .collect()
}
