//! Errors as Anthropic's clients expect them.

use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::super::error::ApiError;
use super::super::request_id::CallerId;

/// Below this path everything is said in these words.
const PATH: &str = "/v1/messages";
/// Where clients look for the id of a call.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Tells the errors of calls in this API's words, wherever they were made, and gives its answers
/// their id.
pub(in crate::http) async fn in_its_words(request: Request, next: Next) -> Response {
    if !request.uri().path().starts_with(PATH) {
        return next.run(request).await;
    }
    let id = request.extensions().get::<CallerId>().map(|CallerId(id, _)| id.clone());
    let mut response = next.run(request).await;
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        let (mut parts, _) = response.into_parts();
        let mut body = told(&error);
        body["request_id"] = json!(id);
        let (own, body) = Json(body).into_response().into_parts();
        parts.headers.remove(header::CONTENT_LENGTH);
        parts.headers.extend(own.headers);
        response = Response::from_parts(parts, body);
    }
    if let Some(id) = id.and_then(|id| HeaderValue::try_from(id).ok()) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// An error, as a body or as the last event of a stream.
pub(super) fn told(error: &ApiError) -> Value {
    let kind = match error.status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        504 => "timeout_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    };
    let message = match error.code {
        // By these words clients know that they must shorten the conversation.
        Some("context_length_exceeded") => format!("prompt is too long: {}", error.message),
        _ => error.message.clone(),
    };
    json!({ "type": "error", "error": { "type": kind, "message": message } })
}
