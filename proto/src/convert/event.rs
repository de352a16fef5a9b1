//! Events of a worker.

use aqueduct_core::work::{
    ChunkReport, Emitted, Event, FailureKind, MergeAudit, PoolUse, RetainedMass, TokenLogprob,
};
use aqueduct_core::{ChunkKey, Refusal, RequestId, clipped, limits};
use bytes::{BufMut, Bytes, BytesMut};

use super::sampling::{logprob, top, top_to_wire};
use super::{Under, bounded, choice, crc32_of, intact, key, required};
use crate::v1;
use crate::v1::worker_event::Kind;

impl From<Event> for v1::WorkerEvent {
    fn from(event: Event) -> Self {
        let kind = match event {
            Event::Hello(info) => Kind::Hello((*info).into()),
            Event::Progress { key, layers_done } => {
                Kind::Progress(v1::LayerProgress { key: Some(key.into()), layers_done })
            }
            Event::Logits { key, start, rows, logits } => {
                let logits = f32_to_bytes(&logits);
                Kind::Logits(v1::LogitsRows { key: Some(key.into()), start, rows, logits })
            }
            Event::PromptLogprobs { key, start, entries } => {
                let entries = entries.into_iter().map(entry_to_wire).collect();
                Kind::Logprobs(v1::ChunkLogprobs { key: Some(key.into()), start, entries })
            }
            Event::ChunkDone { key, report } => Kind::ChunkDone(report_to_wire(key, *report)),
            Event::ChunkFailed { key, kind, message } => Kind::ChunkFailed(v1::ChunkFailed {
                key: Some(key.into()),
                kind: v1::FailureKind::from(kind).into(),
                message,
            }),
            Event::Pool(PoolUse { bytes, used_bytes }) => {
                Kind::Pool(v1::PoolUse { bytes, used_bytes })
            }
            Event::Snapshots(news) => Kind::Snapshots((*news).into()),
            Event::Seen(seen) => Kind::Seen((*seen).into()),
            Event::Token(emitted) => Kind::Token((*emitted).into()),
            Event::ChoiceDone { request, choice, eos } => {
                Kind::ChoiceDone(v1::ChoiceEnded { request: request.0, choice, eos })
            }
            Event::HandedOver { request } => Kind::Departed(v1::Departed { request: request.0 }),
            Event::DecodeFailed { request, kind, message } => {
                let kind = v1::FailureKind::from(kind).into();
                Kind::DecodeFailed(v1::DecodeFailed { request: request.0, kind, message })
            }
            Event::Answered(answer) => Kind::Answered((*answer).into()),
            Event::Draining => Kind::Draining(v1::Draining {}),
        };
        let mut wire = Self { kind: Some(kind), crc32: None };
        wire.crc32 = Some(crc32_of(&wire));
        wire
    }
}

fn pool(wire: v1::PoolUse) -> Result<PoolUse, Refusal> {
    let bytes = Refusal::unless_within("bytes", wire.bytes, 0, limits::POOL_BYTES_MAX)?;
    let used_bytes = Refusal::unless_within("used_bytes", wire.used_bytes, 0, bytes)?;
    Ok(PoolUse { bytes, used_bytes })
}

impl TryFrom<v1::WorkerEvent> for Event {
    type Error = Refusal;

    fn try_from(mut wire: v1::WorkerEvent) -> Result<Self, Refusal> {
        let crc32 = wire.crc32.take();
        intact("crc32", &wire, crc32)?;
        match required("event", wire.kind)? {
            Kind::Hello(wire) => Ok(Self::Hello(Box::new(wire.try_into().under("hello")?))),
            Kind::Progress(wire) => progress(wire).under("progress"),
            Kind::Logits(wire) => logits(wire).under("logits"),
            Kind::Logprobs(wire) => logprobs(wire).under("logprobs"),
            Kind::ChunkDone(wire) => chunk_done(wire).under("chunk_done"),
            Kind::ChunkFailed(wire) => chunk_failed(wire).under("chunk_failed"),
            Kind::Pool(wire) => pool(wire).under("pool").map(Self::Pool),
            Kind::Snapshots(wire) => {
                Ok(Self::Snapshots(Box::new(wire.try_into().under("snapshots")?)))
            }
            Kind::Seen(wire) => Ok(Self::Seen(Box::new(wire.try_into().under("seen")?))),
            Kind::Token(wire) => Ok(Self::Token(Box::new(wire.try_into().under("token")?))),
            Kind::ChoiceDone(wire) => Ok(Self::ChoiceDone {
                request: RequestId(wire.request),
                choice: choice(wire.choice).under("choice_done")?,
                eos: wire.eos,
            }),
            Kind::Departed(wire) => Ok(Self::HandedOver { request: RequestId(wire.request) }),
            Kind::DecodeFailed(wire) => Ok(Self::DecodeFailed {
                request: RequestId(wire.request),
                kind: failure(wire.kind).under("decode_failed")?,
                message: clipped(wire.message, limits::FAILURE_BYTES_MAX),
            }),
            Kind::Answered(wire) => {
                Ok(Self::Answered(Box::new(wire.try_into().under("answered")?)))
            }
            Kind::Draining(v1::Draining {}) => Ok(Self::Draining),
        }
    }
}

fn progress(wire: v1::LayerProgress) -> Result<Event, Refusal> {
    let most = limits::LAYERS_MAX;
    let layers_done = Refusal::unless_within("layers_done", wire.layers_done, 0, most)?;
    Ok(Event::Progress { key: key(wire.key)?, layers_done })
}

/// Position of the first of `rows` rows, all within the longest prompt.
fn first_row(start: u32, rows: usize) -> Result<u32, Refusal> {
    Refusal::unless_within("rows", rows, 1, limits::CHUNK_TOKENS_MAX as usize)?;
    Refusal::unless_within("start", start, 0, limits::PROMPT_TOKENS_MAX - rows as u32)
}

fn logits(wire: v1::LogitsRows) -> Result<Event, Refusal> {
    let (key, start) = (key(wire.key)?, first_row(wire.start, wire.rows as usize)?);
    let row_bytes = wire.logits.len() / wire.rows as usize;
    let row_bytes_max = limits::VOCAB_MAX as usize * 4;
    let whole = wire.logits.len() == row_bytes * wire.rows as usize && row_bytes.is_multiple_of(4);
    if !whole || row_bytes == 0 || row_bytes > row_bytes_max {
        let bound = format!("[{}, vocab] f32", wire.rows);
        return Err(Refusal::new("logits", format!("{} bytes", wire.logits.len()), bound));
    }
    Ok(Event::Logits { key, start, rows: wire.rows, logits: f32_of_bytes(&wire.logits) })
}

fn logprobs(wire: v1::ChunkLogprobs) -> Result<Event, Refusal> {
    let (key, start) = (key(wire.key)?, first_row(wire.start, wire.entries.len())?);
    let entries = wire.entries.into_iter().map(entry).collect::<Result<_, _>>();
    Ok(Event::PromptLogprobs { key, start, entries: entries.under("entries")? })
}

fn entry(wire: v1::ChunkLogprob) -> Result<(TokenLogprob, Vec<TokenLogprob>), Refusal> {
    Ok((required("token", wire.token)?.try_into()?, top(wire.top)?))
}

fn entry_to_wire((token, top): (TokenLogprob, Vec<TokenLogprob>)) -> v1::ChunkLogprob {
    v1::ChunkLogprob { token: Some(token.into()), top: top_to_wire(top) }
}

impl From<RetainedMass> for v1::RetainedMass {
    fn from(mass: RetainedMass) -> Self {
        Self { kept: mass.kept, total: mass.total }
    }
}

impl TryFrom<v1::RetainedMass> for RetainedMass {
    type Error = Refusal;

    fn try_from(wire: v1::RetainedMass) -> Result<Self, Refusal> {
        let mass = Self { kept: wire.kept, total: wire.total };
        mass.validate()?;
        Ok(mass)
    }
}

fn report_to_wire(key: ChunkKey, report: ChunkReport) -> v1::ChunkReport {
    v1::ChunkReport {
        key: Some(key.into()),
        retained: report.retained.into_iter().map(Into::into).collect(),
        memory_bytes: report.memory_bytes,
        memory_tokens: report.memory_tokens,
        busy_us: report.busy_us,
        wait_us: report.wait_us,
        traffic: Some(report.traffic.into()),
        audits: report.audits.into_iter().map(audit_to_wire).collect(),
    }
}

fn chunk_done(wire: v1::ChunkReport) -> Result<Event, Refusal> {
    bounded("retained", &wire.retained, limits::LAYERS_MAX as usize)?;
    let retained = wire.retained.into_iter().map(RetainedMass::try_from).collect::<Result<_, _>>();
    let report = ChunkReport {
        retained: retained.under("retained")?,
        memory_bytes: wire.memory_bytes,
        memory_tokens: wire.memory_tokens,
        busy_us: wire.busy_us,
        wait_us: wire.wait_us,
        traffic: wire.traffic.unwrap_or_default().into(),
        audits: audits(wire.audits).under("audits")?,
    };
    Ok(Event::ChunkDone { key: key(wire.key)?, report: Box::new(report) })
}

fn audit_to_wire(audit: MergeAudit) -> v1::MergeAudit {
    let MergeAudit { layer, rows, error, lse_error } = audit;
    v1::MergeAudit { layer, rows, error, lse_error }
}

/// Errors that are no numbers are what audits are for, so they pass.
fn audits(wire: Vec<v1::MergeAudit>) -> Result<Vec<MergeAudit>, Refusal> {
    bounded("count", &wire, limits::LAYERS_MAX as usize)?;
    let audit = |wire: v1::MergeAudit| {
        let v1::MergeAudit { layer, rows, error, lse_error } = wire;
        let layer = Refusal::unless_within("layer", layer, 0, limits::LAYERS_MAX - 1)?;
        Ok(MergeAudit { layer, rows, error, lse_error })
    };
    wire.into_iter().map(audit).collect()
}

impl From<FailureKind> for v1::FailureKind {
    fn from(kind: FailureKind) -> Self {
        match kind {
            FailureKind::Invalid => Self::Invalid,
            FailureKind::Exhausted => Self::Exhausted,
            FailureKind::Deadline => Self::Deadline,
            FailureKind::Peer => Self::Peer,
            FailureKind::Internal => Self::Internal,
        }
    }
}

/// The kind of failure that was named.
///
/// # Errors
/// A number that stands for none.
pub fn failure(wire: i32) -> Result<FailureKind, Refusal> {
    match v1::FailureKind::try_from(wire) {
        Ok(v1::FailureKind::Invalid) => Ok(FailureKind::Invalid),
        Ok(v1::FailureKind::Exhausted) => Ok(FailureKind::Exhausted),
        Ok(v1::FailureKind::Deadline) => Ok(FailureKind::Deadline),
        Ok(v1::FailureKind::Peer) => Ok(FailureKind::Peer),
        Ok(v1::FailureKind::Internal) => Ok(FailureKind::Internal),
        _ => Err(Refusal::new("kind", wire, "a known kind of failure")),
    }
}

fn chunk_failed(wire: v1::ChunkFailed) -> Result<Event, Refusal> {
    let message = clipped(wire.message, limits::FAILURE_BYTES_MAX);
    Ok(Event::ChunkFailed { key: key(wire.key)?, kind: failure(wire.kind)?, message })
}

impl From<Emitted> for v1::Emitted {
    fn from(emitted: Emitted) -> Self {
        Self {
            request: emitted.request.0,
            choice: emitted.choice,
            token_idx: emitted.token_idx,
            token: emitted.token,
            logprob: emitted.logprob,
            top: top_to_wire(emitted.top),
        }
    }
}

impl TryFrom<v1::Emitted> for Emitted {
    type Error = Refusal;

    fn try_from(wire: v1::Emitted) -> Result<Self, Refusal> {
        let idx_max = limits::OUTPUT_TOKENS_MAX - 1;
        Ok(Self {
            request: RequestId(wire.request),
            choice: choice(wire.choice)?,
            token_idx: Refusal::unless_within("token_idx", wire.token_idx, 0, idx_max)?,
            token: Refusal::unless_within("token", wire.token, 0, limits::VOCAB_MAX - 1)?,
            logprob: logprob(wire.logprob)?,
            top: top(wire.top)?,
        })
    }
}

/// Little endian, whatever the machine.
fn f32_to_bytes(values: &[f32]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(size_of_val(values));
    values.iter().for_each(|&value| bytes.put_f32_le(value));
    bytes.freeze()
}

fn f32_of_bytes(bytes: &[u8]) -> Vec<f32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|&word| f32::from_le_bytes(word)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::arbitrary;
    use super::*;
    use proptest::prelude::*;
    use prost::Message;

    #[test]
    fn refuses_by_field() {
        let key = Some(v1::ChunkKey::default());
        let check = |kind: Kind, field: &str| {
            let refused =
                Event::try_from(v1::WorkerEvent { kind: Some(kind), crc32: None }).unwrap_err();
            assert_eq!(refused.field, field);
        };
        let rows = |rows, start, bytes: usize| {
            let logits = vec![0; bytes].into();
            Kind::Logits(v1::LogitsRows { key, start, rows, logits })
        };
        check(rows(0, 0, 0), "logits.rows");
        check(rows(2, 0, 12), "logits.logits");
        check(rows(2, 0, 0), "logits.logits");
        check(rows(1, u32::MAX, 4), "logits.start");
        check(rows(u32::MAX, 0, 4), "logits.rows");
        check(Kind::Progress(v1::LayerProgress { key: None, layers_done: 0 }), "progress.key");
        check(
            Kind::ChunkFailed(v1::ChunkFailed { key, ..Default::default() }),
            "chunk_failed.kind",
        );
        let mass = v1::RetainedMass { kept: f64::NAN, total: 1.0 };
        let report = v1::ChunkReport { key, retained: vec![mass], ..Default::default() };
        check(Kind::ChunkDone(report), "chunk_done.retained.kept");
        let emitted = v1::Emitted { token_idx: u32::MAX, ..Default::default() };
        check(Kind::Token(emitted), "token.token_idx");
    }

    proptest! {
        #[test]
        fn survives_the_wire(event in arbitrary::event()) {
            let bytes = v1::WorkerEvent::from(event.clone()).encode_to_vec();
            let wire = v1::WorkerEvent::decode(bytes.as_slice()).unwrap();
            prop_assert_eq!(Event::try_from(wire), Ok(event));
        }

        #[test]
        fn garbage_is_refused_or_valid(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(wire) = v1::WorkerEvent::decode(bytes.as_slice()) {
                let _ = Event::try_from(wire);
            }
        }

        #[test]
        fn flipped_bytes_change_nothing(
            event in arbitrary::event(), at in any::<prop::sample::Index>(), flip in 1u8..,
        ) {
            let mut bytes = v1::WorkerEvent::from(event.clone()).encode_to_vec();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            if let Ok(wire) = v1::WorkerEvent::decode(bytes.as_slice()) {
                let read = Event::try_from(wire);
                prop_assert!(read.as_ref().is_err() || read == Ok(event));
            }
        }
    }
}
