//! Completions that go to another worker, because this one is to be left, and those that come.
//!
//! A completion goes after it has drawn a token and before that is computed: then its memory sets
//! are all that it needs, for tokens, sampler and grammar follow from what its coordinator has.

use std::sync::Arc;

use aqueduct_core::work::{DecodeSpec, Event, FailureKind, HandedOver, NextHop};
use aqueduct_core::{ChunkKey, Refusal, RequestId, TokenId, WireDtype};
use aqueduct_engine::{Sampler, Sequence};
use aqueduct_grammar::Follower;
use aqueduct_kernels::{Leaves, MemorySet};

use super::super::Executor;
use super::super::batch::Continuation;
use super::super::request::{Departure, Kept, Outgoing, Request};
use super::super::session::SessionId;
use super::super::trace;
use super::{Choice, Decoding, Drawn};

/// Why completions cannot go on here.
#[derive(Debug, thiserror::Error)]
enum Missing {
    #[error("the memory of completion {choice} has not come")]
    Sets { choice: u32 },
    #[error("completion {choice}: {refusal}")]
    Unfit { choice: u32, refusal: Refusal },
    #[error("the memory of completion {choice}: {message}")]
    Memory { choice: u32, message: String },
}

impl Executor {
    /// Has the completions of a request go to `next`, each with its next token.
    pub(in super::super) fn hand_over(
        &mut self,
        session: SessionId,
        request: RequestId,
        next: NextHop,
    ) {
        let Some(held) = self.owned(session, request) else { return };
        // What has ended, or failed, was told before this was read.
        let Some(decoding) = held.decoding.as_ref().filter(|decoding| decoding.is_here()) else {
            return;
        };
        let names = HandedOver {
            chunk_idx: decoding.chunk_idx,
            epoch: next.epoch,
            prompt_tokens: 0,
            policy: decoding.policy,
            chunk_tokens: 0,
        };
        held.departure = Some(Departure { next, names });
    }

    /// The completion, unless its request goes to another worker: then so does what it remembers.
    pub(super) fn unless_departing(&mut self, drawn: Drawn) -> Option<Drawn> {
        let held = self.requests.get_mut(&drawn.request)?;
        let Some(Departure { next, names }) = &held.departure else { return Some(drawn) };
        let Continuation::Sets(sequence) = &drawn.choice.sequence else { return Some(drawn) };
        let key = names.key(drawn.request, drawn.choice.idx);
        let mut outgoing = Outgoing::new(next.clone(), WireDtype::F32);
        for (layer, set) in (0..).zip(sequence.memory()) {
            let charge = self.shared.gauges.outbox_bytes.charge(set.bytes() as u64);
            let entry = self.shared.ledger.enter(key, layer, set);
            outgoing.sets.push(Kept::new(set.clone(), charge, entry));
        }
        held.outbox.insert(key.chunk_idx, outgoing);
        self.pump();
        None
    }

    /// Whether `key` names what a completion remembers that goes to another worker.
    pub(in super::super) fn departs(&self, key: ChunkKey) -> bool {
        let held = self.requests.get(&key.request);
        held.is_some_and(|held| held.departs(key))
    }

    /// A set has arrived.
    pub(in super::super) fn arrived(&mut self, key: ChunkKey) {
        if !self.departs(key) {
            return;
        }
        let Some(held) = self.requests.get_mut(&key.request) else { return };
        if let Some(outgoing) = held.outbox.get_mut(&key.chunk_idx) {
            outgoing.arrived += 1;
            if outgoing.arrived == outgoing.sets.len() {
                held.outbox.remove(&key.chunk_idx);
                self.tell_departure(key.request);
            }
        }
    }

    /// Says of every request whether all of it has gone.
    pub(super) fn tell_departures(&mut self) {
        let departing = self.requests.iter().filter(|(_, held)| held.departure.is_some());
        for request in departing.map(|(request, _)| *request).collect::<Vec<_>>() {
            self.tell_departure(request);
        }
    }

    /// Says so if all completions of the request have gone.
    pub(in super::super) fn tell_departure(&mut self, request: RequestId) {
        let Some(held) = self.requests.get_mut(&request) else { return };
        if held.departure.is_some() && held.has_gone() {
            held.departure = None;
            self.send(request, Event::HandedOver { request });
        }
    }

    /// Some of it does not arrive: what went can be made again where the request goes on.
    pub(in super::super) fn departure_failed(&mut self, request: RequestId, message: String) {
        let Some(held) = self.requests.get_mut(&request) else { return };
        tracing::warn!(%request, message, "completions could not go to another worker");
        held.decoding = None;
        held.stay();
        let kind = FailureKind::Peer;
        self.send(request, Event::DecodeFailed { request, kind, message });
    }

    /// Goes on with completions that have come from their last home.
    pub(super) fn take_over(&mut self, session: SessionId, spec: DecodeSpec, names: HandedOver) {
        let request = spec.request;
        let known = self.admissible(session, names.key(request, 0));
        let taken = known.and_then(|()| {
            let missing = |missing: Missing| (FailureKind::Peer, missing.to_string());
            let grammar = self.grammars.begin(spec.constraint.as_ref());
            let grammar = grammar.map_err(|refusal| (FailureKind::Invalid, refusal.to_string()))?;
            self.all_that_came(Arc::new(spec), &names, grammar).map_err(missing)
        });
        match taken {
            Ok(decoding) => self.request_of(session, request).decoding = Some(decoding),
            Err((kind, message)) => {
                tracing::warn!(%request, message, "completions that came cannot go on");
                self.send_to(session, Event::DecodeFailed { request, kind, message });
            }
        }
    }

    fn all_that_came(
        &self,
        spec: Arc<DecodeSpec>,
        names: &HandedOver,
        grammar: Option<Follower>,
    ) -> Result<Decoding, Missing> {
        let mut choices = Vec::new();
        for idx in 0..spec.choices {
            let begun = spec.begun(idx).cloned().unwrap_or_default();
            if !begun.ended {
                let sampler = Sampler::new(spec.clone(), idx, grammar.clone());
                let sets = self.sets_that_came(names.key(spec.request, idx), idx)?;
                let mut choice = self.goes_on(idx, sets, (sampler, begun.tokens), names)?;
                if let Continuation::Sets(sequence) = &mut choice.sequence {
                    if spec.shows && idx == 0 {
                        sequence.watch();
                    }
                    if spec.keeps {
                        sequence.keep();
                    }
                }
                choices.push(choice);
            }
        }
        let (policy, chunk_idx, stopped) = (names.policy, names.chunk_idx, Vec::new());
        let span = trace::decoding(&spec);
        Ok(Decoding { policy, chunk_idx, spec, choices, stopped, span })
    }

    /// The sets of all layers, in this worker's pool.
    fn sets_that_came(&self, key: ChunkKey, choice: u32) -> Result<Vec<Arc<MemorySet>>, Missing> {
        let layers = 0..self.model.memory_layers() as u32;
        let taken = layers.map(|layer| {
            let set = self.shared.inbox.take(key, layer).ok_or(Missing::Sets { choice })?;
            let memory = |error: aqueduct_kernels::BackendError| Missing::Memory {
                choice,
                message: error.to_string(),
            };
            self.put_in_pool(set).map_err(memory)
        });
        let taken = taken.collect();
        self.shared.inbox.close(key);
        taken
    }

    /// A completion that has computed as many of its tokens as its memory knows of.
    fn goes_on(
        &self,
        idx: u32,
        sets: Vec<Arc<MemorySet>>,
        (mut sampler, tokens): (Sampler, Vec<TokenId>),
        names: &HandedOver,
    ) -> Result<Choice, Missing> {
        let unfit = |refusal| Missing::Unfit { choice: idx, refusal };
        let leaves = Leaves::of_chunks(names.chunk_tokens).going_on_behind(names.prompt_tokens);
        let sequence = Sequence::new(&self.model, sets, leaves);
        let computed = sequence.position().wrapping_sub(names.prompt_tokens) as usize;
        // Who has none yet has logits to draw the first one from, and those are not handed over.
        let count = tokens.len();
        Refusal::unless_within("tokens", count, 1, count.max(1)).map_err(unfit)?;
        let most = count - 1;
        let computed = Refusal::unless_within("tokens computed", computed, 0, most);
        let (known, begun) = tokens.split_at(computed.map_err(unfit)?);
        for token in known {
            sampler.follow(*token).map_err(unfit)?;
        }
        let sequence = Continuation::Sets(sequence);
        Ok(Choice {
            idx,
            sampler,
            charge: self.shared.gauges.home_bytes.charge(sequence.bytes()),
            sequence,
            begun: Vec::from(begun).into_iter(),
            logits: Vec::new(), // the next token is there
            stepped: 0,
        })
    }
}

impl Request {
    fn departs(&self, key: ChunkKey) -> bool {
        let epoch = self.outbox.get(&key.chunk_idx).map(|outgoing| outgoing.next.epoch);
        let is_of = |names: &HandedOver| {
            key.chunk_idx > names.chunk_idx && key.epoch == names.epoch && epoch == Some(key.epoch)
        };
        self.departure.as_ref().is_some_and(|departure| is_of(&departure.names))
    }

    fn has_gone(&self) -> bool {
        let last = self.departure.as_ref().map_or(u32::MAX, |departure| departure.names.chunk_idx);
        let is_under_way = self.outbox.keys().any(|chunk_idx| *chunk_idx > last);
        self.decoding.is_none() && !is_under_way
    }

    /// Nothing of it goes to another worker any more.
    pub(in super::super) fn stay(&mut self) {
        if let Some(Departure { names, .. }) = self.departure.take() {
            self.outbox.retain(|chunk_idx, _| *chunk_idx <= names.chunk_idx);
        }
    }
}
