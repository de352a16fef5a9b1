//! Blocks and memory sets to compute with, the same on every run.

use std::sync::Arc;

use crate::backend::Queries;
use crate::memory::Keys;
use crate::tensor::{Heads, KvDtype, KvHeads};
use crate::window::Window;

/// A seeded stream of numbers (splitmix64).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Of mean 0 and variance 1, within ±6: twelve uniforms.
    pub(super) fn normal(&mut self) -> f32 {
        let uniform = |bits: u64| (bits >> 40) as f32 / (1_u64 << 24) as f32;
        (0..12).map(|_| uniform(self.next())).sum::<f32>() - 6.0
    }

    pub(super) fn normals(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.normal()).collect()
    }
}

/// What a check of attention varies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) kv: KvDtype,
    pub(super) window: Option<Window>,
    pub(super) softcap: Option<f32>,
    /// Whether logits fall with distance.
    pub(super) slopes: bool,
    /// Whether rows see something besides keys.
    pub(super) sinks: bool,
    /// Standard deviation of logits.
    pub(super) spread: f32,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            kv: KvDtype::F32,
            window: None,
            softcap: None,
            slopes: false,
            sinks: false,
            spread: 1.0,
        }
    }
}

/// Added to every logit of the key of one KV head at one position.
pub(super) trait Lift: Fn(usize, u32) -> f32 {}
impl<F: Fn(usize, u32) -> f32> Lift for F {}

/// A block's queries with its own keys.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) q: Heads,
    pub(super) keys: Keys,
    pub(super) start: u32,
    pub(super) window: Option<Window>,
    pub(super) softcap: Option<f32>,
    /// `[heads]`.
    pub(super) slopes: Option<Vec<f32>>,
    /// `[heads]`.
    pub(super) sinks: Option<Arc<[f32]>>,
}

impl Block {
    pub(super) fn queries(&self) -> Queries<'_> {
        let scale = 1.0 / (self.q.head_dim as f32).sqrt();
        let Self { q, start, window, softcap, slopes, .. } = self;
        let slopes = slopes.as_deref();
        Queries { q, start: *start, scale, window: *window, softcap: *softcap, slopes }
    }

    pub(super) fn tokens(&self) -> usize {
        self.q.tokens
    }
}

impl Shape {
    /// Tokens at `start..`: what stands at a position does not depend on the block it is in.
    pub(super) fn block(&self, start: u32, tokens: usize) -> Block {
        self.lifted_block(start, tokens, |_, _| 0.0)
    }

    /// The same with some keys' logits lifted.
    pub(super) fn lifted_block(&self, start: u32, tokens: usize, lift: impl Lift) -> Block {
        let d = self.head_dim;
        let mut q = Heads::zeros(self.heads, tokens, d);
        for (t, position) in (start..).take(tokens).enumerate() {
            let mut random = Random::new(u64::from(position) << 8 | 1);
            for h in 0..self.heads {
                let row = &mut q.data[(h * tokens + t) * d..][..d];
                row.iter_mut().for_each(|x| *x = self.spread * random.normal());
                row[0] = (d as f32).sqrt(); // with key element 0: the lift
            }
        }
        let positions: Vec<u32> = (start..).take(tokens).collect();
        let keys = self.keys(&positions.repeat(self.kv_heads), lift);
        // Of the size of the logits' sum: neither nothing nor all is left for keys.
        let sink = |random: &mut Random| 3.0 + 2.0 * self.spread * random.normal();
        let mut random = Random::new(5);
        let sinks = self.sinks.then(|| (0..self.heads).map(|_| sink(&mut random)).collect());
        // From one that leaves little of what is far to one that hardly counts.
        let slope = |h| 0.5_f32.powf(1.0 + 7.0 * h as f32 / self.heads as f32);
        let slopes = self.slopes.then(|| (0..self.heads).map(slope).collect());
        let Self { window, softcap, .. } = *self;
        Block { q, keys, start, window, softcap, slopes, sinks }
    }

    /// `count` keys per KV head at positions below `2 count`, differing between heads.
    pub(super) fn past(&self, count: usize) -> Keys {
        self.lifted_past(count, |_, _| 0.0)
    }

    /// The same with some keys' logits lifted.
    pub(super) fn lifted_past(&self, count: usize, lift: impl Lift) -> Keys {
        let mut random = Random::new(3);
        let positions: Vec<u32> = (0..self.kv_heads)
            .flat_map(|_| (0..count as u32).map(|j| 2 * j).collect::<Vec<_>>())
            .map(|even| even + (random.next() & 1) as u32)
            .collect();
        self.keys(&positions, lift)
    }

    /// Keys at `positions`, `[kv_heads, keys]`.
    pub(super) fn keys(&self, positions: &[u32], lift: impl Lift) -> Keys {
        let count = positions.len() / self.kv_heads;
        let (mut k, mut v) = (Vec::new(), Vec::new());
        for (i, &position) in positions.iter().enumerate() {
            let g = i / count;
            let mut random = Random::new(u64::from(position) << 8 | (2 + g as u64));
            k.push(lift(g, position));
            k.extend(random.normals(self.head_dim - 1));
            v.extend(random.normals(self.head_dim));
        }
        let stored =
            |data: &[f32]| KvHeads::from_f32(self.kv_heads, count, self.head_dim, data, self.kv);
        Keys::new(positions.to_vec(), stored(&k), stored(&v))
    }
}
