//! Completions at their home: a token of each, all in one batch.

mod hand_over;

use std::cell::RefCell;
use std::sync::Arc;

use aqueduct_core::work::{DecodeSpec, Emitted, Event, FailureKind, Seen, TokenLogprob};
use aqueduct_core::{MemoryPolicy, Refusal, RequestId, TokenId, limits};
use aqueduct_engine::{EngineError, Model, Sampled, Sampler, Sequence, seen};
use aqueduct_grammar::Follower;
use aqueduct_kernels::MemorySet;

use super::Executor;
use super::batch::{self, Continuation, Part};
use super::chunk::ChunkError;
use super::request::{Departure, Home, Left, Memory, Request};
use super::session::SessionId;
use super::sharded::ShardedSequence;
use super::trace;
use crate::gauge::{Charge, Gauge};

/// The completions of one request that are under way.
pub(super) struct Decoding {
    policy: MemoryPolicy,
    /// The prompt's last chunk.
    pub(super) chunk_idx: u32,
    spec: Arc<DecodeSpec>,
    /// Those that are not in a step just now.
    choices: Vec<Choice>,
    /// Those that were ended while they were.
    stopped: Vec<u32>,
    span: tracing::Span,
}

/// What is to be decoded, with its grammar at the beginning.
struct Asked {
    spec: Arc<DecodeSpec>,
    grammar: Option<Follower>,
}

/// One completion.
struct Choice {
    idx: u32,
    sampler: Sampler,
    sequence: Continuation,
    /// Tokens that it had before its request came here, from the next one on.
    begun: std::vec::IntoIter<TokenId>,
    /// `[vocab]`, for the next token.
    logits: Vec<f32>,
    /// Number of its last step among all steps here; 0 before the first.
    stepped: u64,
    charge: Charge,
}

/// A completion that has drawn a token and is to go on from it.
struct Drawn {
    request: RequestId,
    policy: MemoryPolicy,
    token: TokenId,
    choice: Choice,
}

impl Drawn {
    fn part(&mut self) -> Part<'_> {
        let Self { policy, token, choice, .. } = self;
        Part { token: *token, policy, from: &mut choice.sequence }
    }
}

impl Executor {
    /// Starts the completions of a request whose prefill ended here.
    pub(super) fn start_decoding(&mut self, session: SessionId, spec: DecodeSpec) {
        let request = spec.request;
        if let Some(names) = spec.handed_over.clone() {
            return self.take_over(session, spec, names);
        }
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
        self.show_memory(&spec, &home);
        let decoded = match &home.memory {
            Memory::Sharded(home) => Some(home.clone()),
            Memory::Sets(..) => None,
        };
        let spec = Asked { spec: Arc::new(spec), grammar };
        let decoding = Decoding::new(&self.model, home, spec, &self.shared.gauges.home_bytes);
        if let Some(request) = self.requests.get_mut(&request) {
            request.decoding = Some(decoding);
            request.decoded = decoded;
        }
    }

    /// Tells what the prompt left, if somebody wants to see it and reads what is told.
    fn show_memory(&mut self, spec: &DecodeSpec, home: &Home) {
        let Memory::Sets(sets, _) = &home.memory else { return };
        for (layer, set) in (0..).zip(sets).filter(|_| spec.shows) {
            let heads = match seen::remembered(set) {
                Ok(heads) => heads,
                Err(error) => return tracing::warn!(%error, "a memory cannot be shown"),
            };
            let seen = Seen { request: spec.request, token_idx: None, layer, heads };
            self.offer(spec.request, Event::Seen(Box::new(seen)));
        }
    }

    /// Tells what a completion's last step looked at, if somebody wants to see it. It has asked
    /// for room for one token, not for an event a layer.
    fn show_looks(&mut self, request: RequestId, choice: &mut Choice) {
        let Continuation::Sets(sequence) = &mut choice.sequence else { return };
        let token_idx = choice.sampler.token_idx() - 1; // that of the row
        for (layer, heads) in (0..).zip(sequence.take_looks()) {
            if token_idx < limits::LOOKED_TOKENS_MAX {
                let seen = Seen { request, token_idx: Some(token_idx), layer, heads };
                self.offer(request, Event::Seen(Box::new(seen)));
            }
        }
    }

    /// One token for each completion whose session has room for it; how many. If they are more
    /// than a batch may have, those go first that have waited longest.
    pub(super) fn decode_round(&mut self) -> u32 {
        let mut waiting: Vec<_> = self.requests.values().flat_map(Request::waiting).collect();
        waiting.sort_unstable();
        let (mut decoded, mut drawn) = (0, Vec::new());
        for (_, request, idx) in waiting {
            if drawn.len() == self.decode_batch_max {
                break;
            }
            let Some(choice) = self.take_if_room(request, idx) else { continue };
            decoded += 1;
            let goes_on = self.draw(request, choice).and_then(|drawn| self.unless_departing(drawn));
            drawn.extend(goes_on);
        }
        self.step(drawn);
        for request in self.requests.values_mut() {
            request.decoding.take_if(|decoding| decoding.choices.is_empty());
        }
        self.tell_departures();
        decoded
    }

    /// The completion, if its next token can be told at once.
    fn take_if_room(&mut self, request: RequestId, idx: u32) -> Option<Choice> {
        let held = self.requests.get_mut(&request)?;
        let session = self.sessions.get_mut(&held.session)?;
        if !session.outlet.has_room(&self.waker) {
            return None;
        }
        let choices = &mut held.decoding.as_mut()?.choices;
        let at = choices.iter().position(|choice| choice.idx == idx)?;
        Some(choices.swap_remove(at))
    }

    /// Comes to the next token; `None` when the completion has ended.
    fn draw(&mut self, request: RequestId, mut choice: Choice) -> Option<Drawn> {
        let idx = choice.idx;
        let token = match self.next_token(request, &mut choice) {
            Ok(token) => token,
            Err(refusal) => {
                self.fail_decoding(request, refusal.into());
                return None;
            }
        };
        let decoding = self.requests.get(&request)?.decoding.as_ref()?;
        let eos = decoding.spec.eos.contains(&token) || choice.sampler.is_complete();
        if eos || choice.sampler.token_idx() == decoding.spec.max_tokens {
            self.leave(request, choice); // before anybody hears of the end
            self.send(request, Event::ChoiceDone { request, choice: idx, eos });
            return None;
        }
        let policy = decoding.policy;
        let model = self.model.clone();
        match choice.sequence.prepare(&model, &RefCell::new(self)) {
            Ok(()) => Some(Drawn { request, policy, token, choice }),
            Err(error) => {
                self.fail_decoding(request, error);
                None
            }
        }
    }

    /// The token that the completion had here before, or a new one, which is told.
    fn next_token(&mut self, request: RequestId, of: &mut Choice) -> Result<TokenId, Refusal> {
        if let Some(token) = of.begun.next() {
            of.sampler.follow(token)?;
            return Ok(token);
        }
        let (choice, token_idx) = (of.idx, of.sampler.token_idx());
        let Sampled { token: TokenLogprob { token, logprob }, top } =
            of.sampler.draw(&of.logits)?;
        let emitted = Emitted { request, choice, token_idx, token, logprob, top };
        self.send(request, Event::Token(Box::new(emitted)));
        Ok(token)
    }

    /// The memory of a completion that has ended goes, unless somebody may go on from it.
    fn leave(&mut self, request: RequestId, choice: Choice) {
        let Choice { idx, sequence, charge, .. } = choice;
        let Some(held) = self.requests.get_mut(&request) else { return };
        let keeps = held.decoding.as_ref().is_some_and(|decoding| decoding.spec.keeps);
        if let Continuation::Sets(sequence) = sequence
            && keeps
        {
            held.left.push(Left { choice: idx, sequence, _charge: charge });
        }
    }

    /// Computes what the tokens after those that were drawn are drawn from. A request one of
    /// whose completions cannot go on ends; the others go on.
    fn step(&mut self, mut drawn: Vec<Drawn>) {
        if drawn.is_empty() {
            return;
        }
        let mut parts: Vec<_> = drawn.iter_mut().map(Drawn::part).collect();
        let model = self.model.clone();
        let logits = batch::step(&model, &RefCell::new(self), &mut parts);
        for (Drawn { request, mut choice, .. }, logits) in drawn.into_iter().zip(logits) {
            match logits {
                Ok(logits) => {
                    choice.logits = logits;
                    choice.charge.set(choice.sequence.bytes());
                    self.show_looks(request, &mut choice);
                    self.decode_steps += 1;
                    choice.stepped = self.decode_steps;
                    let held = self.requests.get_mut(&request);
                    if let Some(decoding) = held.and_then(|held| held.decoding.as_mut()) {
                        decoding.take_back(choice);
                    }
                }
                Err(error) => self.fail_decoding(request, error),
            }
        }
    }

    /// Whether the request's completions are still wanted.
    pub(super) fn decodes(&self, request: RequestId) -> bool {
        let held = self.requests.get(&request);
        held.is_some_and(|held| held.decoding.is_some()) && !self.stopped()
    }

    /// Ends all completions of a request, once.
    fn fail_decoding(&mut self, request: RequestId, error: EngineError) {
        let held = self.requests.get_mut(&request);
        let Some(decoding) = held.and_then(|held| held.decoding.take()) else { return };
        let error = ChunkError::from(error);
        trace::failed(&decoding.span, &error);
        if self.ends_with(&error) {
            return;
        }
        let (kind, message) = (error.kind(), error.to_string());
        tracing::warn!(%request, message, "decode failed");
        self.send(request, Event::DecodeFailed { request, kind, message });
    }
}

impl Request {
    /// Ends one completion without a word.
    pub(super) fn stop_choice(&mut self, idx: u32) {
        if let Some(decoding) = &mut self.decoding {
            decoding.choices.retain(|choice| choice.idx != idx);
            decoding.stopped.push(idx);
        }
        if let Some(Departure { names, .. }) = &self.departure {
            self.outbox.remove(&names.key(RequestId(0), idx).chunk_idx);
        }
    }

    /// Its completions, each behind the number of its last step.
    fn waiting(&self) -> impl Iterator<Item = (u64, RequestId, u32)> {
        self.decoding.iter().flat_map(|decoding| {
            let request = decoding.spec.request;
            decoding.choices.iter().map(move |choice| (choice.stepped, request, choice.idx))
        })
    }
}

impl Decoding {
    /// All completions share the prompt's memory until each changes its own.
    fn new(model: &Model, home: Home, asked: Asked, gauge: &Gauge) -> Self {
        let Asked { spec, grammar } = asked;
        let choice = |idx: u32| {
            let begun = spec.begun(idx).cloned().unwrap_or_default();
            if begun.ended {
                return None;
            }
            let sequence = match &home.memory {
                Memory::Sets(sets, leaves) => {
                    let mut sequence = Sequence::new(model, sets.clone(), *leaves);
                    if spec.shows && idx == 0 {
                        sequence.watch();
                    }
                    if spec.keeps {
                        sequence.keep();
                    }
                    Continuation::Sets(sequence)
                }
                Memory::Sharded(home) => {
                    let spec = (spec.choices, spec.gathers);
                    Continuation::Sharded(ShardedSequence::new(home.clone(), idx, spec))
                }
            };
            Some(Choice {
                idx,
                sampler: Sampler::new(spec.clone(), idx, grammar.clone()),
                charge: gauge.charge(sequence.bytes()),
                sequence,
                begun: begun.tokens.into_iter(),
                logits: home.logits.clone(),
                stepped: 0,
            })
        };
        let choices = (0..spec.choices).filter_map(choice).collect();
        let (policy, chunk_idx) = (home.policy, home.chunk_idx);
        let span = trace::decoding(&spec);
        Self { policy, chunk_idx, spec, choices, stopped: Vec::new(), span }
    }

    /// Takes a completion that has done a step.
    fn take_back(&mut self, choice: Choice) {
        if !self.stopped.contains(&choice.idx) {
            self.choices.push(choice);
        }
    }

    /// What a completion remembers, which is not in a step; `None` within if that is in shards.
    pub(super) fn remembers(&self, idx: u32) -> Option<Option<&[Arc<MemorySet>]>> {
        let choice = self.choices.iter().find(|choice| choice.idx == idx)?;
        Some(match &choice.sequence {
            Continuation::Sets(sequence) => Some(sequence.memory()),
            Continuation::Sharded(_) => None,
        })
    }

    /// Whether its steps need nothing of other workers.
    pub(super) fn is_here(&self) -> bool {
        self.choices.iter().all(|choice| choice.sequence.is_here())
    }
}
