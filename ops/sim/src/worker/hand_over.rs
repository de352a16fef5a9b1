//! Completions that go from one home to another, by the rules of a worker's executor.

use std::sync::Arc;

use aqueduct_core::work::{DecodeSpec, Event, FailureKind, HandedOver, NextHop};
use aqueduct_core::{ChunkKey, RequestId};
use aqueduct_engine::{Sampler, Sequence};
use aqueduct_kernels::Leaves;

use super::decode::{Choice, Continuation, Decoding};
use super::handoff::Outgoing;
use super::{Held, Worker};

impl Held {
    /// Whether the completion, which has drawn a token, goes to another worker with that.
    pub(super) fn takes_away(&mut self, choice: &Choice) -> bool {
        let Some((next, last)) = &self.departure else { return false };
        let Continuation::Sets(sequence) = &choice.sequence else { return false };
        let mut outgoing = Outgoing::new(next.clone());
        outgoing.sets = sequence.memory().to_vec();
        self.outbox.insert(last + 1 + choice.idx, outgoing);
        true
    }

    /// Nothing of it goes to another worker any more.
    pub(super) fn stay(&mut self) {
        if let Some((_, last)) = self.departure.take() {
            self.outbox.retain(|chunk_idx, _| *chunk_idx <= last);
        }
    }

    /// Chunks under whose names its completions are under way.
    fn departing(&self) -> impl Iterator<Item = u32> {
        let last = self.departure.as_ref().map_or(u32::MAX, |(_, last)| *last);
        self.outbox.keys().copied().filter(move |chunk_idx| *chunk_idx > last)
    }
}

impl Worker {
    /// Has the completions of a request go to `next`, each with its next token.
    pub(super) fn hand_over(&mut self, session: u64, request: RequestId, next: NextHop) {
        if let Some(held) = self.owned(session, request)
            && let Some(decoding) = &held.decoding
        {
            held.departure = Some((next, decoding.chunk_idx));
        }
    }

    /// Sends what has been taken away, and says what has gone.
    pub(super) fn send_departing(&mut self, now: u64) {
        let departing = self.requests.iter().filter(|(_, held)| held.departure.is_some());
        for request in departing.map(|(request, _)| *request).collect::<Vec<_>>() {
            let held = &self.requests[&request];
            let new = |idx: &u32| held.outbox[idx].is_new();
            for chunk_idx in held.departing().filter(new).collect::<Vec<_>>() {
                let epoch = self.requests[&request].outbox[&chunk_idx].next.epoch;
                self.send(now, ChunkKey { request, chunk_idx, epoch });
            }
            self.tell_departure(request);
        }
    }

    pub(super) fn departs(&self, key: ChunkKey) -> bool {
        let held = self.requests.get(&key.request);
        held.is_some_and(|held| held.departing().any(|chunk_idx| chunk_idx == key.chunk_idx))
    }

    /// A set has arrived, perhaps the last one of a completion.
    pub(super) fn arrived(&mut self, key: ChunkKey, is_whole: bool) {
        if is_whole
            && self.departs(key)
            && let Some(held) = self.requests.get_mut(&key.request)
        {
            held.outbox.remove(&key.chunk_idx);
            self.tell_departure(key.request);
        }
    }

    /// Says so if all completions of the request have gone.
    pub(super) fn tell_departure(&mut self, request: RequestId) {
        let Some(held) = self.requests.get_mut(&request) else { return };
        let is_under_way = held.decoding.is_some() || held.departing().next().is_some();
        if held.departure.is_some() && !is_under_way {
            held.departure = None;
            let session = held.session;
            self.say(session, Event::HandedOver { request });
        }
    }

    pub(super) fn departure_failed(&mut self, request: RequestId) {
        let Some(held) = self.requests.get_mut(&request) else { return };
        held.decoding = None;
        held.stay();
        let (session, kind) = (held.session, FailureKind::Peer);
        let message = "out of reach".to_owned();
        self.say(session, Event::DecodeFailed { request, kind, message });
    }

    /// Goes on with completions that have come from their last home.
    pub(super) fn take_over(&mut self, session: u64, spec: DecodeSpec, names: HandedOver) {
        let request = spec.request;
        let held = self.requests.get(&request);
        let is_other = held.is_some_and(|held| held.session != session);
        match self.all_that_came(spec, &names).filter(|_| !is_other) {
            Some(decoding) => {
                let held = self.requests.entry(request).or_insert_with(|| Held::new(session));
                held.decoding = Some(decoding);
                self.expect_round();
            }
            None => {
                let (kind, message) = (FailureKind::Peer, "it has not come".to_owned());
                self.say(session, Event::DecodeFailed { request, kind, message });
            }
        }
    }

    fn all_that_came(&mut self, spec: DecodeSpec, names: &HandedOver) -> Option<Decoding> {
        let (spec, model) = (Arc::new(spec), self.model.clone());
        let mut choices = Vec::new();
        for idx in 0..spec.choices {
            let begun = spec.begun(idx).cloned().unwrap_or_default();
            if begun.ended {
                continue;
            }
            let key = names.key(spec.request, idx);
            let Some(sets) = self.inbox.take(key, model.memory_layers()) else {
                self.check_promises(key);
                return None;
            };
            self.inbox.finish(key);
            let leaves = Leaves::of_chunks(names.chunk_tokens);
            let leaves = leaves.going_on_behind(names.prompt_tokens);
            let sequence = Sequence::new(&model, sets, leaves);
            let computed = sequence.position().checked_sub(names.prompt_tokens)? as usize;
            let (known, rest) = begun.tokens.split_at_checked(computed)?;
            let mut sampler = Sampler::new(spec.clone(), idx, None);
            known.iter().try_for_each(|token| sampler.follow(*token)).ok()?;
            let (begun, logits) = (Vec::from(rest).into_iter(), Vec::new());
            let sequence = Continuation::Sets(sequence);
            choices.push(Choice { idx, sampler, sequence, logits, begun });
        }
        let (policy, chunk_idx) = (names.policy, names.chunk_idx);
        Some(Decoding { spec, policy, chunk_idx, choices })
    }
}
