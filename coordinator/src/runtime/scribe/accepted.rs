//! A submission as it is written down, and as it is read again.

use std::time::Duration;

use aqueduct_core::journal::{Accepted, Outcome};
use aqueduct_core::work::FailureKind;
use aqueduct_core::{Constraint, Form, Refusal, clipped, limits};

use super::super::ModelInfo;
use crate::submit::{RequestError, Submission};

/// What is written down of `submission`, which `model` answers: less the token that the session
/// before it left, which the session has. Its time is over at `deadline_at_ms`.
pub(crate) fn of_submission(
    submission: &Submission,
    model: &ModelInfo,
    deadline_at_ms: u64,
) -> Accepted {
    Accepted {
        model: model.fingerprint.clone(),
        prompt: submission.prompt[usize::from(submission.pending().is_some())..].to_vec(),
        session: submission.session,
        policy: submission.policy,
        floor: submission.floor,
        chunk_tokens: submission.chunk_tokens,
        exchange: submission.exchange,
        wire: submission.wire,
        sampling: submission.sampling,
        steering: submission.steering.clone(),
        form: submission.constraint.as_ref().map_or_else(Form::default, |kept| kept.form.clone()),
        choices: submission.choices,
        max_tokens: submission.max_tokens,
        eos: submission.eos.clone(),
        outputs: submission.outputs,
        priority: submission.priority,
        caller_id: submission.caller_id.clone(),
        cache_prompt: submission.cache_prompt,
        telling: submission.telling.clone(),
        deadline_at_ms,
    }
}

/// The submission again, with what is left of its time at `now_ms`. `constrain` says how the model
/// spells what a form allows.
///
/// # Errors
/// A request of another model, or whose time is over.
pub(crate) fn to_submission(
    accepted: Accepted,
    now_ms: u64,
    model: &ModelInfo,
    constrain: impl FnOnce(Form) -> Result<Constraint, Refusal>,
) -> Result<Submission, RequestError> {
    if accepted.model != model.fingerprint {
        let bound = format!("{}, with which its tokens were drawn", accepted.model);
        return Err(Refusal::new("fingerprint", &model.fingerprint, bound).into());
    }
    let left = Duration::from_millis(accepted.deadline_at_ms.saturating_sub(now_ms));
    if left.is_zero() {
        return Err(overdue());
    }
    let form = Some(accepted.form.clone()).filter(|form| !form.is_any());
    let constraint = form.map(constrain).transpose()?;
    Ok(Submission { constraint, deadline: left, ..as_asked(accepted) })
}

/// Nobody had gone on with it when its time was over.
pub(crate) fn overdue() -> RequestError {
    let message = "its time was over before anybody went on with it".to_owned();
    RequestError::Failed { kind: FailureKind::Deadline, message }
}

/// What was asked for, less the form and as if there were time: to tell the answer.
pub(crate) fn as_asked(accepted: Accepted) -> Submission {
    Submission {
        session: accepted.session,
        policy: accepted.policy,
        floor: accepted.floor,
        chunk_tokens: accepted.chunk_tokens,
        exchange: accepted.exchange,
        wire: accepted.wire,
        sampling: accepted.sampling,
        steering: accepted.steering,
        choices: accepted.choices,
        max_tokens: accepted.max_tokens,
        eos: accepted.eos,
        outputs: accepted.outputs,
        priority: accepted.priority,
        caller_id: accepted.caller_id,
        // Who asked to see it has gone.
        cache_prompt: accepted.cache_prompt,
        telling: accepted.telling,
        ..Submission::of(accepted.prompt)
    }
}

/// How a request that failed has ended.
pub(crate) fn failed(error: &RequestError) -> Outcome {
    let kind = match error {
        RequestError::Refused(_) => FailureKind::Invalid,
        RequestError::Busy { .. } | RequestError::Limited { .. } => FailureKind::Exhausted,
        RequestError::Unavailable(_)
        | RequestError::Stopping
        | RequestError::Elsewhere(_)
        | RequestError::SessionLost
        | RequestError::Unknown(_)
        | RequestError::TakenOver => FailureKind::Peer,
        RequestError::Cancelled => return Outcome::Cancelled,
        RequestError::Deadline(_) => FailureKind::Deadline,
        RequestError::Failed { kind, .. } => *kind,
    };
    // Whoever reads the journal refuses longer ones: of workers in this process, say.
    Outcome::Failed { kind, message: clipped(error.to_string(), 2 * limits::FAILURE_BYTES_MAX) }
}

#[cfg(test)]
mod tests {
    use aqueduct_core::{KvDtype, SessionUse};

    use super::super::super::live::Asked;
    use super::super::super::session::Setting;
    use super::*;
    use crate::Config;
    use crate::submit::tests::SHAPE;

    #[test]
    fn a_turn_goes_on_where_its_session_was() {
        let model = ModelInfo { fingerprint: "same".into(), shape: SHAPE, kv: KvDtype::F32 };
        let asked = Submission { chunk_tokens: 16, ..Submission::of(vec![1, 2, 3]) };
        let (policy, _) = asked.policy.clamped(16);
        let setting = Setting::new("same", &policy, asked.wire, 16);
        let session = setting.after(None, (&[7; 40], &[8, 9]));
        let asked = Submission { session: Some(SessionUse::GoOn(session)), ..asked };
        let first = Asked::of(asked, model.clone(), &Config::default()).unwrap();
        assert_eq!(first.submission.prompt, [9, 1, 2, 3]);
        let kept = of_submission(&first.submission, &model, 61_000);
        let constrain = |_| Err(Refusal::new("grammar", "any", "none"));
        let late = to_submission(kept.clone(), 61_000, &model, constrain);
        assert_eq!(late, Err(overdue()));
        let again = to_submission(kept, 1_000, &model, constrain).unwrap();
        assert_eq!(again.deadline, Duration::from_secs(60));
        let again = Asked::of(again, model, &Config::default()).unwrap();
        assert_eq!((again.grid, again.submission.prompt), (first.grid, first.submission.prompt));
    }
}
