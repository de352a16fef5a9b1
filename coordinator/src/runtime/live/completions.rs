//! Completions of a request: what their caller has of them, wherever they are decoded.

use std::collections::BTreeSet;

use aqueduct_core::work::{Begun, DecodeSpec, Emitted};
use aqueduct_core::{TokenId, WorkerId, limits};

use super::Live;
use crate::submit::Update;

#[derive(Debug, Clone, Default)]
pub(super) struct Choice {
    /// Those that the caller has.
    tokens: Vec<TokenId>,
    ended: bool,
}

impl Live {
    /// What `worker`, its home from now on, is to do.
    pub(crate) fn decode_at(&mut self, worker: WorkerId) -> DecodeSpec {
        self.home = Some(worker);
        if self.redone > 0 {
            let chunks_retried = std::mem::take(&mut self.redone);
            self.mailbox.push(Update::Resumed { chunks_retried });
        }
        let sampling = self.submission.sampling;
        let prompt = sampling.repeats_differ().then_some(&self.submission.prompt);
        let words: BTreeSet<_> = prompt.into_iter().flatten().copied().collect();
        DecodeSpec {
            request: self.run,
            sampling,
            steering: self.submission.steering.clone(),
            constraint: self.submission.constraint.clone(),
            prompt_vocabulary: words.into_iter().collect(),
            choices: self.submission.choices,
            max_tokens: self.submission.max_tokens,
            eos: self.submission.eos.clone(),
            begun: self.begun(),
        }
    }

    /// How far completions have come. Of more tokens than a worker takes the first ones: it draws
    /// the rest again, which are the same.
    fn begun(&self) -> Vec<Begun> {
        let mut room = limits::BEGUN_TOKENS_MAX;
        let mut begun = |(choice, of): (u32, &Choice)| {
            let told = if of.ended { 0 } else { of.tokens.len().min(room) };
            room -= told;
            let begun = Begun { choice, tokens: of.tokens[..told].to_vec(), ended: of.ended };
            (begun.ended || told > 0).then_some(begun)
        };
        (0..).zip(&self.choices).filter_map(&mut begun).collect()
    }

    /// True when the token was the next one of a completion that goes on. One that was told by
    /// an earlier home, or is told again by a new one, is not.
    pub(crate) fn token(&mut self, worker: WorkerId, emitted: Emitted) -> bool {
        if self.home != Some(worker) {
            return false;
        }
        let max_tokens = self.submission.max_tokens;
        let Some(choice) = self.choices.get_mut(emitted.choice as usize) else { return false };
        let tokens = choice.tokens.len();
        if choice.ended || emitted.token_idx as usize != tokens || tokens >= max_tokens as usize {
            return false;
        }
        choice.tokens.push(emitted.token);
        self.mailbox.push(Update::Token(Box::new(Emitted { request: self.request, ..emitted })));
        true
    }

    pub(crate) fn choice_ended(&mut self, choice: u32, eos: bool) {
        if let Some(choice) = self.choices.get_mut(choice as usize) {
            choice.ended = true;
        }
        self.mailbox.push(Update::ChoiceDone { choice, eos });
    }
}
