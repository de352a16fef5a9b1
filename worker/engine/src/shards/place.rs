//! Which shards, and who asks.

use std::sync::Arc;

use aqueduct_core::{Epoch, MemoryPolicy, Refusal, RequestId};
use aqueduct_kernels::fold::{Node, cover};
use aqueduct_kernels::{LEAVES, Leaves, Window};

use crate::model::Model;

/// Which of the continuations of a prompt a shard belongs to.
///
/// Completions share the prompt's shards until one of them changes them; what it changes is its
/// own from then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Branch(pub u32);

impl Branch {
    /// The prompt itself.
    pub const PROMPT: Self = Self(0);

    /// Completion `choice`.
    pub fn of_choice(choice: u32) -> Self {
        Self(choice + 1)
    }
}

/// One shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardKey {
    /// The request.
    pub request: RequestId,
    /// Its continuation.
    pub branch: Branch,
    /// Layer.
    pub layer: u32,
    /// The chunk whose keys they are; those of generated tokens go on counting.
    pub chunk_idx: u32,
    /// Of the assignment that computed them.
    pub epoch: Epoch,
}

/// A block that asks, and the shards that it asks one holder about.
#[derive(Debug, Clone, PartialEq)]
pub struct Place {
    /// The request.
    pub request: RequestId,
    /// Its continuation.
    pub branch: Branch,
    /// Layer.
    pub layer: u32,
    /// Epoch of the block's own assignment.
    pub epoch: Epoch,
    /// Position of the block's first token.
    pub start: u32,
    /// Tokens of the block.
    pub tokens: u32,
    /// Chunks before the block, wherever they are.
    pub chunks: u32,
    /// Chunk and epoch of each shard that is asked about, ascending.
    pub shards: Arc<[(u32, Epoch)]>,
    /// What is remembered.
    pub policy: MemoryPolicy,
}

/// Where the chunks of a prompt end, and those that its completions fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkEnds {
    /// Where chunk 0 does.
    pub first: u32,
    /// Tokens of each behind it. One that has fewer ends before where this says, and so may those
    /// behind it: what is out of sight is told late then, never early.
    pub tokens: u32,
}

impl ChunkEnds {
    /// The first chunk of which a row at `start`, or any behind it, sees keys within `window`.
    pub fn first_seen(self, start: u32, window: Option<Window>) -> u32 {
        let key = window.map_or(0, |window| window.first_seen(start));
        let behind = key.checked_sub(self.first); // chunk c ends at `first` + c * `tokens`
        behind.map_or(0, |behind| behind / self.tokens.max(1) + 1)
    }
}

/// Some of the shards of a place.
#[derive(Debug, Clone)]
pub struct Slice {
    /// Which.
    pub place: Place,
    /// When the fold comes to the first of them: [`Node::turn`].
    pub turn: u32,
    /// What they were said to cost.
    pub bytes: u64,
}

impl Place {
    /// Position after the block's last token.
    pub fn end(&self) -> u32 {
        self.start + self.tokens
    }

    /// The last `tokens` of the block, as if they were all.
    pub fn of_last(self, tokens: usize) -> Self {
        let start = self.end() - tokens as u32;
        Self { start, tokens: tokens as u32, ..self }
    }

    /// Whether the block's rows vote on what is kept.
    pub fn is_scored(&self) -> bool {
        !self.policy.keeps_all()
    }

    /// Leaves of the fold over everything before the block: all chunks or, where keys are given
    /// up, as many as a memory set has.
    pub fn leaves(&self) -> u32 {
        leaves_of(self.chunks, self.is_scored())
    }

    /// The leaf that a chunk belongs to.
    pub fn leaf(&self, chunk: u32) -> u32 {
        if self.is_scored() { Leaves::of(chunk) } else { chunk }
    }

    /// The nodes of the fold that are here as a whole, the fewest.
    pub fn nodes(&self) -> Vec<Node> {
        cover(self.leaves(), self.whole())
    }

    /// The shards of leaves of which others have a part: nothing can be said of these but by
    /// whoever has all of them.
    pub fn torn(&self) -> Arc<[(u32, Epoch)]> {
        let is_whole = self.whole();
        let torn = |(chunk, _): &&(u32, Epoch)| !is_whole(self.leaf(*chunk));
        self.shards.iter().filter(torn).copied().collect()
    }

    /// The same shards in slices, in the order in which the fold comes to them. A slice has at
    /// most `most` bytes, if `bytes` of so many leaves as a node has can be brought below that by
    /// cutting it. Only where all keys are kept: each leaf is a shard.
    pub fn slices(&self, most: u64, bytes: &impl Fn(u32) -> u64) -> Vec<Slice> {
        debug_assert!(!self.is_scored(), "shards of a leaf are never apart");
        let chunks = self.leaves();
        let of = |node: Node| bytes(node.leaf_count(chunks));
        let mut nodes = self.nodes();
        nodes.sort_by_key(|node| std::cmp::Reverse(node.turn()));
        let mut slices = Vec::new();
        let (mut turn, mut taken, mut slice) = (0, 0, Vec::new());
        let mut end = |(turn, bytes, slice): (u32, u64, Vec<u32>)| {
            let place = self.only(slice);
            slices.extend((!place.shards.is_empty()).then_some(Slice { place, turn, bytes }));
        };
        while let Some(node) = nodes.pop() {
            let [left, right] = node.halves();
            if of(node) > most && !node.is_leaf(chunks) && of(left) < of(node) {
                nodes.extend([right, left]);
                continue;
            }
            if taken + of(node) > most && !slice.is_empty() {
                end((turn, taken, std::mem::take(&mut slice)));
                taken = 0;
            }
            if slice.is_empty() {
                turn = node.turn();
            }
            taken += of(node);
            slice.extend(node.leaves(chunks));
        }
        end((turn, taken, slice));
        slices
    }

    /// The first chunk of which some row of the block sees keys, of those that end at `ends`. Where
    /// keys are given up it is 0: who holds any of what is left is asked always.
    pub fn first_seen(&self, model: &Model, ends: ChunkEnds) -> u32 {
        let window = model.window(self.layer as usize).filter(|_| !self.is_scored());
        ends.first_seen(self.start, window).min(self.chunks)
    }

    /// Of the shards those of chunk `first` and behind it.
    pub fn from_chunk(&self, first: u32) -> Self {
        let shards = self.shards.iter().filter(|(chunk, _)| *chunk >= first);
        Self { shards: shards.copied().collect(), ..self.clone() }
    }

    /// Of the shards those of `chunks`.
    fn only(&self, mut chunks: Vec<u32>) -> Self {
        chunks.sort_unstable();
        let shard = |chunk: &u32| self.shards.binary_search_by_key(chunk, |shard| shard.0);
        let shards = chunks.iter().filter_map(|chunk| Some(self.shards[shard(chunk).ok()?]));
        Self { shards: shards.collect(), ..self.clone() }
    }

    /// Of each leaf, whether all its chunks before the block are among the shards.
    fn whole(&self) -> impl Fn(u32) -> bool {
        let mut here = [0; LEAVES as usize];
        for (chunk, _) in self.shards.iter().filter(|_| self.is_scored()) {
            here[Leaves::of(*chunk) as usize] += 1;
        }
        move |leaf| match self.is_scored() {
            true => here[leaf as usize] == chunks_of_leaf(leaf, self.chunks),
            false => self.shards.binary_search_by_key(&leaf, |shard| shard.0).is_ok(),
        }
    }

    /// Nobody remembers that this block has asked.
    pub(super) fn unasked(&self) -> Refusal {
        let block = format!("positions {}..{} in epoch {}", self.start, self.end(), self.epoch.0);
        Refusal::new("block", block, "the one that asked last")
    }
}

/// Leaves of the fold over `chunks` chunks.
pub(super) fn leaves_of(chunks: u32, is_scored: bool) -> u32 {
    if is_scored { chunks.min(LEAVES) } else { chunks }
}

/// How many of `chunks` chunks belong to a leaf of a memory set.
pub(super) fn chunks_of_leaf(leaf: u32, chunks: u32) -> u32 {
    chunks.saturating_sub(leaf).div_ceil(LEAVES)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn place(chunks: u32, shards: impl Iterator<Item = u32>) -> Place {
        Place {
            request: RequestId(1),
            branch: Branch::PROMPT,
            layer: 0,
            epoch: Epoch(0),
            start: chunks * 8,
            tokens: 8,
            chunks,
            shards: shards.map(|chunk| (chunk, Epoch(chunk % 3))).collect(),
            policy: MemoryPolicy::dense(),
        }
    }

    #[test]
    fn sight_begins_in_a_chunk() {
        let check = |ends: (u32, u32), start, window, want| {
            let ends = ChunkEnds { first: ends.0, tokens: ends.1 };
            assert_eq!(ends.first_seen(start, window), want, "{ends:?} {start} {window:?}");
        };
        check((8, 8), 1000, None, 0);
        check((8, 8), 24, Some(Window::Last(1000)), 0);
        check((8, 8), 24, Some(Window::Last(8)), 2); // keys 17 to 24
        check((8, 8), 24, Some(Window::Last(10)), 1); // and 15
        check((8, 8), 24, Some(Window::Last(1)), 3);
        check((8, 8), 24, Some(Window::Block(12)), 3);
        check((8, 8), 23, Some(Window::Block(12)), 1);
        check((20, 8), 28, Some(Window::Last(9)), 1);
        check((20, 8), 28, Some(Window::Last(10)), 0);
        check((20, 8), 36, Some(Window::Last(9)), 2);
    }

    #[test]
    fn slices_of_one_holder() {
        type Bytes = fn(u32) -> u64;
        let check = |(chunks, holders), most, bytes: Bytes, want: &[&[u32]]| {
            let place = place(chunks, (0..chunks).step_by(holders));
            let slices = place.slices(most, &bytes);
            let seen: Vec<Vec<u32>> = slices
                .iter()
                .map(|slice| slice.place.shards.iter().map(|shard| shard.0).collect())
                .collect();
            assert_eq!(seen, want, "{chunks} chunks, every {holders}th, {most} bytes");
        };
        let (state, keys): (Bytes, Bytes) = (|_| 10, |leaves| leaves.into());
        check((8, 1), 10, state, &[&[0, 1, 2, 3, 4, 5, 6, 7]]); // one node, one state
        check((8, 1), 3, keys, &[&[0, 4], &[2, 6], &[1, 5], &[3, 7]]);
        check((8, 1), 4, keys, &[&[0, 2, 4, 6], &[1, 3, 5, 7]]);
        check((8, 1), 0, keys, &[&[0], &[4], &[2], &[6], &[1], &[5], &[3], &[7]]);
        check((8, 2), 100, keys, &[&[0, 2, 4, 6]]);
        check((10, 3), 20, state, &[&[0, 6], &[3, 9]]);
        check((10, 3), 9, state, &[&[0], &[6], &[9], &[3]]);
        check((0, 1), 9, state, &[]);
    }

    proptest! {
        #[test]
        fn slices_are_all_shards_once_and_in_the_order_of_the_fold(
            places in prop::collection::vec(0u32..3, 1..90), most in 0u64..40,
        ) {
            let chunks = places.len() as u32;
            let place = place(chunks, (0..chunks).filter(|&chunk| places[chunk as usize] == 1));
            let bytes = |leaves: u32| 2 + 3 * u64::from(leaves);
            let slices = place.slices(most, &bytes);
            let mut all = BTreeSet::new();
            let mut turns = Vec::new();
            for Slice { place, turn, bytes: said } in &slices {
                prop_assert!(place.shards.is_sorted());
                prop_assert!(place.shards.iter().all(|shard| all.insert(*shard)));
                prop_assert!(*said <= most.max(bytes(1)), "{said} of {most}");
                let all_turns: Vec<u32> = place.nodes().iter().map(|node| node.turn()).collect();
                prop_assert_eq!(all_turns.iter().min(), Some(turn));
                turns.push((*turn, all_turns.into_iter().max()));
            }
            prop_assert_eq!(all, place.shards.iter().copied().collect());
            prop_assert!(turns.windows(2).all(|pair| pair[0].1 < Some(pair[1].0)));
        }
    }
}
