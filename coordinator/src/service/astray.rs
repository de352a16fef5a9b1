//! Callers who speak HTTP/1.1 to the port of gRPC, as OpenAI's clients and curl do: they are told
//! so. Without, they would see a connection that ends, or bytes of HTTP/2 that they cannot read.

use std::time::Duration;

use aqueduct_core::limits;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use tokio::time::timeout;

use crate::http::ApiError;

/// How long the rest of a request is read for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Answers what did not come over HTTP/2 with where to go.
pub(super) async fn send_home(request: Request, next: Next) -> Response {
    if request.version() >= Version::HTTP_2 {
        return next.run(request).await;
    }
    // Who still sends a long prompt would see its connection break, and no answer.
    let _ = timeout(PATIENCE, pass_over(request.into_body())).await;
    let said = "this port speaks gRPC: HTTP/1.1 has one of its own (8080 unless told otherwise)";
    let mut response = ApiError::new(StatusCode::BAD_REQUEST, said).into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

async fn pass_over(body: Body) {
    let mut parts = body.into_data_stream();
    let mut left = limits::PROMPT_BYTES_MAX;
    while let Some(Ok(part)) = parts.next().await {
        match left.checked_sub(part.len()) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}
