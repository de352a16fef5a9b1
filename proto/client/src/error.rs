//! What can go wrong, sorted by what the caller can do about it.

use std::time::Duration;

use tonic::{Code, Status};

use crate::client::REQUEST_ID;

/// gRPC metadata of a busy answer: milliseconds until another try makes sense.
const RETRY_AFTER_METADATA: &str = "grpc-retry-pushback-ms";

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The request is wrong; the message names the field and its bound.
    #[error("{0}")]
    InvalidArgument(String),
    /// What was named is not there.
    #[error("not found: {0}")]
    NotFound(String),
    /// The server's queue is full.
    #[error("busy: {message}; retry after {retry_after:?}")]
    Busy {
        /// What the server said.
        message: String,
        /// When another try makes sense.
        retry_after: Duration,
    },
    /// The server wants an API key, or another one.
    #[error("denied: {0}")]
    Denied(String),
    /// The server cannot be reached, or no worker can serve.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// What the call was to go on from is kept no longer: send the whole conversation.
    #[error("{0}")]
    SessionLost(String),
    /// The stream was lost, and the server does not know the request any more: it was away for
    /// too long, or keeps no journal.
    #[error("the stream was lost: {0}")]
    Gone(String),
    /// Somebody else has come back to the stream, and goes on with it.
    #[error("{0}")]
    TakenOver(String),
    /// Not done in time.
    #[error("deadline exceeded: {0}")]
    Deadline(String),
    /// Cancelled by the server.
    #[error("cancelled: {0}")]
    Cancelled(String),
    /// The server failed, or sent what this client cannot read.
    #[error("server failure: {0}")]
    Server(String),
}

impl ClientError {
    /// An answer that breaks the protocol.
    pub(crate) fn unreadable(what: impl std::fmt::Display) -> Self {
        Self::Server(format!("unreadable answer: {what}"))
    }
}

impl From<Status> for ClientError {
    fn from(status: Status) -> Self {
        // What the other end says as it hangs up is found beneath "transport error".
        let lost = std::error::Error::source(&status);
        if let Some(lost) = lost.filter(|cause| cause.is::<tonic::transport::Error>()) {
            let cause = root(lost);
            return match cause.is::<tonic::TimeoutExpired>() {
                true => Self::Deadline(cause.to_string()),
                false => Self::Unavailable(cause.to_string()),
            };
        }
        // A stream breaks off beneath hyper, and with any code.
        if let Some(lost) = lost.filter(|_| is_lost(&status)) {
            return Self::Unavailable(root_cause(lost));
        }
        let message = match (status.code(), status.message()) {
            // What gRPC servers say of services that they do not have.
            (Code::Unimplemented, "") => {
                "the server has no such service: is it a coordinator, and the port its gRPC one \
                 (7070 unless told otherwise)?"
            }
            (_, message) => message,
        };
        let message = message.strip_prefix("unavailable: ").unwrap_or(message).to_owned();
        match status.code() {
            Code::InvalidArgument | Code::OutOfRange | Code::Unimplemented => {
                Self::InvalidArgument(message)
            }
            Code::NotFound => Self::NotFound(message),
            Code::ResourceExhausted => Self::Busy { message, retry_after: retry_after(&status) },
            Code::Unauthenticated | Code::PermissionDenied => Self::Denied(message),
            Code::FailedPrecondition => Self::SessionLost(message),
            Code::Aborted => Self::TakenOver(message),
            Code::Unavailable => Self::Unavailable(message),
            Code::DeadlineExceeded => Self::Deadline(message),
            Code::Cancelled => Self::Cancelled(message),
            code => Self::Server(format!("{message} ({code:?})")),
        }
    }
}

/// Whether a stream may go on elsewhere, or later: its connection was lost, or nobody serves it at
/// this moment, rather than that it ended, or that one end does not believe the other.
pub(crate) fn is_lost(status: &Status) -> bool {
    let cause = std::error::Error::source(status);
    let is_late = cause.is_some_and(|cause| root(cause).is::<tonic::TimeoutExpired>());
    let never_again = status.metadata().get(RETRY_AFTER_METADATA).is_some_and(|ms| ms == "-1");
    let is_refusal = cause.is_some_and(aqueduct_tls::is_refusal);
    let is_away = status.code() == Code::Unavailable && !never_again;
    !is_late && !is_refusal && (cause.is_some() || is_away)
}

/// Whether nobody has answered a start: a server that refuses one says what it answers.
pub(crate) fn is_unheard(status: &Status) -> bool {
    is_lost(status) && !status.metadata().contains_key(REQUEST_ID)
}

/// What the innermost error says: tonic's own text is "transport error" and says nothing.
pub(crate) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    root(error).to_string()
}

fn root<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause
}

fn retry_after(status: &Status) -> Duration {
    pushback(status).unwrap_or(Duration::from_secs(1))
}

/// When the server wants to be asked again; `None` where it says nothing, or a negative number,
/// which is gRPC's way to say never.
pub(crate) fn pushback(status: &Status) -> Option<Duration> {
    let text = status.metadata().get(RETRY_AFTER_METADATA)?.to_str().ok()?;
    text.parse().ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_breaks_off_is_unavailable() {
        let broken = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        let status = Status::from_error(Box::new(broken));
        assert_eq!(status.code(), Code::Unknown);
        let error = ClientError::from(status);
        assert!(matches!(error, ClientError::Unavailable(_)), "{error:?}");
    }

    #[test]
    fn maps_codes_to_what_the_caller_can_do() {
        let check = |code, want: fn(&ClientError) -> bool| {
            let error = ClientError::from(Status::new(code, "top_p = 2: must be at most 1"));
            assert!(want(&error), "{code:?} became {error:?}");
            assert!(error.to_string().contains("top_p = 2"), "{error}");
        };
        check(Code::InvalidArgument, |e| matches!(e, ClientError::InvalidArgument(_)));
        check(Code::Unavailable, |e| matches!(e, ClientError::Unavailable(_)));
        check(Code::FailedPrecondition, |e| matches!(e, ClientError::SessionLost(_)));
        check(Code::DeadlineExceeded, |e| matches!(e, ClientError::Deadline(_)));
        check(Code::Cancelled, |e| matches!(e, ClientError::Cancelled(_)));
        check(Code::Unauthenticated, |e| matches!(e, ClientError::Denied(_)));
        check(Code::Aborted, |e| matches!(e, ClientError::TakenOver(_)));
        check(Code::Internal, |e| matches!(e, ClientError::Server(_)));
        check(Code::ResourceExhausted, |e| matches!(e, ClientError::Busy { .. }));
    }

    #[test]
    fn what_is_lost_is_told_from_what_has_ended() {
        assert!(is_lost(&Status::unavailable("the coordinator is shutting down")));
        assert!(!is_lost(&Status::not_found("request 7")));
        let mut ended = Status::unavailable("no worker is up");
        ended.metadata_mut().insert(RETRY_AFTER_METADATA, "-1".parse().unwrap());
        assert!(!is_lost(&ended));
        let broken = std::io::Error::new(std::io::ErrorKind::ConnectionReset, "reset");
        assert!(is_lost(&Status::from_error(Box::new(broken))));
        assert!(!is_lost(&Status::from_error(Box::new(tonic::TimeoutExpired(())))));
    }

    #[test]
    fn reads_when_to_try_again() {
        let mut status = Status::resource_exhausted("full");
        status.metadata_mut().insert(RETRY_AFTER_METADATA, "250".parse().unwrap());
        let ClientError::Busy { retry_after, .. } = status.into() else { panic!("not busy") };
        assert_eq!(retry_after, Duration::from_millis(250));
    }
}
