//! Completions at their home: a token at a time, in turn.

use std::sync::Arc;
use std::task::Waker;

use aqueduct_core::work::{DecodeSpec, Emitted, Event, FailureKind};
use aqueduct_core::{MemoryPolicy, TokenId};
use aqueduct_engine::{EngineError, Model, Sampler, Sequence};
use aqueduct_grammar::Follower;

use super::Executor;
use super::chunk::ChunkError;
use super::request::{Home, Memory, Request};
use super::session::{Outlet, SessionId};
use super::sharded::{Exchange, ShardedSequence};
use crate::gauge::{Charge, Gauge};

/// The completions of one request that are under way.
pub(super) struct Decoding {
    policy: MemoryPolicy,
    spec: Arc<DecodeSpec>,
    choices: Vec<Choice>,
}

/// What is to be decoded, with its grammar at the beginning.
struct Asked {
    spec: Arc<DecodeSpec>,
    grammar: Option<Follower>,
}

/// What a completion goes on from.
enum Continuation {
    /// Memory sets of its own, here.
    Sets(Sequence),
    /// The prompt's shards, and its own.
    Sharded(ShardedSequence),
}

impl Continuation {
    fn bytes(&self) -> u64 {
        match self {
            Self::Sets(sequence) => sequence.bytes(),
            Self::Sharded(_) => 0, // the store counts them
        }
    }

    fn step(
        &mut self,
        token: TokenId,
        policy: &MemoryPolicy,
        (model, exchange): (&Model, &mut Exchange),
    ) -> Result<Vec<f32>, EngineError> {
        match self {
            Self::Sets(sequence) => sequence.step(model, token, policy),
            Self::Sharded(sequence) => sequence.step(model, token, exchange),
        }
    }
}

/// One completion.
struct Choice {
    idx: u32,
    sampler: Sampler,
    sequence: Continuation,
    /// `[vocab]`, for the next token.
    logits: Vec<f32>,
    charge: Charge,
}

impl Executor {
    /// Starts the completions of a request whose prefill ended here.
    pub(super) fn start_decoding(&mut self, session: SessionId, spec: DecodeSpec) {
        let request = spec.request;
        let home = self.owned(session, request).and_then(|request| request.home.take());
        let Some(home) = home else {
            let message = "no finished prefill of this request is held here".to_owned();
            let kind = FailureKind::Invalid;
            self.send_to(session, Event::DecodeFailed { request, kind, message });
            return;
        };
        let grammar = match self.grammars.begin(spec.constraint.as_ref()) {
            Ok(grammar) => grammar,
            Err(refusal) => {
                let (kind, message) = (FailureKind::Invalid, refusal.to_string());
                self.send_to(session, Event::DecodeFailed { request, kind, message });
                return;
            }
        };
        let spec = Asked { spec: Arc::new(spec), grammar };
        let decoding = Decoding::new(&self.model, home, spec, &self.shared.gauges.home_bytes);
        if let Some(request) = self.requests.get_mut(&request) {
            request.decoding = Some(decoding);
        }
    }

    /// One token for each completion whose session has room for it; how many.
    pub(super) fn decode_round(&mut self) -> u32 {
        let Self { model, requests, sessions, waker, exchange, .. } = self;
        let mut decoded = 0;
        for request in requests.values_mut() {
            let Some(decoding) = &mut request.decoding else { continue };
            let Some(session) = sessions.get_mut(&request.session) else { continue };
            decoded += decoding.round((model, exchange), &mut session.outlet, waker);
            if decoding.choices.is_empty() {
                request.decoding = None;
            }
        }
        decoded
    }
}

impl Request {
    /// Ends one completion without a word.
    pub(super) fn stop_choice(&mut self, idx: u32) {
        if let Some(decoding) = &mut self.decoding {
            decoding.choices.retain(|choice| choice.idx != idx);
        }
    }
}

impl Decoding {
    /// All completions share the prompt's memory until each changes its own.
    fn new(model: &Model, home: Home, asked: Asked, gauge: &Gauge) -> Self {
        let Asked { spec, grammar } = asked;
        let choice = |idx: u32| {
            let sequence = match &home.memory {
                Memory::Sets(sets) => Continuation::Sets(Sequence::new(model, sets.clone())),
                Memory::Sharded(home) => {
                    Continuation::Sharded(ShardedSequence::new(home.clone(), idx))
                }
            };
            Choice {
                idx,
                sampler: Sampler::new(spec.clone(), idx, grammar.clone()),
                charge: gauge.charge(sequence.bytes()),
                sequence,
                logits: home.logits.clone(),
            }
        };
        let choices = (0..spec.choices).map(choice).collect();
        Self { policy: home.policy, spec, choices }
    }

    /// Whether its steps need nothing of other workers.
    pub(super) fn is_here(&self) -> bool {
        self.choices.iter().all(|choice| matches!(choice.sequence, Continuation::Sets(_)))
    }

    fn round(
        &mut self,
        (model, exchange): (&Model, &mut Exchange),
        outlet: &mut Outlet,
        waker: &Waker,
    ) -> u32 {
        let mut decoded = 0;
        for choice in std::mem::take(&mut self.choices) {
            if !outlet.has_room(waker) {
                self.choices.push(choice);
                continue;
            }
            decoded += 1;
            match self.step((model, exchange), choice, |event| outlet.send(event, waker)) {
                Ok(next) => self.choices.extend(next),
                Err(error) => {
                    let error = ChunkError::from(error);
                    let (kind, message) = (error.kind(), error.to_string());
                    tracing::warn!(request = %self.spec.request, message, "decode failed");
                    outlet.send(
                        Event::DecodeFailed { request: self.spec.request, kind, message },
                        waker,
                    );
                    self.choices.clear();
                    break;
                }
            }
        }
        decoded
    }

    /// Draws and tells a token, then computes what the one after it is drawn from; `None` when
    /// the completion has ended.
    fn step(
        &self,
        with: (&Model, &mut Exchange),
        mut choice: Choice,
        mut send: impl FnMut(Event),
    ) -> Result<Option<Choice>, EngineError> {
        let DecodeSpec { request, max_tokens, ref eos, .. } = *self.spec;
        let (idx, token_idx) = (choice.idx, choice.sampler.token_idx());
        let drawn = choice.sampler.draw(&choice.logits)?;
        let token = drawn.token.token;
        send(Event::Token(Box::new(Emitted {
            request,
            choice: idx,
            token_idx,
            token,
            logprob: drawn.token.logprob,
            top: drawn.top,
        })));
        let eos = eos.contains(&token) || choice.sampler.is_complete();
        if eos || choice.sampler.token_idx() == max_tokens {
            drop(choice); // its memory goes before anybody hears of the end
            send(Event::ChoiceDone { request, choice: idx, eos });
            return Ok(None);
        }
        choice.logits = choice.sequence.step(token, &self.policy, with)?;
        choice.charge.set(choice.sequence.bytes());
        Ok(Some(choice))
    }
}
