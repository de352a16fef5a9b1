//! Accepts connections and gives each its own task, with bounds on how many there are and on
//! how long they may take to say what they want.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_core::limits;
use aqueduct_tls::{Conn, Listener, ServerTls};
use axum::{Extension, Router};
use futures::future::{BoxFuture, Either, select};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::{ApiOptions, ApiState, astray, names, router, watched};

/// How long answers under way may take to end after a shutdown began.
const DRAIN_SECONDS: u64 = 30;

/// Serves the API until `shutdown` resolves, then waits a while for answers under way.
pub async fn serve(
    state: ApiState,
    listener: impl Into<Listener>,
    shutdown: impl Future<Output = ()> + Send,
) {
    let listener = listener.into();
    let ApiOptions { connections_max, read_timeout, .. } = state.0.options;
    let bounds = Bounds { connections_max, read_timeout };
    // A certificate, like a key, is nothing that a page has that calls itself by its own name.
    let is_open = state.0.keys.is_none() && listener.tls.is_none();
    let here = listener.tcp.local_addr().is_ok_and(names::is_of_this_machine);
    serve_routes(router(state, is_open && here), bounds, listener, shutdown).await;
}

/// Serves only what tells how the server is, until `shutdown` resolves.
pub async fn monitor(state: ApiState, tcp: TcpListener, shutdown: impl Future<Output = ()> + Send) {
    serve_routes(watched().with_state(state), Bounds::default(), tcp, shutdown).await;
}

/// What one listener takes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Connections that are served at once; more wait to be accepted.
    pub connections_max: usize,
    /// How long a connection may be silent while it sends a request.
    pub read_timeout: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        let read_timeout = Duration::from_millis(limits::HTTP_READ_TIMEOUT_MS);
        Self { connections_max: limits::HTTP_CONNECTIONS_MAX, read_timeout }
    }
}

/// Serves `routes` until `shutdown` resolves, then waits a while for answers under way.
pub async fn serve_routes(
    routes: Router,
    bounds: Bounds,
    listener: impl Into<Listener>,
    shutdown: impl Future<Output = ()> + Send,
) {
    accept_all(routes, bounds, listener.into(), Box::pin(shutdown)).await;
}

/// The same. Boxed, it is compiled here, and not again in each crate that waits for it.
fn accept_all(
    routes: Router,
    bounds: Bounds,
    Listener { tcp, tls }: Listener,
    mut shutdown: BoxFuture<'_, ()>,
) -> BoxFuture<'_, ()> {
    Box::pin(async move {
        let connections = Arc::new(Semaphore::new(bounds.connections_max));
        let graceful = GracefulShutdown::new();
        let closing = watch::Sender::new(());
        loop {
            let next = std::pin::pin!(accept(&tcp, &connections));
            match select(next, &mut shutdown).await {
                Either::Left((Some((stream, permit)), _)) => {
                    let timeout = bounds.read_timeout;
                    let (tls, closing) = (tls.clone(), closing.subscribe());
                    let entering = Entering { stream, tls, timeout, closing, _permit: permit };
                    tokio::spawn(converse(routes.clone(), graceful.watcher(), entering));
                }
                Either::Left((None, _)) => {}
                Either::Right(_) => break,
            }
        }
        drop((tcp, closing));
        let drain = Duration::from_secs(DRAIN_SECONDS);
        if tokio::time::timeout(drain, graceful.shutdown()).await.is_err() {
            tracing::warn!(seconds = DRAIN_SECONDS, "answers under way were cut off");
        }
    })
}

async fn accept(
    listener: &TcpListener,
    connections: &Arc<Semaphore>,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let permit = connections.clone().acquire_owned().await.ok()?;
    let stream = listener.accept().await.map(|(stream, _)| stream);
    Some((aqueduct_tls::accepted(stream).await?, permit))
}

/// A connection that was accepted, and its place among those that are served.
struct Entering {
    stream: TcpStream,
    /// Plaintext if `None`.
    tls: Option<ServerTls>,
    timeout: Duration,
    /// Ends when the server begins to.
    closing: watch::Receiver<()>,
    _permit: OwnedSemaphorePermit,
}

async fn converse(routes: Router, watcher: Watcher, entering: Entering) {
    let Entering { stream, tls, timeout, mut closing, _permit } = entering;
    // Tokens are small and each is wanted at once.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "nodelay could not be set");
    }
    let conn = match tls {
        None => match astray::is_astray(&stream, timeout, &mut closing).await {
            Some(false) => Conn::from(stream),
            Some(true) => return astray::send_home(stream, timeout).await,
            None => return,
        },
        Some(tls) => match tls.accept(stream).await {
            Ok(conn) => conn,
            Err(_) => return,
        },
    };
    let service = TowerToHyperService::new(routes.layer(Extension(conn.caller().clone())));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(timeout)
        .serve_connection(TokioIo::new(conn), service);
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "a connection ended badly");
    }
}
