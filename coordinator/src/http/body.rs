//! Reading a request's body: bounded in size, in how slowly it may come, and in how much room all
//! bodies under way take up together.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use futures::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::{ApiError, ApiOptions};

/// What room is counted in. The first of each body is not counted: as many as there may be
/// connections take no more than a few long bodies, and a chat never finds the room taken.
const BLOCK_BYTES: usize = 64 << 10;
/// What a sender has to keep up, on average, beyond the first `read_timeout`.
const BYTES_PER_S_MIN: f64 = 1024.0;
/// When a body that found no room may be sent again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Room for all bodies that are being read or prepared.
#[derive(Debug)]
pub(super) struct Room(Arc<Semaphore>);

impl Room {
    /// For so many bytes.
    pub(super) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes / BLOCK_BYTES)))
    }

    /// Makes `held` enough for a body of so many bytes; whether there was room.
    fn grow(&self, held: &mut Option<OwnedSemaphorePermit>, bytes: usize) -> bool {
        let wanted = bytes.saturating_sub(1) / BLOCK_BYTES;
        let has = held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let Ok(missing) = u32::try_from(wanted.saturating_sub(has)) else { return false };
        if missing == 0 {
            return true;
        }
        let Ok(more) = self.0.clone().try_acquire_many_owned(missing) else { return false };
        match held {
            Some(held) => held.merge(more),
            None => *held = Some(more),
        }
        true
    }
}

/// A body that was read, and its room, which others have when this is dropped.
pub(super) struct Whole {
    bytes: Vec<u8>,
    _room: Option<OwnedSemaphorePermit>,
}

impl Deref for Whole {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// What still comes of a body: never silent for longer than the read timeout, nor slower than
/// [`BYTES_PER_S_MIN`].
struct Parts {
    stream: BodyDataStream,
    silence: Duration,
    start: Instant,
    bytes: usize,
}

impl Parts {
    fn new(body: Body, options: &ApiOptions) -> Self {
        let (stream, silence) = (body.into_data_stream(), options.read_timeout);
        Self { stream, silence, start: Instant::now(), bytes: 0 }
    }

    /// # Errors
    /// 408 for one that does not come, 400 for one that breaks off.
    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        let earned = Duration::from_secs_f64(self.bytes as f64 / BYTES_PER_S_MIN);
        let until = (self.start + self.silence + earned).min(Instant::now() + self.silence);
        let next = timeout_at(until, self.stream.next()).await.map_err(|_| {
            ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body did not come in time")
        })?;
        let part = next.transpose().map_err(|error| {
            ApiError::new(StatusCode::BAD_REQUEST, format!("the body broke off: {error}"))
        })?;
        self.bytes += part.as_ref().map_or(0, Bytes::len);
        Ok(part)
    }

    /// Takes in the rest, up to the longest body there may be.
    async fn pass_over(mut self, bytes_max: usize) {
        while self.bytes <= bytes_max && matches!(self.next().await, Ok(Some(_))) {}
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
        if parts.bytes > bytes_max {
            return Err(too_long());
        }
        if !room.grow(&mut held, parts.bytes) {
            drop((bytes, held));
            // Else its sender may see the connection break, and not the answer.
            parts.pass_over(bytes_max).await;
            let message = "the bodies of other calls leave no room for this one";
            let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message);
            let (code, retry_after) = (Some("unavailable"), Some(RETRY_AFTER));
            return Err(ApiError { code, retry_after, ..error });
        }
        bytes.extend_from_slice(&part);
    }
    Ok(Whole { bytes, _room: held })
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
    Parts::new(body, options).pass_over(options.body_bytes_max).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_taken_as_a_body_grows() {
        let room = Room::new(4 * BLOCK_BYTES);
        let (mut first, mut second) = (None, None);
        let grow = |held: &mut _, blocks: usize| room.grow(held, blocks * BLOCK_BYTES);
        assert!(grow(&mut first, 1) && first.is_none(), "the first block is not counted");
        assert!(grow(&mut first, 3) && grow(&mut first, 4));
        assert!(grow(&mut second, 2));
        assert!(!grow(&mut second, 3), "three of four blocks are the other's");
        assert!(grow(&mut second, 1), "and what it has is enough for less");
        drop(first);
        assert!(grow(&mut second, 5));
        assert!(!grow(&mut None, 2) && grow(&mut None, 1));
    }

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
