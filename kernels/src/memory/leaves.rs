//! The leaves of a memory set: which of its keys are summed together.
//!
//! A sum of floats depends on its order, so whatever is summed in one place must be cut as it is
//! where its parts lie in several. Chunk c of a prompt belongs to leaf c modulo [`LEAVES`], and
//! the states of the leaves are merged as [`crate::fold`] has it: with chunks laid in turn over
//! one, two or four workers, all keys of a leaf lie with one of them. Finer leaves would serve
//! more workers, and fill tiles of keys worse.

use std::borrow::Cow;
use std::ops::Range;

use super::Keys;
use crate::array::Array;
use crate::cells::HeadRows;
use crate::fold::{Node, fold_all};

/// How many leaves a memory set has.
pub const LEAVES: u32 = 4;

/// Which chunk a key is of, and so which leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaves {
    /// At least 1.
    chunk_tokens: u32,
    /// Later positions belong to this chunk too.
    last_chunk: u32,
}

/// Keys leaf by leaf, of all KV heads of a set or of one.
#[derive(Debug)]
pub(crate) struct Split {
    /// The KV head that is the first of these.
    first: usize,
    heads: Vec<SplitHead>,
}

/// Which of the set's keys the leaves of a KV head have.
#[derive(Debug)]
struct SplitHead {
    /// Leaf by leaf, ascending within.
    runs: Vec<Range<usize>>,
    /// Where each leaf's end.
    ends: [usize; LEAVES as usize],
}

/// Keys that are summed together: those of one leaf, or all of a set that one leaf has.
#[derive(Debug)]
pub(crate) struct LeafKeys<'a> {
    /// The set.
    pub(crate) of: &'a Keys,
    /// `None`: all.
    leaf: Option<(&'a Split, usize)>,
    all: Range<usize>,
}

impl Leaves {
    /// All keys in one leaf.
    pub const ONE: Self = Self { chunk_tokens: u32::MAX, last_chunk: 0 };

    /// Chunk c covers positions from c `chunk_tokens` on.
    pub const fn of_chunks(chunk_tokens: u32) -> Self {
        let chunk_tokens = if chunk_tokens == 0 { 1 } else { chunk_tokens };
        Self { chunk_tokens, last_chunk: u32::MAX }
    }

    /// What is behind the first `tokens` positions goes on in the last chunk of these.
    #[must_use]
    pub const fn going_on_behind(self, tokens: u32) -> Self {
        Self { last_chunk: tokens.saturating_sub(1) / self.chunk_tokens, ..self }
    }

    /// The leaf of a chunk.
    pub const fn of(chunk: u32) -> u32 {
        chunk % LEAVES
    }

    fn chunk(self, position: u32) -> u32 {
        (position / self.chunk_tokens).min(self.last_chunk)
    }

    /// Keys at ascending `positions`, cut where chunks are: leaf and keys of each piece.
    fn runs(self, positions: &[u32]) -> impl Iterator<Item = (u32, Range<usize>)> {
        let mut start = 0;
        std::iter::from_fn(move || {
            let chunk = self.chunk(*positions.get(start)?);
            let end = match chunk == self.last_chunk {
                true => u64::from(u32::MAX) + 1,
                false => (u64::from(chunk) + 1) * u64::from(self.chunk_tokens),
            };
            let run = start..start + reach(&positions[start..], end);
            start = run.end;
            Some((Self::of(chunk), run))
        })
    }

    /// Whether keys at ascending `positions` are all in one chunk.
    fn is_one(self, positions: &[u32]) -> bool {
        match *positions {
            [first, .., last] => self.chunk(first) == self.chunk(last),
            _ => true,
        }
    }
}

/// How many of ascending `positions`, the first of which is below `end`, are. Looks no further
/// than twice that far: most chunks have few keys in a set, and some very many.
fn reach(positions: &[u32], end: u64) -> usize {
    let is_below = |&position: &u32| u64::from(position) < end;
    let mut step = 8;
    while positions.get(step).is_some_and(is_below) {
        step *= 2;
    }
    let (within, known) = (positions.len().min(step), if step == 8 { 0 } else { step / 2 });
    known + positions[known..within].partition_point(is_below)
}

/// What is folded of the leaves, from what `of` makes of each.
///
/// # Errors
/// What `of` says.
fn fold_leaves<T, E>(
    merge: impl Fn(T, &T) -> T,
    mut of: impl FnMut(usize) -> Result<T, E>,
) -> Result<T, E> {
    let mut leaf = |node: Node| node.is_leaf(LEAVES).then(|| of(node.first as usize)).transpose();
    fold_all(Node::ROOT, LEAVES, &merge, &mut leaf)
}

impl Split {
    /// Of some KV heads of `keys`.
    fn new(keys: &Keys, leaves: Leaves, heads: Range<usize>) -> Self {
        let first = heads.start;
        let heads = heads.map(|g| SplitHead::new(keys.head_positions(g), leaves)).collect();
        Self { first, heads }
    }

    fn runs(&self, g: usize, leaf: usize) -> &[Range<usize>] {
        let SplitHead { runs, ends } = &self.heads[g - self.first];
        let start = if leaf == 0 { 0 } else { ends[leaf - 1] };
        &runs[start..ends[leaf]]
    }
}

impl SplitHead {
    fn new(positions: &[u32], leaves: Leaves) -> Self {
        // In order of position, then sorted by leaf: two arrays, however many runs there are.
        let in_order: Vec<_> = leaves.runs(positions).collect();
        let mut ends = [0; LEAVES as usize];
        for (leaf, _) in &in_order {
            ends[*leaf as usize..].iter_mut().for_each(|end| *end += 1);
        }
        let mut runs = vec![0..0; in_order.len()];
        let mut next = ends;
        for (leaf, run) in in_order.into_iter().rev() {
            next[leaf as usize] -= 1;
            runs[next[leaf as usize]] = run;
        }
        Self { runs, ends }
    }
}

impl<'a> LeafKeys<'a> {
    /// All of a set.
    pub(crate) fn all(of: &'a Keys) -> Self {
        Self { of, leaf: None, all: 0..of.len() }
    }

    /// What is summed together: each leaf, or all where there is no `split`.
    pub(crate) fn each(of: &'a Keys, split: Option<&'a Split>) -> Vec<Self> {
        let leaf = |split, leaf| Self { leaf: Some((split, leaf)), ..Self::all(of) };
        match split {
            Some(split) => (0..LEAVES as usize).map(|idx| leaf(split, idx)).collect(),
            None => vec![Self::all(of)],
        }
    }

    /// The set, if all its keys are summed together.
    pub(crate) fn whole(&self) -> Option<&'a Keys> {
        self.leaf.is_none().then_some(self.of)
    }

    /// Which of the set's keys KV head `g` has here, ascending.
    pub(crate) fn runs(&self, g: usize) -> &[Range<usize>] {
        match self.leaf {
            Some((split, leaf)) => split.runs(g, leaf),
            None => std::slice::from_ref(&self.all),
        }
    }

    /// How many of KV head `g`'s are before key `j` of the set.
    pub(crate) fn before(&self, g: usize, j: usize) -> usize {
        self.runs(g).iter().map(|run| j.clamp(run.start, run.end) - run.start).sum()
    }

    /// How many keys KV head `g` has.
    pub(crate) fn count(&self, g: usize) -> usize {
        self.runs(g).iter().map(Range::len).sum()
    }

    /// How many keys the KV head with the most has.
    pub(crate) fn most(&self) -> usize {
        (0..self.of.kv_heads()).map(|g| self.count(g)).max().unwrap_or(0)
    }

    /// Which of the set's keys those of `span` are, of all that KV head `g` has here.
    pub(crate) fn within(
        &self,
        g: usize,
        span: Range<usize>,
    ) -> impl Iterator<Item = Range<usize>> {
        let mut first = 0;
        self.runs(g).iter().filter_map(move |run| {
            let at = |j: usize| run.start + j.clamp(first, first + run.len()) - first;
            let part = at(span.start)..at(span.end);
            first += run.len();
            (!part.is_empty()).then_some(part)
        })
    }

    /// Adds what KV head `g`'s keys of `span` spend to what all keys of the head do.
    pub(crate) fn add(&self, g: usize, span: Range<usize>, spent: &[f32], to: &mut [f32]) {
        let mut spent = spent.iter();
        for run in self.within(g, span) {
            to[run].iter_mut().zip(spent.by_ref()).for_each(|(to, spent)| *to += spent);
        }
    }

    /// The keys side by side, in order of position. A KV head that has fewer than others has
    /// some behind them that nobody sees, as they stand behind every row.
    pub(crate) fn picked(&self) -> Cow<'a, Keys> {
        if let Some(whole) = self.whole() {
            return Cow::Borrowed(whole);
        }
        let (kv_heads, keys) = (self.of.kv_heads(), self.most());
        let mut positions = Vec::with_capacity(kv_heads * keys);
        for g in 0..kv_heads {
            let of = self.of.head_positions(g);
            self.runs(g).iter().for_each(|run| positions.extend_from_slice(&of[run.clone()]));
            positions.resize((g + 1) * keys, u32::MAX);
        }
        let pieces = |g, rows: HeadRows<'a>| {
            self.runs(g).iter().map(|run| rows.part(run.clone())).collect::<Vec<_>>()
        };
        let heads = 0..kv_heads;
        let k = heads.clone().map(|g| pieces(g, self.of.k_rows(g)));
        let v = heads.map(|g| pieces(g, self.of.v_rows(g)));
        let (k, v) = (self.of.k.gathered(keys, k), self.of.v.gathered(keys, v));
        Cow::Owned(Keys::new(Array::from(positions), k, v))
    }
}

impl Keys {
    /// The keys leaf by leaf; `None` where one leaf has them all.
    pub(crate) fn split(&self, leaves: Leaves) -> Option<Split> {
        let heads = 0..self.kv_heads();
        let is_one = heads.clone().all(|g| leaves.is_one(self.head_positions(g)));
        (!is_one).then(|| Split::new(self, leaves, heads))
    }

    /// Those of KV head `g` leaf by leaf; `None` where one leaf has them all.
    pub(crate) fn split_head(&self, g: usize, leaves: Leaves) -> Option<Split> {
        let is_one = leaves.is_one(self.head_positions(g));
        (!is_one).then(|| Split::new(self, leaves, g..g + 1))
    }
}

/// Remembered keys as they are summed: all together, or leaf by leaf.
pub(crate) struct Parted<'a> {
    whole: &'a Keys,
    /// `None` where one leaf has them all.
    leaves: Option<(Split, Vec<Keys>)>,
}

impl<'a> Parted<'a> {
    pub(crate) fn new(whole: &'a Keys, leaves: Leaves) -> Self {
        let leaves = whole.split(leaves).map(|split| {
            let leaves = LeafKeys::each(whole, Some(&split));
            let picked = leaves.iter().map(|leaf| leaf.picked().into_owned()).collect();
            (split, picked)
        });
        Self { whole, leaves }
    }

    /// What is folded of all parts, from what `of` makes of each.
    ///
    /// # Errors
    /// What `of` says.
    pub(crate) fn fold<T, E>(
        &self,
        merge: impl Fn(T, &T) -> T,
        mut of: impl FnMut(&Keys) -> Result<T, E>,
    ) -> Result<T, E> {
        match &self.leaves {
            Some((_, leaves)) => fold_leaves(merge, |leaf| of(&leaves[leaf])),
            None => of(self.whole),
        }
    }

    /// What each key spends, `[kv_heads, keys]` of the whole, from what `of` says of each part,
    /// in their order.
    ///
    /// # Errors
    /// What `of` says.
    pub(crate) fn masses<E>(
        &self,
        mut of: impl FnMut(&Keys) -> Result<Array<f32>, E>,
    ) -> Result<Array<f32>, E> {
        let Some((split, picked)) = &self.leaves else { return of(self.whole) };
        let mut masses = vec![0.0; self.whole.positions.len()];
        for (leaf, keys) in LeafKeys::each(self.whole, Some(split)).iter().zip(picked) {
            let spent = of(keys)?;
            let spent = spent.chunks_exact(keys.len().max(1));
            let rows = spent.zip(masses.chunks_exact_mut(self.whole.len()));
            for (g, (spent, to)) in rows.enumerate() {
                leaf.add(g, 0..leaf.count(g), spent, to);
            }
        }
        Ok(masses.into())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;
    use crate::tensor::{KvDtype, KvHeads};

    #[test]
    fn positions_are_cut_where_chunks_are() {
        let check = |leaves: Leaves, positions: &[u32], want: &[(u32, Range<usize>)]| {
            assert_eq!(
                leaves.runs(positions).collect::<Vec<_>>(),
                want,
                "{leaves:?} {positions:?}"
            );
        };
        let chunks = Leaves::of_chunks(10);
        check(chunks, &[], &[]);
        check(chunks, &[0, 9, 10, 39, 40, 41], &[(0, 0..2), (1, 2..3), (3, 3..4), (0, 4..6)]);
        check(chunks.going_on_behind(20), &[9, 10, 19, 20, 70], &[(0, 0..1), (1, 1..5)]);
        check(chunks.going_on_behind(21), &[19, 20, 70], &[(1, 0..1), (2, 1..3)]);
        check(chunks.going_on_behind(0), &[0, 30], &[(0, 0..2)]);
        check(Leaves::ONE, &[0, u32::MAX - 1], &[(0, 0..2)]);
        check(Leaves::of_chunks(0), &[0, 1, 6], &[(0, 0..1), (1, 1..2), (2, 2..3)]);
        check(Leaves::of_chunks(u32::MAX), &[5, u32::MAX], &[(0, 0..1), (1, 1..2)]);
    }

    /// A key or value that says whose it is.
    fn mark(g: usize, position: u32) -> f32 {
        (g as u32 * 4096 + position) as f32
    }

    /// Keys of two KV heads at `positions`, `[2][keys]`, in cells from the last to the first.
    fn keys(positions: &[Vec<u32>; 2]) -> Keys {
        let rows = || {
            let each = positions.iter().enumerate();
            let all = each.flat_map(|(g, head)| head.iter().rev().map(move |&p| mark(g, p)));
            KvHeads::from_f32(2, positions[0].len(), 1, &all.collect::<Vec<_>>(), KvDtype::F32)
        };
        let cells = (0..positions[0].len() as u32).rev().collect::<Vec<_>>().repeat(2);
        Keys::scattered(positions.concat(), rows(), rows(), cells)
    }

    proptest! {
        #[test]
        fn every_key_is_in_its_leaf(
            (a, b) in (1usize..40).prop_flat_map(|count| {
                let some = || prop::sample::subsequence((0..400u32).collect::<Vec<_>>(), count);
                (some(), some())
            }),
            chunk_tokens in 1u32..120,
            end in prop::option::of(0u32..500),
        ) {
            let leaves = Leaves::of_chunks(chunk_tokens);
            let leaves = end.map_or(leaves, |end| leaves.going_on_behind(end));
            let set = keys(&[a, b]);
            let leaf = |position: u32| {
                let last = end.map_or(u32::MAX, |end| end.saturating_sub(1) / chunk_tokens);
                (position / chunk_tokens).min(last) % LEAVES
            };
            let split = set.split(leaves);
            let mut seen = 0;
            for (idx, part) in LeafKeys::each(&set, split.as_ref()).iter().enumerate() {
                let picked = part.picked();
                for g in 0..2 {
                    let all = set.head_positions(g);
                    let own: Vec<usize> = (0..all.len())
                        .filter(|&j| split.is_none() || leaf(all[j]) == idx as u32)
                        .collect();
                    prop_assert_eq!(part.count(g), own.len());
                    let middle = own.len() / 3..own.len() - own.len() / 4;
                    let within = |span: Range<usize>| part.within(g, span).flatten();
                    prop_assert_eq!(&within(middle.clone()).collect::<Vec<_>>(), &own[middle]);
                    prop_assert!(within(0..own.len() + 5).eq(own.iter().copied()));
                    for j in 0..=all.len() {
                        let before = own.iter().filter(|&&own| own < j).count();
                        prop_assert_eq!(part.before(g, j), before);
                    }
                    let (positions, behind) = picked.head_positions(g).split_at(own.len());
                    let own: Vec<u32> = own.into_iter().map(|j| all[j]).collect();
                    prop_assert_eq!(positions, own);
                    prop_assert!(behind.iter().all(|&position| position == u32::MAX));
                    let marks: Vec<f32> = positions.iter().map(|&p| mark(g, p)).collect();
                    prop_assert_eq!(&picked.k_rows(g).to_f32()[..marks.len()], &marks[..]);
                    prop_assert_eq!(&picked.v_rows(g).to_f32()[..marks.len()], &marks[..]);
                    seen += positions.len();
                }
            }
            prop_assert_eq!(seen, set.positions.len());
            // What each key spends comes to its place.
            let spent = |part: &Keys| {
                let head = |g: usize| part.head_positions(g).iter().map(move |&p| (g, p));
                let all = (0..2).flat_map(head).map(|(g, position)| mark(g, position.min(999)));
                Ok::<_, Infallible>(all.collect::<Vec<_>>().into())
            };
            let Ok(masses) = Parted::new(&set, leaves).masses(spent);
            let head = |g: usize| set.head_positions(g).iter().map(move |&p| mark(g, p));
            prop_assert_eq!(&masses[..], &(0..2).flat_map(head).collect::<Vec<_>>()[..]);
        }
    }
}
