//! The id by which a caller knows its call: its own, or one that is drawn for it. It is echoed
//! with every answer, good or bad, and stands in the log beside the request's number.

use std::hash::{BuildHasher, RandomState};

use aqueduct_core::{TraceParent, is_caller_id};
use aqueduct_telemetry::follow;
use tracing::Span;

/// HTTP header and gRPC metadata that carry it.
pub(crate) const REQUEST_ID: &str = "x-request-id";

/// What the caller asked for, if that can stand in a header and in a log, or a new one.
pub(crate) fn or_drawn(asked: Option<&str>) -> String {
    match asked.filter(|asked| is_caller_id(asked)) {
        Some(asked) => asked.to_owned(),
        None => format!("req-{:016x}", RandomState::new().hash_one(())),
    }
}

/// A call's span, as far as it is traced: a child of its caller's, if that has one.
pub(crate) fn call_span(plane: &str, id: &str, traceparent: Option<&str>) -> Span {
    let span = tracing::info_span!("call", otel.kind = "server", plane, request_id = id);
    follow(&span, traceparent.and_then(TraceParent::of_caller));
    span
}

#[cfg(test)]
mod tests {
    use aqueduct_core::limits::REQUEST_ID_BYTES_MAX;

    use super::*;

    #[test]
    fn what_is_fit_is_kept() {
        let check = |asked: Option<&str>, kept: bool| {
            let id = or_drawn(asked);
            assert_eq!(asked == Some(&id), kept, "{asked:?} became {id}");
            assert!(is_caller_id(&id));
        };
        check(None, false);
        check(Some("7f-a:b/c"), true);
        check(Some(""), false);
        check(Some("two words"), false);
        check(Some("line\nbreak"), false);
        check(Some("é"), false);
        check(Some(&"x".repeat(REQUEST_ID_BYTES_MAX)), true);
        check(Some(&"x".repeat(REQUEST_ID_BYTES_MAX + 1)), false);
    }
}
