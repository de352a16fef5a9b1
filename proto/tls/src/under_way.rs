//! Calls that are being answered, by which a server that ends knows what to wait for.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};
use std::time::Instant;

use futures::future::{BoxFuture, Either, select};
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::oneshot;
use tokio::time::timeout_at;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response, Version};

use crate::role::Caller;

/// What all of gRPC's own services are called: health may be watched for ever, and reflection
/// asked. They are answered, but nobody waits for their end.
const OF_GRPC: &str = "/grpc.";

/// How many calls are answered on a connection, and on all of its server. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct UnderWay {
    here: Arc<AtomicUsize>,
    all: Arc<AtomicUsize>,
}

impl UnderWay {
    /// That of another connection of the same server.
    pub(crate) fn of_another(&self) -> Self {
        Self { here: Arc::default(), all: self.all.clone() }
    }

    /// Whether any are on this connection.
    pub(crate) fn is_any_here(&self) -> bool {
        self.here.load(Ordering::Relaxed) > 0
    }

    fn begin(&self) -> Begun {
        self.here.fetch_add(1, Ordering::Relaxed);
        self.all.fetch_add(1, Ordering::Relaxed);
        Begun(self.clone())
    }

    /// Says how many are lost with a server that ends now, if any are.
    pub fn tell_lost(&self) {
        let answers = self.all.load(Ordering::Relaxed);
        if answers > 0 {
            tracing::warn!(answers, "answers under way were cut off");
        }
    }

    /// Lets `serving` go on until `shutdown`; then drops `stop`, which is to have it end, and waits
    /// for that until the instant that `shutdown` names. `None` if it had not ended by then.
    pub async fn drain<T>(
        &self,
        serving: impl Future<Output = T>,
        shutdown: impl Future<Output = Instant>,
        stop: oneshot::Sender<()>,
    ) -> Option<T> {
        let serving = pin!(serving);
        let (by, serving) = match select(serving, pin!(shutdown)).await {
            Either::Left((served, _)) => return Some(served),
            Either::Right(ended) => ended,
        };
        drop(stop);
        let served = timeout_at(by.into(), serving).await.ok();
        if served.is_none() {
            self.tell_lost();
        }
        served
    }
}

/// One call, from when it is known whole until its answer has been told.
#[derive(Debug)]
struct Begun(UnderWay);

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.here.fetch_sub(1, Ordering::Relaxed);
        self.0.all.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A call of which half may have come so far.
#[derive(Debug)]
struct Coming {
    under_way: UnderWay,
    begun: OnceLock<Begun>,
}

impl Coming {
    fn begin(&self) {
        self.begun.get_or_init(|| self.under_way.begin());
    }
}

/// Counts the calls of connections that come from a [`Listener`](crate::Listener), or are
/// [`Conn::within`](crate::Conn::within) a door.
#[derive(Debug, Clone)]
pub struct Counted<S> {
    service: S,
    /// Told to `service` with each call, where nobody else does.
    caller: Option<Caller>,
}

impl<S> Counted<S> {
    /// Those that `service` answers, which hear whose they are from tonic.
    pub fn new(service: S) -> Self {
        Self { service, caller: None }
    }

    /// Those that `service` answers on the connection of `caller`.
    pub fn of(service: S, caller: Caller) -> Self {
        Self { service, caller: Some(caller) }
    }
}

impl<S, Q, A> Service<Request<Q>> for Counted<S>
where
    S: Service<Request<Heard<Q>>, Response = Response<A>>,
    S::Future: Send + 'static,
    Q: Body,
{
    type Response = Response<Told<A>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Q>) -> Self::Future {
        if let Some(caller) = &self.caller {
            request.extensions_mut().insert(caller.clone());
        }
        let caller = request.extensions().get::<Caller>();
        let caller = caller.filter(|_| !request.uri().path().starts_with(OF_GRPC));
        let under_way = caller.map(|caller| caller.under_way().clone());
        let coming = under_way.map(|it| Arc::new(Coming { under_way: it, begun: OnceLock::new() }));
        // Who streams over HTTP/2 may say its last when it has heard the last.
        let is_whole = request.version() >= Version::HTTP_2 || request.body().is_end_stream();
        if let Some(coming) = coming.as_ref().filter(|_| is_whole) {
            coming.begin();
        }
        let heard = coming.as_ref().map(Arc::downgrade).unwrap_or_default();
        let answer = self.service.call(request.map(|body| Heard { body, coming: heard }));
        Box::pin(async move {
            let answer = answer.await?;
            if let Some(coming) = &coming {
                coming.begin();
            }
            Ok(answer.map(|body| Told { body, _coming: coming }))
        })
    }
}

/// What is asked. When all of it has come, or nobody wants the rest, a call is under way; not for
/// longer than its answer, though a task may keep this.
#[derive(Debug)]
pub struct Heard<Q> {
    body: Q,
    coming: Weak<Coming>,
}

impl<Q> Heard<Q> {
    fn is_whole(&self) {
        if let Some(coming) = self.coming.upgrade() {
            coming.begin();
        }
    }
}

impl<Q> Drop for Heard<Q> {
    fn drop(&mut self) {
        self.is_whole();
    }
}

impl<Q: Body + Unpin> Body for Heard<Q> {
    type Data = Q::Data;
    type Error = Q::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Q::Data>, Q::Error>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None)) {
            this.is_whole();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// What is answered, until it has been told.
#[derive(Debug)]
pub struct Told<A> {
    body: A,
    _coming: Option<Arc<Coming>>,
}

impl<A: Body + Unpin> Body for Told<A> {
    type Data = A::Data;
    type Error = A::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<A::Data>, A::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
