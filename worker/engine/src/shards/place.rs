//! Which shards, and who asks.

use std::sync::Arc;

use aqueduct_core::{Epoch, MemoryPolicy, Refusal, RequestId};
use aqueduct_kernels::fold::{Node, cover};
use aqueduct_kernels::{LEAVES, Leaves};

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
