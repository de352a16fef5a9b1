//! What the memory of a conversation is called, and who may go on from it.

use aqueduct_core::work::Outputs;
use aqueduct_core::{
    BelowFloor, Floor, MemoryPolicy, Refusal, Session, SessionUse, SnapshotKey, TokenId, WireDtype,
};

use super::ModelInfo;
use super::prefix;
use crate::submit::Submission;

/// Under which name workers keep the memory of `session`. It is made of all that the caller has,
/// so that whoever changes any of it names nothing.
pub(super) fn key(session: &Session) -> SnapshotKey {
    let mut hash = blake3::Hasher::new();
    hash.update(b"aqueduct session");
    hash.update(&session.to_bytes());
    SnapshotKey(hash.finalize().into())
}

/// Everything beside tokens that the memory of a conversation depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Setting {
    model: [u8; 8],
    settings: [u8; 8],
    root: [u8; 32],
}

impl Setting {
    pub(super) fn new(
        fingerprint: &str,
        policy: &MemoryPolicy,
        wire: WireDtype,
        chunk_tokens: u32,
    ) -> Self {
        let SnapshotKey(root) = prefix::root(fingerprint, policy, wire, chunk_tokens);
        let SnapshotKey(settings) = prefix::root("", policy, wire, chunk_tokens);
        let model = *blake3::hash(fingerprint.as_bytes()).as_bytes();
        Self { model: first(&model), settings: first(&settings), root }
    }

    /// # Errors
    /// A session of another model, or that was begun with other settings.
    pub(super) fn check(&self, session: &Session) -> Result<(), Refusal> {
        let refusal = |bound| Err(Refusal::new("session", "present", bound));
        if session.model != self.model {
            return refusal("one of the model that is served");
        }
        match session.settings == self.settings {
            true => Ok(()),
            false => refusal("one of the same policy, chunk_tokens and wire"),
        }
    }

    /// What there is after a turn of `prompt` (what was pending before it included) and `output`,
    /// `end` tokens in all but the last one generated.
    pub(super) fn after(
        &self,
        before: Option<&Session>,
        (prompt, output): (&[TokenId], &[TokenId]),
    ) -> Session {
        let (pending, remembered) = match output.split_last() {
            Some((last, remembered)) => (Some(*last), remembered),
            None => (None, output),
        };
        let mut hash = blake3::Hasher::new();
        hash.update(before.map_or(&self.root, |session| &session.name));
        for tokens in [prompt, remembered] {
            hash.update(&(tokens.len() as u64).to_le_bytes());
            for token in tokens {
                hash.update(&token.to_le_bytes());
            }
        }
        let known = before.map_or(0, |session| session.end);
        Session {
            model: self.model,
            settings: self.settings,
            name: hash.finalize().into(),
            end: known + (prompt.len() + remembered.len()) as u32,
            pending,
        }
    }
}

/// Checks what a request with a session may not ask for, and gives what it goes on from.
///
/// # Errors
/// The field that cannot be beside a session, or the session itself.
pub(super) fn check(submission: &Submission, model: &ModelInfo) -> Result<(), Refusal> {
    let Some(asked) = &submission.session else { return Ok(()) };
    let Submission { exchange, wire, chunk_tokens, .. } = *submission;
    let (policy, _) = submission.policy.clamped(chunk_tokens);
    Refusal::unless_within("choices beside a session", submission.choices, 1, 1)?;
    if exchange.resolve(&policy, chunk_tokens, (&model.shape, model.kv), wire).is_some() {
        let bound = "a bounded policy whose memory is handed on (not dense, not stay)";
        return Err(Refusal::new("policy beside a session", policy, bound));
    }
    let escalates = |floor: Floor| floor.below == BelowFloor::Escalate;
    if submission.floor.is_some_and(escalates) {
        let bound = "report: a session keeps its policy";
        return Err(Refusal::new("below_floor beside a session", "escalate", bound));
    }
    let SessionUse::GoOn(session) = asked else { return Ok(()) };
    if submission.outputs != Outputs::None {
        let bound = "absent: earlier turns are not computed again";
        return Err(Refusal::new("prompt_logprobs beside a session", "present", bound));
    }
    let wire = model.rounding(wire);
    Setting::new(&model.fingerprint, &policy, wire, chunk_tokens).check(session)
}

fn first(bytes: &[u8; 32]) -> [u8; 8] {
    std::array::from_fn(|idx| bytes[idx])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(fingerprint: &str, heavy: u32, wire: WireDtype, c: u32) -> Setting {
        Setting::new(fingerprint, &MemoryPolicy::h2o(1, 2, heavy), wire, c)
    }

    #[test]
    fn a_session_is_of_one_model_and_one_setting() {
        let own = setting("m", 3, WireDtype::F32, 16);
        let session = own.after(None, (&[1, 2, 3], &[4, 5]));
        assert_eq!((session.end, session.pending), (4, Some(5)));
        assert_eq!(own.check(&session), Ok(()));
        let check = |other: Setting, want: &str| {
            assert!(other.check(&session).unwrap_err().to_string().contains(want));
        };
        check(setting("n", 3, WireDtype::F32, 16), "the model");
        check(setting("m", 4, WireDtype::F32, 16), "policy");
        check(setting("m", 3, WireDtype::F16, 16), "wire");
        check(setting("m", 3, WireDtype::F32, 8), "chunk_tokens");
    }

    #[test]
    fn a_name_is_of_all_tokens_and_of_who_drew_them() {
        let own = setting("m", 3, WireDtype::F32, 16);
        let first = own.after(None, (&[1, 2], &[3]));
        let sessions = [
            first,
            own.after(None, (&[1, 2], &[4])),
            own.after(None, (&[1, 2, 3], &[])),
            own.after(None, (&[1], &[2, 3])),
            own.after(Some(&first), (&[3, 1, 2], &[3])),
            own.after(Some(&first), (&[3, 1], &[2, 3])),
        ];
        let keys: std::collections::BTreeSet<_> = sessions.iter().map(key).collect();
        assert_eq!(keys.len(), sessions.len());
        assert_eq!((sessions[2].end, sessions[2].pending), (3, None));
        assert_eq!((sessions[4].end, sessions[4].pending), (5, Some(3)));
    }
}
