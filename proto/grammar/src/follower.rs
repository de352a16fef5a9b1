//! Follows one answer through its grammar, token by token.

use aqueduct_core::{Refusal, TokenId};
use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

/// Where an answer stands in its grammar.
pub struct Follower {
    matcher: Matcher,
    tokens: usize,
}

/// Which tokens may come next.
pub struct Mask {
    allowed: SimpleVob,
    tokens: usize,
}

impl Clone for Follower {
    /// Shares no cache with the original: what follows is its own.
    fn clone(&self) -> Self {
        Self { matcher: self.matcher.deep_clone(), tokens: self.tokens }
    }
}

impl Follower {
    pub(crate) fn new(matcher: Matcher, tokens: usize) -> Self {
        Self { matcher, tokens }
    }

    /// Finds errors of the grammar that show only when it is used.
    pub(crate) fn begin(&mut self) -> Result<(), String> {
        match self.matcher.get_error() {
            Some(error) => Err(error),
            None => self.matcher.compute_mask().map(drop).map_err(|error| error.to_string()),
        }
    }

    /// Whether the answer is complete and nothing can follow.
    pub fn must_end(&self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error()
    }

    /// The tokens that may come next, end tokens aside.
    ///
    /// # Errors
    /// A grammar that costs more than it may, or that allows nothing here.
    pub fn mask(&mut self) -> Result<Mask, Refusal> {
        let allowed = self.matcher.compute_mask_or_eos().map_err(|error| stuck(&error))?;
        Ok(Mask { allowed, tokens: self.tokens })
    }

    /// Goes on by `token`, which the mask allowed.
    ///
    /// # Errors
    /// A token that the grammar does not allow.
    pub fn take(&mut self, token: TokenId) -> Result<(), Refusal> {
        self.matcher.consume_token(token).map_err(|error| stuck(&error))
    }
}

impl Mask {
    /// Whether `token` may come next.
    pub fn allows(&self, token: TokenId) -> bool {
        (token as usize) < self.tokens && self.allowed.is_allowed(token)
    }

    /// Whether the answer may end here.
    pub fn may_end(&self) -> bool {
        self.allowed.is_allowed(self.tokens as TokenId)
    }

    /// Bars from `logits` (`[vocab]`) what may not come next; `ends` are tokens that end an
    /// answer.
    pub fn bar(&self, logits: &mut [f32], ends: &[TokenId]) {
        let ends = ends
            .iter()
            .map(|end| *end as usize)
            .filter(|end| self.may_end() && *end < logits.len());
        let kept: Vec<(usize, f32)> = ends.map(|end| (end, logits[end])).collect();
        let words = self.allowed.as_slice().iter().chain(std::iter::repeat(&0));
        for (block, word) in logits.chunks_mut(u32::BITS as usize).zip(words) {
            for (bit, z) in block.iter_mut().enumerate() {
                *z = if word >> bit & 1 == 0 { f32::NEG_INFINITY } else { *z };
            }
        }
        // Rows beside the vocabulary, of which the first is llguidance's own end.
        let vocab = logits.len().min(self.tokens);
        logits[vocab..].fill(f32::NEG_INFINITY);
        for (end, z) in kept {
            logits[end] = z;
        }
    }
}

fn stuck(error: &impl std::fmt::Display) -> Refusal {
    let error = error.to_string();
    Refusal::new("grammar", error.lines().next().unwrap_or_default(), "one that can go on")
}
