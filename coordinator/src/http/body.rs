//! Reading a request's body: bounded in size, and in how long it may be silent.

use axum::body::Body;
use axum::http::StatusCode;
use futures::StreamExt;

use super::{ApiError, ApiOptions};

/// # Errors
/// 413 for a body that is too long, 408 for one that does not come, 400 for one that breaks off.
pub(super) async fn read(body: Body, options: &ApiOptions) -> Result<Vec<u8>, ApiError> {
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
            let message = format!("the body is over {} bytes", options.body_bytes_max);
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        bytes.extend_from_slice(&part);
    }
}
