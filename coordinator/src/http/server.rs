//! Accepts connections and gives each its own task, with bounds on how many there are and on
//! how long they may take to say what they want.

use std::future::Future;
use std::time::{Duration, Instant};

use aqueduct_core::limits;
use aqueduct_tls::{Conn, Counted, Door, Listener, ServerTls, UnderWay, Visit};
use axum::Router;
use futures::future::{BoxFuture, Either, select};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout_at;

use super::{ApiOptions, ApiState, astray, names, router, watched};

/// Serves the API until `shutdown` resolves, then waits for answers under way, until the instant
/// that it names at most.
pub async fn serve(
    state: ApiState,
    listener: impl Into<Listener>,
    shutdown: impl Future<Output = Instant> + Send,
) {
    let listener = listener.into();
    let ApiOptions { connections_max, read_timeout, .. } = state.0.options;
    let bounds = Bounds { connections_max, read_timeout };
    // A certificate, like a key, is nothing that a page has that calls itself by its own name.
    let is_open = state.0.keys.is_none() && listener.tls.is_none();
    let here = listener.tcp.local_addr().is_ok_and(names::is_of_this_machine);
    serve_routes(router(state, is_open && here), bounds, listener, shutdown).await;
}

/// Serves only what tells how the server is, as long as [`serve`] would.
pub async fn monitor(
    state: ApiState,
    tcp: TcpListener,
    shutdown: impl Future<Output = Instant> + Send,
) {
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

/// Serves `routes`, as long as [`serve`] would.
pub async fn serve_routes(
    routes: Router,
    bounds: Bounds,
    listener: impl Into<Listener>,
    shutdown: impl Future<Output = Instant> + Send,
) {
    accept_all(routes, bounds, listener.into(), Box::pin(shutdown)).await;
}

/// The same. Boxed, it is compiled here, and not again in each crate that waits for it.
fn accept_all(
    routes: Router,
    bounds: Bounds,
    Listener { tcp, tls }: Listener,
    mut shutdown: BoxFuture<'_, Instant>,
) -> BoxFuture<'_, ()> {
    Box::pin(async move {
        let under_way = UnderWay::default();
        let door = Door::new(tcp, bounds.connections_max, &under_way);
        let graceful = GracefulShutdown::new();
        let by = loop {
            let next = std::pin::pin!(door.accept());
            match select(next, &mut shutdown).await {
                Either::Left((Some((stream, visit)), _)) => {
                    let (tls, timeout) = (tls.clone(), bounds.read_timeout);
                    let entering = Entering { stream, visit, tls, timeout };
                    tokio::spawn(converse(routes.clone(), graceful.watcher(), entering));
                }
                Either::Left((None, _)) => {}
                Either::Right((by, _)) => break by,
            }
        };
        drop(door);
        if timeout_at(by.into(), graceful.shutdown()).await.is_err() {
            under_way.tell_lost();
        }
    })
}

/// A connection that was accepted.
struct Entering {
    stream: TcpStream,
    visit: Visit,
    /// Plaintext if `None`.
    tls: Option<ServerTls>,
    timeout: Duration,
}

async fn converse(routes: Router, watcher: Watcher, entering: Entering) {
    let Entering { stream, visit, tls, timeout } = entering;
    // Tokens are small and each is wanted at once.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "nodelay could not be set");
    }
    let closing = visit.closing.clone();
    let conn = match tls {
        None => match astray::is_astray(&stream, timeout, closing).await {
            Some(false) => Conn::from(stream),
            Some(true) => {
                drop(watcher); // who ends does not wait for somebody who is wrong here
                return astray::send_home(stream, timeout).await;
            }
            None => return,
        },
        Some(tls) => match select(std::pin::pin!(tls.accept(stream)), closing).await {
            Either::Left((Ok(conn), _)) => conn,
            _ => return,
        },
    };
    let conn = conn.within(visit);
    let routes = Counted::of(routes, conn.caller().clone());
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(timeout)
        .serve_connection(TokioIo::new(conn), TowerToHyperService::new(routes));
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "a connection ended badly");
    }
}
