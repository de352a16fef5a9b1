//! What a worker tells those who watch it, over plain HTTP: figures, and whether it lives. The
//! port of sessions and frames is for members of the cluster alone.

use aqueduct_coordinator::http::{Bounds, serve_routes};
use aqueduct_telemetry::page_for;
use aqueduct_tls::Refusals;
use aqueduct_worker::{Worker, metrics};
use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

/// Answers on `listener` for as long as the handle lives.
pub(crate) fn spawn(
    worker: &Worker,
    refusals: Refusals,
    listener: TcpListener,
) -> AbortOnDropHandle<()> {
    let (worker, draining) = (worker.clone(), worker.draining());
    let ready = move || {
        let stops = *draining.borrow();
        let status = if stops { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
        std::future::ready((status, if stops { "going to stop" } else { "ok" }))
    };
    let render = move |headers: HeaderMap| {
        let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
        let (kind, text) = page_for(accept, &metrics::registry(&worker, &refusals));
        std::future::ready(([(header::CONTENT_TYPE, kind)], text))
    };
    let routes = Router::new()
        .route("/metrics", get(render))
        .route("/livez", get(|| async { "ok" }))
        .route("/readyz", get(ready));
    let serving = serve_routes(routes, Bounds::default(), listener, std::future::pending());
    AbortOnDropHandle::new(tokio::spawn(serving))
}
