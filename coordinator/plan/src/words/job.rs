//! A request, as the plan hears of it.

use std::sync::Arc;

use aqueduct_core::{ChunkGrid, SnapshotKey};

/// As much of a request as decisions need; its tokens stay with the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// How the prompt is cut.
    pub grid: ChunkGrid,
    /// Completions to decode after the prefill; 0 ends the request with it.
    pub choices: u32,
    /// Present: keys stay in shards, with the workers that computed them.
    pub sharded: Option<Sharded>,
    /// Most tokens whose keys are in one memory set, where these are handed from chunk to chunk; as
    /// many as have as many bytes, where layers keep fewer than others.
    pub memory_tokens: u64,
    /// Tokens whose keys are as many bytes as the states in one memory set, which lie beside the
    /// pool; 0 where the model has none.
    pub state_tokens: u64,
    /// Whether no key is given up: then a chunk takes longer the more there is before it.
    pub keeps_all: bool,
    /// Lower begins earlier, and has a larger share of what is in flight.
    pub priority: i32,
    /// When it came, on the clock of [`Event::Tick`](super::Event::Tick).
    pub arrived_at_ms: u64,
    /// Names of the memory after chunk 0, 1 and so on, as far as the request may go on from a
    /// snapshot of it; of the chunk's own keys where these stay in shards.
    pub prefix: Arc<[SnapshotKey]>,
    /// Whether it can begin in no other way than from the first of them, as a session's next
    /// turn: what that stands for cannot be computed.
    pub resumes: bool,
    /// When the request fails, on the clock of [`Event::Tick`](super::Event::Tick).
    pub deadline_at_ms: u64,
}

impl Job {
    /// What a snapshot of the keys of chunk `idx` is called, where one may stand for these alone:
    /// chunks that do not change each other's. The last chunk is computed in any case, as what is
    /// generated begins with its last token's logits.
    pub(crate) fn shard_name(&self, idx: usize) -> Option<SnapshotKey> {
        let is_alone = self.sharded.is_some_and(|sharded| !sharded.pruned);
        let is_last = self.grid.is_last(idx as u32);
        self.prefix.get(idx).copied().filter(|_| is_alone && !is_last)
    }
}

/// What a request needs that keeps its keys in shards until it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sharded {
    /// Tokens that the home keeps beside its chunks: those that it generates.
    pub output_tokens: u64,
    /// Whether a chunk changes the shards of the chunks before it. Then the loss of one has
    /// all of them done again, otherwise only itself and what is not done.
    pub pruned: bool,
    /// Whether they come to the home before it decodes, if its pool has room for them then.
    pub gathers: bool,
    /// What a chunk keeps less of its keys than all, where it keeps them whatever their rank.
    pub windowed: Windowed,
}

/// The part of a token's keys that rows far behind it do not see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Windowed {
    /// In layers that have a window, so many keys are kept at most: the last ones.
    pub kept_tokens: u64,
    /// Bytes of a token's keys in these layers; 0 where there are none.
    pub bytes: u64,
    /// Bytes of all of a token's keys, if there are any.
    pub all_bytes: u64,
}

impl Windowed {
    /// How many tokens have as many bytes of keys as are kept of `tokens`, in whole pages.
    pub fn taken(self, tokens: u64, page_tokens: u64) -> u64 {
        let in_pages = |tokens: u64| tokens.next_multiple_of(page_tokens);
        let unseen = in_pages(tokens) - in_pages(tokens.min(self.kept_tokens));
        in_pages(tokens) - unseen.saturating_mul(self.bytes) / self.all_bytes.max(1)
    }
}
