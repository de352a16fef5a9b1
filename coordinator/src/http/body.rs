//! Reading a request's body: bounded in size, and in how long it may be silent.

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use futures::StreamExt;

use super::{ApiError, ApiOptions};

/// # Errors
/// 413 for a body that is too long, 408 for one that does not come, 400 for one that breaks off.
pub(super) async fn read(body: Body, options: &ApiOptions) -> Result<Vec<u8>, ApiError> {
    // A declared length is refused before anybody sends it.
    let too_long = || {
        let message = format!("the body is over {} bytes", options.body_bytes_max);
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    if body.size_hint().lower() > options.body_bytes_max as u64 {
        return Err(too_long());
    }
    let mut stream = body.into_data_stream();
    let mut bytes = Vec::new();
    loop {
        let next = tokio::time::timeout(options.read_timeout, stream.next()).await;
        let next = next.map_err(|_| {
            ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body did not come in time")
        })?;
        let Some(part) = next else { return Ok(bytes) };
        let part = part.map_err(|error| {
            ApiError::new(StatusCode::BAD_REQUEST, format!("the body broke off: {error}"))
        })?;
        if bytes.len() + part.len() > options.body_bytes_max {
            return Err(too_long());
        }
        bytes.extend_from_slice(&part);
    }
}

/// Takes in the body of a request that is answered without it: a client that is still sending may
/// see its connection break and not the answer. Not where the client waits to be told to send, and
/// not what would be too long.
pub(super) async fn pass_over(request: Request, options: &ApiOptions) {
    let waits = request.headers().contains_key(header::EXPECT);
    let body = request.into_body();
    if waits || body.size_hint().lower() > options.body_bytes_max as u64 {
        return;
    }
    let (mut stream, mut bytes) = (body.into_data_stream(), 0);
    while bytes <= options.body_bytes_max
        && let Ok(Some(Ok(part))) = tokio::time::timeout(options.read_timeout, stream.next()).await
    {
        bytes += part.len();
    }
}
