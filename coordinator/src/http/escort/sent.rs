//! What a caller sends, to be sent on as often as it takes.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, BodyDataStream, Bytes, HttpBody};
use futures::{StreamExt, stream};
use http_body_util::StreamBody;
use hyper::body::{Frame, SizeHint};
use tokio::sync::Mutex as Turn;

use crate::bodies::{Held, Room};

/// So much of what is kept is sent on at once.
const PART_BYTES: usize = 64 << 10;

/// What a caller sends, of which all is known that has come as long as there was room for it.
#[derive(Clone)]
pub(super) struct Sent(Arc<Source>);

struct Source {
    room: Room,
    kept: Mutex<Kept>,
    /// What has not come yet; whoever sends it on last takes it.
    rest: Turn<Option<BodyDataStream>>,
    hint: SizeHint,
}

#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    held: Held,
    /// Whether any of it has come.
    has_come: bool,
    /// Whether some of what has come is not known any more.
    is_spent: bool,
}

impl Sent {
    /// As long as there is `room`.
    pub(super) fn new(body: Body, room: Room) -> Self {
        let (hint, kept) = (body.size_hint(), Mutex::default());
        let rest = Turn::new(Some(body.into_data_stream()));
        Self(Arc::new(Source { room, kept, rest, hint }))
    }

    /// What is sent but once.
    pub(super) fn once(body: Body) -> Self {
        let sent = Self::new(body, Room::new(0));
        sent.kept().is_spent = true; // as soon as any of it has come
        sent
    }

    /// All of it, as it comes; `None` if something of it is not known any more.
    pub(super) fn body(&self) -> Option<Body> {
        let is_whole = {
            let kept = self.kept();
            !(kept.has_come && kept.is_spent)
        };
        is_whole.then(|| self.parts())
    }

    fn parts(&self) -> Body {
        let parts = stream::unfold((self.clone(), 0), |(sent, at)| async move {
            let part = sent.part(at).await?;
            let bytes = part.as_ref().map_or(0, Bytes::len);
            Some((part.map(Frame::data), (sent, at + bytes)))
        });
        let (parts, hint) = (StreamBody::new(parts.boxed()), self.0.hint);
        Body::new(Hinted { parts, hint })
    }

    async fn part(&self, at: usize) -> Option<Result<Bytes, axum::Error>> {
        if let Some(part) = self.kept().part(at) {
            return Some(Ok(part));
        }
        let mut rest = self.0.rest.lock().await;
        // Whoever had it before may have taken more in.
        if let Some(part) = self.kept().part(at) {
            return Some(Ok(part));
        }
        let part = match rest.as_mut()?.next().await {
            Some(Ok(part)) => part,
            end => {
                *rest = None;
                // One that has broken off is not whole the next time either.
                let mut kept = self.kept();
                kept.has_come = true;
                kept.is_spent |= end.is_some();
                return end;
            }
        };
        self.kept().keep(&part, &self.0.room);
        Some(Ok(part))
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Every change leaves it whole.
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn part(&self, at: usize) -> Option<Bytes> {
        let bytes = self.bytes.get(at..).filter(|bytes| !bytes.is_empty())?;
        Some(Bytes::copy_from_slice(&bytes[..bytes.len().min(PART_BYTES)]))
    }

    fn keep(&mut self, part: &Bytes, room: &Room) {
        self.has_come = true;
        let bytes = self.bytes.len() + part.len();
        if self.is_spent || !room.grow(&mut self.held, bytes) {
            *self = Self { has_come: true, is_spent: true, ..Self::default() };
            return;
        }
        self.bytes.extend_from_slice(part);
    }
}

/// A body that says how long it is, so that one which is too long is refused before it comes.
struct Hinted<B> {
    parts: B,
    hint: SizeHint,
}

impl<B: HttpBody + Unpin> HttpBody for Hinted<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.parts).poll_frame(cx)
    }

    fn size_hint(&self) -> SizeHint {
        self.hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bodies::BLOCK_BYTES;

    #[tokio::test]
    async fn what_was_sent_is_sent_again_from_its_beginning() {
        let part = |text: &'static str| Ok::<_, axum::Error>(Bytes::from_static(text.as_bytes()));
        let parts = stream::iter([part("a"), part(""), part("bc"), part("def")]);
        let sent = Sent::new(Body::from_stream(parts), Room::new(0));
        let mut first = sent.body().unwrap().into_data_stream();
        assert_eq!(first.next().await.unwrap().unwrap(), "a");
        drop(first); // with whoever had it
        for _ in 0..2 {
            let body = axum::body::to_bytes(sent.body().unwrap(), usize::MAX).await;
            assert_eq!(body.unwrap(), "abcdef");
        }
    }

    #[tokio::test]
    async fn what_there_was_no_room_for_is_sent_once() {
        let part = || Ok::<_, axum::Error>(Bytes::from(vec![b' '; BLOCK_BYTES]));
        let parts = stream::iter([part(), part()]);
        let sent = Sent::new(Body::from_stream(parts), Room::new(0));
        let body = sent.body().unwrap();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        assert_eq!(body.len(), 2 * BLOCK_BYTES);
        assert!(sent.body().is_none());
    }

    #[tokio::test]
    async fn what_is_sent_once_may_be_looked_for_more_often() {
        let sent = Sent::once(Body::from("a"));
        drop(sent.body().unwrap()); // whoever it was for was not reached
        let body = sent.body().unwrap();
        assert_eq!(axum::body::to_bytes(body, usize::MAX).await.unwrap(), "a");
        assert!(sent.body().is_none());
    }

    #[tokio::test]
    async fn what_broke_off_is_not_sent_again() {
        let broken = || Err(axum::Error::new(std::io::Error::other("it broke off")));
        let parts = stream::iter([Ok(Bytes::from_static(b"a")), broken()]);
        let sent = Sent::new(Body::from_stream(parts), Room::new(0));
        assert!(axum::body::to_bytes(sent.body().unwrap(), usize::MAX).await.is_err());
        assert!(sent.body().is_none());
    }
}
