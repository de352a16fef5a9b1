//! Callers who speak gRPC to a port of HTTP/1.1: they are told so. Left to the parser of HTTP/1.1
//! they would see a connection that breaks, with another error by whichever end was faster.

use std::convert::Infallible;
use std::time::Duration;

use aqueduct_tls::Closing;
use bytes::Bytes;
use futures::future::{Either, select};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::Status;

/// How HTTP/2 begins (RFC 9113, section 3.4), and no request of HTTP/1.1 that is served here.
const PREFACE: &[u8] = b"PRI";

/// Whether who has connected speaks HTTP/2 without having been asked to, as gRPC does where there
/// is no TLS: looks at the first bytes and leaves them to be read. `None` if there are none within
/// `patience`, or before `closing`.
pub(super) async fn is_astray(
    stream: &TcpStream,
    patience: Duration,
    closing: Closing,
) -> Option<bool> {
    let looked = std::pin::pin!(timeout(patience, look(stream)));
    match select(looked, closing).await {
        Either::Left((seen, _)) => seen.ok()?,
        Either::Right(_) => None,
    }
}

async fn look(stream: &TcpStream) -> Option<bool> {
    let mut first = [0; PREFACE.len()];
    let length = stream.peek(&mut first).await.ok()?;
    (length > 0).then_some(&first[..length] == PREFACE)
}

/// Answers every call with where to go, until the caller leaves or `patience` ends.
pub(super) async fn send_home(stream: TcpStream, patience: Duration) {
    let connection = http2::Builder::new(TokioExecutor::new())
        .max_concurrent_streams(1)
        .serve_connection(TokioIo::new(stream), service_fn(refuse));
    if let Ok(Err(error)) = timeout(patience, connection).await {
        tracing::debug!(%error, "a connection ended badly");
    }
}

async fn refuse(_: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Infallible> {
    let said = "this port speaks HTTP/1.1: gRPC has one of its own (7070 unless told otherwise)";
    Ok(Status::unimplemented(said).into_http())
}
