//! The keys of one chunk in one layer, where they stay with the worker that computed them.
//!
//! What a memory set does in one place, shards do together: every shard attends for itself
//! ([`Shard::attend`]), counts what a block's rows spend on its keys ([`Shard::count`]) and names
//! its best candidates; [`cutoffs`] decides over all of them which is the last to stay, and every
//! shard prunes itself ([`Shard::settle`]). One total order decides, so the keys that stay are
//! those that a memory set of all of them would keep.
//!
//! KV heads may keep different numbers of a shard's keys.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::array::Array;
use crate::backend::{Backend, BackendError, Queries};
use crate::memory::{Keys, MemorySet, Ranking, Selection};
use crate::select::{rank, sum, votes};
use crate::state::AttentionState;
use crate::tensor::{Heads, KvData, KvDtype, KvHeads};

/// Keys, values, scores and votes of one chunk in one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Shard {
    /// One set of all KV heads where each has equally many keys, otherwise one for each.
    parts: Vec<MemorySet>,
    /// Tokens processed when it was last settled.
    end: u32,
}

/// What a shard's keys score once a block has passed, before anything is given up.
#[derive(Debug, Clone, PartialEq)]
pub struct Tally {
    /// Per part `[kv_heads of the part, keys]`.
    score: Vec<Vec<f32>>,
    votes: Vec<Vec<f32>>,
}

/// A key that neither its age nor its freshness saves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Higher stays; never NaN.
    pub rank: f32,
    /// Of equal ranks the smaller position stays.
    pub position: u32,
}

/// Which candidates of one KV head stay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cutoff {
    /// All of them.
    All,
    /// None of them.
    None,
    /// This one, and those that stand before it in [`Candidate::order`].
    Last(Candidate),
}

/// What passed when a block's rows had been counted.
#[derive(Debug, Clone, Copy)]
pub struct Passed<'a> {
    /// What is kept, and how keys are ranked.
    pub selection: &'a Selection,
    /// Tokens processed, the block's among them.
    pub end: u32,
}

impl Tally {
    /// Sum of all scores.
    pub fn mass(&self) -> f64 {
        self.score.iter().map(|score| sum(score)).sum()
    }
}

impl Candidate {
    /// Best first; total, as positions of one KV head are distinct.
    pub fn order(&self, other: &Self) -> Ordering {
        other.rank.total_cmp(&self.rank).then(self.position.cmp(&other.position))
    }
}

impl Cutoff {
    fn keeps(&self, candidate: &Candidate) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Last(last) => candidate.order(last) != Ordering::Greater,
        }
    }
}

impl Passed<'_> {
    fn is_safe(&self, position: u32) -> bool {
        let Selection { keep_all, sinks, local, .. } = *self.selection;
        keep_all || position < sinks || position >= self.end.saturating_sub(local)
    }
}

/// Per KV head, which candidates stay: the `heavy` best of all that the shards name.
///
/// `candidates` is `[shards][kv_heads]`, each the best of its shard and at least `heavy` of them
/// if there are as many.
pub fn cutoffs(candidates: &[Vec<Vec<Candidate>>], kv_heads: usize, heavy: usize) -> Vec<Cutoff> {
    let cutoff = |g: usize| {
        let mut all: Vec<Candidate> =
            candidates.iter().filter_map(|shard| shard.get(g)).flatten().copied().collect();
        if all.len() <= heavy {
            return Cutoff::All;
        }
        let Some(last) = heavy.checked_sub(1) else { return Cutoff::None };
        let (_, last, _) = all.select_nth_unstable_by(last, Candidate::order);
        Cutoff::Last(*last)
    };
    (0..kv_heads).map(cutoff).collect()
}

impl Shard {
    /// A block's own keys, which nobody has looked at. `end` is the position after its last.
    pub fn new(keys: Keys, end: u32) -> Self {
        let nothing = vec![0.0; keys.positions.len()];
        let part = MemorySet { score: nothing.clone().into(), votes: nothing.into(), keys, end };
        Self { parts: vec![part], end }
    }

    /// A shard of these sets: one of all KV heads, or one for each.
    pub fn of_parts(parts: Vec<MemorySet>, end: u32) -> Self {
        Self { parts, end }
    }

    /// One set of all KV heads, or one for each.
    pub fn parts(&self) -> &[MemorySet] {
        &self.parts
    }

    /// Tokens processed when it was last settled.
    pub fn end(&self) -> u32 {
        self.end
    }

    /// G.
    pub fn kv_heads(&self) -> usize {
        self.parts.iter().map(|part| part.keys.kv_heads()).sum()
    }

    /// Keys over all KV heads.
    pub fn keys(&self) -> usize {
        self.parts.iter().map(|part| part.keys.positions.len()).sum()
    }

    /// Bytes of keys, values, positions, scores and votes.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(MemorySet::bytes).sum()
    }

    /// Sum of all scores.
    pub fn mass(&self) -> f64 {
        self.parts.iter().map(|part| sum(&part.score)).sum()
    }

    /// The partial state of `queries` over the keys.
    ///
    /// # Errors
    /// What the backend refuses.
    pub fn attend(
        &self,
        backend: &dyn Backend,
        queries: Queries<'_>,
    ) -> Result<AttentionState, BackendError> {
        if let [part] = self.parts.as_slice() {
            return backend.attend(queries, &part.keys);
        }
        let (mut m, mut l, mut o) = (Vec::new(), Vec::new(), Vec::new());
        for (part, q) in self.parts.iter().zip(self.heads_of(queries.q)) {
            let state = backend.attend(Queries { q: &q, ..queries }, &part.keys)?;
            m.extend_from_slice(state.m.host()?);
            l.extend_from_slice(state.l.host()?);
            o.extend_from_slice(state.o.host()?);
        }
        let Heads { heads, tokens, head_dim, .. } = *queries.q;
        Ok(AttentionState { heads, tokens, head_dim, m: m.into(), l: l.into(), o: o.into() })
    }

    /// What the rows of `queries` spend on the keys, part after part, `[kv_heads, keys]` each:
    /// see [`AttentionOps::weigh`](crate::AttentionOps::weigh).
    ///
    /// # Errors
    /// What the backend refuses.
    pub fn weigh(
        &self,
        backend: &dyn Backend,
        queries: Queries<'_>,
        lse: &[f32],
        ranking: &Ranking,
    ) -> Result<Vec<f32>, BackendError> {
        let tokens = queries.q.tokens;
        let weights = ranking.row_weights(tokens);
        let mut masses = Vec::with_capacity(self.keys());
        let mut rows = 0..0;
        for (part, q) in self.parts.iter().zip(self.heads_of(queries.q)) {
            rows = rows.end..rows.end + q.heads * tokens;
            let queries = Queries { q: &q, ..queries };
            let mass = backend.weigh(queries, &part.keys, &lse[rows.clone()], &weights)?;
            masses.extend_from_slice(mass.host()?);
        }
        Ok(masses)
    }

    /// What the keys score once the block of `queries` has passed. `lse` is `[heads, tokens]` of
    /// the merged state.
    ///
    /// # Errors
    /// What the backend refuses.
    pub fn count(
        &self,
        backend: &dyn Backend,
        queries: Queries<'_>,
        lse: &[f32],
        ranking: &Ranking,
    ) -> Result<Tally, BackendError> {
        let tokens = queries.q.tokens;
        let (fade, (total, _)) = (ranking.fade(tokens), votes(&ranking.row_weights(tokens)));
        let masses = self.weigh(backend, queries, lse, ranking)?;
        let mut masses = masses.as_slice();
        let mut tally = Tally { score: Vec::new(), votes: Vec::new() };
        for part in &self.parts {
            let (own, rest) = masses.split_at(part.score.len());
            masses = rest;
            let score = part.score.iter().zip(own).map(|(score, mass)| score * fade + mass);
            tally.score.push(score.collect());
            tally.votes.push(part.votes.iter().map(|votes| votes * fade + total).collect());
        }
        Ok(tally)
    }

    /// The first tally of a block's own keys, whose masses are `[kv_heads, tokens]`.
    pub fn count_own(&self, mass: &[f32], ranking: &Ranking) -> Tally {
        let tokens = mass.len() / self.kv_heads().max(1);
        let (_, own) = votes(&ranking.row_weights(tokens));
        Tally { score: vec![mass.to_vec()], votes: vec![own.repeat(self.kv_heads())] }
    }

    /// Per KV head the best candidates, in order, at most `passed.selection.heavy` and one more:
    /// what [`cutoffs`] needs to know whether any is given up.
    pub fn candidates(&self, tally: &Tally, passed: Passed<'_>) -> Vec<Vec<Candidate>> {
        let most = passed.selection.heavy.saturating_add(1);
        let best = |(part, g): (usize, usize)| {
            let mut all: Vec<Candidate> = self
                .entries(tally, (part, g), &passed.selection.ranking)
                .filter(|candidate| !passed.is_safe(candidate.position))
                .collect();
            if most < all.len() {
                all.select_nth_unstable_by(most, Candidate::order);
                all.truncate(most);
            }
            all.sort_unstable_by(Candidate::order);
            all
        };
        self.each_head().map(best).collect()
    }

    /// Takes over `tally` and keeps what `cutoffs`, one for each KV head, and the selection let
    /// stay.
    #[must_use]
    pub fn settle(self: Arc<Self>, tally: Tally, cutoffs: &[Cutoff], passed: Passed<'_>) -> Self {
        let ranking = &passed.selection.ranking;
        let kept: Vec<Vec<usize>> = self
            .each_head()
            .zip(cutoffs)
            .map(|(at, cutoff)| {
                let stays = |(_, key): &(usize, Candidate)| {
                    passed.is_safe(key.position) || cutoff.keeps(key)
                };
                let entries = self.entries(&tally, at, ranking).enumerate();
                entries.filter(stays).map(|(idx, _)| idx).collect()
            })
            .collect();
        let mut shard = Arc::unwrap_or_clone(self);
        shard.end = passed.end;
        for (part, (score, votes)) in
            shard.parts.iter_mut().zip(tally.score.into_iter().zip(tally.votes))
        {
            (part.score, part.votes, part.end) = (score.into(), votes.into(), passed.end);
        }
        if kept.iter().map(Vec::len).sum::<usize>() < shard.keys() {
            shard.parts = shard.pruned(&kept);
        }
        shard
    }

    /// Adds the keys of `own`, a later block of the same chunk.
    ///
    /// # Errors
    /// What the backend refuses.
    pub fn append(
        self: Arc<Self>,
        backend: &dyn Backend,
        own: &Self,
    ) -> Result<Self, BackendError> {
        let shard = Arc::unwrap_or_clone(self);
        let (parts, own_parts) = match shard.parts.len() == own.parts.len() {
            true => (shard.parts, own.parts.clone()),
            false => (shard.split(), own.split()),
        };
        let joined = parts.into_iter().zip(&own_parts).map(|(part, own)| join(backend, part, own));
        Ok(Self { parts: joined.collect::<Result<_, _>>()?, end: own.end })
    }

    /// `q` of the query heads that look at each part.
    fn heads_of<'a>(&'a self, q: &'a Heads) -> impl Iterator<Item = Heads> + 'a {
        let group = q.heads / self.kv_heads().max(1);
        let mut first = 0;
        self.parts.iter().map(move |part| {
            let heads = part.keys.kv_heads() * group;
            first += heads;
            q.some(first - heads..first)
        })
    }

    /// Part and KV head within it, for every KV head.
    fn each_head(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let heads =
            |(idx, part): (usize, &MemorySet)| (0..part.keys.kv_heads()).map(move |g| (idx, g));
        self.parts.iter().enumerate().flat_map(heads)
    }

    /// Rank and position of each key of one KV head.
    fn entries<'a>(
        &'a self,
        tally: &'a Tally,
        (part, g): (usize, usize),
        ranking: &'a Ranking,
    ) -> impl Iterator<Item = Candidate> + 'a {
        let positions = self.parts[part].keys.head_positions(g);
        let span = g * positions.len()..(g + 1) * positions.len();
        let tallies = tally.score[part][span.clone()].iter().zip(&tally.votes[part][span]);
        positions.iter().zip(tallies).map(|(&position, (&score, &votes))| Candidate {
            rank: rank(score, votes, ranking),
            position,
        })
    }

    /// The parts with the keys `kept` of each KV head.
    fn pruned(&self, kept: &[Vec<usize>]) -> Vec<MemorySet> {
        let heads: Vec<_> =
            self.each_head().zip(kept).map(|(at, kept)| (at, kept.as_slice())).collect();
        let equal = kept.iter().all(|head| head.len() == kept[0].len());
        match equal {
            true => vec![self.gathered(&heads)],
            false => heads.iter().map(|&head| self.gathered(&[head])).collect(),
        }
    }

    /// A part for each KV head.
    fn split(&self) -> Vec<MemorySet> {
        let all = |(part, _): (usize, usize)| (0..self.parts[part].keys.len()).collect::<Vec<_>>();
        let heads: Vec<_> = self.each_head().map(|at| (at, all(at))).collect();
        heads.iter().map(|(at, kept)| self.gathered(&[(*at, kept)])).collect()
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
        let keys = Keys::new(
            positions,
            self.rows(heads, |keys| &keys.k),
            self.rows(heads, |keys| &keys.v),
        );
        MemorySet { keys, score: score.into(), votes: votes.into(), end: self.end }
    }

    fn rows(&self, heads: &[((usize, usize), &[usize])], of: fn(&Keys) -> &KvHeads) -> KvHeads {
        let like = of(&self.parts[0].keys);
        let mut k = KvHeads {
            kv_heads: heads.len(),
            tokens: heads[0].1.len(),
            ..KvHeads::empty(0, like.head_dim, like.dtype())
        };
        let elements = k.kv_heads * k.tokens * k.head_dim;
        k.data = match like.dtype() {
            KvDtype::F32 => KvData::F32(Vec::with_capacity(elements).into()),
            KvDtype::Bf16 => KvData::Bf16(Vec::with_capacity(elements).into()),
        };
        for &((part, g), kept) in heads {
            let keys = &self.parts[part].keys;
            for &j in kept {
                let first = keys.row(g, j) * like.head_dim;
                let span = first..first + like.head_dim;
                match (&mut k.data, &of(keys).data) {
                    (KvData::F32(to), KvData::F32(from)) => {
                        to.make_mut().extend_from_slice(&from[span])
                    }
                    (KvData::Bf16(to), KvData::Bf16(from)) => {
                        to.make_mut().extend_from_slice(&from[span])
                    }
                    _ => unreachable!("a shard's parts have one dtype"),
                }
            }
        }
        k
    }
}

/// Keeps everything.
const ALL: Selection = Selection {
    keep_all: true,
    sinks: 0,
    local: 0,
    heavy: 0,
    ranking: Ranking { decay: 1.0, window: 0, age_normalised: false },
};

/// `part` and behind it `own`, of later positions and as many KV heads.
fn join(
    backend: &dyn Backend,
    mut part: MemorySet,
    own: &MemorySet,
) -> Result<MemorySet, BackendError> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reference;
    use crate::backend::{AttentionOps, Scope};
    use proptest::prelude::*;

    const KV_HEADS: usize = 2;
    const HEADS: usize = 4;
    const HEAD_DIM: usize = 4;

    /// Numbers that look random and are the same everywhere.
    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        std::iter::repeat_with(next).take(count).collect()
    }

    fn block(start: u32, tokens: u32, seed: u64) -> (Heads, Keys) {
        let heads = |n: usize, salt: u64| numbers(n * tokens as usize * HEAD_DIM, seed ^ salt);
        let kv = |salt| {
            KvHeads::from_f32(
                KV_HEADS,
                tokens as usize,
                HEAD_DIM,
                &heads(KV_HEADS, salt),
                KvDtype::F32,
            )
        };
        let positions = (0..KV_HEADS).flat_map(|_| start..start + tokens).collect::<Vec<_>>();
        let q = Heads {
            data: heads(HEADS, 1 << 40).into_iter().map(|x| x * 3.0).collect(),
            ..Heads::zeros(HEADS, tokens as usize, HEAD_DIM)
        };
        (q, Keys::new(positions, kv(2 << 40), kv(3 << 40)))
    }

    fn queries(q: &Heads, start: u32) -> Queries<'_> {
        Queries { q, start, scale: 0.5, window: None }
    }

    /// Positions and scores of each KV head, whatever the form.
    fn entries(parts: &[&MemorySet]) -> Vec<Vec<(u32, f32)>> {
        let mut heads = vec![Vec::new(); KV_HEADS];
        let mut at = 0;
        for part in parts {
            for g in 0..part.keys.kv_heads() {
                let head = at % KV_HEADS;
                let n = part.keys.len();
                let score = part.score[g * n..(g + 1) * n].iter().copied();
                heads[head].extend(part.keys.head_positions(g).iter().copied().zip(score));
                at += 1;
            }
        }
        heads.iter_mut().for_each(|head| head.sort_by_key(|entry| entry.0));
        heads
    }

    fn close(a: &[Vec<(u32, f32)>], b: &[Vec<(u32, f32)>]) -> bool {
        let near = |(x, y): (&(u32, f32), &(u32, f32))| x.0 == y.0 && (x.1 - y.1).abs() < 1e-4;
        a.len() == b.len()
            && a.iter().zip(b).all(|(a, b)| a.len() == b.len() && a.iter().zip(b).all(near))
    }

    proptest! {
        /// Chunk after chunk, shards keep together what one memory set keeps.
        #[test]
        fn shards_keep_what_a_memory_set_keeps(
            tokens in prop::collection::vec(1u32..9, 1..8),
            (sinks, local, heavy) in (0u32..3, 0u32..5, 0usize..6),
            (decay, window, age_normalised) in (prop_oneof![Just(1.0f32), Just(0.9)], 0usize..4, any::<bool>()),
            seed: u64,
        ) {
            let ranking = Ranking { decay, window, age_normalised };
            let selection = Selection { keep_all: false, sinks, local, heavy, ranking };
            let mut set = Arc::new(MemorySet::empty(KV_HEADS, HEAD_DIM, KvDtype::F32));
            let mut shards: Vec<Arc<Shard>> = Vec::new();
            let mut start = 0;
            for (idx, &count) in tokens.iter().enumerate() {
                let (q, keys) = block(start, count, seed ^ idx as u64);
                let queries = queries(&q, start);
                let weights = ranking.row_weights(count as usize);
                let scope = Scope { past: &set.keys, own: &keys, row_weights: Some(&weights), rounded: true };
                let whole = Reference.attend_all(queries, scope).unwrap();
                let masses = (&whole.past_mass, &whole.own_mass);
                set = Arc::new(Reference.select(set, &keys, masses, &selection).unwrap().memory);

                let own = Reference.attend(queries, &keys).unwrap();
                let state = shards.iter().fold(own, |state, shard| {
                    state.merge(&shard.attend(&Reference, queries).unwrap())
                });
                let lse = state.lse();
                let end = start + count;
                let passed = Passed { selection: &selection, end };
                let mut tallies: Vec<Tally> = shards
                    .iter()
                    .map(|shard| shard.count(&Reference, queries, &lse, &ranking).unwrap())
                    .collect();
                let own_mass = Reference.weigh(queries, &keys, &lse, &weights).unwrap();
                shards.push(Arc::new(Shard::new(keys, end)));
                tallies.push(shards.last().unwrap().count_own(&own_mass, &ranking));
                let candidates: Vec<_> = shards
                    .iter()
                    .zip(&tallies)
                    .map(|(shard, tally)| shard.candidates(tally, passed))
                    .collect();
                let cutoffs = cutoffs(&candidates, KV_HEADS, heavy);
                shards = shards
                    .into_iter()
                    .zip(tallies)
                    .map(|(shard, tally)| Arc::new(shard.settle(tally, &cutoffs, passed)))
                    .collect();
                let parts: Vec<&MemorySet> = shards.iter().flat_map(|shard| shard.parts()).collect();
                let (got, want) = (entries(&parts), entries(&[&set]));
                prop_assert!(close(&got, &want), "{got:?}\n{want:?}");
                start = end;
            }
        }
    }

    #[test]
    fn tokens_one_by_one_are_one_shard() {
        let (q, keys) = block(5, 3, 9);
        let one_by_one = |g: usize, j: usize, of: fn(&Keys) -> &KvHeads| -> Vec<f32> {
            of(&keys).head_f32(g)[j * HEAD_DIM..(j + 1) * HEAD_DIM].to_vec()
        };
        let token = |j: usize| {
            let rows = |of: fn(&Keys) -> &KvHeads| {
                let data: Vec<f32> = (0..KV_HEADS).flat_map(|g| one_by_one(g, j, of)).collect();
                KvHeads::from_f32(KV_HEADS, 1, HEAD_DIM, &data, KvDtype::F32)
            };
            let positions = vec![5 + j as u32; KV_HEADS];
            Shard::new(
                Keys::new(positions, rows(|keys| &keys.k), rows(|keys| &keys.v)),
                6 + j as u32,
            )
        };
        let mut shard = Arc::new(token(0));
        for j in 1..3 {
            shard = Arc::new(shard.append(&Reference, &token(j)).unwrap());
        }
        assert_eq!((shard.end(), shard.keys()), (8, 6));
        let whole = Shard::new(keys.clone(), 8);
        assert_eq!(
            shard.attend(&Reference, queries(&q, 8)).unwrap(),
            whole.attend(&Reference, queries(&q, 8)).unwrap()
        );
    }

    #[test]
    fn heads_that_keep_different_keys_attend_as_one() {
        let (q, keys) = block(0, 4, 3);
        let shard = Arc::new(Shard::new(keys, 4));
        let tally =
            Tally { score: vec![vec![4., 3., 2., 1., 1., 2., 3., 4.]], votes: vec![vec![1.0; 8]] };
        let ranking = Ranking { decay: 1.0, window: 0, age_normalised: false };
        let selection = Selection { keep_all: false, sinks: 0, local: 0, heavy: 9, ranking };
        let passed = Passed { selection: &selection, end: 4 };
        let last = |rank, position| Cutoff::Last(Candidate { rank, position });
        let kept = shard.clone().settle(tally.clone(), &[last(3.0, 1), last(2.0, 1)], passed);
        assert_eq!(kept.parts().iter().map(|part| part.keys.len()).collect::<Vec<_>>(), [2, 3]);
        assert_eq!((kept.keys(), kept.kv_heads()), (5, 2));
        let state = kept.attend(&Reference, queries(&q, 4)).unwrap();
        for (g, part) in kept.parts().iter().enumerate() {
            let q = q.some(2 * g..2 * g + 2);
            let alone = Reference.attend(queries(&q, 4), &part.keys).unwrap();
            assert_eq!(state.l[g * 8..(g + 1) * 8], alone.l[..]);
        }
        let none = shard.settle(tally, &[Cutoff::None, Cutoff::None], passed);
        assert_eq!((none.keys(), none.parts().len()), (0, 1));
        assert_eq!(none.attend(&Reference, queries(&q, 4)).unwrap().l[..], [0.0; 16]);
    }
}
