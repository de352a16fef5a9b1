//! How requests end: for their callers, and for the journal.

use aqueduct_core::RequestId;
use aqueduct_core::journal::Outcome;
use aqueduct_plan::{End, Failure};

use super::super::live::Live;
use super::super::scribe::accepted::failed;
use super::EventLoop;
use crate::submit::RequestError;

impl EventLoop {
    /// What its caller is told, if it failed.
    pub(super) fn ended(
        &mut self,
        request: RequestId,
        end: End,
    ) -> Option<(RequestId, RequestError)> {
        let mut live = self.live.remove(&request)?;
        let (outcome, error) = match end {
            End::Finished => (Outcome::Finished, None),
            End::Cancelled if self.desk.stopped.contains(&request) => {
                (Outcome::Cancelled, Some(RequestError::Cancelled))
            }
            End::Cancelled => (Outcome::Cancelled, None),
            End::Failed(failure) => {
                let error = self.error_of(failure, &live);
                (failed(&error), Some(error))
            }
        };
        live.traced_to_end(error.as_ref());
        let state = match outcome {
            Outcome::Finished => "finished",
            Outcome::Cancelled => "cancelled",
            Outcome::Failed { .. } => "failed",
        };
        let told = error.as_ref().map_or_else(String::new, ToString::to_string);
        self.remember(&mut live, state, told);
        self.note_end(&live, outcome);
        if let Some(error) = &error {
            let caller_id = &live.submission.caller_id;
            tracing::info!(%request, caller_id, %error, "request failed");
        }
        live.mailbox.end(error.clone());
        error.map(|error| (request, error))
    }

    fn error_of(&self, failure: Failure, live: &Live) -> RequestError {
        match failure {
            Failure::TooLong(refusal) => refusal.into(),
            Failure::Busy(busy) => {
                let wait = self.pace.wait_for(self.plan.queued_tokens());
                RequestError::Busy { busy, retry_after: wait.max(self.config.retry_after) }
            }
            Failure::Unavailable(why) => RequestError::Unavailable(why),
            Failure::SessionLost => RequestError::SessionLost,
            Failure::Deadline => RequestError::Deadline(live.submission.deadline),
            Failure::Worker { kind, message } => RequestError::Failed { kind, message },
        }
    }
}
