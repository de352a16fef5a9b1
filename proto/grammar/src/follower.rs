//! Follows one answer through its form, token by token.

use std::collections::HashMap;

use aqueduct_core::{Refusal, TokenId};
use llguidance::Matcher;
use llguidance::toktrie::{SimpleVob, TokEnv};

use crate::compile::told;
use crate::thinker::{Next, Part, Thinker, is_blank, name};

/// Where an answer stands in its form.
pub struct Follower {
    words: TokEnv,
    tokens: usize,
    /// Until what is said begins.
    thinker: Option<Thinker>,
    /// At the beginning of what is said; `None`: any text will do.
    matcher: Option<Matcher>,
    /// Where the grammar is if what was said so far does not become thoughts.
    beside: Option<Matcher>,
    /// What thoughts may have next, by how much of their end has been said.
    thoughts: HashMap<usize, SimpleVob>,
}

/// Which tokens may come next.
pub struct Mask {
    /// `None`: all.
    allowed: Option<SimpleVob>,
    may_end: bool,
    tokens: usize,
}

impl Clone for Follower {
    /// Shares no cache with the original: what follows is its own.
    fn clone(&self) -> Self {
        Self {
            words: self.words.clone(),
            tokens: self.tokens,
            thinker: self.thinker.clone(),
            matcher: self.matcher.as_ref().map(Matcher::deep_clone),
            beside: self.beside.as_ref().map(Matcher::deep_clone),
            thoughts: self.thoughts.clone(),
        }
    }
}

impl Follower {
    /// Before the first token; the vocabulary has `tokens`.
    pub(crate) fn new(
        (words, tokens): (TokEnv, usize),
        thinker: Option<Thinker>,
        matcher: Option<Matcher>,
    ) -> Self {
        let is_said = |thinker: &Thinker| thinker.is_before() && !thinker.is_needed();
        let may_say = thinker.as_ref().is_some_and(is_said);
        let beside = matcher.as_ref().filter(|_| may_say).map(Matcher::deep_clone);
        Self { words, tokens, thinker, matcher, beside, thoughts: HashMap::new() }
    }

    /// Finds errors of the grammar that show only when it is used.
    pub(crate) fn begin(&mut self) -> Result<(), String> {
        let Some(matcher) = &mut self.matcher else { return Ok(()) };
        match matcher.get_error() {
            Some(error) => Err(error),
            None => matcher.compute_mask().map(drop).map_err(|error| error.to_string()),
        }
    }

    /// Whether the answer is complete and nothing can follow.
    pub fn must_end(&self) -> bool {
        let is_complete = |matcher: &Matcher| matcher.is_stopped() && !matcher.is_error();
        self.thinker.is_none() && self.matcher.as_ref().is_some_and(is_complete)
    }

    /// The tokens that may come next, end tokens aside.
    ///
    /// # Errors
    /// A grammar that costs more than it may, or that allows nothing here.
    pub fn mask(&mut self) -> Result<Mask, Refusal> {
        let Some(thinker) = &self.thinker else { return self.mask_of_grammar() };
        let next = thinker.next();
        let Self { matcher: Some(_), .. } = self else {
            return Ok(match next {
                Next::Forced(token) => self.only(token),
                Next::Begins | Next::Thoughts | Next::Says => self.any(),
            });
        };
        match next {
            Next::Forced(token) => Ok(self.only(token)),
            Next::Thoughts => {
                let place = thinker.ended_bytes();
                Ok(self.mask_of_thoughts(place))
            }
            Next::Says => {
                let said = self.mask_of_grammar()?;
                Ok(self.with(said, |thinker, word| thinker.is_gap(word)))
            }
            Next::Begins => {
                let said = self.beside.as_mut().map(|beside| mask_of(beside, self.tokens));
                let said = said.transpose()?.unwrap_or_else(|| self.none());
                // White space alone says nothing of thoughts: a grammar that has none of it would
                // be left for good, and thoughts forced on who had none.
                let may_say = self.beside.is_some();
                let opens = |thinker: &Thinker, word: &[u8]| {
                    thinker.opens(name(word)) && !(may_say && is_blank(word))
                };
                Ok(self.with(said, opens))
            }
        }
    }

    /// Goes on by `token`, which the mask allowed.
    ///
    /// # Errors
    /// A token that the form does not allow.
    pub fn take(&mut self, token: TokenId) -> Result<(), Refusal> {
        let Some(thinker) = &mut self.thinker else { return self.say(token) };
        let was_before = thinker.is_before();
        let part = thinker.take(token, self.words.tok_trie().token(token));
        if thinker.is_over() || part == Part::Said {
            self.thinker = None;
        }
        let beside = |beside: Option<Matcher>| {
            beside.and_then(|mut beside| said(&mut beside, token).then_some(beside))
        };
        match part {
            Part::Thoughts => self.beside = None,
            Part::Either => self.beside = beside(self.beside.take()),
            Part::Said if was_before && self.matcher.is_some() => {
                let beside = beside(self.beside.take());
                let bound = "what the grammar allows, or thoughts";
                self.matcher = Some(beside.ok_or_else(|| Refusal::new("token", token, bound))?);
            }
            Part::Said => self.say(token)?,
        }
        Ok(())
    }

    fn say(&mut self, token: TokenId) -> Result<(), Refusal> {
        let Some(matcher) = &mut self.matcher else { return Ok(()) };
        matcher.consume_token(token).map_err(|error| stuck(&error))
    }

    fn mask_of_grammar(&mut self) -> Result<Mask, Refusal> {
        match &mut self.matcher {
            Some(matcher) => mask_of(matcher, self.tokens),
            None => Ok(self.any()),
        }
    }

    /// Looked for in the whole vocabulary once for each of the few places that there are.
    fn mask_of_thoughts(&mut self, place: Option<usize>) -> Mask {
        if let Some(allowed) = place.and_then(|place| self.thoughts.get(&place)) {
            return Mask { allowed: Some(allowed.clone()), ..self.none() };
        }
        let mask = self.with(self.none(), |thinker, word| thinker.may_think(word));
        if let (Some(place), Some(allowed)) = (place, &mask.allowed) {
            self.thoughts.insert(place, allowed.clone());
        }
        mask
    }

    /// `mask`, and what the thinker allows besides.
    fn with(&self, mut mask: Mask, allows: impl Fn(&Thinker, &[u8]) -> bool) -> Mask {
        let (Some(thinker), Some(allowed)) = (&self.thinker, &mut mask.allowed) else {
            return mask;
        };
        let words = self.words.tok_trie();
        let tokens = 0..self.tokens as TokenId;
        tokens
            .filter(|token| allows(thinker, words.token(*token)))
            .for_each(|token| allowed.allow_token(token));
        mask
    }

    fn only(&self, token: TokenId) -> Mask {
        let mut mask = self.none();
        if let Some(allowed) = mask.allowed.as_mut().filter(|_| (token as usize) < self.tokens) {
            allowed.allow_token(token);
        }
        mask
    }

    fn none(&self) -> Mask {
        let allowed = Some(SimpleVob::alloc(self.tokens + 1));
        Mask { allowed, may_end: false, tokens: self.tokens }
    }

    fn any(&self) -> Mask {
        Mask { allowed: None, may_end: true, tokens: self.tokens }
    }
}

/// Goes on by `token`, if that is what may come next.
fn said(matcher: &mut Matcher, token: TokenId) -> bool {
    matcher.validate_tokens(&[token]).is_ok_and(|valid| valid == 1)
        && matcher.consume_token(token).is_ok()
}

fn mask_of(matcher: &mut Matcher, tokens: usize) -> Result<Mask, Refusal> {
    let allowed = matcher.compute_mask_or_eos().map_err(|error| stuck(&error))?;
    let may_end = allowed.is_allowed(tokens as TokenId);
    Ok(Mask { allowed: Some(allowed), may_end, tokens })
}

impl Mask {
    /// Whether any token may come next, and the end.
    pub fn is_any(&self) -> bool {
        self.allowed.is_none()
    }

    /// Whether `token` may come next.
    pub fn allows(&self, token: TokenId) -> bool {
        let is_allowed =
            |allowed: &SimpleVob| (token as usize) < self.tokens && allowed.is_allowed(token);
        self.allowed.as_ref().is_none_or(is_allowed)
    }

    /// Whether the answer may end here.
    pub fn may_end(&self) -> bool {
        self.may_end
    }

    /// Bars from `logits` (`[vocab]`) what may not come next; `ends` are tokens that end an
    /// answer.
    pub fn bar(&self, logits: &mut [f32], ends: &[TokenId]) {
        let Some(allowed) = &self.allowed else { return };
        let ends =
            ends.iter().map(|end| *end as usize).filter(|end| self.may_end && *end < logits.len());
        let kept: Vec<(usize, f32)> = ends.map(|end| (end, logits[end])).collect();
        let words = allowed.as_slice().iter().chain(std::iter::repeat(&0));
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
    Refusal::new("grammar", told(&error), "one that can go on")
}
