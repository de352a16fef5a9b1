//! Which shards, and who asks.

use std::sync::Arc;

use aqueduct_core::{Epoch, MemoryPolicy, Refusal, RequestId};

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

    /// Whether the block's rows vote on what is kept.
    pub fn is_scored(&self) -> bool {
        !self.policy.keeps_all()
    }

    /// Nobody remembers that this block has asked.
    pub(super) fn unasked(&self) -> Refusal {
        let block = format!("positions {}..{} in epoch {}", self.start, self.end(), self.epoch.0);
        Refusal::new("block", block, "the one that asked last")
    }
}
