//! Completions at their home.

use std::sync::Arc;

use aqueduct_core::work::{DecodeSpec, Emitted, Event, FailureKind};
use aqueduct_core::{MemoryPolicy, TokenId};
use aqueduct_engine::{EngineError, Sampler, Sequence};

use super::{Alarm, Held, Worker};

/// A step takes about so long.
const STEP_US: u64 = 5_000;

/// The completions of a request.
pub(super) struct Decoding {
    spec: Arc<DecodeSpec>,
    policy: MemoryPolicy,
    choices: Vec<Choice>,
}

struct Choice {
    idx: u32,
    sampler: Sampler,
    sequence: Sequence,
    logits: Vec<f32>,
    /// Tokens that it had elsewhere.
    begun: std::vec::IntoIter<TokenId>,
}

impl Held {
    /// Ends one completion without a word.
    pub(super) fn stop_choice(&mut self, idx: u32) {
        if let Some(decoding) = &mut self.decoding {
            decoding.choices.retain(|choice| choice.idx != idx);
        }
    }
}

impl Worker {
    pub(super) fn start_decoding(&mut self, session: u64, spec: DecodeSpec) {
        let (request, model) = (spec.request, self.model.clone());
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
                sequence: Sequence::new(&model, home.memory.clone()),
                logits: home.logits.clone(),
                begun: begun.tokens.into_iter(),
            })
        };
        let choices = (0..spec.choices).filter_map(choice).collect();
        held.decoding = Some(Decoding { policy: home.policy, choices, spec });
        self.expect_round();
    }

    fn expect_round(&mut self) {
        if !std::mem::replace(&mut self.round_is_due, true) {
            self.wake_after(STEP_US, Alarm::Round);
        }
    }

    /// One token for each completion.
    pub(super) fn decode_round(&mut self) {
        self.round_is_due = false;
        let mut requests = std::mem::take(&mut self.requests);
        let mut goes_on = false;
        for (&request, held) in &mut requests {
            let Some(mut decoding) = held.decoding.take() else { continue };
            let choices = std::mem::take(&mut decoding.choices);
            for choice in choices {
                match self.step(held.session, &decoding, choice) {
                    Ok(choice) => decoding.choices.extend(choice),
                    Err(error) => {
                        let (kind, message) = (FailureKind::Internal, error.to_string());
                        self.say(held.session, Event::DecodeFailed { request, kind, message });
                    }
                }
            }
            if !decoding.choices.is_empty() {
                goes_on = true;
                held.decoding = Some(decoding);
            }
        }
        self.requests = requests;
        if goes_on {
            self.expect_round();
        }
    }

    /// Draws and tells a token; `None` when the completion has ended.
    fn step(
        &mut self,
        session: u64,
        Decoding { spec, policy, .. }: &Decoding,
        mut choice: Choice,
    ) -> Result<Option<Choice>, EngineError> {
        let (request, idx) = (spec.request, choice.idx);
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
        choice.logits = choice.sequence.step(&self.model, token, policy)?;
        Ok(Some(choice))
    }
}
