//! A submission as it is written down, and as it is read again.

use std::time::Duration;

use aqueduct_core::journal::{Accepted, Outcome};
use aqueduct_core::work::FailureKind;
use aqueduct_core::{Constraint, Grammar, Refusal};

use super::super::ModelInfo;
use super::now_ms;
use crate::submit::{RequestError, Submission};

/// What is written down of `submission`, which `model` answers.
pub(crate) fn of_submission(
    submission: &Submission,
    model: &ModelInfo,
    deadline: Duration,
) -> Accepted {
    let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
    Accepted {
        model: model.fingerprint.clone(),
        prompt: submission.prompt.clone(),
        session: submission.session,
        policy: submission.policy,
        floor: submission.floor,
        chunk_tokens: submission.chunk_tokens,
        exchange: submission.exchange,
        wire: submission.wire,
        sampling: submission.sampling,
        steering: submission.steering.clone(),
        grammar: submission.constraint.as_ref().map(|constraint| constraint.grammar.clone()),
        choices: submission.choices,
        max_tokens: submission.max_tokens,
        eos: submission.eos.clone(),
        outputs: submission.outputs,
        priority: submission.priority,
        caller_id: submission.caller_id.clone(),
        cache_prompt: submission.cache_prompt,
        deadline_at_ms: now_ms().saturating_add(deadline_ms),
    }
}

/// The submission again, with what is left of its time. `constrain` says how the model spells
/// what a grammar allows.
///
/// # Errors
/// A request of another model, or whose time is over.
pub(crate) fn to_submission(
    accepted: Accepted,
    model: &ModelInfo,
    constrain: impl FnOnce(Grammar) -> Result<Constraint, Refusal>,
) -> Result<Submission, RequestError> {
    if accepted.model != model.fingerprint {
        let bound = format!("{}, with which its tokens were drawn", accepted.model);
        return Err(Refusal::new("fingerprint", &model.fingerprint, bound).into());
    }
    let left = Duration::from_millis(accepted.deadline_at_ms.saturating_sub(now_ms()));
    if left.is_zero() {
        let message = "its time was over before anybody went on with it".to_owned();
        return Err(RequestError::Failed { kind: FailureKind::Deadline, message });
    }
    Ok(Submission {
        prompt: accepted.prompt,
        session: accepted.session,
        policy: accepted.policy,
        floor: accepted.floor,
        chunk_tokens: accepted.chunk_tokens,
        exchange: accepted.exchange,
        wire: accepted.wire,
        sampling: accepted.sampling,
        steering: accepted.steering,
        constraint: accepted.grammar.map(constrain).transpose()?,
        choices: accepted.choices,
        max_tokens: accepted.max_tokens,
        eos: accepted.eos,
        outputs: accepted.outputs,
        priority: accepted.priority,
        caller_id: accepted.caller_id,
        // Who asked to see it has gone.
        shows: false,
        cache_prompt: accepted.cache_prompt,
        deadline: left,
    })
}

/// How a request that failed has ended.
pub(crate) fn failed(error: &RequestError) -> Outcome {
    let kind = match error {
        RequestError::Refused(_) => FailureKind::Invalid,
        RequestError::Busy { .. } | RequestError::Limited { .. } => FailureKind::Exhausted,
        RequestError::Unavailable(_) | RequestError::SessionLost => FailureKind::Peer,
        RequestError::Deadline(_) => FailureKind::Deadline,
        RequestError::Failed { kind, .. } => *kind,
    };
    Outcome::Failed { kind, message: error.to_string() }
}
