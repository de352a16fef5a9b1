//! The memory set of one layer, and the choice of what it keeps.

mod leaves;
mod rounding;
mod store;

use std::borrow::Cow;

pub use self::leaves::{LEAVES, Leaves};
pub(crate) use self::leaves::{LeafKeys, Parted, Split};
pub use self::rounding::Rounding;
pub(crate) use self::store::{Move, Source};
use crate::array::Array;
use crate::backend::BackendError;
use crate::cells::HeadRows;
use crate::pool::Pool;
use crate::tensor::{KvDtype, KvHeads};
use crate::window::Window;

/// Keys with their values, per KV head, ascending by position: a block's own keys or a
/// memory set. Every KV head has the same number of keys, not the same keys.
///
/// Rows of `k` and `v` are cells, side by side or in pages of a [`Pool`]. A key stays in its cell
/// for as long as it is kept, new keys get the cells of those that were given up, and
/// [`k_rows`](Self::k_rows) finds a key's row. It is a form in memory only: sets that lie
/// differently and hold the same keys are equal, and [`in_order`](Self::in_order) is what leaves
/// a process.
#[derive(Debug, Clone)]
pub struct Keys {
    /// `[kv_heads, keys]`: absolute positions, ascending within each KV head.
    pub positions: Array<u32>,
    /// `[kv_heads, cells, head_dim]`, rotated at those positions; at least as many cells as
    /// keys, of which the first `keys` are in use.
    pub k: KvHeads,
    /// `[kv_heads, cells, head_dim]`.
    pub v: KvHeads,
    /// Keys of each KV head.
    pub(crate) keys: usize,
    /// `[kv_heads, keys]`: the cell of each key, for each KV head all of `0..keys` in some
    /// order; `None` where key j has cell j.
    pub(crate) table: Option<Array<u32>>,
}

impl Keys {
    /// Keys that lie in order: `k` and `v` are `[kv_heads, keys, head_dim]`.
    pub fn new(positions: impl Into<Array<u32>>, k: KvHeads, v: KvHeads) -> Self {
        Self { positions: positions.into(), keys: k.tokens, k, v, table: None }
    }

    /// Keys that lie in the cells that `table`, `[kv_heads, keys]`, names.
    ///
    /// # Panics
    /// When a KV head's cells are not the first ones of `k`, each once: a bug of the caller.
    pub fn scattered(
        positions: impl Into<Array<u32>>,
        k: KvHeads,
        v: KvHeads,
        table: Vec<u32>,
    ) -> Self {
        let positions = positions.into();
        let keys = positions.len() / k.kv_heads.max(1);
        assert_eq!(table.len(), positions.len(), "a cell for every key");
        for head in table.chunks(keys.max(1)) {
            let mut cells = head.to_vec();
            cells.sort_unstable();
            assert!(cells.into_iter().eq(0..keys as u32), "cells 0..{keys}, each once");
        }
        Self { positions, k, v, keys, table: Some(table.into()) }
    }

    /// No keys.
    pub fn empty(kv_heads: usize, head_dim: usize, dtype: KvDtype) -> Self {
        let none = KvHeads::empty(kv_heads, head_dim, dtype);
        Self::new(Vec::new(), none.clone(), none)
    }

    /// No keys, in pages of `pool`: what is added lies there too.
    ///
    /// # Panics
    /// Where the pool's pages are made for other rows: a bug of the caller.
    pub fn empty_in(pool: &Pool, kv_heads: usize, head_dim: usize, dtype: KvDtype) -> Self {
        let none = KvHeads::empty_in(pool, kv_heads, head_dim, dtype);
        Self::new(Vec::new(), none.clone(), none)
    }

    /// The same keys in pages of `pool`, in order of position.
    ///
    /// # Errors
    /// [`BackendError::Exhausted`].
    ///
    /// # Panics
    /// Where the pool's pages are made for other rows: a bug of the caller.
    pub fn put_in(&self, pool: &Pool) -> Result<Self, BackendError> {
        let (kv_heads, head_dim, dtype) = (self.kv_heads(), self.k.head_dim, self.k.dtype());
        let mut keys = Self::empty_in(pool, kv_heads, head_dim, dtype);
        let each = |g| (0..self.keys).map(move |j| Move::own(g, j, j));
        keys.store(self.keys, &(0..kv_heads).flat_map(each).collect::<Vec<_>>(), self)?;
        (keys.positions, keys.keys) = (self.positions.clone(), self.keys);
        Ok(keys)
    }

    /// The pool in whose pages they lie; `None` where they lie side by side.
    pub fn pool(&self) -> Option<&Pool> {
        self.k.pool()
    }

    /// Number of keys of each KV head.
    pub fn len(&self) -> usize {
        self.keys
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.keys == 0
    }

    /// G.
    pub fn kv_heads(&self) -> usize {
        self.k.kv_heads
    }

    /// Positions of KV head `g`.
    pub fn head_positions(&self, g: usize) -> &[u32] {
        &self.positions[g * self.keys..(g + 1) * self.keys]
    }

    /// Cells of KV head `g`'s keys; `None` where key j has cell j.
    pub fn head_cells(&self, g: usize) -> Option<&[u32]> {
        self.table.as_ref().map(|table| &table[g * self.keys..(g + 1) * self.keys])
    }

    /// Row of `k` and `v`, `[kv_heads * cells, head_dim]`, that holds key `j` of KV head `g`.
    pub fn row(&self, g: usize, j: usize) -> usize {
        g * self.k.tokens + self.head_cells(g).map_or(j, |cells| cells[j] as usize)
    }

    /// Keys of KV head `g`, in order of position.
    pub fn k_rows(&self, g: usize) -> HeadRows<'_> {
        HeadRows::new(&self.k, g, self.keys, self.head_cells(g))
    }

    /// Values of KV head `g`, in order of position.
    pub fn v_rows(&self, g: usize) -> HeadRows<'_> {
        HeadRows::new(&self.v, g, self.keys, self.head_cells(g))
    }

    /// Whether `k` and `v` are `[kv_heads, keys, head_dim]`, side by side and in order of
    /// position.
    pub(crate) fn lie_in_order(&self) -> bool {
        self.table.is_none() && self.k.tokens == self.keys && self.pool().is_none()
    }

    /// The same keys as `k` and `v` of `[kv_heads, keys, head_dim]`, in order of position.
    pub fn in_order(&self) -> Cow<'_, Self> {
        if self.lie_in_order() {
            return Cow::Borrowed(self);
        }
        let heads = 0..self.kv_heads();
        let k = self.k.gathered(self.keys, heads.clone().map(|g| [self.k_rows(g)]));
        let v = self.v.gathered(self.keys, heads.map(|g| [self.v_rows(g)]));
        Cow::Owned(Self::new(self.positions.clone(), k, v))
    }

    /// Bytes of keys, values and positions, wherever they lie: unused cells, and the table, are
    /// not counted, so that two workers with the same keys count the same.
    pub fn bytes(&self) -> usize {
        let elements = 2 * self.kv_heads() * self.keys * self.k.head_dim;
        elements * self.k.dtype().bytes() + self.positions.bytes()
    }
}

impl PartialEq for Keys {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (self.in_order(), other.in_order());
        self.positions == other.positions && a.k == b.k && a.v == b.v
    }
}

/// What one layer remembers after a block.
#[derive(Debug, Clone, PartialEq)]
pub struct MemorySet {
    /// The remembered keys and values.
    pub keys: Keys,
    /// `[kv_heads, keys]` f32: accumulated attention mass (see [`crate::AttentionOps::weigh`]).
    pub score: Array<f32>,
    /// `[kv_heads, keys]` f32: row weight that could have voted for each key.
    pub votes: Array<f32>,
    /// What a [recurrent](crate::recurrent) layer remembers, which has no keys; none in others.
    pub state: Array<f32>,
    /// Tokens processed so far: the position of the next token. Never derived from the number
    /// of keys, which selection lowers.
    pub end: u32,
}

impl MemorySet {
    /// What a layer remembers before the first token.
    pub fn empty(kv_heads: usize, head_dim: usize, dtype: KvDtype) -> Self {
        Self {
            keys: Keys::empty(kv_heads, head_dim, dtype),
            score: Array::default(),
            votes: Array::default(),
            state: Array::default(),
            end: 0,
        }
    }

    /// What a layer remembers before the first token, in pages of `pool`.
    ///
    /// # Panics
    /// Where the pool's pages are made for other rows: a bug of the caller.
    pub fn empty_in(pool: &Pool, kv_heads: usize, head_dim: usize, dtype: KvDtype) -> Self {
        let keys = Keys::empty_in(pool, kv_heads, head_dim, dtype);
        Self { keys, ..Self::empty(kv_heads, head_dim, dtype) }
    }

    /// The same set in pages of `pool`.
    ///
    /// # Errors
    /// [`BackendError::Exhausted`].
    ///
    /// # Panics
    /// Where the pool's pages are made for other rows: a bug of the caller.
    pub fn put_in(&self, pool: &Pool) -> Result<Self, BackendError> {
        let (score, votes) = (self.score.clone(), self.votes.clone());
        let keys = self.keys.put_in(pool)?;
        Ok(Self { keys, score, votes, state: self.state.clone(), end: self.end })
    }

    /// The same set to be changed: a copy where it lies side by side, shared pages otherwise.
    pub(crate) fn apart(&self) -> Self {
        match self.keys.pool() {
            Some(_) => self.clone(),
            None => self.in_order(),
        }
    }

    /// Brings positions, scores, votes and state to the host, so that nothing that reads them can
    /// fail.
    ///
    /// # Errors
    /// As [`Array::host`] has it.
    pub fn fetch_lists(&self) -> Result<(), BackendError> {
        self.keys.positions.host()?;
        self.score.host()?;
        self.votes.host()?;
        self.state.host().map(drop)
    }

    /// The same, and keys and values, but for those in pages, which are on the host anyway.
    ///
    /// # Errors
    /// As there.
    pub fn fetch(&self) -> Result<(), BackendError> {
        self.fetch_lists()?;
        if self.keys.pool().is_some() {
            return Ok(());
        }
        if let Some(table) = &self.keys.table {
            table.host()?;
        }
        self.keys.k.data.host()?;
        self.keys.v.data.host()
    }

    /// The same set, its keys in order of position, side by side and without a cell to spare.
    pub fn in_order(&self) -> Self {
        Self {
            keys: self.keys.in_order().into_owned(),
            score: self.score.clone(),
            votes: self.votes.clone(),
            state: self.state.clone(),
            end: self.end,
        }
    }

    /// Bytes of keys, values, positions, scores, votes and state.
    pub fn bytes(&self) -> usize {
        self.keys.bytes() + self.score.bytes() + self.votes.bytes() + self.state.bytes()
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
        (0..tokens).rev().map(|age| self.row_weight(age)).collect()
    }

    /// The weight of the row that `age` rows of its block follow.
    pub fn row_weight(&self, age: usize) -> f32 {
        let decay = f64::from(self.decay);
        if self.window > 0 && age >= self.window {
            0.0
        } else if self.decay == 1.0 {
            1.0
        } else {
            ((1.0 - decay) * decay.powi(age as i32)) as f32
        }
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
    /// What rows to come see of the keys, where the model bounds that: a key that none of them sees
    /// ranks last. What is retained is of the others.
    pub window: Option<Window>,
}

impl Selection {
    /// The first position that a row at `end`, or behind it, sees.
    pub fn first_seen(&self, end: u32) -> u32 {
        self.window.map_or(0, |window| window.first_seen(end))
    }
}
