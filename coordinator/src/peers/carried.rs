//! What happens to a request, as one member tells another whose caller wants to hear it.

use std::time::Duration;

use aqueduct_core::work::{Emitted, FailureKind, RetainedMass};
use aqueduct_core::{MemoryPolicy, Refusal, RequestId, limits};
use aqueduct_proto::convert::event::failure;
use aqueduct_proto::convert::exchange::exchange;
use aqueduct_proto::v1::carried::Kind;
use aqueduct_proto::v1::carried_end::Reason;
use aqueduct_proto::v1::{
    Carried, CarriedChoice, CarriedEnd, CarriedPrefill, CarriedProgress, Escalated, Exchange,
};

use crate::submit::{Escalation, PrefillProgress, PrefillReport, RequestError, Update};

/// One thing that a member hears of a request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Heard {
    /// It goes on.
    Update(Box<Update>),
    /// It has ended.
    End(Option<RequestError>),
}

/// An update for another member; `None` for what is not told: that it was accepted is known there,
/// and what is not written down cannot be gone on with.
pub(crate) fn told(update: Update) -> Option<Carried> {
    let kind = match update {
        Update::Accepted { .. }
        | Update::Logits { .. }
        | Update::PromptLogprobs { .. }
        | Update::Seen(_) => return None,
        Update::Progress(progress) => Kind::Progress(CarriedProgress {
            chunks_done: progress.chunks_done,
            chunk_count: progress.chunk_count,
            tokens_done: progress.tokens_done,
            cached_tokens: progress.cached_tokens,
            elapsed_us: micros(progress.elapsed),
        }),
        Update::Escalated(escalation) => Kind::Escalated(Escalated {
            lowest_retained_mass: escalation.lowest,
            min_retained_mass: escalation.min_retained_mass,
            policy: Some(escalation.policy.into()),
            next: Some(escalation.next.into()),
        }),
        Update::Session(session) => Kind::Session(session.to_string()),
        Update::Prefilled(report) => Kind::Prefilled(prefill(*report)),
        Update::Resumed { chunks_retried } => Kind::Resumed(chunks_retried),
        Update::Token(emitted) => Kind::Token((*emitted).into()),
        Update::ChoiceDone { choice, eos } => Kind::ChoiceDone(CarriedChoice { choice, eos }),
    };
    Some(Carried { kind: Some(kind) })
}

/// How it ended; `None` where it may go on elsewhere.
pub(crate) fn ended(error: Option<RequestError>) -> Option<Carried> {
    let end = |reason: Reason| CarriedEnd { reason: reason.into(), ..CarriedEnd::default() };
    let failed = |kind: FailureKind, message: String| CarriedEnd {
        kind: aqueduct_proto::v1::FailureKind::from(kind).into(),
        message,
        ..end(Reason::Failed)
    };
    let end = match error {
        None => end(Reason::Finished),
        Some(RequestError::Stopping | RequestError::Elsewhere(_)) => return None,
        Some(RequestError::Deadline(after)) => {
            let deadline_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
            CarriedEnd { deadline_ms, ..end(Reason::Deadline) }
        }
        Some(RequestError::Cancelled) => end(Reason::Cancelled),
        Some(RequestError::TakenOver) => end(Reason::TakenOver),
        Some(RequestError::SessionLost) => end(Reason::SessionLost),
        Some(RequestError::Unknown(_)) => end(Reason::Unknown),
        Some(RequestError::Failed { kind, message }) => failed(kind, message),
        Some(RequestError::Unavailable(why)) => failed(FailureKind::Peer, why),
        Some(error @ RequestError::Refused(_)) => failed(FailureKind::Invalid, error.to_string()),
        Some(error @ (RequestError::Busy { .. } | RequestError::Limited { .. })) => {
            failed(FailureKind::Exhausted, error.to_string())
        }
    };
    Some(Carried { kind: Some(Kind::End(end)) })
}

fn prefill(report: PrefillReport) -> CarriedPrefill {
    CarriedPrefill {
        retained: report.retained.into_iter().map(Into::into).collect(),
        memory_bytes: report.memory_bytes,
        memory_tokens: report.memory_tokens,
        exchange: Exchange::from(report.exchange).into(),
        traffic: Some(report.traffic.into()),
        elapsed_us: micros(report.elapsed),
        queued_us: micros(report.queued),
        stalled_us: micros(report.stalled),
        computed_us: micros(report.computed),
        cached_tokens: report.cached_tokens,
        chunks_retried: report.chunks_retried,
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// What a member says of `request`.
///
/// # Errors
/// The first field that no member sends.
pub(crate) fn heard(request: RequestId, wire: Carried) -> Result<Heard, Refusal> {
    let kind = wire.kind.ok_or_else(|| Refusal::new("kind", "absent", "present"))?;
    let update = match kind {
        Kind::Progress(progress) => Update::Progress(PrefillProgress {
            chunks_done: progress.chunks_done,
            chunk_count: progress.chunk_count,
            tokens_done: progress.tokens_done,
            cached_tokens: progress.cached_tokens,
            elapsed: Duration::from_micros(progress.elapsed_us),
            workers: Vec::new(),
        }),
        Kind::Escalated(escalated) => Update::Escalated(escalation(escalated)?),
        Kind::Prefilled(report) => Update::Prefilled(Box::new(prefilled(report)?)),
        Kind::Session(session) => Update::Session(session.parse()?),
        Kind::Resumed(chunks_retried) => Update::Resumed { chunks_retried },
        Kind::Token(emitted) => {
            let emitted = Emitted::try_from(emitted)?;
            if emitted.request != request {
                return Err(Refusal::new("token.request", emitted.request, request.to_string()));
            }
            Update::Token(Box::new(emitted))
        }
        Kind::ChoiceDone(CarriedChoice { choice, eos }) => {
            Refusal::unless_within("choice", choice, 0, limits::CHOICES_MAX - 1)?;
            Update::ChoiceDone { choice, eos }
        }
        Kind::End(end) => return Ok(Heard::End(end_of(request, end)?)),
    };
    Ok(Heard::Update(Box::new(update)))
}

fn escalation(wire: Escalated) -> Result<Escalation, Refusal> {
    let policy = |field: &str, policy: Option<aqueduct_proto::v1::MemoryPolicy>| {
        let policy = policy.ok_or_else(|| Refusal::new(field, "absent", "present"))?;
        MemoryPolicy::try_from(policy)
    };
    Ok(Escalation {
        policy: policy("policy", wire.policy)?,
        lowest: wire.lowest_retained_mass,
        min_retained_mass: wire.min_retained_mass,
        next: policy("next", wire.next)?,
    })
}

fn prefilled(wire: CarriedPrefill) -> Result<PrefillReport, Refusal> {
    Refusal::unless_within("retained", wire.retained.len(), 0, limits::LAYERS_MAX as usize)?;
    let retained = wire.retained.into_iter().map(RetainedMass::try_from);
    Ok(PrefillReport {
        retained: retained.collect::<Result<_, _>>()?,
        memory_bytes: wire.memory_bytes,
        memory_tokens: wire.memory_tokens,
        exchange: exchange(wire.exchange)?.unwrap_or_default(),
        traffic: wire.traffic.map(Into::into).unwrap_or_default(),
        audits: Vec::new(),
        elapsed: Duration::from_micros(wire.elapsed_us),
        queued: Duration::from_micros(wire.queued_us),
        stalled: Duration::from_micros(wire.stalled_us),
        computed: Duration::from_micros(wire.computed_us),
        cached_tokens: wire.cached_tokens,
        chunks_retried: wire.chunks_retried,
    })
}

fn end_of(request: RequestId, wire: CarriedEnd) -> Result<Option<RequestError>, Refusal> {
    let CarriedEnd { reason, kind, message, deadline_ms } = wire;
    Ok(Some(match Reason::try_from(reason) {
        Ok(Reason::Finished) => return Ok(None),
        Ok(Reason::Failed) => RequestError::Failed { kind: failure(kind)?, message },
        Ok(Reason::Deadline) => RequestError::Deadline(Duration::from_millis(deadline_ms)),
        Ok(Reason::Cancelled) => RequestError::Cancelled,
        Ok(Reason::TakenOver) => RequestError::TakenOver,
        Ok(Reason::SessionLost) => RequestError::SessionLost,
        Ok(Reason::Unknown) => RequestError::Unknown(request),
        Ok(Reason::Unspecified) | Err(_) => {
            return Err(Refusal::new("reason", reason, "a known end"));
        }
    }))
}

#[cfg(test)]
mod tests {
    use aqueduct_core::work::{TokenLogprob, Traffic};

    use super::*;

    const REQUEST: RequestId = RequestId(0xa1);

    fn token(request: RequestId) -> Update {
        let top = vec![TokenLogprob { token: 4, logprob: -0.5 }];
        let emitted = Emitted { request, choice: 1, token_idx: 2, token: 3, logprob: -0.25, top };
        Update::Token(Box::new(emitted))
    }

    #[test]
    fn what_is_told_is_heard() {
        let check = |update: Update| {
            let wire = told(update.clone()).unwrap();
            assert_eq!(heard(REQUEST, wire), Ok(Heard::Update(Box::new(update))));
        };
        let (policy, next) = (MemoryPolicy::default(), MemoryPolicy::dense());
        check(Update::Progress(PrefillProgress {
            chunks_done: 1,
            chunk_count: 2,
            tokens_done: 3,
            cached_tokens: 4,
            elapsed: Duration::from_micros(5),
            workers: Vec::new(),
        }));
        let (lowest, min_retained_mass) = (0.5, 0.75);
        check(Update::Escalated(Escalation { policy, lowest, min_retained_mass, next }));
        check(Update::Prefilled(Box::new(PrefillReport {
            retained: vec![RetainedMass { kept: 1.0, total: 2.0 }],
            memory_bytes: 1,
            memory_tokens: 2,
            exchange: aqueduct_core::Exchange::Stay,
            traffic: Traffic { sent_bytes: 3, ..Traffic::default() },
            audits: Vec::new(),
            elapsed: Duration::from_micros(4),
            queued: Duration::from_micros(5),
            stalled: Duration::from_micros(6),
            computed: Duration::from_micros(7),
            cached_tokens: 8,
            chunks_retried: 9,
        })));
        check(Update::Resumed { chunks_retried: 1 });
        check(token(REQUEST));
        check(Update::ChoiceDone { choice: 3, eos: true });
    }

    #[test]
    fn an_end_is_the_one_that_was_told() {
        let check = |error: Option<RequestError>| {
            let wire = ended(error.clone()).unwrap();
            assert_eq!(heard(REQUEST, wire), Ok(Heard::End(error)));
        };
        check(None);
        let message = "why".to_owned();
        check(Some(RequestError::Failed { kind: FailureKind::Internal, message }));
        check(Some(RequestError::Deadline(Duration::from_millis(7))));
        check(Some(RequestError::Cancelled));
        check(Some(RequestError::TakenOver));
        check(Some(RequestError::SessionLost));
        check(Some(RequestError::Unknown(REQUEST)));
        assert_eq!(ended(Some(RequestError::Stopping)), None);
    }

    #[test]
    fn what_no_member_tells_is_refused() {
        let check = |wire: Option<Carried>, field: &str| {
            assert_eq!(heard(REQUEST, wire.unwrap()).unwrap_err().field, field);
        };
        check(told(token(RequestId(7))), "token.request");
        check(told(Update::ChoiceDone { choice: limits::CHOICES_MAX, eos: true }), "choice");
        check(Some(Carried { kind: None }), "kind");
        check(Some(Carried { kind: Some(Kind::End(CarriedEnd::default())) }), "reason");
        check(Some(Carried { kind: Some(Kind::Escalated(Escalated::default())) }), "policy");
        check(Some(Carried { kind: Some(Kind::Session("x".into())) }), "session");
    }
}
