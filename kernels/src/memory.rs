//! The memory set of one layer, and the choice of what it keeps.

use crate::tensor::{KvDtype, KvHeads};

/// Keys with their values, per KV head, ascending by position: a block's own keys or a
/// memory set. Every KV head has the same number of keys, not the same keys.
#[derive(Debug, Clone, PartialEq)]
pub struct Keys {
    /// `[kv_heads, keys]`: absolute positions, ascending within each KV head.
    pub positions: Vec<u32>,
    /// `[kv_heads, keys, head_dim]`, rotated at those positions.
    pub k: KvHeads,
    /// `[kv_heads, keys, head_dim]`.
    pub v: KvHeads,
}

impl Keys {
    /// No keys.
    pub fn empty(kv_heads: usize, head_dim: usize, dtype: KvDtype) -> Self {
        let none = KvHeads::empty(kv_heads, head_dim, dtype);
        Self { positions: Vec::new(), k: none.clone(), v: none }
    }

    /// Number of keys of each KV head.
    pub fn len(&self) -> usize {
        self.k.tokens
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// G.
    pub fn kv_heads(&self) -> usize {
        self.k.kv_heads
    }

    /// Positions of KV head `g`.
    pub fn head_positions(&self, g: usize) -> &[u32] {
        &self.positions[g * self.len()..(g + 1) * self.len()]
    }
}

/// What one layer remembers after a block.
#[derive(Debug, Clone, PartialEq)]
pub struct MemorySet {
    /// The remembered keys and values.
    pub keys: Keys,
    /// `[kv_heads, keys]` f32: accumulated attention mass (see [`crate::AttentionOps::weigh`]).
    pub score: Vec<f32>,
    /// `[kv_heads, keys]` f32: row weight that could have voted for each key.
    pub votes: Vec<f32>,
    /// Tokens processed so far: the position of the next token. Never derived from the number
    /// of keys, which selection lowers.
    pub end: u32,
}

impl MemorySet {
    /// What a layer remembers before the first token.
    pub fn empty(kv_heads: usize, head_dim: usize, dtype: KvDtype) -> Self {
        Self {
            keys: Keys::empty(kv_heads, head_dim, dtype),
            score: Vec::new(),
            votes: Vec::new(),
            end: 0,
        }
    }

    /// Bytes of keys, values, positions, scores and votes.
    pub fn bytes(&self) -> usize {
        self.keys.k.bytes()
            + self.keys.v.bytes()
            + size_of_val(self.keys.positions.as_slice())
            + size_of_val(self.score.as_slice())
            + size_of_val(self.votes.as_slice())
    }
}

/// How scores are made and compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranking {
    /// 1 for cumulative mass; below 1 for an exponential moving average per query row.
    pub decay: f32,
    /// Above 0: only the last `window` rows of a block vote.
    pub window: usize,
    /// Rank by score / votes instead of score.
    pub age_normalised: bool,
}

impl Ranking {
    /// `w_i` of a block of `tokens` rows: 1, or (1 - decay) decay^(T-1-i); 0 outside the window.
    pub fn row_weights(&self, tokens: usize) -> Vec<f32> {
        let decay = f64::from(self.decay);
        (0..tokens)
            .map(|i| {
                let age = tokens - 1 - i;
                if self.window > 0 && age >= self.window {
                    0.0
                } else if self.decay == 1.0 {
                    1.0
                } else {
                    ((1.0 - decay) * decay.powi(age as i32)) as f32
                }
            })
            .collect()
    }

    /// What an old score is multiplied by when a block of `tokens` rows passes: decay^T.
    pub fn fade(&self, tokens: usize) -> f32 {
        f64::from(self.decay).powf(tokens as f64) as f32
    }
}

/// What is kept, per KV head: positions below `sinks`, the last `local` positions, and of the
/// rest the `heavy` best by rank, ties to the smaller position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Selection {
    /// Keep every key (dense); the other fields are then not read.
    pub keep_all: bool,
    /// First positions always kept.
    pub sinks: u32,
    /// Last positions always kept.
    pub local: u32,
    /// Keys kept for their rank.
    pub heavy: usize,
    /// How scores are made and compared.
    pub ranking: Ranking,
}
