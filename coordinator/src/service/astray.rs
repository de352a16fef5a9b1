//! Callers who speak HTTP/1.1 to the port of gRPC, as OpenAI's clients and curl do: they are told
//! so. Without, they would see a connection that ends, or bytes of HTTP/2 that they cannot read.

use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::http::{ApiError, ApiOptions, pass_over_request};

/// Answers what did not come over HTTP/2 with where to go.
pub(super) async fn send_home(request: Request, next: Next) -> Response {
    if request.version() >= Version::HTTP_2 {
        return next.run(request).await;
    }
    pass_over_request(request, &ApiOptions::new("")).await;
    let said = "this port speaks gRPC: HTTP/1.1 has one of its own (8080 unless told otherwise)";
    let mut response = ApiError::new(StatusCode::BAD_REQUEST, said).into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
