//! Commands of a coordinator.

use aqueduct_core::work::{Assignment, Begun, Command, DecodeSpec, HandedOver, NextHop, Outputs};
use aqueduct_core::{
    ChunkKey, ChunkSpan, Constraint, Directory, Epoch, MemoryPolicy, Refusal, RequestId, TokenId,
    TraceParent, limits,
};

use super::exchange::wire_dtype;
use super::{Under, bounded, choice, crc32_of, intact, key, required};
use crate::v1;
use crate::v1::outputs::Kind as OutputKind;
use crate::v1::worker_command::Kind;

impl From<Command> for v1::WorkerCommand {
    fn from(command: Command) -> Self {
        let kind = match command {
            Command::Assign(assignment) => Kind::Assign((*assignment).into()),
            Command::Redirect { request, chunk_idx, next } => Kind::Redirect(v1::Redirect {
                request: request.0,
                chunk_idx,
                next: Some(next.into()),
            }),
            Command::Confirm { request, chunk_idx } => {
                Kind::Confirm(v1::Confirm { request: request.0, chunk_idx })
            }
            Command::Drop { request, chunk_idx } => {
                Kind::Drop(v1::Drop { request: request.0, chunk_idx })
            }
            Command::Keep(keep) => Kind::Keep((*keep).into()),
            Command::Restore(restore) => Kind::Restore((*restore).into()),
            Command::Ask(ask) => Kind::Ask((*ask).into()),
            Command::Decode(spec) => Kind::Decode((*spec).into()),
            Command::HandOver { request, next } => {
                Kind::HandOver(v1::HandOver { request: request.0, next: Some(next.into()) })
            }
            Command::StopChoice { request, choice } => {
                Kind::StopChoice(v1::StopChoice { request: request.0, choice })
            }
            Command::Cancel { request } => Kind::Cancel(v1::Cancel { request: request.0 }),
        };
        let mut wire = Self { kind: Some(kind), crc32: None };
        wire.crc32 = Some(crc32_of(&wire));
        wire
    }
}

impl TryFrom<v1::WorkerCommand> for Command {
    type Error = Refusal;

    fn try_from(mut wire: v1::WorkerCommand) -> Result<Self, Refusal> {
        let crc32 = wire.crc32.take();
        intact("crc32", &wire, crc32)?;
        Ok(match required("command", wire.kind)? {
            Kind::Assign(wire) => {
                Self::Assign(Box::new(Assignment::try_from(wire).under("assignment")?))
            }
            Kind::Redirect(wire) => redirect(wire).under("redirect")?,
            Kind::Confirm(wire) => Self::Confirm {
                request: RequestId(wire.request),
                chunk_idx: chunk_idx(wire.chunk_idx).under("confirm")?,
            },
            Kind::Drop(wire) => Self::Drop {
                request: RequestId(wire.request),
                chunk_idx: chunk_idx(wire.chunk_idx).under("drop")?,
            },
            Kind::Keep(wire) => Self::Keep(Box::new(wire.try_into().under("keep")?)),
            Kind::Restore(wire) => Self::Restore(Box::new(wire.try_into().under("restore")?)),
            Kind::Ask(wire) => Self::Ask(Box::new(wire.try_into().under("ask")?)),
            Kind::Decode(wire) => {
                Self::Decode(Box::new(DecodeSpec::try_from(wire).under("decode")?))
            }
            Kind::HandOver(wire) => Self::HandOver {
                request: RequestId(wire.request),
                next: required("next", wire.next)?.try_into().under("hand_over")?,
            },
            Kind::StopChoice(wire) => Self::StopChoice {
                request: RequestId(wire.request),
                choice: choice(wire.choice).under("stop_choice")?,
            },
            Kind::Cancel(wire) => Self::Cancel { request: RequestId(wire.request) },
        })
    }
}

pub(super) fn chunk_idx(wire: u32) -> Result<u32, Refusal> {
    Refusal::unless_within("chunk_idx", wire, 0, limits::PROMPT_TOKENS_MAX - 1)
}

fn redirect(wire: v1::Redirect) -> Result<Command, Refusal> {
    Ok(Command::Redirect {
        request: RequestId(wire.request),
        chunk_idx: chunk_idx(wire.chunk_idx)?,
        next: next_hop(required("next", wire.next)?, wire.chunk_idx).under("next")?,
    })
}

/// The way to chunk `chunk_idx`, whose worker may have given what a chunk before it made.
fn next_hop(wire: v1::NextHop, chunk_idx: u32) -> Result<NextHop, Refusal> {
    let next = NextHop::try_from(wire)?;
    if let Some(base) = next.base.filter(|base| base.chunk_idx >= chunk_idx) {
        return Err(Refusal::new("base.chunk_idx", base.chunk_idx, format!("below {chunk_idx}")));
    }
    Ok(next)
}

/// Tokens of a chunk.
fn chunk_tokens(tokens: u32) -> Result<u32, Refusal> {
    Refusal::unless_within("chunk_tokens", tokens, 1, limits::CHUNK_TOKENS_MAX)
}

impl From<Assignment> for v1::Assignment {
    fn from(assignment: Assignment) -> Self {
        Self {
            key: Some(assignment.key.into()),
            start: assignment.span.start,
            tokens: assignment.tokens,
            chunk_count: assignment.chunk_count,
            chunk_tokens: assignment.chunk_tokens,
            policy: Some(assignment.policy.into()),
            next_token: assignment.next_token,
            outputs: Some(assignment.outputs.into()),
            next: assignment.next.map(Into::into),
            deadline_ms: assignment.deadline_ms,
            shards: assignment.shards.map(|shards| (*shards).into()),
            wire: v1::WireDtype::from(assignment.wire).into(),
            traceparent: traceparent(assignment.trace),
        }
    }
}

impl TryFrom<v1::Assignment> for Assignment {
    type Error = Refusal;

    fn try_from(wire: v1::Assignment) -> Result<Self, Refusal> {
        let key = key(wire.key)?;
        let count_max = limits::PROMPT_TOKENS_MAX;
        Refusal::unless_within("chunk_count", wire.chunk_count, key.chunk_idx + 1, count_max)?;
        let span = span(&key, wire.start, &wire.tokens)?;
        let ends_here = key.chunk_idx + 1 == wire.chunk_count || wire.shards.is_some();
        if ends_here != wire.next.is_none() {
            let seen = if ends_here { "present" } else { "absent" };
            let bound = "present unless the chunk is the last or keys stay in shards";
            return Err(Refusal::new("next", seen, bound));
        }
        let shards = wire.shards.map(Directory::try_from).transpose().under("shards")?;
        if let Some(shards) = &shards {
            let want = key.chunk_idx as usize;
            Refusal::unless_within("shards.shards", shards.shards.len(), want, want)?;
        }
        let next = wire.next.map(|next| next_hop(next, key.chunk_idx + 1)).transpose();
        let policy = required("policy", wire.policy)?;
        let deadline_max = limits::REQUEST_DEADLINE_MS;
        Ok(Self {
            key,
            span,
            chunk_count: wire.chunk_count,
            chunk_tokens: chunk_tokens(wire.chunk_tokens)?,
            policy: MemoryPolicy::try_from(policy).under("policy")?,
            next_token: wire.next_token.map(|id| token("next_token", id)).transpose()?,
            outputs: wire.outputs.unwrap_or_default().try_into().under("outputs")?,
            next: next.under("next")?,
            shards: shards.map(Box::new),
            wire: wire_dtype(wire.wire)?.unwrap_or_default(),
            deadline_ms: Refusal::unless_within("deadline_ms", wire.deadline_ms, 1, deadline_max)?,
            tokens: wire.tokens,
            trace: trace(&wire.traceparent)?,
        })
    }
}

fn traceparent(trace: Option<TraceParent>) -> String {
    trace.map(|trace| trace.to_string()).unwrap_or_default()
}

fn trace(wire: &str) -> Result<Option<TraceParent>, Refusal> {
    (!wire.is_empty()).then(|| wire.parse()).transpose()
}

/// Where the chunk stands: within the longest prompt, and behind the chunks before it, each of
/// which has a token at least.
fn span(key: &ChunkKey, start: u32, tokens: &[TokenId]) -> Result<ChunkSpan, Refusal> {
    let len_max = limits::CHUNK_TOKENS_MAX as usize;
    Refusal::unless_within("tokens", tokens.len(), 1, len_max)?;
    for (idx, &id) in tokens.iter().enumerate() {
        if id >= limits::VOCAB_MAX {
            token(&format!("tokens[{idx}]"), id)?;
        }
    }
    let low = key.chunk_idx;
    let high = if low == 0 { 0 } else { limits::PROMPT_TOKENS_MAX - tokens.len() as u32 };
    Refusal::unless_within("start", start, low, high)?;
    Ok(ChunkSpan { idx: key.chunk_idx, start, tokens: tokens.len() as u32 })
}

fn token(field: &str, id: TokenId) -> Result<TokenId, Refusal> {
    Refusal::unless_within(field, id, 0, limits::VOCAB_MAX - 1)
}

impl From<Outputs> for v1::Outputs {
    fn from(outputs: Outputs) -> Self {
        let (kind, top) = match outputs {
            Outputs::None => (OutputKind::None, 0),
            Outputs::Logits => (OutputKind::Logits, 0),
            Outputs::Logprobs(top) => (OutputKind::Logprobs, top),
        };
        Self { kind: kind.into(), top }
    }
}

impl TryFrom<v1::Outputs> for Outputs {
    type Error = Refusal;

    fn try_from(wire: v1::Outputs) -> Result<Self, Refusal> {
        let top = Refusal::unless_within("top", wire.top, 0, limits::TOP_LOGPROBS_MAX)?;
        match OutputKind::try_from(wire.kind) {
            Ok(OutputKind::None) => Ok(Self::None),
            Ok(OutputKind::Logits) => Ok(Self::Logits),
            Ok(OutputKind::Logprobs) => Ok(Self::Logprobs(top)),
            Err(_) => Err(Refusal::new("kind", wire.kind, "none, logits or logprobs")),
        }
    }
}

impl From<DecodeSpec> for v1::Decode {
    fn from(spec: DecodeSpec) -> Self {
        Self {
            request: spec.request.0,
            sampling: Some(spec.sampling.into()),
            choices: spec.choices,
            max_tokens: spec.max_tokens,
            eos: spec.eos,
            steering: Some(spec.steering.into()),
            constraint: spec.constraint.map(Into::into),
            prompt_vocabulary: spec.prompt_vocabulary,
            begun: spec.begun.into_iter().map(Into::into).collect(),
            keeps: spec.keeps,
            traceparent: traceparent(spec.trace),
            shows: spec.shows,
            handed_over: spec.handed_over.map(Into::into),
            gathers: spec.gathers,
        }
    }
}

impl TryFrom<v1::Decode> for DecodeSpec {
    type Error = Refusal;

    fn try_from(wire: v1::Decode) -> Result<Self, Refusal> {
        bounded("eos", &wire.eos, limits::EOS_TOKENS_MAX)?;
        wire.eos.iter().try_for_each(|&id| token("eos", id).map(drop))?;
        let tokens_max = limits::OUTPUT_TOKENS_MAX;
        let sampling = required("sampling", wire.sampling)?;
        let choices = Refusal::unless_within("choices", wire.choices, 1, limits::CHOICES_MAX)?;
        let max_tokens = Refusal::unless_within("max_tokens", wire.max_tokens, 1, tokens_max)?;
        Ok(Self {
            request: RequestId(wire.request),
            sampling: sampling.try_into().under("sampling")?,
            choices,
            max_tokens,
            eos: wire.eos,
            steering: wire.steering.unwrap_or_default().try_into().under("steering")?,
            constraint: wire
                .constraint
                .map(Constraint::try_from)
                .transpose()
                .under("constraint")?,
            prompt_vocabulary: prompt_vocabulary(wire.prompt_vocabulary)?,
            begun: all_begun(wire.begun, choices, max_tokens).under("begun")?,
            keeps: wire.keeps,
            trace: trace(&wire.traceparent)?,
            shows: wire.shows,
            handed_over: wire
                .handed_over
                .map(HandedOver::try_from)
                .transpose()
                .under("handed_over")?,
            gathers: wire.gathers,
        })
    }
}

impl From<HandedOver> for v1::HandedOver {
    fn from(handed_over: HandedOver) -> Self {
        let HandedOver { chunk_idx, epoch, prompt_tokens, policy, chunk_tokens } = handed_over;
        let (epoch, policy) = (epoch.0, Some(policy.into()));
        Self { chunk_idx, epoch, prompt_tokens, policy, chunk_tokens }
    }
}

impl TryFrom<v1::HandedOver> for HandedOver {
    type Error = Refusal;

    fn try_from(wire: v1::HandedOver) -> Result<Self, Refusal> {
        let (least, most) = (wire.chunk_idx.saturating_add(1), limits::PROMPT_TOKENS_MAX);
        Ok(Self {
            chunk_idx: chunk_idx(wire.chunk_idx)?,
            epoch: Epoch(wire.epoch),
            prompt_tokens: Refusal::unless_within(
                "prompt_tokens",
                wire.prompt_tokens,
                least,
                most,
            )?,
            policy: MemoryPolicy::try_from(required("policy", wire.policy)?).under("policy")?,
            chunk_tokens: chunk_tokens(wire.chunk_tokens)?,
        })
    }
}

impl From<Begun> for v1::Begun {
    fn from(begun: Begun) -> Self {
        let Begun { choice, tokens, ended } = begun;
        Self { choice, tokens, ended }
    }
}

/// Each of the `choices` completions at most once, ascending.
fn all_begun(wire: Vec<v1::Begun>, choices: u32, max_tokens: u32) -> Result<Vec<Begun>, Refusal> {
    bounded("count", &wire, choices as usize)?;
    if let Some([_, later]) = wire.array_windows().find(|[a, b]| a.choice >= b.choice) {
        return Err(Refusal::new("choice", later.choice, "ascending"));
    }
    let tokens = wire.iter().map(|begun| begun.tokens.len()).sum::<usize>();
    Refusal::unless_within("tokens", tokens, 0, limits::BEGUN_TOKENS_MAX)?;
    wire.into_iter().map(|wire| begun(wire, choices, max_tokens)).collect()
}

fn begun(wire: v1::Begun, choices: u32, max_tokens: u32) -> Result<Begun, Refusal> {
    let v1::Begun { choice, tokens, ended } = wire;
    Refusal::unless_within("choice", choice, 0, choices - 1)?;
    let most = if ended { 0 } else { max_tokens as usize };
    Refusal::unless_within("tokens", tokens.len(), 0, most)?;
    tokens.iter().try_for_each(|&id| token("tokens", id).map(drop))?;
    Ok(Begun { choice, tokens, ended })
}

/// Ascending, so that there are no more than a vocabulary has.
fn prompt_vocabulary(wire: Vec<TokenId>) -> Result<Vec<TokenId>, Refusal> {
    if let Some([_, token]) = wire.array_windows().find(|[a, b]| a >= b) {
        return Err(Refusal::new("prompt_vocabulary", token, "ascending"));
    }
    wire.last().map_or(Ok(0), |last| token("prompt_vocabulary", *last))?;
    Ok(wire)
}

#[cfg(test)]
mod tests {
    use super::super::arbitrary;
    use super::*;
    use aqueduct_core::Sampling;
    use proptest::prelude::*;
    use prost::Message;

    fn based(wire: &mut v1::Assignment, chunk_idx: u32, end: u32) {
        wire.next.as_mut().unwrap().base = Some(v1::Base { chunk_idx, epoch: 0, end });
    }

    #[test]
    fn refuses_an_assignment_by_field() {
        let check = |change: fn(&mut v1::Assignment), field: &str| {
            let mut wire = v1::Assignment::from(arbitrary::example_assignment());
            change(&mut wire);
            let kind = Some(Kind::Assign(wire));
            let refused = Command::try_from(v1::WorkerCommand { kind, crc32: None }).unwrap_err();
            assert_eq!(refused.field, format!("assignment.{field}"));
        };
        check(|wire| wire.key = None, "key");
        check(|wire| wire.key.as_mut().unwrap().chunk_idx = u32::MAX, "key.chunk_idx");
        check(|wire| wire.chunk_count = 0, "chunk_count");
        check(|wire| wire.tokens.clear(), "tokens");
        check(|wire| wire.tokens[1] = u32::MAX, "tokens[1]");
        check(|wire| wire.start = 0, "start");
        check(|wire| wire.start = u32::MAX, "start");
        check(|wire| wire.policy = None, "policy");
        check(|wire| wire.policy.as_mut().unwrap().sinks = None, "policy.sinks");
        check(|wire| wire.next = None, "next");
        check(|wire| wire.next.as_mut().unwrap().peer.clear(), "next.peer");
        check(|wire| based(wire, 2, 9), "next.base.chunk_idx");
        check(|wire| based(wire, u32::MAX, 9), "next.base.chunk_idx");
        check(|wire| based(wire, 1, 1), "next.base.end");
        check(|wire| based(wire, 1, u32::MAX), "next.base.end");
        check(|wire| wire.outputs.as_mut().unwrap().top = 21, "outputs.top");
        check(|wire| wire.wire = 4, "wire");
        check(|wire| wire.deadline_ms = 0, "deadline_ms");
        check(|wire| wire.next_token = Some(u32::MAX), "next_token");
    }

    #[test]
    fn refuses_other_commands_by_field() {
        let check = |kind: Option<Kind>, field: &str| {
            let refused = Command::try_from(v1::WorkerCommand { kind, crc32: None }).unwrap_err();
            assert_eq!(refused.field, field);
        };
        check(None, "command");
        check(Some(Kind::Decode(v1::Decode::default())), "decode.sampling");
        let decode = v1::Decode {
            sampling: Some(Sampling::default().into()),
            choices: 1,
            max_tokens: 1,
            prompt_vocabulary: vec![3, 3],
            ..Default::default()
        };
        check(Some(Kind::Decode(decode)), "decode.prompt_vocabulary");
        check_begun(&check);
        check(Some(Kind::Redirect(v1::Redirect::default())), "redirect.next");
        check(
            Some(Kind::StopChoice(v1::StopChoice { request: 1, choice: 64 })),
            "stop_choice.choice",
        );
        check(
            Some(Kind::Confirm(v1::Confirm { request: 1, chunk_idx: u32::MAX })),
            "confirm.chunk_idx",
        );
        check(Some(Kind::Drop(v1::Drop { request: 1, chunk_idx: u32::MAX })), "drop.chunk_idx");
    }

    fn check_begun(check: &impl Fn(Option<Kind>, &str)) {
        let decode = |begun: &[(u32, &[TokenId], bool)]| {
            let one = |&(choice, tokens, ended): &(u32, &[TokenId], bool)| v1::Begun {
                choice,
                tokens: tokens.to_vec(),
                ended,
            };
            Some(Kind::Decode(v1::Decode {
                sampling: Some(Sampling::default().into()),
                choices: 2,
                max_tokens: 3,
                begun: begun.iter().map(one).collect(),
                ..Default::default()
            }))
        };
        check(decode(&[(1, &[], true), (0, &[], true)]), "decode.begun.choice");
        check(decode(&[(2, &[], true)]), "decode.begun.choice");
        check(decode(&[(0, &[], true), (1, &[], true), (1, &[], true)]), "decode.begun.count");
        check(decode(&[(1, &[1, 2, 3, 4], false)]), "decode.begun.tokens");
        check(decode(&[(1, &[1], true)]), "decode.begun.tokens");
        check(decode(&[(1, &[u32::MAX], false)]), "decode.begun.tokens");
    }

    proptest! {
        #[test]
        fn survives_the_wire(command in arbitrary::command()) {
            let bytes = v1::WorkerCommand::from(command.clone()).encode_to_vec();
            let wire = v1::WorkerCommand::decode(bytes.as_slice()).unwrap();
            prop_assert_eq!(Command::try_from(wire), Ok(command));
        }

        #[test]
        fn garbage_is_refused_or_valid(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(wire) = v1::WorkerCommand::decode(bytes.as_slice()) {
                let _ = Command::try_from(wire);
            }
        }

        #[test]
        fn flipped_bytes_change_nothing(
            command in arbitrary::command(), at in any::<prop::sample::Index>(), flip in 1u8..,
        ) {
            let mut bytes = v1::WorkerCommand::from(command.clone()).encode_to_vec();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            if let Ok(wire) = v1::WorkerCommand::decode(bytes.as_slice()) {
                let read = Command::try_from(wire);
                prop_assert!(read.as_ref().is_err() || read == Ok(command));
            }
        }
    }
}
