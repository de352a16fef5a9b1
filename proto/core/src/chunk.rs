//! The prompt grid: chunk k covers positions `[kC, min((k+1)C, n))`, or, where a session goes on,
//! chunk 0 what is remembered of it and the next ones the same behind it.

use crate::error::Refusal;
use crate::limits;

/// How a prompt of `prompt_tokens` is cut. The grid is part of the answer: it depends on the
/// prompt and on `chunk_tokens` alone, never on workers or load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkGrid {
    prompt_tokens: u32,
    chunk_tokens: u32,
    /// Of which the first so many are one chunk, that is there already; 0: there is no such chunk.
    known_tokens: u32,
}

/// One chunk of a grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkSpan {
    /// Index of the chunk in the grid.
    pub idx: u32,
    /// Position of its first token.
    pub start: u32,
    /// How many tokens it has; at least 1, at most `chunk_tokens`.
    pub tokens: u32,
}

impl ChunkSpan {
    /// The positions that the chunk covers.
    pub const fn positions(&self) -> std::ops::Range<u32> {
        self.start..self.start + self.tokens
    }

    /// The chunk's part of a prompt that begins at position `start`.
    pub fn of<'a, T>(&self, prompt: &'a [T], start: u32) -> &'a [T] {
        let first = (self.start - start) as usize;
        &prompt[first..first + self.tokens as usize]
    }
}

impl ChunkGrid {
    /// Cuts `prompt_tokens` into chunks of `chunk_tokens`; the last one may be shorter.
    ///
    /// # Errors
    /// An empty prompt, one over [`limits::PROMPT_TOKENS_MAX`], or a chunk size outside
    /// `1..=`[`limits::CHUNK_TOKENS_MAX`] or that makes more than [`limits::CHUNKS_MAX`].
    pub fn new(prompt_tokens: u32, chunk_tokens: u32) -> Result<Self, Refusal> {
        Refusal::unless_within("prompt_tokens", prompt_tokens, 1, limits::PROMPT_TOKENS_MAX)?;
        Self::cut(0, prompt_tokens, chunk_tokens)
    }

    fn cut(known_tokens: u32, prompt_tokens: u32, chunk_tokens: u32) -> Result<Self, Refusal> {
        Refusal::unless_within("chunk_tokens", chunk_tokens, 1, limits::CHUNK_TOKENS_MAX)?;
        let new_tokens = prompt_tokens - known_tokens;
        let least = new_tokens.div_ceil(limits::CHUNKS_MAX);
        if chunk_tokens < least {
            let bound = format!("at least {least}, as {new_tokens} tokens are to be cut");
            return Err(Refusal::new("chunk_tokens", chunk_tokens, bound));
        }
        Ok(Self { prompt_tokens, chunk_tokens, known_tokens })
    }

    /// Cuts `prompt_tokens`, of which the first `known_tokens` are remembered: these are chunk 0.
    ///
    /// # Errors
    /// As [`new`](Self::new); nothing behind what is remembered.
    pub fn after(
        known_tokens: u32,
        prompt_tokens: u32,
        chunk_tokens: u32,
    ) -> Result<Self, Refusal> {
        let low = known_tokens.saturating_add(1);
        Refusal::unless_within("prompt_tokens", prompt_tokens, low, limits::PROMPT_TOKENS_MAX)?;
        Self::cut(known_tokens, prompt_tokens, chunk_tokens)
    }

    /// Number of chunks; at least 1.
    pub const fn chunk_count(&self) -> u32 {
        let known_chunks = if self.known_tokens > 0 { 1 } else { 0 };
        known_chunks + (self.prompt_tokens - self.known_tokens).div_ceil(self.chunk_tokens)
    }

    /// Tokens that are remembered, as chunk 0; 0 where nothing is.
    pub const fn known_tokens(&self) -> u32 {
        self.known_tokens
    }

    /// Tokens of the whole prompt.
    pub const fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    /// Tokens of a full chunk.
    pub const fn chunk_tokens(&self) -> u32 {
        self.chunk_tokens
    }

    /// The chunk with index `idx`, if the grid has it.
    pub fn chunk(&self, idx: u32) -> Option<ChunkSpan> {
        let (known, start) = match (self.known_tokens, idx) {
            (0, _) => (0, idx.checked_mul(self.chunk_tokens)?),
            (known, 0) => (known, 0),
            (known, _) => (0, (idx - 1).checked_mul(self.chunk_tokens)?.checked_add(known)?),
        };
        (start < self.prompt_tokens).then(|| ChunkSpan {
            idx,
            start,
            tokens: if known > 0 {
                known
            } else {
                self.chunk_tokens.min(self.prompt_tokens - start)
            },
        })
    }

    /// All chunks in order.
    pub fn chunks(&self) -> impl Iterator<Item = ChunkSpan> + '_ {
        (0..self.chunk_count()).filter_map(|idx| self.chunk(idx))
    }

    /// Whether `idx` is the chunk that ends the prompt.
    pub const fn is_last(&self, idx: u32) -> bool {
        idx + 1 == self.chunk_count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn edge_lengths() {
        let check = |n: u32, c: u32, want: &[u32]| {
            let grid = ChunkGrid::new(n, c).unwrap();
            let got: Vec<u32> = grid.chunks().map(|chunk| chunk.tokens).collect();
            assert_eq!(got, want, "n = {n}, c = {c}");
        };
        check(1, 4, &[1]);
        check(3, 4, &[3]);
        check(4, 4, &[4]);
        check(5, 4, &[4, 1]);
        check(8, 4, &[4, 4]);
        check(3, 1, &[1, 1, 1]);
        let grid = ChunkGrid::after(6, 15, 4).unwrap();
        let starts: Vec<u32> = grid.chunks().map(|chunk| chunk.start).collect();
        assert_eq!(starts, [0, 6, 10, 14]);
        assert!(ChunkGrid::after(6, 6, 4).is_err());
        assert!(ChunkGrid::new(0, 4).is_err());
        assert!(ChunkGrid::new(4, 0).is_err());
        assert!(ChunkGrid::new(limits::PROMPT_TOKENS_MAX + 1, 4).is_err());
        let most = limits::CHUNKS_MAX;
        assert_eq!(ChunkGrid::new(2 * most, 2).unwrap().chunk_count(), most);
        assert_eq!(ChunkGrid::new(2 * most + 1, 2).unwrap_err().field, "chunk_tokens");
        assert_eq!(ChunkGrid::after(9, 2 * most + 9, 2).unwrap().chunk_count(), most + 1);
    }

    proptest! {
        #[test]
        fn chunks_tile_the_prompt(n in 1u32..5000, c in 1u32..600, known in 0u32..5000) {
            let known = known % n;
            let grid = ChunkGrid::after(known, n, c).unwrap();
            let mut next = 0;
            for (idx, chunk) in grid.chunks().enumerate() {
                prop_assert_eq!(chunk.idx as usize, idx);
                prop_assert_eq!(chunk.start, next);
                let is_known = known > 0 && idx == 0;
                prop_assert!(is_known || (chunk.tokens >= 1 && chunk.tokens <= c));
                prop_assert!(!is_known || chunk.tokens == known);
                next = chunk.positions().end;
                prop_assert_eq!(grid.is_last(chunk.idx), next == n);
            }
            prop_assert_eq!(next, n);
            prop_assert_eq!(grid.chunk(grid.chunk_count()), None);
        }
    }
}
