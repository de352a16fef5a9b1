//! What coordinators write down. It comes from their own disks and from each other, and is
//! checked like anything else that does.

use aqueduct_core::journal::{
    Accepted, Batch, Completion, Drawn, Ended, Kept, Outcome, Record, RecordKind, worker_name,
};
use aqueduct_core::work::TokenLogprob;
use aqueduct_core::{
    Exchange, Quality, Refusal, RequestId, SessionUse, TokenId, WireDtype, limits,
};

use super::event::failure;
use super::exchange::{exchange, wire_dtype};
use super::grammar::form;
use super::quality::quality;
use super::sampling::{logprob, top, top_to_wire};
use super::{Under, bounded, choice, required};
use crate::v1;
use crate::v1::journal_ended::Kind as EndKind;
use crate::v1::journal_record::Kind;

/// Bytes of the message of a failure.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

impl From<Record> for v1::JournalRecord {
    fn from(record: Record) -> Self {
        let kind = match record.kind {
            RecordKind::Accepted(accepted) => Kind::Accepted((*accepted).into()),
            RecordKind::Tokens(batch) => Kind::Tokens(batch.into()),
            RecordKind::ChoiceEnded { choice, eos } => {
                Kind::ChoiceEnded(v1::JournalChoiceEnded { choice, eos })
            }
            RecordKind::Ended(outcome) => Kind::Ended(outcome.into()),
            RecordKind::Drained { worker, draining } => {
                Kind::Drained(v1::JournalDrained { worker, draining })
            }
        };
        Self { request: record.request.0, at_ms: record.at_ms, kind: Some(kind) }
    }
}

impl TryFrom<v1::JournalRecord> for Record {
    type Error = Refusal;

    fn try_from(wire: v1::JournalRecord) -> Result<Self, Refusal> {
        let kind = match required("record", wire.kind)? {
            Kind::Accepted(wire) => {
                let accepted = options(wire).under("accepted")?;
                accepted.validate().under("accepted")?;
                RecordKind::Accepted(Box::new(accepted))
            }
            Kind::Tokens(wire) => RecordKind::Tokens(wire.try_into().under("tokens")?),
            Kind::ChoiceEnded(wire) => {
                let choice = choice(wire.choice).under("choice_ended")?;
                RecordKind::ChoiceEnded { choice, eos: wire.eos }
            }
            Kind::Ended(wire) => RecordKind::Ended(wire.try_into().under("ended")?),
            Kind::Drained(wire) => {
                let worker = worker_name(wire.worker).under("drained")?;
                RecordKind::Drained { worker, draining: wire.draining }
            }
        };
        Ok(Self { request: RequestId(wire.request), at_ms: wire.at_ms, kind })
    }
}

impl From<Accepted> for v1::JournalAccepted {
    fn from(accepted: Accepted) -> Self {
        Self {
            prompt: accepted.prompt,
            policy: Some(accepted.policy.into()),
            floor: accepted.floor.map(|floor| Quality::Memory(Some(floor)).into()),
            chunk_tokens: accepted.chunk_tokens,
            exchange: v1::Exchange::from(accepted.exchange).into(),
            wire: v1::WireDtype::from(accepted.wire).into(),
            sampling: Some(accepted.sampling.into()),
            steering: Some(accepted.steering.into()),
            grammar: accepted.form.grammar.map(Into::into),
            thinking: accepted.form.thinking.map(Into::into),
            choices: accepted.choices,
            max_tokens: accepted.max_tokens,
            eos: accepted.eos,
            outputs: Some(accepted.outputs.into()),
            priority: accepted.priority,
            caller_id: accepted.caller_id,
            cache_prompt: accepted.cache_prompt,
            deadline_at_ms: accepted.deadline_at_ms,
            model: accepted.model,
            session: accepted.session.map(|session| session.to_string()).unwrap_or_default(),
            telling: Some(accepted.telling.into()),
        }
    }
}

/// Everything of it; all but the prompt has been checked.
fn options(wire: v1::JournalAccepted) -> Result<Accepted, Refusal> {
    let floor = wire.floor.map(|floor| quality(Some(floor))).transpose()?;
    let accepted = Accepted {
        policy: required("policy", wire.policy)?.try_into().under("policy")?,
        floor: floor.and_then(|quality| quality.floor()),
        chunk_tokens: wire.chunk_tokens,
        exchange: required::<Exchange>("exchange", exchange(wire.exchange)?)?,
        wire: required::<WireDtype>("wire", wire_dtype(wire.wire)?)?,
        sampling: required("sampling", wire.sampling)?.try_into().under("sampling")?,
        steering: wire.steering.unwrap_or_default().try_into().under("steering")?,
        form: form(wire.thinking, wire.grammar)?,
        choices: wire.choices,
        max_tokens: wire.max_tokens,
        eos: wire.eos,
        outputs: wire.outputs.unwrap_or_default().try_into().under("outputs")?,
        priority: wire.priority,
        caller_id: wire.caller_id,
        cache_prompt: wire.cache_prompt,
        deadline_at_ms: wire.deadline_at_ms,
        model: wire.model,
        session: session(&wire.session)?,
        // A journal of an earlier version says nothing of it.
        telling: wire.telling.unwrap_or_default().try_into().under("telling")?,
        prompt: wire.prompt,
    };
    accepted.validate_options()?;
    Ok(accepted)
}

/// What a session's name says; none where it is empty.
fn session(name: &str) -> Result<Option<SessionUse>, Refusal> {
    (!name.is_empty()).then(|| name.parse()).transpose()
}

impl From<Batch> for v1::JournalTokens {
    fn from(batch: Batch) -> Self {
        let Batch { choice, first_idx, tokens } = batch;
        let mut wire = Self { choice, first_idx, ..Self::default() };
        let has_top = tokens.iter().any(|drawn| !drawn.top.is_empty());
        for Drawn { token, top } in tokens {
            wire.tokens.push(token.token);
            wire.logprobs.push(token.logprob);
            let top = has_top.then(|| v1::JournalTop { top: top_to_wire(top) });
            wire.top.extend(top);
        }
        wire
    }
}

impl TryFrom<v1::JournalTokens> for Batch {
    type Error = Refusal;

    fn try_from(wire: v1::JournalTokens) -> Result<Self, Refusal> {
        let (count, most) = (wire.tokens.len(), limits::OUTPUT_TOKENS_MAX);
        Refusal::unless_within("tokens", count, 1, most as usize)?;
        Refusal::unless_within("first_idx", wire.first_idx, 0, most - count as u32)?;
        Refusal::unless_within("logprobs", wire.logprobs.len(), count, count)?;
        if !wire.top.is_empty() {
            Refusal::unless_within("top", wire.top.len(), count, count)?;
        }
        let mut tops = wire.top.into_iter();
        let drawn = |(token, value)| {
            let top = top(tops.next().unwrap_or_default().top)?;
            Ok(Drawn { token: token_logprob(token, value)?, top })
        };
        let tokens = wire.tokens.into_iter().zip(wire.logprobs).map(drawn);
        let tokens = tokens.collect::<Result<_, Refusal>>()?;
        Ok(Self { choice: choice(wire.choice)?, first_idx: wire.first_idx, tokens })
    }
}

fn token_logprob(token: TokenId, value: f32) -> Result<TokenLogprob, Refusal> {
    let token = Refusal::unless_within("token", token, 0, limits::VOCAB_MAX - 1)?;
    Ok(TokenLogprob { token, logprob: logprob(value)? })
}

impl From<Outcome> for v1::JournalEnded {
    fn from(outcome: Outcome) -> Self {
        let of = |kind: EndKind| Self { kind: kind.into(), ..Self::default() };
        match outcome {
            Outcome::Finished => of(EndKind::Finished),
            Outcome::Cancelled => of(EndKind::Cancelled),
            Outcome::Failed { kind, message } => {
                let failure = v1::FailureKind::from(kind).into();
                Self { failure, message, ..of(EndKind::Failed) }
            }
        }
    }
}

impl TryFrom<v1::JournalEnded> for Outcome {
    type Error = Refusal;

    fn try_from(wire: v1::JournalEnded) -> Result<Self, Refusal> {
        let bytes = wire.message.len();
        Refusal::unless_within("message bytes", bytes, 0, MESSAGE_BYTES_MAX)?;
        match EndKind::try_from(wire.kind) {
            Ok(EndKind::Finished) => Ok(Self::Finished),
            Ok(EndKind::Cancelled) => Ok(Self::Cancelled),
            Ok(EndKind::Failed) => {
                Ok(Self::Failed { kind: failure(wire.failure)?, message: wire.message })
            }
            _ => Err(Refusal::new("kind", wire.kind, "finished, cancelled or failed")),
        }
    }
}

/// What is kept of one request, to be written down.
pub fn kept_to_wire(request: RequestId, kept: Kept) -> v1::JournalRequest {
    let mut wire = v1::JournalRequest { request: request.0, ..Default::default() };
    for (choice, completion) in (0..).zip(kept.choices) {
        let Completion { tokens, eos } = completion;
        if !tokens.is_empty() {
            wire.tokens.push(Batch { choice, first_idx: 0, tokens }.into());
        }
        wire.choices.extend(eos.map(|eos| v1::JournalChoiceEnded { choice, eos }));
    }
    wire.accepted = Some(kept.accepted.into());
    if let Some(Ended { outcome, at_ms }) = kept.ended {
        wire.ended_at_ms = at_ms;
        wire.ended = Some(outcome.into());
    }
    wire
}

/// What was kept of one request.
///
/// # Errors
/// The first field that is out of bounds, or does not fit the others.
pub fn kept(wire: v1::JournalRequest) -> Result<(RequestId, Kept), Refusal> {
    let accepted = options(required("accepted", wire.accepted)?).under("accepted")?;
    let mut kept = Kept::new(accepted);
    if let Some(ended) = wire.ended {
        bounded("prompt of an ended request", &kept.accepted.prompt, 0)?;
        let outcome = ended.try_into().under("ended")?;
        kept.ended = Some(Ended { outcome, at_ms: wire.ended_at_ms });
    } else {
        kept.accepted.validate().under("accepted")?;
    }
    for wire in wire.tokens {
        let Batch { choice, first_idx, tokens } = wire.try_into().under("tokens")?;
        let completion = completion(&mut kept, choice).under("tokens")?;
        let known = completion.tokens.len() as u32;
        Refusal::unless_within("tokens.first_idx", first_idx, known, known)?;
        completion.tokens.extend(tokens);
    }
    for wire in wire.choices {
        completion(&mut kept, wire.choice).under("choices")?.eos = Some(wire.eos);
    }
    Ok((RequestId(wire.request), kept))
}

fn completion(kept: &mut Kept, choice: u32) -> Result<&mut Completion, Refusal> {
    let bound = format!("below choices = {}", kept.choices.len());
    let refusal = || Refusal::new("choice", choice, bound);
    kept.choices.get_mut(choice as usize).ok_or_else(refusal)
}

#[cfg(test)]
mod tests {
    use super::super::arbitrary;
    use super::*;
    use aqueduct_core::work::{FailureKind, Outputs};
    use aqueduct_core::{BelowFloor, Floor, StartKey, Telling, ThoughtsTold, limits};
    use proptest::prelude::*;

    fn accepted() -> impl Strategy<Value = Accepted> {
        let prompt = prop::collection::vec(0..limits::VOCAB_MAX, 1..9);
        let form = prop::option::of(arbitrary::form());
        let floor = prop::option::of(0.1f64..=1.0);
        let how = (arbitrary::policy(), arbitrary::sampling(), arbitrary::steering(), floor);
        let scalars = (1..=limits::CHUNK_TOKENS_MAX, -100..=100i32, any::<bool>(), any::<u64>());
        (prompt.clone(), prompt, how, form, scalars, "[a-z]{0,9}").prop_map(
            |(prompt, eos, (policy, sampling, steering, floor), form, scalars, caller_id)| {
                let below = BelowFloor::Report;
                use ThoughtsTold::{Apart, ApartFromTheStart, AsText, Over};
                let told = [Apart, ApartFromTheStart, AsText, Over];
                let telling = Telling {
                    resumable: scalars.2,
                    stop: vec!["\n".to_owned(); 2],
                    tools: !scalars.2,
                    one_call: scalars.2,
                    text_arguments: vec!["f x".to_owned()],
                    goes_on: !scalars.2,
                    thoughts: told[scalars.3 as usize % told.len()],
                    holder: caller_id.clone(),
                    created_at_s: scalars.3,
                    once: scalars.2.then(|| StartKey { name: "k".into(), content: [7; 32] }),
                    ..Telling::default()
                };
                Accepted {
                    telling,
                    session: scalars.2.then_some(SessionUse::New),
                    policy,
                    floor: floor.map(|min_retained_mass| Floor { min_retained_mass, below }),
                    chunk_tokens: scalars.0,
                    exchange: Exchange::Stay,
                    wire: WireDtype::F16,
                    sampling,
                    steering,
                    form: form.unwrap_or_default(),
                    choices: 3,
                    max_tokens: 50,
                    eos,
                    outputs: Outputs::Logprobs(3),
                    priority: scalars.1,
                    cache_prompt: scalars.2,
                    deadline_at_ms: scalars.3,
                    caller_id: caller_id.clone(),
                    ..Accepted::of(caller_id, prompt)
                }
            },
        )
    }

    fn drawn() -> impl Strategy<Value = Vec<Drawn>> {
        let one = (arbitrary::token_logprob(), arbitrary::top())
            .prop_map(|(token, top)| Drawn { token, top });
        prop::collection::vec(one, 1..5)
    }

    fn outcome() -> impl Strategy<Value = Outcome> {
        let failed = "[a-z]{0,9}"
            .prop_map(|message| Outcome::Failed { kind: FailureKind::Exhausted, message });
        prop_oneof![Just(Outcome::Finished), Just(Outcome::Cancelled), failed]
    }

    fn kind() -> impl Strategy<Value = RecordKind> {
        let batch = (0..64u32, 0..1000u32, drawn()).prop_map(|(choice, first_idx, tokens)| Batch {
            choice,
            first_idx,
            tokens,
        });
        prop_oneof![
            accepted().prop_map(|accepted| RecordKind::Accepted(Box::new(accepted))),
            batch.prop_map(RecordKind::Tokens),
            (0..64u32, any::<bool>())
                .prop_map(|(choice, eos)| RecordKind::ChoiceEnded { choice, eos }),
            outcome().prop_map(RecordKind::Ended),
            ("[a-z:/.]{1,30}", any::<bool>())
                .prop_map(|(worker, draining)| RecordKind::Drained { worker, draining }),
        ]
    }

    proptest! {
        #[test]
        fn records_survive(kind in kind(), request in any::<u64>(), at_ms in any::<u64>()) {
            let record = Record { request: RequestId(request), at_ms, kind };
            prop_assert_eq!(Record::try_from(v1::JournalRecord::from(record.clone())), Ok(record));
        }

        #[test]
        fn what_is_kept_survives(
            accepted in accepted(), tokens in drawn(), ended in prop::option::of(outcome()),
        ) {
            let mut one = Kept::new(accepted);
            one.choices[2] = Completion { tokens, eos: Some(true) };
            one.ended = ended.map(|outcome| Ended { outcome, at_ms: 9 });
            if one.ended.is_some() {
                one.accepted.prompt.clear();
            }
            let wire = kept_to_wire(RequestId(7), one.clone());
            prop_assert_eq!(kept(wire), Ok((RequestId(7), one)));
        }
    }

    #[test]
    fn refuses_by_field() {
        let check = |wire: v1::JournalTokens, want: &str| {
            assert_eq!(Batch::try_from(wire).unwrap_err().to_string(), want);
        };
        let good = v1::JournalTokens { tokens: vec![5], logprobs: vec![0.0], ..Default::default() };
        assert!(Batch::try_from(good.clone()).is_ok());
        check(Default::default(), "tokens = 0: must be between 1 and 1048576");
        let late = v1::JournalTokens { first_idx: 1 << 20, ..good.clone() };
        check(late, "first_idx = 1048576: must be between 0 and 1048575");
        let bare = v1::JournalTokens { logprobs: Vec::new(), ..good.clone() };
        check(bare, "logprobs = 0: must be between 1 and 1");
        let top = vec![v1::JournalTop::default(); 2];
        check(v1::JournalTokens { top, ..good.clone() }, "top = 2: must be between 1 and 1");
        check(v1::JournalTokens { choice: 64, ..good }, "choice = 64: must be between 0 and 63");
        let none = Record::try_from(v1::JournalRecord::default()).unwrap_err();
        assert_eq!(none.field, "record");
        let open = v1::JournalEnded::default();
        assert_eq!(Outcome::try_from(open).unwrap_err().field, "kind");
    }
}
