//! The keys of one chunk in one layer, where they stay with the worker that computed them.
//!
//! What a memory set does in one place, shards do together: every shard attends for itself
//! ([`Shard::attend`]), counts what a block's rows spend on its keys ([`Shard::count`]) and names
//! its best candidates; [`cutoffs`] decides over all of them which is the last to stay, and every
//! shard prunes itself ([`Shard::settle`]). One total order decides, so the keys that stay are
//! those that a memory set of all of them would keep.
//!
//! KV heads may keep different numbers of a shard's keys.

mod gather;
mod mass;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::sync::Arc;

pub use self::gather::apart;
use self::gather::{join, joined};
use crate::backend::{Backend, BackendError, Queries};
use crate::memory::{Keys, MemorySet, Ranking, Selection};
use crate::pool::Pool;
use crate::select::{Ranks, votes};
use crate::state::AttentionState;
use crate::tensor::Heads;

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
    /// The first position that a row to come sees.
    fn first_seen(&self) -> u32 {
        self.selection.first_seen(self.end)
    }

    fn is_safe(&self, position: u32) -> bool {
        let Selection { keep_all, sinks, local, .. } = *self.selection;
        keep_all || position < sinks || position >= self.end.saturating_sub(local)
    }
}

/// The `most` best of one KV head, in order.
pub fn best(mut candidates: Vec<Candidate>, most: usize) -> Vec<Candidate> {
    if most < candidates.len() {
        candidates.select_nth_unstable_by(most, Candidate::order);
        candidates.truncate(most);
    }
    candidates.sort_unstable_by(Candidate::order);
    candidates
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
        let (score, votes) = (nothing.clone().into(), nothing.into());
        let part = MemorySet { score, votes, keys, state: Default::default(), end };
        Self { parts: vec![part], end }
    }

    /// A shard of these sets: one of all KV heads, or one for each.
    pub fn of_parts(parts: Vec<MemorySet>, end: u32) -> Self {
        Self { parts, end }
    }

    /// The same shard in pages of `pool`.
    ///
    /// # Errors
    /// [`BackendError::Exhausted`].
    pub fn put_in(&self, pool: &Pool) -> Result<Self, BackendError> {
        let parts = self.parts.iter().map(|part| part.put_in(pool));
        Ok(Self { parts: parts.collect::<Result<_, _>>()?, end: self.end })
    }

    /// One set of all KV heads, or one for each.
    pub fn parts(&self) -> &[MemorySet] {
        &self.parts
    }

    /// The keys, where one set has those of all KV heads.
    pub fn of_all_heads(&self) -> Option<&Keys> {
        match self.parts.as_slice() {
            [part] => Some(&part.keys),
            _ => None,
        }
    }

    /// Tokens processed when it was last settled.
    pub fn end(&self) -> u32 {
        self.end
    }

    /// G.
    pub fn kv_heads(&self) -> usize {
        self.parts.iter().map(|part| part.keys.kv_heads()).sum()
    }

    /// The keys of all `shards`, each of later positions than the one before, to be attended to as
    /// one; their scores are left behind.
    ///
    /// # Errors
    /// What lies on a device and cannot be read.
    pub fn joined(shards: &[Arc<Self>]) -> Result<Arc<Self>, BackendError> {
        if let [one] = shards {
            return Ok(one.clone());
        }
        shards.iter().try_for_each(|shard| shard.fetch())?;
        Ok(Arc::new(joined(shards)))
    }

    /// Keys over all KV heads.
    pub fn keys(&self) -> usize {
        self.parts.iter().map(|part| part.keys.positions.len()).sum()
    }

    /// Bytes of keys, values, positions, scores and votes.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(MemorySet::bytes).sum()
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
        if let Some(keys) = self.of_all_heads() {
            return backend.attend(queries, keys);
        }
        queries.q.data.host()?;
        let (mut m, mut l, mut o) = (Vec::new(), Vec::new(), Vec::new());
        let mut first = 0;
        for (part, q) in self.parts.iter().zip(self.heads_of(queries.q)) {
            let state = backend.attend(queries.of_heads(&q, first), &part.keys)?;
            first += q.heads;
            m.extend_from_slice(state.m.host()?);
            l.extend_from_slice(state.l.host()?);
            o.extend_from_slice(state.o.host()?);
        }
        let Heads { heads, tokens, head_dim, .. } = *queries.q;
        Ok(AttentionState { heads, tokens, head_dim, m: m.into(), l: l.into(), o: o.into() })
    }

    /// What the rows of `queries` spend on the keys, KV head after KV head, its `[keys]` each:
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
        queries.q.data.host()?;
        let tokens = queries.q.tokens;
        let weights = ranking.row_weights(tokens);
        let mut masses = Vec::with_capacity(self.keys());
        let mut rows = 0..0;
        for (part, q) in self.parts.iter().zip(self.heads_of(queries.q)) {
            let queries = queries.of_heads(&q, rows.end / tokens.max(1));
            rows = rows.end..rows.end + q.heads * tokens;
            let mass = backend.weigh(queries, &part.keys, &lse[rows.clone()], &weights)?;
            masses.extend_from_slice(mass.host()?);
        }
        Ok(masses)
    }

    /// What the keys score once a block of `tokens` rows has passed that spends `masses` on them,
    /// in the order of [`weigh`](Self::weigh).
    pub fn count(&self, mut masses: &[f32], tokens: usize, ranking: &Ranking) -> Tally {
        let (fade, (total, _)) = (ranking.fade(tokens), votes(&ranking.row_weights(tokens)));
        let mut tally = Tally { score: Vec::new(), votes: Vec::new() };
        for part in &self.parts {
            let (own, rest) = masses.split_at(part.score.len());
            masses = rest;
            let score = part.score.iter().zip(own).map(|(score, mass)| score * fade + mass);
            tally.score.push(score.collect());
            tally.votes.push(part.votes.iter().map(|votes| votes * fade + total).collect());
        }
        tally
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
            let all = self.entries(tally, (part, g), passed);
            best(all.filter(|candidate| !passed.is_safe(candidate.position)).collect(), most)
        };
        self.each_head().map(best).collect()
    }

    /// Takes over `tally` and keeps what `cutoffs`, one for each KV head, and the selection let
    /// stay.
    ///
    /// # Errors
    /// [`BackendError::Exhausted`], where others took the pages that it gave back; what lies on a
    /// device and cannot be read.
    pub fn settle(
        self: Arc<Self>,
        tally: Tally,
        cutoffs: &[Cutoff],
        passed: Passed<'_>,
    ) -> Result<Self, BackendError> {
        self.fetch_lists()?;
        let kept: Vec<Vec<usize>> = self
            .each_head()
            .zip(cutoffs)
            .map(|(at, cutoff)| {
                let stays = |(_, key): &(usize, Candidate)| {
                    passed.is_safe(key.position) || cutoff.keeps(key)
                };
                let entries = self.entries(&tally, at, passed).enumerate();
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
            shard.fetch()?;
            let pool = shard.parts[0].keys.pool().cloned();
            shard.parts = shard.pruned(&kept); // what it held of the pool goes first
            if let Some(pool) = pool {
                shard = shard.put_in(&pool)?;
            }
        }
        Ok(shard)
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
        let (heads, pool) = (shard.kv_heads(), shard.parts[0].keys.pool().cloned());
        let (parts, own_parts) = match shard.parts.len() {
            parts if parts == own.parts.len() => (shard.parts, own.parts.clone()),
            // What is held stays where it is.
            parts if parts == heads => (shard.parts, own.split()?),
            _ => (shard.split()?, own.split()?),
        };
        let joined = parts.into_iter().zip(&own_parts).map(|(part, own)| join(backend, part, own));
        let joined = Self { parts: joined.collect::<Result<_, _>>()?, end: own.end };
        match pool.filter(|_| joined.parts[0].keys.pool().is_none()) {
            Some(pool) => joined.put_in(&pool),
            None => Ok(joined),
        }
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

    /// The keys among which those of KV head `g` are, and its place there.
    fn head(&self, g: usize) -> (&Keys, usize) {
        match self.parts.as_slice() {
            [whole] => (&whole.keys, g),
            parts => (&parts[g].keys, 0), // one for each
        }
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
        passed: Passed<'a>,
    ) -> impl Iterator<Item = Candidate> + 'a {
        let ranks = Ranks::new(passed.selection, passed.end);
        let positions = self.parts[part].keys.head_positions(g);
        let span = g * positions.len()..(g + 1) * positions.len();
        let tallies = tally.score[part][span.clone()].iter().zip(&tally.votes[part][span]);
        positions.iter().zip(tallies).map(move |(&position, (&score, &votes))| Candidate {
            rank: ranks.of(position, score, votes),
            position,
        })
    }
}
