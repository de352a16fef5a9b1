//! Errors as OpenAI's clients expect them.

use std::time::Duration;

use aqueduct_core::Refusal;
use aqueduct_core::work::FailureKind;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::keys::{Denied, Limit};
use crate::peers::NotNow;
use crate::submit::{Busy, RequestError};
use crate::text::TextError;

/// What went wrong with a call, for its caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// For a person.
    pub message: String,
    /// The field that was wrong.
    pub param: Option<String>,
    /// What kind of error; follows from the status unless given.
    pub kind: Option<&'static str>,
    /// For a program.
    pub code: Option<&'static str>,
    /// When to try again.
    pub retry_after: Option<Duration>,
    /// Whether it may be otherwise in a moment.
    pub(crate) not_now: Option<NotNow>,
}

impl ApiError {
    /// An error without a field.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let message = message.into();
        let (param, kind, code, retry_after, not_now) = (None, None, None, None, None);
        Self { status, message, param, kind, code, retry_after, not_now }
    }

    /// 400: `param` is wrong.
    pub fn field(param: &str, message: impl std::fmt::Display) -> Self {
        let message = format!("{param}: {message}");
        Self { param: Some(param.to_owned()), ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    /// Why a call was not taken, in a word for figures; `None` where that was nobody's doing.
    pub(super) fn reason(&self) -> Option<&'static str> {
        match (self.status, self.code) {
            (_, Some("context_length_exceeded")) => Some("prompt_tokens"),
            (StatusCode::PAYLOAD_TOO_LARGE, _) => Some("body_bytes"),
            (StatusCode::SERVICE_UNAVAILABLE, Some("unavailable")) => Some("bodies_bytes"),
            (StatusCode::GATEWAY_TIMEOUT, _) => Some("deadline"),
            (status, _) => status.is_client_error().then_some("invalid"),
        }
    }

    /// The object under `error`.
    pub fn body(&self) -> Value {
        let kind = self.kind.unwrap_or(match self.status.as_u16() {
            429 => "requests",
            400..=499 => "invalid_request_error",
            503 | 504 => "service_unavailable_error",
            _ => "server_error",
        });
        let Self { message, param, code, .. } = self;
        json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(after) = self.retry_after {
            let seconds = HeaderValue::from(after.as_millis().div_ceil(1000).max(1) as u64);
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        if let Some(not_now) = self.not_now {
            response.extensions_mut().insert(not_now);
        }
        if matches!(self.code, Some("deadline_exceeded" | "taken_over")) {
            // OpenAI's clients would have all of it done again, and miss the deadline again.
            response.headers_mut().insert("x-should-retry", HeaderValue::from_static("false"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let bearer = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
        }
        // For who tells it in the words of another API.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Denied> for ApiError {
    fn from(denied: Denied) -> Self {
        let error = Self::new(StatusCode::UNAUTHORIZED, denied.to_string());
        Self { code: Some("invalid_api_key"), ..error }
    }
}

/// Fields that callers send in the `aqueduct` object.
const OF_AQUEDUCT: [&str; 15] = [
    "age_normalised",
    "below_floor",
    "chunk_tokens",
    "deadline_ms",
    "decay",
    "exchange",
    "heavy",
    "local",
    "min_retained_mass",
    "policy",
    "quality",
    "session",
    "sinks",
    "window",
    "wire",
];

/// What is refused, with its field as the caller sent it.
fn as_sent(refusal: Refusal) -> Refusal {
    let name = name_in(&refusal.field);
    let sent = match name {
        "choices" => "n".to_owned(),
        name if OF_AQUEDUCT.contains(&name) => format!("aqueduct.{name}"),
        _ => return refusal,
    };
    Refusal { field: refusal.field.replacen(name, &sent, 1), ..refusal }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let refusal = as_sent(refusal);
        let code = (refusal.field == "prompt_tokens").then_some("context_length_exceeded");
        // Some clients look for OpenAI's words, to go on with another model.
        let words = code.map_or("", |_| ". This model's maximum context length is exceeded");
        let error = Self::new(StatusCode::BAD_REQUEST, format!("{refusal}{words}"));
        Self { param: Some(name_in(&refusal.field).to_owned()), code, ..error }
    }
}

/// A field's name among words that say what of it is meant: `logit_bias entries`, `end tokens with
/// stop_token_ids`, `completions in last-event-id`.
fn name_in(field: &str) -> &str {
    let behind = [" in ", " with "].into_iter().find_map(|word| field.split_once(word));
    let name = behind.map_or(field, |(_, name)| name);
    name.split_once(' ').map_or(name, |(name, _)| name)
}

impl From<TextError> for ApiError {
    fn from(error: TextError) -> Self {
        match error {
            TextError::Refused(refusal) => refusal.into(),
            other => Self::new(StatusCode::INTERNAL_SERVER_ERROR, other.to_string()),
        }
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        let message = error.to_string();
        let (status, code) = match &error {
            RequestError::Refused(refusal) => return refusal.clone().into(),
            RequestError::Busy { .. } | RequestError::Limited { .. } => {
                (StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded")
            }
            RequestError::Unavailable(_) | RequestError::Stopping | RequestError::Elsewhere(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, "unavailable")
            }
            RequestError::Unknown(_) => (StatusCode::NOT_FOUND, "request_not_found"),
            RequestError::TakenOver => (StatusCode::CONFLICT, "taken_over"),
            RequestError::SessionLost => (StatusCode::NOT_FOUND, "session_lost"),
            RequestError::Cancelled => (StatusCode::GONE, "cancelled"),
            RequestError::Deadline(_) => (StatusCode::GATEWAY_TIMEOUT, "deadline_exceeded"),
            RequestError::Failed { kind, .. } => match kind {
                FailureKind::Invalid => (StatusCode::BAD_REQUEST, "invalid"),
                FailureKind::Exhausted => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded"),
                FailureKind::Deadline => (StatusCode::GATEWAY_TIMEOUT, "deadline_exceeded"),
                FailureKind::Peer => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
                FailureKind::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
            },
        };
        let kind = match &error {
            RequestError::Busy { busy: Busy::Tokens { .. } | Busy::Memory(_), .. } => {
                Some("tokens")
            }
            RequestError::Limited { limit: Limit::TokensPerMinute(_), .. } => Some("tokens"),
            _ => None,
        };
        let retry_after = match error {
            RequestError::Busy { retry_after, .. } | RequestError::Limited { retry_after, .. } => {
                Some(retry_after)
            }
            // What passes by itself, such as an election: by then it is known who leads.
            _ => {
                let is_passing = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
                is_passing.contains(&status).then_some(Duration::from_secs(1))
            }
        };
        let not_now = match error {
            RequestError::Stopping | RequestError::Elsewhere(_) => Some(NotNow::Stopping),
            RequestError::Unavailable(_) => Some(NotNow::Unavailable),
            _ => None,
        };
        Self { kind, code: Some(code), retry_after, not_now, ..Self::new(status, message) }
    }
}
