//! The leaves of a memory set: which of its keys are summed together.
//!
//! A sum of floats depends on its order, so whatever is summed in one place must be cut as it is
//! where its parts lie in several. Chunk c of a prompt belongs to leaf c modulo [`LEAVES`], and
//! the states of the leaves are merged as [`crate::fold`] has it: with chunks laid in turn over
//! one, two or four workers, all keys of a leaf lie with one of them. Finer leaves would serve
//! more workers, and fill tiles of keys worse.

use std::cell::RefCell;
use std::convert::Infallible;
use std::ops::Range;

use super::Keys;
use crate::array::Array;
use crate::cells::HeadRows;
use crate::fold::{Missing, Node, fold};
use crate::tensor::KvHeads;

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

/// Where leaves begin, and where the last one ends.
type Bounds = [usize; LEAVES as usize + 1];

/// Keys leaf by leaf.
#[derive(Debug)]
pub(crate) struct Split {
    /// Keys of each KV head.
    keys: usize,
    /// Per KV head.
    bounds: Vec<Bounds>,
    /// `[kv_heads, keys]`: which of the set's keys they are, ascending within a leaf.
    from: Vec<u32>,
    /// `[kv_heads, keys]`.
    positions: Vec<u32>,
    /// `[kv_heads, keys]`: where they lie; `None` where key j lies in cell j.
    cells: Option<Vec<u32>>,
}

/// The keys of one leaf of one KV head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeafHead<'a> {
    /// Which of the set's keys they are, ascending.
    from: &'a [u32],
    pub(crate) positions: &'a [u32],
    /// Where they lie.
    cells: &'a [u32],
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
            let behind = |&position: &u32| u64::from(position) >= end;
            let count = positions[start..].iter().position(behind);
            let run = start..count.map_or(positions.len(), |count| start + count);
            start = run.end;
            Some((Self::of(chunk), run))
        })
    }

    /// Whether every KV head has all of `keys` in one chunk.
    fn is_one(self, keys: &Keys) -> bool {
        (0..keys.kv_heads()).all(|g| match *keys.head_positions(g) {
            [first, .., last] => self.chunk(first) == self.chunk(last),
            _ => true,
        })
    }
}

/// What is folded of the leaves, from what `of` makes of each.
///
/// # Errors
/// What `of` says.
pub(crate) fn fold_leaves<T, E>(
    merge: impl Fn(T, &T) -> T,
    mut of: impl FnMut(usize) -> Result<T, E>,
) -> Result<T, E> {
    let mut leaf = |node: Node| {
        let is_leaf = node.is_leaf(LEAVES);
        is_leaf.then(|| of(node.first as usize)).transpose().map_err(Failed::Leaf)
    };
    match fold(Node::ROOT, LEAVES, &merge, &mut leaf) {
        Ok(whole) => Ok(whole),
        Err(Failed::Leaf(error)) => Err(error),
        Err(Failed::Missing(missing)) => unreachable!("every leaf is there: {missing}"),
    }
}

/// The merges of which [`fold_leaves`] consists, in their order: the first takes in the second,
/// and leaf 0 at last the whole.
pub(crate) fn leaf_merges() -> Vec<(usize, usize)> {
    let merges = RefCell::new(Vec::new());
    let merge = |into: usize, of: &usize| {
        merges.borrow_mut().push((into, *of));
        into
    };
    let Ok::<_, Infallible>(_) = fold_leaves(merge, Ok);
    merges.into_inner()
}

/// Why there is no whole.
enum Failed<E> {
    Leaf(E),
    Missing(Missing),
}

impl<E> From<Missing> for Failed<E> {
    fn from(missing: Missing) -> Self {
        Self::Missing(missing)
    }
}

impl Split {
    /// Of keys that are in several leaves.
    fn new(keys: &Keys, leaves: Leaves) -> Self {
        let size = keys.positions.len();
        let cells = keys.table.as_ref().map(|_| vec![0; size]);
        let (from, positions, bounds) = (vec![0; size], vec![0; size], Vec::new());
        let mut split = Self { keys: keys.len(), bounds, from, positions, cells };
        let mut runs = Vec::new();
        for g in 0..keys.kv_heads() {
            runs.clear();
            runs.extend(leaves.runs(keys.head_positions(g)));
            let mut bounds = Bounds::default();
            for (leaf, run) in &runs {
                bounds[*leaf as usize + 1] += run.len();
            }
            for leaf in 0..LEAVES as usize {
                bounds[leaf + 1] += bounds[leaf];
            }
            split.lay(keys, g, (&runs, bounds));
            split.bounds.push(bounds);
        }
        split
    }

    /// Puts the keys of KV head `g` behind each other.
    fn lay(&mut self, keys: &Keys, g: usize, (runs, mut next): (&[(u32, Range<usize>)], Bounds)) {
        let first = g * self.keys;
        for (leaf, run) in runs {
            let start = first + next[*leaf as usize];
            let to = start..start + run.len();
            next[*leaf as usize] += run.len();
            for (from, j) in self.from[to.clone()].iter_mut().zip(run.clone()) {
                *from = j as u32;
            }
            self.positions[to.clone()].copy_from_slice(&keys.head_positions(g)[run.clone()]);
            if let (Some(to_cells), Some(cells)) = (&mut self.cells, keys.head_cells(g)) {
                to_cells[to].copy_from_slice(&cells[run.clone()]);
            }
        }
    }

    /// The keys of KV head `g` in `leaf`.
    pub(crate) fn head(&self, leaf: usize, g: usize) -> LeafHead<'_> {
        let first = g * self.keys;
        let span = first + self.bounds[g][leaf]..first + self.bounds[g][leaf + 1];
        let from = &self.from[span.clone()];
        let cells = self.cells.as_ref().map_or(from, |cells| &cells[span.clone()]);
        LeafHead { from, positions: &self.positions[span], cells }
    }

    fn heads(&self, leaf: usize) -> impl Iterator<Item = LeafHead<'_>> {
        (0..self.bounds.len()).map(move |g| self.head(leaf, g))
    }

    /// The keys of `leaf` side by side, in order of position. A KV head that has fewer than
    /// others has some behind them that nobody sees, as they stand behind every row.
    fn picked(&self, of: &Keys, leaf: usize) -> Keys {
        let kv_heads = self.bounds.len();
        let keys = self.heads(leaf).map(|head| head.from.len()).max().unwrap_or(0);
        let mut positions = Vec::with_capacity(kv_heads * keys);
        for (g, head) in self.heads(leaf).enumerate() {
            positions.extend_from_slice(head.positions);
            positions.resize((g + 1) * keys, u32::MAX);
        }
        let lay = |rows: &KvHeads| {
            rows.gathered(keys, (0..kv_heads).map(|g| [self.head(leaf, g).rows(rows, g)]))
        };
        Keys::new(Array::from(positions), lay(&of.k), lay(&of.v))
    }
}

impl<'a> LeafHead<'a> {
    /// Puts what the keys from `first` on spend where it belongs in what the KV head's keys do.
    pub(crate) fn scatter(self, first: usize, spent: &[f32], to: &mut [f32]) {
        self.from[first..].iter().zip(spent).for_each(|(&j, &spent)| to[j as usize] = spent);
    }

    /// Keys or values.
    pub(crate) fn rows(self, heads: &'a KvHeads, g: usize) -> HeadRows<'a> {
        HeadRows::new(heads, g, self.cells.len(), Some(self.cells))
    }
}

impl Keys {
    /// The keys leaf by leaf; `None` where one leaf has them all.
    pub(crate) fn split(&self, leaves: Leaves) -> Option<Split> {
        (!leaves.is_one(self)).then(|| Split::new(self, leaves))
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
            let leaves = 0..LEAVES as usize;
            let picked = leaves.map(|leaf| split.picked(whole, leaf)).collect();
            (split, picked)
        });
        Self { whole, leaves }
    }

    /// What is summed together, one or all [`LEAVES`].
    pub(crate) fn parts(&self) -> Vec<&Keys> {
        match &self.leaves {
            Some((_, leaves)) => leaves.iter().collect(),
            None => vec![self.whole],
        }
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
        let Some((split, leaves)) = &self.leaves else { return of(self.whole) };
        let mut masses = vec![0.0; self.whole.positions.len()];
        for (leaf, keys) in leaves.iter().enumerate() {
            let spent = of(keys)?;
            let spent = spent.chunks_exact(keys.len().max(1));
            let rows = spent.zip(masses.chunks_exact_mut(self.whole.len()));
            for (head, (spent, to)) in split.heads(leaf).zip(rows) {
                head.scatter(0, spent, to);
            }
        }
        Ok(masses.into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tensor::KvDtype;

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

    #[test]
    fn merges_are_those_of_the_fold() {
        assert_eq!(leaf_merges(), [(0, 2), (1, 3), (0, 1)]);
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
            let parted = Parted::new(&set, leaves);
            let mut seen = 0;
            for (idx, part) in parted.parts().into_iter().enumerate() {
                for g in 0..2 {
                    let own: Vec<u32> = set.head_positions(g).iter().copied().filter(|&position| {
                        parted.leaves.is_none() || leaf(position) == idx as u32
                    }).collect();
                    let (positions, behind) = part.head_positions(g).split_at(own.len());
                    prop_assert_eq!(positions, own);
                    prop_assert!(behind.iter().all(|&position| position == u32::MAX));
                    let marks: Vec<f32> = positions.iter().map(|&p| mark(g, p)).collect();
                    prop_assert_eq!(&part.k_rows(g).to_f32()[..marks.len()], &marks[..]);
                    prop_assert_eq!(&part.v_rows(g).to_f32()[..marks.len()], &marks[..]);
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
            let Ok(masses) = parted.masses(spent);
            let head = |g: usize| set.head_positions(g).iter().map(move |&p| mark(g, p));
            prop_assert_eq!(&masses[..], &(0..2).flat_map(head).collect::<Vec<_>>()[..]);
        }
    }
}
