//! Snapshots: the memory sets of all layers at a chunk boundary, or the keys of one chunk where
//! these stay in shards, by what made them.

use std::fmt;
use std::str::FromStr;

use crate::work::{NextHop, RetainedMass};
use crate::{ChunkGrid, ChunkKey, KvDtype, ModelShape, Refusal, RequestId, WireDtype, limits};

/// Names a snapshot by everything that its bits depend on: a strong hash of the model, the
/// policy as used, the chunk size and every token of the prefix. Workers know it as a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotKey(pub [u8; 32]);

impl fmt::Display for SnapshotKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for SnapshotKey {
    type Err = Refusal;

    /// What [`Display`](fmt::Display) writes.
    fn from_str(text: &str) -> Result<Self, Refusal> {
        let refusal = || Refusal::new("snapshot", text, "64 hexadecimal digits");
        let (mut bytes, digits) = ([0; 32], text.as_bytes());
        if digits.len() != 64 {
            return Err(refusal());
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16).ok_or_else(refusal);
            *byte = (digit(0)? * 16 + digit(1)?) as u8;
        }
        Ok(Self(bytes))
    }
}

/// Whose memory a snapshot is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    /// What a chunk of the worker's gave, which is done; where keys stay in shards, its own.
    Chunk(u32),
    /// What a completion left, which has ended: see
    /// [`DecodeSpec::keeps`](crate::work::DecodeSpec::keeps).
    Choice(u32),
}

/// What a request made is to outlive it.
#[derive(Debug, Clone, PartialEq)]
pub struct Keep {
    /// The request.
    pub request: RequestId,
    /// What of it.
    pub made: Made,
    /// Under which name.
    pub snapshot: SnapshotKey,
    /// What the memory kept from the beginning to the end of the prompt's part, per layer.
    pub retained: Vec<RetainedMass>,
}

/// A chunk need not be computed, as a snapshot is what it would give; and so need none of those
/// before it where memory is handed on. The worker answers as if it had done the chunk, or, if it
/// has the snapshot no longer, as if a peer had failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restore {
    /// Request, chunk and epoch.
    pub key: ChunkKey,
    /// Which snapshot.
    pub snapshot: SnapshotKey,
    /// Where the memory goes; `None` where keys stay in shards, of which this is the chunk's.
    pub next: Option<NextHop>,
    /// What its f32 keys and values were rounded to, and are on the way.
    pub wire: WireDtype,
}

/// What changed among the snapshots of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SnapshotNews {
    /// These can be restored.
    pub kept: Vec<SnapshotKey>,
    /// These can not, or not any more.
    pub dropped: Vec<SnapshotKey>,
    /// All that there are now.
    pub held: SnapshotsHeld,
}

/// The snapshots of one worker, or of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SnapshotsHeld {
    /// How many.
    pub count: u64,
    /// Bytes of those in memory.
    pub memory_bytes: u64,
    /// Bytes of those on disk; some are in both.
    pub disk_bytes: u64,
}

impl SnapshotsHeld {
    /// Adds those of another worker.
    pub fn add(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.memory_bytes = self.memory_bytes.saturating_add(other.memory_bytes);
        self.disk_bytes = self.disk_bytes.saturating_add(other.disk_bytes);
    }
}

/// Which boundaries of a prompt are worth a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spacing {
    /// So many of the last ones, where the same prompt or a longer one goes on.
    last: u32,
    /// At most so many others, evenly spaced from the beginning, where prompts part that begin
    /// alike.
    others: u32,
}

impl Default for Spacing {
    fn default() -> Self {
        Self { last: 2, others: limits::SNAPSHOTS_PER_PROMPT }
    }
}

impl Spacing {
    /// Of a prompt whose memory sets have the keys of up to `tokens` tokens. With states each
    /// snapshot is large, and one prompt would displace those of all others: it has
    /// [`limits::SNAPSHOT_PROMPT_BYTES`], or its last boundary and one before.
    pub fn new(shape: &ModelShape, kv: KvDtype, tokens: u32) -> Self {
        let whole = Self::default();
        if shape.state_bytes == 0 {
            return whole;
        }
        let each = shape.kv_bytes(tokens.into(), kv).saturating_add(shape.state_bytes);
        let all = u64::from(whole.last + whole.others);
        let most = (limits::SNAPSHOT_PROMPT_BYTES / each).clamp(2, all) as u32;
        let last = if most < 2 * whole.last { 1 } else { whole.last };
        Self { last, others: most - last }
    }

    /// Whether the boundary after chunk `chunk_idx` is one of them.
    pub fn keeps(&self, grid: &ChunkGrid, chunk_idx: u32) -> bool {
        let full_chunks = grid.prompt_tokens() / grid.chunk_tokens();
        let boundary = chunk_idx + 1;
        let is_last = boundary + self.last > full_chunks;
        let is_other = match self.others {
            limits::SNAPSHOTS_PER_PROMPT => {
                let stride = full_chunks.div_ceil(self.others).next_power_of_two();
                boundary.is_multiple_of(stride)
            }
            // The first ones of a stride that lies closer: the next would be beyond the prompt.
            few => {
                let stride = 1 << full_chunks.div_ceil(few + 1).max(1).ilog2();
                boundary.is_multiple_of(stride) && boundary / stride <= few
            }
        };
        boundary <= full_chunks && (is_last || is_other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{WideHeads, WindowedLayers};

    #[test]
    fn boundaries_worth_keeping_are_few() {
        let spacing = Spacing::default();
        let check = |prompt_tokens, want: &[u32]| {
            let grid = ChunkGrid::new(prompt_tokens, 10).unwrap();
            let kept: Vec<u32> =
                (0..grid.chunk_count()).filter(|idx| spacing.keeps(&grid, *idx)).collect();
            assert_eq!(kept, want, "{prompt_tokens}");
        };
        check(9, &[]);
        check(10, &[0]);
        check(45, &[0, 1, 2, 3]);
        check(165, &(0..16).collect::<Vec<_>>());
        check(345, &[3, 7, 11, 15, 19, 23, 27, 31, 32, 33]);
        let grid = ChunkGrid::new(limits::PROMPT_TOKENS_MAX, 256).unwrap();
        let kept = (0..grid.chunk_count()).filter(|idx| spacing.keeps(&grid, *idx)).count();
        assert!(kept as u32 <= limits::SNAPSHOTS_PER_PROMPT + 1, "{kept}");
    }

    #[test]
    fn prompts_with_states_keep_what_an_eighth_of_a_store_holds() {
        let plain = ModelShape {
            vocab: 8,
            layers: 4,
            width: 8,
            heads: 2,
            kv_heads: 1,
            head_dim: 4,
            ffn: 8,
            max_positions: 0,
            recurrent_layers: 0,
            state_bytes: 0,
            wide: WideHeads::NONE,
            kv_shared_layers: 0,
            windowed: WindowedLayers::NONE,
        };
        let grid = ChunkGrid::new(345, 10).unwrap();
        let check = |state_bytes: u64, tokens: u32, want: &[u32]| {
            let shape = ModelShape { recurrent_layers: 3, state_bytes, ..plain.clone() };
            let spacing = Spacing::new(&shape, KvDtype::F32, tokens);
            let kept: Vec<u32> =
                (0..grid.chunk_count()).filter(|idx| spacing.keeps(&grid, *idx)).collect();
            assert_eq!(kept, want, "{state_bytes} {tokens}");
        };
        let (share, few) = (limits::SNAPSHOT_PROMPT_BYTES, [3, 7, 11, 15, 19, 23, 32, 33]);
        check(96, 345, &[3, 7, 11, 15, 19, 23, 27, 31, 32, 33]);
        check(share / 8, 0, &few);
        check(share / 16, (share / 16 / 32) as u32, &few);
        check(share / 3, 345, &[15, 33]);
        check(share, 0, &[15, 33]);
        check(2 * share, 345, &[15, 33]);
        assert_eq!(Spacing::new(&plain, KvDtype::F32, u32::MAX), Spacing::default());
    }

    #[test]
    fn names_are_hexadecimal() {
        let mut bytes = [0; 32];
        (bytes[0], bytes[31]) = (0xab, 0x01);
        let name = SnapshotKey(bytes).to_string();
        assert!(name.len() == 64 && name.starts_with("ab00") && name.ends_with("0001"));
        assert_eq!(name.parse(), Ok(SnapshotKey(bytes)));
        for bad in ["", &name[1..], &name.replace('b', "x"), &"é".repeat(32)] {
            assert!(bad.parse::<SnapshotKey>().is_err(), "{bad}");
        }
    }
}
