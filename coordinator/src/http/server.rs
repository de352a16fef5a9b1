//! Accepts connections and gives each its own task, with bounds on how many there are and on
//! how long they may take to say what they want.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{ApiState, router};

/// How long answers under way may take to end after a shutdown began.
const DRAIN_SECONDS: u64 = 30;
/// After an accept that failed, for instance for want of file handles.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown` resolves, then waits a while for answers under way.
pub async fn serve(state: ApiState, listener: TcpListener, shutdown: impl Future<Output = ()>) {
    let connections = Arc::new(Semaphore::new(state.0.options.connections_max));
    let graceful = GracefulShutdown::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let next = std::pin::pin!(accept(&listener, &connections));
        match select(next, &mut shutdown).await {
            Either::Left((Some((stream, permit)), _)) => {
                spawn_connection(&state, &graceful, stream, permit);
            }
            Either::Left((None, _)) => tokio::time::sleep(ACCEPT_PAUSE).await,
            Either::Right(_) => break,
        }
    }
    drop(listener);
    let drain = Duration::from_secs(DRAIN_SECONDS);
    if tokio::time::timeout(drain, graceful.shutdown()).await.is_err() {
        tracing::warn!(seconds = DRAIN_SECONDS, "answers under way were cut off");
    }
}

async fn accept(
    listener: &TcpListener,
    connections: &Arc<Semaphore>,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let permit = connections.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, permit)),
        Err(error) => {
            tracing::warn!(%error, "a connection could not be accepted");
            None
        }
    }
}

fn spawn_connection(
    state: &ApiState,
    graceful: &GracefulShutdown,
    stream: TcpStream,
    permit: OwnedSemaphorePermit,
) {
    // Tokens are small and each is wanted at once.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "nodelay could not be set");
    }
    let service = TowerToHyperService::new(router(state.clone()));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(state.0.options.read_timeout)
        .serve_connection(TokioIo::new(stream), service);
    let connection = graceful.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection ended badly");
        }
        drop(permit);
    });
}
