//! Why a request comes to nothing.

use std::time::Duration;

use aqueduct_core::work::FailureKind;
use aqueduct_core::{Addresses, Refusal, RequestId};

use super::Busy;
use crate::keys::Limit;

/// Why a request was not accepted or could not be finished.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// The request is wrong: HTTP 400, INVALID_ARGUMENT.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// There is no room for it now: HTTP 429, RESOURCE_EXHAUSTED.
    #[error("{busy}; retry after {retry_after:?}")]
    Busy {
        /// Where there is none.
        busy: Busy,
        /// When to try again.
        retry_after: Duration,
    },
    /// The caller's API key has too much already: HTTP 429, RESOURCE_EXHAUSTED.
    #[error("over the limit of this API key: {limit}")]
    Limited {
        /// What it has too much of.
        limit: Limit,
        /// When to try again.
        retry_after: Duration,
    },
    /// No worker can serve it now: HTTP 503, UNAVAILABLE.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// Another coordinator of the group leads, and serves it: HTTP 307, UNAVAILABLE with where.
    #[error("another coordinator leads: {} (HTTP), {} (gRPC)", .0.http, .0.grpc)]
    Elsewhere(Addresses),
    /// What it was to go on from is kept no longer: HTTP 404, FAILED_PRECONDITION. The caller
    /// has to send the conversation from its beginning.
    #[error(
        "session lost: no worker keeps its memory any more; begin again with all that was said"
    )]
    SessionLost,
    /// Nobody serves it at this moment: HTTP 503, UNAVAILABLE. Where a journal has it, it goes on.
    #[error("unavailable: the coordinator is shutting down, or leads no longer")]
    Stopping,
    /// There is no such request, or not any more, or it is not its caller's: HTTP 404, NOT_FOUND.
    #[error("request {0}: not known, or not any more")]
    Unknown(RequestId),
    /// Somebody else has come back to its answer: HTTP 409, ABORTED.
    #[error("somebody else reads this answer now")]
    TakenOver,
    /// Somebody who looks after the cluster has ended it: HTTP 410, CANCELLED.
    #[error("cancelled by an operator")]
    Cancelled,
    /// Its deadline passed: HTTP 504, DEADLINE_EXCEEDED.
    #[error("not finished within {0:?}")]
    Deadline(Duration),
    /// A worker failed in a way that another try would not mend.
    #[error("{message}")]
    Failed {
        /// Kind.
        kind: FailureKind,
        /// For a person.
        message: String,
    },
}

impl RequestError {
    /// What was in the way, in a word for figures.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Refused(refusal) if refusal.field == "prompt_tokens" => "prompt_tokens",
            Self::Refused(_) => "invalid",
            Self::Busy { busy: Busy::Requests { .. }, .. } => "queued_requests",
            Self::Busy { busy: Busy::Tokens { .. }, .. } => "queued_tokens",
            Self::Busy { busy: Busy::Memory(_), .. } => "memory",
            Self::Limited { limit: Limit::Requests(_), .. } => "key_requests",
            Self::Limited { limit: Limit::TokensPerMinute(_), .. } => "key_tokens",
            Self::Unavailable(_) | Self::Stopping => "unavailable",
            Self::Elsewhere(_) => "elsewhere",
            Self::Unknown(_) => "unknown",
            Self::TakenOver => "taken_over",
            Self::SessionLost => "session_lost",
            Self::Cancelled => "cancelled",
            Self::Deadline(_) => "deadline",
            Self::Failed { .. } => "failed",
        }
    }
}
