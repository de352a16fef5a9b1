//! What callers send over gRPC, bounded before it is one message: in the room that all of it takes
//! up, and in how slowly it may come.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use aqueduct_core::limits;
use futures::{StreamExt, stream};
use http_body_util::{BodyStream, StreamBody};
use tokio::time::timeout_at;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Bytes, Service, http};
use tonic::server::NamedService;

use crate::bodies::{Held, Pace, Room};
use crate::generation::Generator;

/// How long a caller may be silent while it sends a message.
const SILENCE: Duration = Duration::from_millis(limits::HTTP_READ_TIMEOUT_MS);

/// A service whose callers' bodies are counted.
#[derive(Clone)]
pub(super) struct Receiving<S> {
    service: S,
    generator: Generator,
}

impl<S> Receiving<S> {
    /// In the room, and for the figures, of `generator`.
    pub(super) fn new(service: S, generator: Generator) -> Self {
        Self { service, generator }
    }
}

impl<S: Service<http::Request<Body>>> Service<http::Request<Body>> for Receiving<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> S::Future {
        let (room, held) = (self.generator.room.clone(), InRoom::default());
        request.extensions_mut().insert(held.clone());
        let metrics = self.generator.metrics.clone();
        let refused = move |reason| metrics.rejected(reason);
        self.service.call(request.map(|body| counted(body, (room, held), SILENCE, refused)))
    }
}

impl<S: NamedService> NamedService for Receiving<S> {
    const NAME: &'static str = S::NAME;
}

/// The room of a message, an extension of its request: others have it when nobody holds this.
#[derive(Debug, Clone, Default)]
pub(super) struct InRoom(Arc<Mutex<Held>>);

impl InRoom {
    fn grow(&self, room: &Room, bytes: usize) -> bool {
        room.grow(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner), bytes)
    }
}

/// The same body, which ends with a status where it finds no room, or does not come in time;
/// `refused` is told which, in a word for figures.
fn counted(
    body: Body,
    (room, held): (Room, InRoom),
    silence: Duration,
    refused: impl Fn(&'static str) + Clone + Send + 'static,
) -> Body {
    let start = (BodyStream::new(body), Pace::new(silence));
    let frames = stream::try_unfold(start, move |(mut frames, mut pace)| {
        let (room, held, refused) = (room.clone(), held.clone(), refused.clone());
        async move {
            let next = timeout_at(pace.until(), frames.next()).await.map_err(|_| {
                refused("invalid");
                Status::deadline_exceeded("the message did not come in time")
            })?;
            let Some(frame) = next.transpose()? else { return Ok(None) };
            pace.bytes += frame.data_ref().map_or(0, Bytes::len);
            if !held.grow(&room, pace.bytes) {
                refused("bodies_bytes");
                return Err(Status::resource_exhausted(room.refusal(pace.bytes)));
            }
            Ok(Some((frame, (frames, pace))))
        }
    });
    Body::new(StreamBody::new(frames))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tonic::Code;

    use super::*;
    use crate::bodies::BLOCK_BYTES;

    #[tokio::test]
    async fn a_message_is_bounded_while_it_comes() {
        let check = async |(bytes, pause_ms, parts): (usize, u64, usize), want: Result<_, Code>| {
            let pause = Duration::from_millis(pause_ms);
            let sent = stream::unfold(0, move |part| async move {
                tokio::time::sleep(pause).await;
                let frame = hyper::body::Frame::data(Bytes::from(vec![0; bytes]));
                (part < parts).then_some((Ok::<_, Status>(frame), part + 1))
            });
            let room = (Room::new(2 * BLOCK_BYTES), InRoom::default());
            let body = Body::new(StreamBody::new(sent));
            let body = counted(body, room, Duration::from_secs(1), |_| {});
            let seen = body.collect().await.map(|all| all.to_bytes().len());
            assert_eq!(seen.map_err(|status| status.code()), want, "{parts} parts of {bytes}");
        };
        check((1, 0, 20), Ok(20)).await;
        check((BLOCK_BYTES, 0, 3), Ok(3 * BLOCK_BYTES)).await;
        check((BLOCK_BYTES, 0, 4), Err(Code::ResourceExhausted)).await;
        check((1, 20, 500), Err(Code::DeadlineExceeded)).await;
        check((BLOCK_BYTES, 60_000, 2), Err(Code::DeadlineExceeded)).await;
    }
}
