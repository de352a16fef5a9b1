//! Errors as exit codes and as one line for a person.

use std::io::ErrorKind;

use aqueduct_client::ClientError;
use aqueduct_coordinator::runtime;
use aqueduct_coordinator::submit::RequestError;
use aqueduct_coordinator::text::TextError;
use aqueduct_core::Refusal;
use aqueduct_core::error::joined;
use aqueduct_core::work::FailureKind;
use aqueduct_engine::LoadError;
use aqueduct_journal::{OpenError, StoreError};
use aqueduct_kernels::CudaError;
use aqueduct_kernels::cpu::CpuError;
use aqueduct_tls::TlsError;

use crate::cluster::WorkerExited;

/// A worker, a device or the disk let us down.
pub(crate) const FAILURE: u8 = 1;
/// What the user gave is wrong; clap's own code for a wrong flag.
pub(crate) const USAGE: u8 = 2;
/// Nobody answers, or the queue is full.
pub(crate) const UNAVAILABLE: u8 = 3;
/// A deadline passed.
pub(crate) const DEADLINE: u8 = 4;

/// The exit code of the outermost cause that says what kind of failure it is.
pub(crate) fn code_of(error: &anyhow::Error) -> u8 {
    error.chain().find_map(code_of_cause).unwrap_or(FAILURE)
}

fn code_of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<u8> {
    if let Some(error) = cause.downcast_ref::<CudaError>() {
        return Some(match error {
            CudaError::None { .. } | CudaError::Index { .. } => USAGE,
            _ => FAILURE,
        });
    }
    if is_wrong_input(cause) {
        return Some(USAGE);
    }
    if let Some(error) = cause.downcast_ref::<ClientError>() {
        return Some(match error {
            ClientError::InvalidArgument(_) | ClientError::Denied(_) => USAGE,
            ClientError::Busy { .. }
            | ClientError::Unavailable(_)
            | ClientError::SessionLost(_)
            | ClientError::Gone(_)
            | ClientError::TakenOver(_) => UNAVAILABLE,
            ClientError::Deadline(_) => DEADLINE,
            _ => FAILURE,
        });
    }
    if let Some(WorkerExited { code, .. }) = cause.downcast_ref() {
        return Some(*code);
    }
    cause.downcast_ref::<RequestError>().map(|error| match error {
        RequestError::Refused(_) => USAGE,
        RequestError::Busy { .. }
        | RequestError::Limited { .. }
        | RequestError::Unavailable(_)
        | RequestError::Stopping
        | RequestError::Elsewhere(_)
        | RequestError::SessionLost
        | RequestError::Unknown(_)
        | RequestError::TakenOver => UNAVAILABLE,
        RequestError::Deadline(_) => DEADLINE,
        RequestError::Failed { kind: FailureKind::Invalid, .. } => USAGE,
        RequestError::Failed { .. } | RequestError::Cancelled => FAILURE,
    })
}

fn is_wrong_input(cause: &(dyn std::error::Error + 'static)) -> bool {
    let is_input = cause.is::<Refusal>() || cause.is::<LoadError>() || cause.is::<TextError>();
    // These repeat what a refusal says, which is then no cause of its own.
    let is_option = matches!(cause.downcast_ref(), Some(runtime::StartError::Refused(_)))
        || matches!(
            cause.downcast_ref(),
            Some(aqueduct_worker::StartError::Refused(_) | aqueduct_worker::StartError::Pool(_))
        )
        || matches!(cause.downcast_ref(), Some(CpuError::Isa(_)));
    let is_folder = match cause.downcast_ref() {
        Some(OpenError::Store(StoreError::Io { source, .. })) => is_unusable(source.kind()),
        _ => false,
    };
    is_input || is_option || is_folder || cause.is::<TlsError>()
}

/// Whether a path is to blame, and not the disk behind it.
fn is_unusable(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NotFound
            | ErrorKind::PermissionDenied
            | ErrorKind::NotADirectory
            | ErrorKind::AlreadyExists
    )
}

/// Whether whoever read our stdout has seen enough (`aqueduct … | head`).
pub(crate) fn is_reader_gone(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// The causes in one line, each said once.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    joined(error.chain().map(|cause| cause.to_string().replace('\n', " ")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anyhow::Context;

    use super::*;
    use crate::contexts;

    #[test]
    fn codes_say_whose_turn_it_is() {
        let check = |error: anyhow::Error, want| {
            assert_eq!(code_of(&error), want, "{error:#}");
            assert_eq!(code_of(&error.context("while reading a book")), want);
        };
        check(anyhow::anyhow!("no space"), FAILURE);
        check(contexts::Unknown("blue".into()).into(), FAILURE);
        check(Refusal::new("chunk_tokens", 0, "at least 1").into(), USAGE);
        let refusal = || Refusal::new("running_requests", 0, "between 1 and 32");
        check(runtime::StartError::from(refusal()).into(), USAGE);
        check(aqueduct_worker::StartError::from(refusal()).into(), USAGE);
        let io = |kind: ErrorKind| {
            let store = StoreError::Io { path: "/journal".into(), source: kind.into() };
            OpenError::from(store)
        };
        check(io(ErrorKind::NotADirectory).into(), USAGE);
        check(io(ErrorKind::StorageFull).into(), FAILURE);
        check(CudaError::Index { index: 3, last: 0 }.into(), USAGE);
        check(CudaError::Unusable { index: 0, what: "lost".into() }.into(), FAILURE);
        check(ClientError::Unavailable("refused".into()).into(), UNAVAILABLE);
        check(RequestError::Deadline(Duration::from_secs(1)).into(), DEADLINE);
        check(RequestError::from(Refusal::new("prompt", "", "longer")).into(), USAGE);
    }

    #[test]
    fn a_line_says_each_cause_once() {
        let refusal = RequestError::from(Refusal::new("chunk_tokens", 0, "at least 1"));
        let error = Err::<(), _>(refusal).context("eval").unwrap_err();
        assert_eq!(one_line(&error), "eval: chunk_tokens = 0: must be at least 1");
    }
}
