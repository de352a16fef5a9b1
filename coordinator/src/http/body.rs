//! Reading a request's body: bounded in size, in how slowly it may come, and in how much room all
//! bodies under way take up together.

use std::ops::Deref;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use futures::StreamExt;
use tokio::time::timeout_at;

use super::{ApiError, ApiOptions};
use crate::bodies::{Held, Pace, Room};

/// When a body that found no room may be sent again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A body that was read, and its room, which others have when this is dropped.
pub(super) struct Whole {
    bytes: Vec<u8>,
    _room: Held,
}

impl Deref for Whole {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// What still comes of a body.
struct Parts {
    stream: BodyDataStream,
    pace: Pace,
}

impl Parts {
    fn new(body: Body, options: &ApiOptions) -> Self {
        Self { stream: body.into_data_stream(), pace: Pace::new(options.read_timeout) }
    }

    /// # Errors
    /// 408 for one that does not come, 400 for one that breaks off.
    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        let next = timeout_at(self.pace.until(), self.stream.next()).await.map_err(|_| {
            ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body did not come in time")
        })?;
        let part = next.transpose().map_err(|error| {
            ApiError::new(StatusCode::BAD_REQUEST, format!("the body broke off: {error}"))
        })?;
        self.pace.bytes += part.as_ref().map_or(0, Bytes::len);
        Ok(part)
    }

    /// Takes in the rest, up to the longest body there may be.
    async fn pass_over(mut self, bytes_max: usize) {
        while self.pace.bytes <= bytes_max && matches!(self.next().await, Ok(Some(_))) {}
    }
}

/// # Errors
/// 413 for a body that is too long, 408 for one that does not come, 400 for one that breaks off,
/// 503 where those of others leave no room for it.
pub(super) async fn read(body: Body, room: &Room, options: &ApiOptions) -> Result<Whole, ApiError> {
    // A declared length is refused before anybody sends it.
    let bytes_max = options.body_bytes_max;
    let too_long = || {
        let message = format!("the body is over {bytes_max} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_long());
    }
    let (mut parts, mut bytes, mut held) = (Parts::new(body, options), Vec::new(), None);
    while let Some(part) = parts.next().await? {
        if parts.pace.bytes > bytes_max {
            return Err(too_long());
        }
        if !room.grow(&mut held, parts.pace.bytes) {
            let message = room.refusal(parts.pace.bytes);
            drop((bytes, held));
            // Else its sender may see the connection break, and not the answer.
            parts.pass_over(bytes_max).await;
            let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message);
            let (code, retry_after) = (Some("unavailable"), Some(RETRY_AFTER));
            return Err(ApiError { code, retry_after, ..error });
        }
        bytes.extend_from_slice(&part);
    }
    Ok(Whole { bytes, _room: held })
}

/// Takes in the body of a request that is answered without it: a client that is still sending may
/// see its connection break and not the answer. Not what would be too long.
pub(super) async fn pass_over(body: Body, options: &ApiOptions) {
    if body.size_hint().lower() <= options.body_bytes_max as u64 {
        Parts::new(body, options).pass_over(options.body_bytes_max).await;
    }
}

/// The same of a request, but not where the client waits to be told to send.
pub(crate) async fn pass_over_request(request: Request, options: &ApiOptions) {
    if !request.headers().contains_key(header::EXPECT) {
        pass_over(request.into_body(), options).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bodies::BLOCK_BYTES;

    #[tokio::test]
    async fn a_body_that_trickles_does_not_come_in_time() {
        let read_timeout = Duration::from_secs(1);
        let options = ApiOptions { read_timeout, ..ApiOptions::new("m") };
        let check = async |bytes: usize, pause_ms: u64, parts: usize, want: Result<_, u16>| {
            let pause = Duration::from_millis(pause_ms);
            let stream = futures::stream::unfold(0, move |part| async move {
                tokio::time::sleep(pause).await;
                let bytes = Ok::<_, std::io::Error>(vec![b' '; bytes]);
                (part < parts).then_some((bytes, part + 1))
            });
            let whole = read(Body::from_stream(stream), &Room::new(0), &options).await;
            let seen = whole.map(|whole| whole.len()).map_err(|error| error.status.as_u16());
            assert_eq!(seen, want, "{parts} parts of {bytes} bytes");
        };
        check(1, 0, 20, Ok(20)).await;
        check(BLOCK_BYTES / 8, 50, 8, Ok(BLOCK_BYTES)).await;
        check(1, 20, 500, Err(408)).await;
        check(BLOCK_BYTES / 8, 60_000, 2, Err(408)).await;
        check(BLOCK_BYTES + 1, 0, 1, Err(503)).await;
    }
}
