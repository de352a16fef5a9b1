//! What the records come to: requests under way, and for a while those that have ended. The
//! same records give the same state, on every member and after every restart.

use std::collections::{BTreeMap, BTreeSet};

use aqueduct_core::journal::{
    Accepted, Batch, Completion, Ended, Kept, Outcome, Record, RecordKind, worker_name,
};
use aqueduct_core::{Refusal, RequestId, limits};
use aqueduct_proto::convert::journal::{kept, kept_to_wire};
use aqueduct_proto::v1;
use prost::Message;

use crate::config::Bounds;

/// What all requests under way, with the answers that may come, take at most in a snapshot; the
/// rest is for those that have ended, and for what is written around all of them.
const SNAPSHOT_BYTES_MAX: u64 = limits::PEER_BATCH_BYTES_MAX / 8 * 7;
/// Most bytes of a token, and of each of its alternatives, in memory or in a snapshot.
const TOKEN_BYTES: u64 = 32;
const ALTERNATIVE_BYTES: u64 = 12;

// Whoever asks for no alternatives is bound by what is under way alone.
const _: () = assert!(limits::JOURNAL_LIVE_BYTES_MAX < SNAPSHOT_BYTES_MAX);

/// Why a record changes nothing. Whoever wrote it is told, and no member differs from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// A request of this id was accepted before.
    #[error("a request of this id was accepted before")]
    Known,
    /// A request of this key was.
    #[error("a request of this idempotency key was accepted before")]
    KeyKnown,
    /// It was never accepted, or has been forgotten.
    #[error("no request of this id is kept")]
    Unknown,
    /// The request, or the completion, has ended.
    #[error("it has ended")]
    Over,
    /// Tokens do not follow those that are there.
    #[error("tokens before them are missing")]
    Gap,
    /// Tokens that are there are others: generation was not what it must be, the same bits.
    #[error("tokens differ from those that were written down before")]
    Different,
    /// More completions or tokens than were asked for.
    #[error("it is more than was asked for")]
    Beyond,
    /// The journal keeps no more requests under way.
    #[error("the journal is full")]
    Full,
    /// Its answer may come to more than a journal keeps, whatever else is there.
    #[error("choices * max_tokens is more than a journal keeps with so many logprobs")]
    TooLong,
}

/// The state.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    bounds: Bounds,
    requests: BTreeMap<RequestId, Kept>,
    /// By whose key they were started, and which. One that was cancelled has none any more.
    started: BTreeMap<(String, String), RequestId>,
    /// Ended requests, the oldest first.
    ended: BTreeSet<(u64, RequestId)>,
    /// Names of workers.
    drained: BTreeSet<String>,
    live_bytes: u64,
    /// Most bytes of the answers under way that are told with alternatives.
    promised_bytes: u64,
    ended_bytes: u64,
    /// The latest time that a record was written at.
    clock_ms: u64,
}

impl State {
    /// Before the first record.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            requests: BTreeMap::new(),
            started: BTreeMap::new(),
            ended: BTreeSet::new(),
            drained: BTreeSet::new(),
            live_bytes: 0,
            promised_bytes: 0,
            ended_bytes: 0,
            clock_ms: 0,
        }
    }

    /// What is kept of a request.
    pub fn get(&self, request: RequestId) -> Option<&Kept> {
        self.requests.get(&request)
    }

    /// The request that `holder` started with the key `name`.
    pub fn started(&self, holder: &str, name: &str) -> Option<(RequestId, &Kept)> {
        let request = *self.started.get(&(holder.to_owned(), name.to_owned()))?;
        self.get(request).map(|kept| (request, kept))
    }

    /// Everything that is kept, the oldest request first.
    pub fn iter(&self) -> impl Iterator<Item = (RequestId, &Kept)> {
        self.requests.iter().map(|(request, kept)| (*request, kept))
    }

    /// Requests under way, the oldest first.
    pub fn live(&self) -> impl Iterator<Item = (RequestId, &Kept)> {
        self.iter().filter(|(_, kept)| kept.ended.is_none())
    }

    /// Names of the workers that an operator has drained, ascending.
    pub fn drained(&self) -> impl Iterator<Item = &str> {
        self.drained.iter().map(String::as_str)
    }

    /// The largest id that is kept.
    pub fn last_request(&self) -> Option<RequestId> {
        self.requests.keys().next_back().copied()
    }

    /// The latest time that a record was written at, in milliseconds since 1970; 0: there is none.
    pub fn clock_ms(&self) -> u64 {
        self.clock_ms
    }

    /// About how much memory all of it takes.
    pub fn bytes(&self) -> u64 {
        self.live_bytes + self.ended_bytes
    }

    /// Adds a record.
    ///
    /// # Errors
    /// One that changes nothing because it does not fit. A record that is there already, in
    /// whole or in part, is no error: what was written twice counts once.
    pub fn apply(&mut self, record: Record) -> Result<(), Misfit> {
        let Record { request, at_ms, kind } = record;
        self.clock_ms = self.clock_ms.max(at_ms);
        let applied = match kind {
            RecordKind::Accepted(accepted) => self.accept(request, *accepted),
            RecordKind::Tokens(batch) => self.extend(request, batch),
            RecordKind::ChoiceEnded { choice, eos } => {
                let completion = completion(self.under_way(request)?, choice)?;
                completion.eos.get_or_insert(eos);
                Ok(())
            }
            RecordKind::Ended(outcome) => self.end(request, outcome),
            RecordKind::Drained { worker, draining } => self.drain(worker, draining),
        };
        self.forget();
        applied
    }

    fn under_way(&mut self, request: RequestId) -> Result<&mut Kept, Misfit> {
        let kept = self.requests.get_mut(&request).ok_or(Misfit::Unknown)?;
        if kept.ended.is_some() { Err(Misfit::Over) } else { Ok(kept) }
    }

    fn accept(&mut self, request: RequestId, accepted: Accepted) -> Result<(), Misfit> {
        if self.requests.contains_key(&request) {
            return Err(Misfit::Known);
        }
        let key = start_key(&accepted);
        if key.as_ref().is_some_and(|key| self.started.contains_key(key)) {
            return Err(Misfit::KeyKnown);
        }
        let promised = promised_bytes(&accepted);
        let kept = Kept::new(accepted);
        if kept.bytes() + promised > SNAPSHOT_BYTES_MAX {
            return Err(Misfit::TooLong);
        }
        let (bytes, promised) = (self.live_bytes + kept.bytes(), self.promised_bytes + promised);
        if bytes > self.bounds.live_bytes || bytes + promised > SNAPSHOT_BYTES_MAX {
            return Err(Misfit::Full);
        }
        (self.live_bytes, self.promised_bytes) = (bytes, promised);
        self.started.extend(key.map(|key| (key, request)));
        self.requests.insert(request, kept);
        Ok(())
    }

    fn extend(&mut self, request: RequestId, batch: Batch) -> Result<(), Misfit> {
        let kept = self.under_way(request)?;
        let most = kept.accepted.max_tokens as usize;
        let completion = completion(kept, batch.choice)?;
        let first = batch.first_idx as usize;
        let known = completion.tokens.len().checked_sub(first).ok_or(Misfit::Gap)?;
        let (again, new) = batch.tokens.split_at(known.min(batch.tokens.len()));
        if !again.iter().zip(&completion.tokens[first..]).all(|(a, b)| a == b) {
            return Err(Misfit::Different);
        }
        if !new.is_empty() && completion.eos.is_some() {
            return Err(Misfit::Over);
        }
        if completion.tokens.len() + new.len() > most {
            return Err(Misfit::Beyond);
        }
        completion.tokens.extend_from_slice(new);
        self.live_bytes += new.iter().map(|drawn| drawn.bytes()).sum::<u64>();
        Ok(())
    }

    fn end(&mut self, request: RequestId, outcome: Outcome) -> Result<(), Misfit> {
        let at_ms = self.clock_ms;
        let kept = self.under_way(request)?;
        let (before, promised) = (kept.bytes(), promised_bytes(&kept.accepted));
        kept.accepted.prompt = Vec::new();
        let freed = start_key(&kept.accepted).filter(|_| outcome == Outcome::Cancelled);
        kept.ended = Some(Ended { outcome, at_ms });
        let after = kept.bytes();
        self.live_bytes -= before;
        self.promised_bytes -= promised;
        self.ended_bytes += after;
        self.ended.insert((at_ms, request));
        if let Some(key) = freed {
            self.started.remove(&key);
        }
        Ok(())
    }

    fn drain(&mut self, worker: String, draining: bool) -> Result<(), Misfit> {
        if !draining {
            self.drained.remove(&worker);
        } else if self.drained.contains(&worker) || self.drained.len() < limits::WORKERS_MAX {
            self.drained.insert(worker);
        } else {
            return Err(Misfit::Full);
        }
        Ok(())
    }

    /// What has ended goes when it is old, and where there is too much of it.
    fn forget(&mut self) {
        while let Some(&(at_ms, request)) = self.ended.first() {
            let is_old = self.clock_ms.saturating_sub(at_ms) > self.bounds.ended_ms;
            let too_many = self.ended.len() > self.bounds.ended;
            if !(is_old || too_many || self.ended_bytes > self.bounds.ended_bytes) {
                return;
            }
            self.ended.pop_first();
            let Some(kept) = self.requests.remove(&request) else { continue };
            self.ended_bytes -= kept.bytes();
            let key = start_key(&kept.accepted);
            // One that was cancelled may have a successor of the same key.
            if let Some(key) = key.filter(|key| self.started.get(key) == Some(&request)) {
                self.started.remove(&key);
            }
        }
    }

    /// All of it, to be written down.
    pub fn encode(&self) -> Vec<u8> {
        let requests = self.requests.iter();
        let requests = requests.map(|(request, kept)| kept_to_wire(*request, kept.clone()));
        let drained = self.drained.iter().cloned().collect();
        v1::JournalSnapshot { requests: requests.collect(), clock_ms: self.clock_ms, drained }
            .encode_to_vec()
    }

    /// From what [`encode`](Self::encode) gave.
    ///
    /// # Errors
    /// Something else.
    pub fn decode(bounds: Bounds, bytes: &[u8]) -> Result<Self, Refusal> {
        let undecodable =
            |error: prost::DecodeError| Refusal::new("snapshot", error, "a journal's snapshot");
        let wire = v1::JournalSnapshot::decode(bytes).map_err(undecodable)?;
        let mut state = Self { clock_ms: wire.clock_ms, ..Self::new(bounds) };
        for wire in wire.requests {
            let (request, kept) = kept(wire)?;
            if state.last_request().is_some_and(|last| last >= request) {
                return Err(Refusal::new("snapshot.requests", request, "ascending"));
            }
            match &kept.ended {
                Some(ended) => {
                    state.ended_bytes += kept.bytes();
                    state.ended.insert((ended.at_ms, request));
                }
                None => {
                    state.live_bytes += kept.bytes();
                    state.promised_bytes += promised_bytes(&kept.accepted);
                }
            }
            if !kept.ended.as_ref().is_some_and(|ended| ended.outcome == Outcome::Cancelled) {
                state.started.extend(start_key(&kept.accepted).map(|key| (key, request)));
            }
            state.requests.insert(request, kept);
        }
        let most = limits::WORKERS_MAX;
        Refusal::unless_within("snapshot.drained", wire.drained.len(), 0, most)?;
        state.drained = wire.drained.into_iter().map(worker_name).collect::<Result<_, _>>()?;
        Ok(state)
    }
}

/// Whose, and which.
fn start_key(accepted: &Accepted) -> Option<(String, String)> {
    let once = accepted.telling.once.as_ref()?;
    Some((accepted.telling.holder.clone(), once.name.clone()))
}

/// Most bytes of an answer whose tokens are told with alternatives: each is many times as long as
/// one without. 0 of any other one: few come to what they may come to, and all of them together
/// are no longer than prompts.
fn promised_bytes(accepted: &Accepted) -> u64 {
    match u64::from(accepted.sampling.logprobs.unwrap_or(0)) {
        0 => 0,
        top => {
            let tokens = u64::from(accepted.choices) * u64::from(accepted.max_tokens);
            tokens * (TOKEN_BYTES + ALTERNATIVE_BYTES * top)
        }
    }
}

fn completion(kept: &mut Kept, choice: u32) -> Result<&mut Completion, Misfit> {
    kept.choices.get_mut(choice as usize).ok_or(Misfit::Beyond)
}

#[cfg(test)]
mod tests {
    use aqueduct_core::journal::Drawn;
    use aqueduct_core::work::TokenLogprob;
    use aqueduct_core::{Sampling, StartKey, Telling};

    use super::*;

    fn accepted(prompt_tokens: usize) -> RecordKind {
        let prompt = vec![1; prompt_tokens];
        let accepted = Accepted { choices: 2, max_tokens: 3, ..Accepted::of("m", prompt) };
        RecordKind::Accepted(Box::new(accepted))
    }

    fn tokens(choice: u32, first_idx: u32, tokens: &[u32]) -> RecordKind {
        let logprob = -0.5;
        let drawn = |token: &u32| Drawn {
            token: TokenLogprob { token: *token, logprob },
            top: vec![TokenLogprob { token: 9, logprob }],
        };
        RecordKind::Tokens(Batch { choice, first_idx, tokens: tokens.iter().map(drawn).collect() })
    }

    fn at(state: &mut State, request: u64, at_ms: u64, kind: RecordKind) -> Result<(), Misfit> {
        state.apply(Record { request: RequestId(request), at_ms, kind })
    }

    fn read_again(state: &State) -> State {
        State::decode(state.bounds, &state.encode()).unwrap()
    }

    #[test]
    fn a_record_counts_once_and_only_where_it_fits() {
        let mut state = State::new(Bounds::default());
        let mut check = |kind: RecordKind, want: Result<(), Misfit>| {
            assert_eq!(at(&mut state, 7, 1, kind), want);
            assert_eq!(read_again(&state), state);
        };
        check(tokens(0, 0, &[4]), Err(Misfit::Unknown));
        check(accepted(5), Ok(()));
        check(accepted(5), Err(Misfit::Known));
        check(tokens(1, 0, &[4, 5]), Ok(()));
        check(tokens(1, 0, &[4]), Ok(()));
        check(tokens(1, 1, &[5, 6]), Ok(()));
        check(tokens(1, 0, &[4, 5, 6]), Ok(()));
        check(tokens(1, 2, &[7]), Err(Misfit::Different));
        check(tokens(1, 3, &[7]), Err(Misfit::Beyond));
        check(tokens(0, 1, &[7]), Err(Misfit::Gap));
        check(tokens(2, 0, &[7]), Err(Misfit::Beyond));
        check(RecordKind::ChoiceEnded { choice: 0, eos: true }, Ok(()));
        check(RecordKind::ChoiceEnded { choice: 0, eos: false }, Ok(()));
        check(tokens(0, 0, &[7]), Err(Misfit::Over));
        check(RecordKind::Ended(Outcome::Finished), Ok(()));
        check(RecordKind::Ended(Outcome::Cancelled), Err(Misfit::Over));
        check(tokens(1, 0, &[4]), Err(Misfit::Over));
        let kept = state.get(RequestId(7)).unwrap();
        assert_eq!((kept.accepted.prompt.len(), kept.choices[1].tokens.len()), (0, 3));
        assert_eq!(kept.choices[0].eos, Some(true), "the first word counts");
        assert_eq!(kept.ended, Some(Ended { outcome: Outcome::Finished, at_ms: 1 }));
        assert_eq!((state.live().count(), state.live_bytes), (0, 0));
        assert_eq!(state.ended_bytes, kept.bytes());
    }

    #[test]
    fn what_has_ended_is_forgotten_by_number_by_size_and_by_age() {
        let check = |bounds: Bounds, want: &[u64]| {
            let mut state = State::new(bounds);
            for request in 1..=4 {
                at(&mut state, request, request, accepted(5)).unwrap();
                at(&mut state, request, request * 10, tokens(0, 0, &[1])).unwrap();
                at(&mut state, request, 1, RecordKind::Ended(Outcome::Finished)).unwrap();
            }
            at(&mut state, 5, 1, accepted(5)).unwrap();
            let kept: Vec<_> = state.requests.keys().map(|request| request.0).collect();
            assert_eq!(kept, want);
            assert_eq!(read_again(&state), state);
        };
        let all = Bounds::default();
        check(all, &[1, 2, 3, 4, 5]);
        check(Bounds { ended: 2, ..all }, &[3, 4, 5]);
        check(Bounds { ended_ms: 15, ..all }, &[3, 4, 5]);
        check(Bounds { ended_bytes: 1000, ..all }, &[4, 5]);
        check(Bounds { ended_bytes: 0, ..all }, &[5]);
    }

    #[test]
    fn a_full_journal_takes_no_more_until_something_ends() {
        let mut state = State::new(Bounds { live_bytes: 3100, ..Bounds::default() });
        at(&mut state, 1, 1, accepted(500)).unwrap();
        assert_eq!(at(&mut state, 2, 1, accepted(500)), Err(Misfit::Full));
        at(&mut state, 3, 1, accepted(5)).unwrap();
        at(&mut state, 1, 1, RecordKind::Ended(Outcome::Cancelled)).unwrap();
        at(&mut state, 2, 1, accepted(500)).unwrap();
    }

    #[test]
    fn answers_that_a_snapshot_could_not_hold_are_refused() {
        let answer = |choices: u32, max_tokens: u32, top: u32| {
            let sampling = Sampling { logprobs: Some(top), ..Sampling::greedy() };
            let accepted = Accepted::of("m", vec![1]);
            let accepted = Accepted { choices, max_tokens, sampling, ..accepted };
            RecordKind::Accepted(Box::new(accepted))
        };
        let mut state = State::new(Bounds::default());
        let mut check = |request: u64, kind: RecordKind, want: Result<(), Misfit>| {
            assert_eq!(at(&mut state, request, 1, kind), want);
            assert_eq!(read_again(&state), state);
        };
        check(1, answer(64, 1 << 20, 20), Err(Misfit::TooLong));
        check(1, answer(64, 1 << 20, 0), Ok(()));
        (2..34).for_each(|request| check(request, answer(1, 1 << 17, 20), Ok(())));
        check(34, answer(8, 1 << 20, 20), Err(Misfit::Full));
        (2..34).for_each(|request| check(request, RecordKind::Ended(Outcome::Finished), Ok(())));
        check(34, answer(8, 1 << 20, 20), Ok(()));
    }

    fn keyed(holder: &str, name: &str) -> RecordKind {
        let once = Some(StartKey { name: name.into(), content: [0; 32] });
        let telling = Telling { holder: holder.into(), once, ..Telling::default() };
        RecordKind::Accepted(Box::new(Accepted { telling, ..Accepted::of("m", vec![1]) }))
    }

    #[test]
    fn a_key_starts_one_request() {
        let mut state = State::new(Bounds { ended: 1, ..Bounds::default() });
        let mut check = |request: u64, kind: RecordKind, want: Result<(), Misfit>| {
            assert_eq!(at(&mut state, request, request, kind), want);
            assert_eq!(read_again(&state), state);
            let of = |holder| state.started(holder, "k").map(|(request, _)| request.0);
            (of("alice"), of(""))
        };
        assert_eq!(check(1, keyed("alice", "k"), Ok(())), (Some(1), None));
        assert_eq!(check(2, keyed("alice", "k"), Err(Misfit::KeyKnown)), (Some(1), None));
        assert_eq!(check(2, keyed("", "k"), Ok(())), (Some(1), Some(2)));
        assert_eq!(check(1, RecordKind::Ended(Outcome::Finished), Ok(())), (Some(1), Some(2)));
        assert_eq!(check(3, keyed("alice", "k"), Err(Misfit::KeyKnown)), (Some(1), Some(2)));
        // A cancelled one gives its key back, and takes its successor's along to nowhere.
        assert_eq!(check(2, RecordKind::Ended(Outcome::Cancelled), Ok(())), (None, None));
        assert_eq!(check(4, keyed("", "k"), Ok(())), (None, Some(4)));
        assert_eq!(check(5, keyed("alice", "k"), Ok(())), (Some(5), Some(4)));
        assert_eq!(check(5, RecordKind::Ended(Outcome::Finished), Ok(())), (Some(5), Some(4)));
    }

    #[test]
    fn the_last_word_about_a_worker_counts() {
        let mut state = State::new(Bounds::default());
        let mut check = |worker: String, draining: bool, want: Result<(), Misfit>, count: usize| {
            assert_eq!(at(&mut state, 0, 1, RecordKind::Drained { worker, draining }), want);
            assert_eq!((read_again(&state), state.drained().count()), (state.clone(), count));
        };
        check("a".into(), false, Ok(()), 0);
        check("a".into(), true, Ok(()), 1);
        check("a".into(), true, Ok(()), 1);
        (1..limits::WORKERS_MAX).for_each(|idx| check(idx.to_string(), true, Ok(()), idx + 1));
        check("b".into(), true, Err(Misfit::Full), limits::WORKERS_MAX);
        check("a".into(), false, Ok(()), limits::WORKERS_MAX - 1);
        check("b".into(), true, Ok(()), limits::WORKERS_MAX);
    }

    #[test]
    fn what_is_no_snapshot_is_refused() {
        let mut state = State::new(Bounds::default());
        at(&mut state, 1, 1, accepted(5)).unwrap();
        let bytes = state.encode();
        assert!(State::decode(state.bounds, &bytes[..bytes.len() - 1]).is_err());
        let twice = [bytes.clone(), bytes].concat();
        let refused = State::decode(state.bounds, &twice).unwrap_err();
        assert_eq!(refused.field, "snapshot.requests");
    }
}
