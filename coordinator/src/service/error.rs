//! What went wrong, as gRPC says it.

use std::time::Duration;

use aqueduct_core::work::FailureKind;
use aqueduct_proto::LEADER_METADATA;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::submit::RequestError;

/// Metadata that gRPC clients with a retry policy obey, in milliseconds.
const RETRY_AFTER: &str = "grpc-retry-pushback-ms";

/// A request's error as a status.
pub(super) fn status_of(error: RequestError) -> Status {
    let code = match &error {
        RequestError::Refused(_) => Code::InvalidArgument,
        RequestError::Busy { .. } | RequestError::Limited { .. } => Code::ResourceExhausted,
        RequestError::Unavailable(_) | RequestError::Stopping | RequestError::Elsewhere(_) => {
            Code::Unavailable
        }
        RequestError::Unknown(_) => Code::NotFound,
        RequestError::TakenOver => Code::Aborted,
        RequestError::SessionLost => Code::FailedPrecondition,
        RequestError::Cancelled => Code::Cancelled,
        RequestError::Deadline(_) => Code::DeadlineExceeded,
        RequestError::Failed { kind, .. } => match kind {
            FailureKind::Invalid => Code::InvalidArgument,
            FailureKind::Exhausted => Code::ResourceExhausted,
            FailureKind::Deadline => Code::DeadlineExceeded,
            FailureKind::Peer => Code::Unavailable,
            FailureKind::Internal => Code::Internal,
        },
    };
    let mut status = Status::new(code, error.to_string());
    let metadata = status.metadata_mut();
    match error {
        RequestError::Busy { retry_after, .. } | RequestError::Limited { retry_after, .. } => {
            metadata.insert(RETRY_AFTER, MetadataValue::from(ms(retry_after)));
        }
        RequestError::Elsewhere(leader) => {
            // An address that was checked always makes a value.
            leader
                .grpc
                .parse()
                .into_iter()
                .for_each(|url| drop(metadata.insert(LEADER_METADATA, url)));
        }
        _ => {}
    }
    status
}

/// What ended an answer. Where nobody serves it at this moment, it may go on later; otherwise to
/// come back to it is of no use, and gRPC's way to say so is a negative time.
pub(super) fn ending(error: RequestError) -> Status {
    let goes_on = error == RequestError::Stopping;
    let mut status = status_of(error);
    if status.code() == Code::Unavailable && !goes_on {
        status.metadata_mut().insert(RETRY_AFTER, MetadataValue::from(-1));
    }
    status
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::submit::Busy;
    use aqueduct_core::{Addresses, Refusal};

    #[test]
    fn every_error_has_its_code() {
        let check = |error: RequestError, code: Code| assert_eq!(status_of(error).code(), code);
        let failed = |kind| RequestError::Failed { kind, message: "so it is".into() };
        check(Refusal::new("n", 0, "at least 1").into(), Code::InvalidArgument);
        check(RequestError::Unavailable("none".into()), Code::Unavailable);
        check(RequestError::Stopping, Code::Unavailable);
        check(RequestError::Unknown(aqueduct_core::RequestId(7)), Code::NotFound);
        check(RequestError::TakenOver, Code::Aborted);
        check(RequestError::SessionLost, Code::FailedPrecondition);
        check(RequestError::Cancelled, Code::Cancelled);
        check(RequestError::Deadline(Duration::ZERO), Code::DeadlineExceeded);
        check(failed(FailureKind::Invalid), Code::InvalidArgument);
        check(failed(FailureKind::Exhausted), Code::ResourceExhausted);
        check(failed(FailureKind::Deadline), Code::DeadlineExceeded);
        check(failed(FailureKind::Peer), Code::Unavailable);
        check(failed(FailureKind::Internal), Code::Internal);
        let (http, grpc) = ("http://c2:8080".to_owned(), "http://c2:7070".to_owned());
        let elsewhere = status_of(RequestError::Elsewhere(Addresses { http, grpc }));
        assert_eq!(elsewhere.code(), Code::Unavailable);
        assert_eq!(elsewhere.metadata().get(LEADER_METADATA).unwrap(), "http://c2:7070");
        let busy = RequestError::Busy {
            busy: Busy::Requests { queued: 3 },
            retry_after: Duration::from_secs(2),
        };
        let status = status_of(busy);
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(status.metadata().get(RETRY_AFTER).unwrap(), "2000");
    }
}
