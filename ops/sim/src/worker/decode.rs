//! Completions at their home.

use std::sync::Arc;

use aqueduct_core::work::{DecodeSpec, Emitted, Event, FailureKind};
use aqueduct_core::{MemoryPolicy, TokenId};
use aqueduct_engine::{EngineError, Model, Sampler, Sequence};

use super::{Alarm, Held, Worker, kind_of};
use crate::shards::{ShardedSequence, Ways};

/// A step takes about so long.
const STEP_US: u64 = 5_000;

/// The completions of a request.
pub(super) struct Decoding {
    pub(super) spec: Arc<DecodeSpec>,
    pub(super) policy: MemoryPolicy,
    /// The prompt's last chunk.
    pub(super) chunk_idx: u32,
    pub(super) choices: Vec<Choice>,
}

pub(super) struct Choice {
    pub(super) idx: u32,
    pub(super) sampler: Sampler,
    pub(super) sequence: Continuation,
    pub(super) logits: Vec<f32>,
    /// Tokens that it had elsewhere.
    pub(super) begun: std::vec::IntoIter<TokenId>,
}

/// What a completion goes on from.
pub(crate) enum Continuation {
    /// Memory sets of its own.
    Sets(Sequence),
    /// The prompt's shards, and its own.
    Shards(ShardedSequence),
}

impl Continuation {
    /// Appends `token` and returns the logits of the one after it, `[vocab]`.
    ///
    /// # Errors
    /// A holder that is out of reach, or what the backend refuses.
    pub(crate) fn step(
        &mut self,
        model: &Model,
        ways: &Ways,
        token: TokenId,
        policy: &MemoryPolicy,
    ) -> Result<Vec<f32>, EngineError> {
        match self {
            Self::Sets(sequence) => sequence.step(model, token, policy),
            Self::Shards(sequence) => sequence.step(model, ways, token, policy),
        }
    }
}

impl Held {
    /// Ends all completions, if they go on from chunk `chunk_idx`; whether they did.
    pub(super) fn stop_decoding(&mut self, chunk_idx: u32) -> bool {
        self.decoding.take_if(|decoding| decoding.chunk_idx == chunk_idx).is_some()
    }

    /// Ends one completion without a word.
    pub(super) fn stop_choice(&mut self, idx: u32) {
        if let Some(decoding) = &mut self.decoding {
            decoding.choices.retain(|choice| choice.idx != idx);
        }
        if let Some((_, last)) = self.departure {
            self.outbox.remove(&(last + 1 + idx));
        }
    }
}

impl Worker {
    pub(super) fn start_decoding(&mut self, session: u64, spec: DecodeSpec) {
        if let Some(names) = spec.handed_over.clone() {
            return self.take_over(session, spec, names);
        }
        let (request, model, here) = (spec.request, self.model.clone(), self.here);
        let held = self.owned(session, request);
        let Some((held, home)) = held.and_then(|held| held.home.take().map(|home| (held, home)))
        else {
            let (kind, message) = (FailureKind::Invalid, "no finished prefill".to_owned());
            return self.say(session, Event::DecodeFailed { request, kind, message });
        };
        let spec = Arc::new(spec);
        let choice = |idx| {
            let begun = spec.begun(idx).cloned().unwrap_or_default();
            (!begun.ended).then(|| Choice {
                idx,
                sampler: Sampler::new(spec.clone(), idx, None),
                sequence: home.memory.begin(&model, here, idx),
                logits: home.logits.clone(),
                begun: begun.tokens.into_iter(),
            })
        };
        let choices = (0..spec.choices).filter_map(choice).collect();
        let (policy, chunk_idx) = (home.policy, home.chunk_idx);
        held.decoding = Some(Decoding { policy, chunk_idx, choices, spec });
        self.expect_round();
    }

    pub(super) fn expect_round(&mut self) {
        if !std::mem::replace(&mut self.round_is_due, true) {
            self.wake_after(STEP_US, Alarm::Round);
        }
    }

    /// One token for each completion.
    pub(super) fn decode_round(&mut self, now: u64) {
        self.round_is_due = false;
        let mut requests = std::mem::take(&mut self.requests);
        let mut goes_on = false;
        for (&request, held) in &mut requests {
            let Some(mut decoding) = held.decoding.take() else { continue };
            let choices = std::mem::take(&mut decoding.choices);
            for choice in choices {
                match self.step(held, &decoding, choice) {
                    Ok(choice) => decoding.choices.extend(choice),
                    Err(error) => {
                        decoding.choices.clear();
                        let (kind, message) = (kind_of(&error), error.to_string());
                        self.say(held.session, Event::DecodeFailed { request, kind, message });
                        break;
                    }
                }
            }
            if !decoding.choices.is_empty() {
                goes_on = true;
                held.decoding = Some(decoding);
            }
        }
        self.requests = requests;
        self.send_departing(now);
        if goes_on {
            self.expect_round();
        }
    }

    /// Draws and tells a token; `None` when the completion has ended.
    fn step(
        &mut self,
        held: &mut Held,
        Decoding { spec, policy, .. }: &Decoding,
        mut choice: Choice,
    ) -> Result<Option<Choice>, EngineError> {
        let (request, idx, session) = (spec.request, choice.idx, held.session);
        let token = match choice.begun.next() {
            Some(token) => {
                choice.sampler.follow(token)?;
                token
            }
            None => {
                let token_idx = choice.sampler.token_idx();
                let drawn = choice.sampler.draw(&choice.logits)?;
                let (token, logprob, top) = (drawn.token.token, drawn.token.logprob, drawn.top);
                let emitted = Emitted { request, choice: idx, token_idx, token, logprob, top };
                self.say(session, Event::Token(Box::new(emitted)));
                token
            }
        };
        let eos = spec.eos.contains(&token);
        if eos || choice.sampler.token_idx() == spec.max_tokens {
            self.say(session, Event::ChoiceDone { request, choice: idx, eos });
            return Ok(None);
        }
        if held.takes_away(&choice) {
            return Ok(None);
        }
        choice.logits = choice.sequence.step(&self.model, &self.ways, token, policy)?;
        Ok(Some(choice))
    }
}
